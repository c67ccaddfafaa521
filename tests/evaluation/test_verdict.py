"""Is it worth obeying here: yes where it is, no where it is not, and too early while that cannot be told."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.evaluation.evaluate import Evaluation, evaluate, run_parts
from prontosched.evaluation.inputs import Columns, Part, Plan, Setting, plan_traces
from prontosched.evaluation.methods import choose
from prontosched.evaluation.nulls import excess_p
from prontosched.evaluation.study import Study
from prontosched.evaluation.verdict import answer
from prontosched.student import t_quantile, t_tail
from prontosched.subspace import Array
from tests.evaluation.made_node import MadeNode

METHODS = ("learned", "ready", "ewma", "utilisation", "paper", "random")


@dataclass(frozen=True)
class OneNode(MadeNode):
    """A generated node: `noise`, or contention in bouts of some minutes (`bouts`)."""

    seed: int
    steps: int
    kind: str = "noise"
    scale: float = 1.0
    node: str = "generated"

    def series(self) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng([self.seed, 2])
        bouts = np.repeat(rng.random(self.steps // 15 + 1) < 0.12, 15)[: self.steps]
        ready = self.scale * rng.gamma(2.0, size=self.steps)
        if self.kind == "bouts":
            ready += np.where(bouts, 40.0, 0.0)
        return ready, rng.uniform(0, 100, self.steps), rng.normal(size=(self.steps, 3))


def run(*parts: Part, truth: str = "p95", methods: tuple[str, ...] = METHODS) -> Evaluation:
    return evaluate(Plan(list(parts)), Setting(methods=methods, truth=truth), workers=1)


def answers(steps: int, seeds: int, *, methods: tuple[str, ...] = METHODS, workers: int = 1) -> Counter[str]:
    """Return how often noise of so many steps led to each answer, and to a claim about any method."""
    setting = Setting(methods=methods)
    parts: list[Part] = [OneNode(seed, steps) for seed in range(seeds)]
    found: Counter[str] = Counter()
    for result in run_parts(parts, setting, workers=workers):
        study = Study([result], setting, choose(methods))
        if not study.nodes:
            found["too short to score"] += 1
            continue
        found[answer(study).answer] += 1
        found["claims"] += bool(study.better_than_ready or study.better_than_null["recall"])
    return found


@pytest.mark.parametrize("steps", [50, 120, 300, 1000])
def test_noise_is_not_worth_obeying(steps: int) -> None:
    found = answers(steps, 20)

    assert found["yes"] == 0
    assert found["claims"] <= 1


@pytest.mark.soak
@pytest.mark.parametrize("steps", [50, 200, 500, 1000, 3000, 10_000, 50_000])
def test_noise_of_any_length_says_yes_in_at_most_a_twentieth(steps: int) -> None:
    found = answers(steps, 200, methods=("learned", "ready") if steps > 3000 else METHODS, workers=2)

    assert found["yes"] <= 10
    assert found["claims"] <= 10


def test_contention_in_bouts_is_worth_obeying_and_says_how_much() -> None:
    found = run(OneNode(1, 4000, "bouts"), truth="20%").outcome["answer"]

    assert found["answer"] == "yes"
    assert found["lift"]["low"] > 2
    assert 0.3 < found["recall"] < 1
    assert found["more_hours"] is None
    assert re.search(
        r"At equal downtime of 10%, Pronto \(default\) meets [\d.]+ times \(.*\) what that line does",
        found["because"],
    )


def test_a_short_record_of_the_same_is_too_early_and_says_for_how_long_to_record() -> None:
    found = run(OneNode(1, 400, "bouts"), truth="20%").outcome

    assert found["answer"]["answer"] == "too early"
    assert 2 < found["answer"]["more_hours"] < 40
    assert found["comparison"] == "Too early to compare methods."
    assert not any(method["better_than_ready"] for method in found["methods"])


def test_without_contention_nothing_can_be_told() -> None:
    found = run(OneNode(1, 2000), truth="90%").outcome["answer"]

    assert found["answer"] == "too early"
    assert "there was no contention in 11 hours" in found["because"]
    assert found["more_hours"] is None


def test_where_everything_is_contention_refusing_proves_nothing() -> None:
    found = run(OneNode(1, 2000), truth="0.001").outcome["answer"]

    assert found["answer"] == "too early"
    assert "nearly every moment counts as contention" in found["because"]


@pytest.mark.parametrize(("truth", "what"), [("0.001", "100% of the steps are"), ("90%", "no step is")])
def test_a_threshold_that_tells_nothing_apart_is_warned_of_with_a_better_one(truth: str, what: str) -> None:
    (line,) = run(OneNode(1, 600), truth=truth, methods=("ready",)).warnings

    assert line.startswith(
        f"{what} a spike by --truth {truth}: CPU Ready in 'cpu_ready_percent' is usually 1."
    )
    assert "try --truth p95 or --truth 4" in line


def test_many_nodes_of_noise_are_no_proof_either() -> None:
    found = run(*(OneNode(seed, 900, node=f"n{seed}") for seed in range(6))).outcome["answer"]

    assert found["answer"] == "no"


def test_a_single_block_has_no_interval() -> None:
    assert np.isnan(excess_p(2.0, np.full(200, 2.0), 8))
    assert np.isnan(excess_p(2.0, np.random.default_rng(1).gamma(4.0, size=200), 0))


@pytest.mark.parametrize("degrees", [1, 2, 7, 60])
def test_students_t_agrees_with_scipy(degrees: int) -> None:
    stats = pytest.importorskip("scipy.stats")

    for t in (-3.0, 0.0, 0.5, 2.0, 6.0):
        assert t_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-3, abs=1e-7)
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-3)


def write_probed(path: Path, steps: int = 3000) -> Path:
    """Write a trace of contention in bouts, probed every third row."""
    rng = np.random.default_rng(3)
    bouts = np.repeat(rng.random(steps // 15) < 0.12, 15)
    lines = ["timestamp,cpu_ready,metric,probe_slowdown,latency"]
    for step, bout in enumerate(bouts):
        ready = rng.gamma(2.0) + 40.0 * bout
        probe = f"{1.0 + 1.5 * bout + 0.1 * rng.random():.3f}" if step % 3 == 0 else ""
        lines.append(f"{20 * step},{ready:.3f},{rng.random():.3f},{probe},{10 * rng.random():.3f}")
    path.write_text("\n".join(lines))
    return path


def test_what_refusing_would_have_saved_is_told_in_the_units_of_the_probe(tmp_path: Path) -> None:
    plan = plan_traces([str(write_probed(tmp_path / "host.csv"))], Columns())
    found = evaluate(plan, Setting(methods=("ready", "random"), truth="20%"), workers=1).outcome
    saved, luck = (method["qos"] for method in found["methods"])

    assert found["data"]["qos_column"] == "probe_slowdown"
    assert saved["refused"]["value"] > 1.8
    assert saved["accepted"]["value"] < saved["all"]["value"] < saved["refused"]["value"]
    assert saved["saved"]["low"] > 0
    assert luck["saved"]["low"] < 0 < luck["saved"]["high"]


def test_another_column_can_say_what_jobs_suffer_and_a_missing_one_is_named(tmp_path: Path) -> None:
    path, setting = str(write_probed(tmp_path / "host.csv")), Setting(methods=("ready",), truth="20%")
    found = evaluate(plan_traces([path], Columns(qos="latency")), setting, workers=1).outcome

    assert found["data"]["qos_column"] == "latency"
    assert 4 < found["methods"][0]["qos"]["all"]["value"] < 6
    with pytest.raises(TelemetryError, match="no column 'pain' among"):
        evaluate(plan_traces([path], Columns(qos="pain")), setting, workers=1)


def test_what_jobs_suffer_is_never_an_input(tmp_path: Path) -> None:
    path = write_probed(tmp_path / "host.csv", 1200)
    other = tmp_path / "same" / "host.csv"
    other.parent.mkdir()
    rows = [line.split(",") for line in path.read_text().splitlines()]
    changed = [rows[0], *([*row[:3], "9" if row[3] else "", row[4]] for row in rows[1:])]
    other.write_text("\n".join(map(",".join, changed)))
    setting = Setting(methods=("learned", "t2+spe"), truth="20%")
    first, second = (
        evaluate(plan_traces([str(p)], Columns()), setting, workers=1).outcome for p in (path, other)
    )

    assert [m["honest"] for m in first["methods"]] == [m["honest"] for m in second["methods"]]
    assert [m["qos"] for m in first["methods"]] != [m["qos"] for m in second["methods"]]
