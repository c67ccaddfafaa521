"""What a study takes: `pronto evaluate` with its default methods, against a bare step of a default node."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.row import Row
from prontosched.evaluation.evaluate import evaluate
from prontosched.evaluation.generators import plan_control
from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.methods import default_methods


def study_rows() -> Iterator[Row]:
    """Yield the processor time of a node-step on VMs of the paper's shape, few and many."""
    setting = Setting(methods=default_methods())
    for nodes, steps, most in ((2, 8000, 5.0), (8, 4000, 5.0), (64, 2500, None), (256, 1500, None)):
        plan = plan_control("paper", nodes=nodes, steps=steps, seed=7)
        found = evaluate(plan, setting, workers=1, data="paper", timed=True).outcome["performance"]["timing"]
        label = f"study of {nodes} nodes, {len(setting.methods)} methods"
        yield Row(f"{label}: against a bare default step", found["times_a_bare_step"], "times", most)
        micro = found["microseconds_per_node_step"]
        yield Row(f"{label}: processor time of a node-step", micro, "µs", 60.0 if nodes >= 64 else None)
