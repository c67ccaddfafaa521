"""An evaluation from beginning to end: parts to workers, results to numbers.

Covers: what `pronto evaluate` does between its arguments and its output.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from prontosched.errors import TelemetryError
from prontosched.evaluation import engines
from prontosched.evaluation.goals import goals
from prontosched.evaluation.inputs import Part, Plan
from prontosched.evaluation.methods import choose
from prontosched.evaluation.outcome import machine, outcome
from prontosched.evaluation.replay import Progress
from prontosched.evaluation.setting import Setting
from prontosched.evaluation.speed import paper_scale, timing
from prontosched.evaluation.study import Study
from prontosched.evaluation.truth import Truth

# A threshold that more of the steps reach tells nothing apart.
MOST_SPIKES = 0.5


@dataclass(slots=True)
class Evaluation:
    """Everything an evaluation gave.

    Attributes
    ----------
    study
        Numbers node by node, for figures.
    outcome
        What `--json` prints.
    warnings
        One line each, for a person.
    first
        The part from which examples are drawn.
    """

    study: Study
    outcome: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    first: Part | None = None


def evaluate(
    plan: Plan,
    setting: Setting,
    *,
    engine: str = "local",
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    command: str = "",
    data: str = "traces",
    timed: bool = False,
) -> Evaluation:
    """Evaluate all parts of a plan.

    Parameters
    ----------
    data
        What they are: `traces`, `shipped` for Pronto's own, or the name of a generated fleet.
    command
        How this was asked for, to be written down.
    timed
        Also measure a bare step of a node, and say how many of those a step of this study took.

    Raises
    ------
    TelemetryError
        If not a single node could be evaluated.
    """
    methods = choose(setting.methods, setting.sweeps)
    began = time.perf_counter()
    results = engines.run(
        plan.parts, setting, engine=engine, workers=workers, scheduler=scheduler, progress=progress
    )
    elapsed = time.perf_counter() - began
    study = Study(results, setting, methods)
    for result in results:
        plan.refused.update(result.refused)
    if not study.nodes:
        raise TelemetryError(_nothing(study, plan))
    found = outcome(study)
    found["data"]["refused"] = plan.refused
    found["development"] = data == "shipped" or _developed_on(study)
    found["goals"] = goals(study, data)
    found["command"] = command
    found["version"] = version("prontosched")
    steps = sum(result.node_steps for result in results)
    used = workers or engines.cores()
    found["performance"] = {
        **machine(),
        "engine": engine,
        "workers": used,
        "chunks": len(plan.parts),
        "seconds": round(elapsed, 3),
        "node_steps": steps,
        "processor_seconds": round(sum(result.seconds for result in results), 3),
        "paper_data_set": paper_scale(steps, sum(result.seconds for result in results), elapsed, used),
    }
    if timed:
        found["performance"]["timing"] = timing(results, plan.parts[0])
    return Evaluation(study, found, _warnings(study, plan), plan.parts[0])


def _developed_on(study: Study) -> bool:
    """Tell whether these are the machines that were looked at while the signals were made."""
    return all(node.node.startswith("machine-1-") for node in study.nodes)


def _nothing(study: Study, plan: Plan) -> str:
    if plan.refused and not study.too_short:
        return next(iter(plan.refused.values()))
    node = study.too_short[0] if study.too_short else None
    if node is None:
        return "no trace has a single row that can be used"
    if node.steps == 0:
        return (
            f"{node.node}: CPU Ready is unknown in every row: scoring needs it, name its column with --ready"
        )
    return (
        f"{node.node}: at least 50 moments whose next {study.setting.horizon} steps are known are needed, "
        f"got {node.scored} from {node.steps} rows: record for longer"
    )


def _warnings(study: Study, plan: Plan) -> list[str]:
    lines = [f"left out: {reason}" for reason in plan.refused.values()]
    seen: dict[str, int] = {}
    for counts in study.passes:
        for line in counts.warnings():
            seen[line] = seen.get(line, 0) + 1
    lines += [line if n == 1 else f"{line} ({n} times)" for line, n in seen.items()]
    if study.too_short:
        names = ", ".join(node.node for node in study.too_short[:4])
        more = f" and {len(study.too_short) - 4} more" if len(study.too_short) > 4 else ""
        lines.append(f"too short to score, left out: {names}{more}")
    lines += _about_truth(study)
    quiet = [node.node for node in study.nodes if node.spikes == 0]
    if quiet and len(quiet) < len(study.nodes):
        lines.append(
            f"{len(quiet)} of {len(study.nodes)} nodes have no spike: they count towards downtime only"
        )
    thin = [result.thinning for result in study.results if result.thinning > 1]
    if thin:
        stretch = max(result.stretch for result in study.results)
        lines.append(
            f"ranking measures and nulls are from every {max(thin)}. stretch of {stretch} steps, to bound memory"
        )
    return lines


def _about_truth(study: Study) -> list[str]:
    """Warn of a fixed threshold that nearly every step, or none, reaches, and suggest another."""
    truth = Truth.parse(study.setting.truth)
    share = sum(node.spikes for node in study.nodes) / max(1, sum(node.steps for node in study.nodes))
    if truth.kind != "fixed" or 0 < share < MOST_SPIKES:
        return []
    result = next(result for result in study.results if result.nodes)
    middle, high = result.ready_levels
    unit = {"percent": "%", "ms": "ms"}.get(result.ready_unit, "")
    what = f"{share:.0%} of the steps are" if share else "no step is"
    return [
        f"{what} a spike by --truth {study.setting.truth}: CPU Ready in '{result.ready_column}' is usually "
        f"{middle:.3g}{unit} and above {high:.3g}{unit} a twentieth of the time; "
        f"try --truth p95 or --truth {high:.2g}{unit}"
    ]
