"""Traces that invite a false answer: it stays honest, and says what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prontosched.errors import TelemetryError
from prontosched.evaluation.evaluate import Evaluation, evaluate, run_parts
from prontosched.evaluation.inputs import Columns, Plan, Setting, Truth, plan_traces
from prontosched.evaluation.measures import any_within
from prontosched.evaluation.methods import choose
from prontosched.evaluation.study import Study
from prontosched.subspace import Array
from tests.evaluation.made_node import MadeNode

Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Given(MadeNode):
    """One node of given CPU Ready; utilisation and metrics are noise unless given."""

    ready: Array
    vectors: Array | None = None
    node: str = "given"
    busy: float | None = None
    unit: str = "percent"

    def series(self) -> tuple[Array, Array, Array]:
        rng, steps = np.random.default_rng(5), self.ready.size
        busy = rng.uniform(0, 100, steps)
        busy = busy if self.busy is None else np.full(steps, self.busy)
        return self.ready, busy, rng.normal(size=(steps, 3)) if self.vectors is None else self.vectors


def judge(*parts: Any, truth: str = "p95", methods: tuple[str, ...] = ("learned", "ready")) -> Evaluation:
    return evaluate(Plan(list(parts)), Setting(methods=methods, truth=truth), workers=1)


def noise(rng: Rng, steps: int) -> Array:
    return rng.gamma(2.0, size=steps)


def bouts(rng: Rng, steps: int, share: float = 0.12) -> Array:
    """Return contention above 20 in bouts of 15 steps."""
    return noise(rng, steps) + 40.0 * np.repeat(rng.random(steps // 15 + 1) < share, 15)[:steps]


def walk(rng: Rng, steps: int) -> Given:
    return Given(noise(rng, steps), np.cumsum(rng.normal(size=(steps, 3)), axis=0))


def waves(rng: Rng, steps: int) -> Given:
    wave = np.sin(2.0 * np.pi * (np.arange(steps) / 700.0 + rng.random()))
    return Given(noise(rng, steps), rng.normal(size=(steps, 3)) + 3.0 * wave[:, None])


def heavy(rng: Rng, steps: int) -> Given:
    return Given(np.abs(rng.standard_cauchy(steps)), rng.standard_cauchy((steps, 3)))


def coarse(rng: Rng, steps: int) -> Given:
    return Given(rng.poisson(0.7, steps).astype(float))


def missing(rng: Rng, steps: int) -> Given:
    return Given(np.where(rng.random(steps) < 0.3, np.nan, noise(rng, steps)))


def late(rng: Rng, steps: int) -> Given:
    ready, vectors = noise(rng, steps), rng.normal(size=(steps, 3))
    vectors[3:, 0] = ready[:-3]
    return Given(ready, vectors)


UNFORESEEABLE = (walk, waves, heavy, coarse, missing, late)


def yeses(make: Callable[[Rng, int], Given], steps: int, seeds: int, copies: int = 1) -> int:
    """Return how many seeds say yes, where the same node is given so many times."""
    found = 0
    for seed in range(seeds):
        one = make(np.random.default_rng([seed, 9]), steps)
        parts = [Given(one.ready, one.vectors, f"n{k}") for k in range(copies)]
        found += judge(*parts).outcome["answer"]["answer"] == "yes"
    return found


@pytest.mark.parametrize("make", UNFORESEEABLE)
def test_what_cannot_be_foreseen_is_not_worth_obeying(make: Callable[[Rng, int], Given]) -> None:
    assert yeses(make, 700, 8) == 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("copies", [1, 6])
@pytest.mark.parametrize("make", [*UNFORESEEABLE, lambda rng, steps: Given(noise(rng, steps))])
def test_at_most_a_twentieth_of_what_cannot_be_foreseen_says_yes(make: Any, copies: int) -> None:
    assert yeses(make, 1500, 60, copies) <= 3


def test_a_node_given_ten_times_is_no_surer_than_once() -> None:
    ready, methods = bouts(np.random.default_rng(3), 3000, 0.2), ("ready",)
    once, often = (
        judge(*(Given(ready, node=f"n{k}") for k in range(copies)), truth="20%", methods=methods).outcome
        for copies in (1, 10)
    )
    lifts = [found["answer"]["lift"] for found in (once, often)]
    recalls = [found["methods"][0]["own"]["recall"] for found in (once, often)]

    for one, ten in (lifts, recalls):
        assert ten["value"] == pytest.approx(one["value"])
        assert ten["high"] / ten["low"] > 0.95 * one["high"] / one["low"]


def lasting(rng: Rng, steps: int) -> NDArray[np.bool_]:
    """Return spikes in bursts of 12 steps, during spells of 500 steps on average, two fifths of the time."""
    spells = 2 * (steps // 500 + 4)
    lengths = np.ceil(rng.exponential(np.tile([750.0, 500.0], spells))).astype(int)
    contended = np.repeat(np.tile([False, True], spells), lengths)
    start = rng.integers(0, contended.size - steps)
    bursts = np.repeat(rng.random(steps // 12 + 1) < 0.4, 12)[:steps]
    return contended[start : start + steps] & bursts


def test_intervals_hold_the_truth_where_contention_outlasts_blocks_of_time() -> None:
    whole = lasting(np.random.default_rng(0), 2_000_000)
    ahead = any_within(whole, first=1, last=5)
    truth = (whole & ahead).mean() / (whole.mean() * ahead.mean())
    setting, held = Setting(methods=("ready",), truth="20%"), []
    for seed in range(30, 60):
        rng = np.random.default_rng([seed, 9])
        part: Any = Given(noise(rng, 3000) + np.where(lasting(rng, 3000), 40.0, 0.0))
        study = Study(run_parts([part], setting, workers=1), setting, choose(setting.methods))
        lift = study.lift("ready")
        if np.isfinite(lift.low):
            held.append(lift.low < truth < lift.high)

    assert len(held) >= 20
    assert np.mean(held) >= 0.93


def test_a_short_record_of_many_nodes_that_suffer_together_is_too_early() -> None:
    ready = bouts(np.random.default_rng(3), 400, 0.25)
    found = judge(*(Given(ready, node=f"n{k}") for k in range(10)), truth="20%").outcome["answer"]

    assert found["answer"] == "too early"
    assert "on each of 10 nodes, in 4 stretches of time; at least 20 times in 8 stretches" in found["because"]


def test_the_order_of_nodes_and_times_in_a_file_does_not_matter(tmp_path: Path) -> None:
    rng, steps = np.random.default_rng(1), 4200
    rows = [
        [f"{20 * t},n{k},{value:.4f},{rng.random():.3f}" for t, value in enumerate(noise(rng, steps))]
        for k in range(3)
    ]
    by_node, by_time = [line for node in rows for line in node], [n[t] for t in range(steps) for n in rows]
    found = {}
    for name, lines in (("by-node", by_node), ("by-time", by_time)):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["timestamp,node,cpu_ready,metric", *lines]))
        setting = Setting(methods=("ready", "ewma", "clock"))
        found[name] = evaluate(plan_traces([str(path)], Columns()), setting, workers=1).outcome["methods"]

    for one, other in zip(*found.values(), strict=True):
        assert not one["better_than_null"]["recall"]
        assert one["honest"]["recall"]["value"] == pytest.approx(other["honest"]["recall"]["value"], abs=0.01)
        for statistic in ("own", "recall"):
            pair = (method["null"][statistic]["shifted"] for method in (one, other))
            assert next(pair) == pytest.approx(next(pair), abs=0.005)


def test_where_cpu_ready_is_often_unknown_the_null_is_no_easier_to_beat() -> None:
    (ready,) = judge(missing(np.random.default_rng(2), 6000), methods=("ready",)).outcome["methods"]

    assert ready["null"]["own"]["shifted"] == pytest.approx(ready["own"]["downtime"]["value"], rel=0.03)


def test_refusals_that_are_nearly_always_right_are_worth_it_where_contention_is_usual() -> None:
    node = Given(bouts(np.random.default_rng(4), 2500, 0.72))
    found = judge(node, truth="20%", methods=("ready",)).outcome

    assert found["data"]["positive_share"] > 2 / 3
    assert found["answer"]["answer"] == "yes"
    assert found["answer"]["lift"]["value"] < 1.5


def test_a_rule_that_nearly_always_refuses_is_not_called_idle() -> None:
    node = Given(noise(np.random.default_rng(4), 4000), busy=95.0)
    found = judge(node, methods=("volcano",)).outcome["answer"]

    assert found["answer"] == "no"
    assert found["because"].endswith("of the time: it tells next to nothing apart.")


def test_a_rule_whose_limit_means_nothing_here_is_not_judged_by_it() -> None:
    node = Given(noise(np.random.default_rng(4), 2000), unit="other")
    found = judge(node, methods=("psi",)).outcome["answer"]

    assert found["sentence"].startswith("Too early: KEP-5394 (PSI) has its limit in percent, and the unit")


def test_refusals_that_meet_less_than_chance_are_called_so() -> None:
    rng = np.random.default_rng(4)
    ready = noise(rng, 3000)
    ready[np.cumsum(rng.integers(8, 15, 200))] = 50.0
    found = judge(Given(ready), truth="40%", methods=("ready",)).outcome["answer"]

    assert found["answer"] == "no"
    assert found["because"].endswith("0.0 times what chance would. That is less than chance gives.")


def test_contention_that_never_begins_is_no_matter_of_recording_longer() -> None:
    ready = noise(np.random.default_rng(4), 2000)
    ready[:900] += 40.0
    found = judge(Given(ready), truth="20%").outcome["answer"]

    assert found["sentence"].startswith("Too early: contention never began after 5 calm steps in 11 hours")


def test_contention_is_counted_where_cpu_ready_is_often_unknown() -> None:
    rng = np.random.default_rng(4)
    whole = bouts(rng, 3000)
    holes = np.where(rng.random(3000) < 0.3, np.nan, whole)
    every, known = (judge(Given(ready), truth="20%", methods=("ready",)).study for ready in (whole, holes))

    assert known.onsets == pytest.approx(every.onsets, abs=5)
    assert known.hours == every.hours == pytest.approx(3000 / 180)


def test_too_few_moments_for_so_many_methods_are_not_called_a_tie() -> None:
    rng = np.random.default_rng(4)
    ready = noise(rng, 1000) + 40.0 * np.repeat(rng.random(125) < 0.4, 8)
    few = ("ready", "ewma")
    many = (*few, "psi", "trimaran", "koordinator", "r15s", "r1m", "volcano", "zscore", "n-sigma", "peak-max")
    found = [judge(Given(ready), truth="20%", methods=names).outcome["comparison"] for names in (few, many)]

    assert found[0].startswith(
        "At 10% downtime, better than the same signal shifted in time: current CPU Ready"
    )
    assert found[1] == "The record is too short to compare so many methods: name fewer, or record for longer."


def test_hours_of_unequal_nodes_are_an_average() -> None:
    rng = np.random.default_rng(4)
    found = judge(Given(noise(rng, 900)), Given(noise(rng, 90), node="short"), truth="90%").outcome["answer"]

    assert "no contention in 2.8 hours, on average, on each of 2 nodes" in found["because"]


def test_every_other_value_unknown_is_not_mended_by_recording_longer() -> None:
    ready = noise(np.random.default_rng(4), 1000)
    ready[::2] = np.nan
    with pytest.raises(TelemetryError, match=r"got 0 from 500 rows with CPU Ready: keep the rows in which"):
        judge(Given(ready))


def test_rows_that_repeat_a_measurement_and_rows_that_cannot_be_scored_are_told() -> None:
    rng = np.random.default_rng(4)
    (held,) = judge(Given(np.repeat(noise(rng, 400), 4)), methods=("ready",)).warnings
    (unknown,) = judge(missing(rng, 2000), methods=("ready",)).warnings

    assert held.startswith(
        "CPU Ready equals that of the row before in 75% of the rows above its lowest value"
    )
    assert unknown.startswith("only 1")
    assert "of the rows with CPU Ready can be scored" in unknown


def test_a_growing_cpu_ready_is_told_and_a_suggested_truth_can_be_given() -> None:
    rng = np.random.default_rng(4)
    (grows,) = judge(Given(np.arange(900.0)), methods=("ready",)).warnings
    (line,) = judge(Given(1e4 * noise(rng, 600)), truth="1%", methods=("ready",)).warnings

    assert grows.startswith("98% of the steps are a spike by --truth p95: CPU Ready grows over the record")
    assert Truth.parse(line.rsplit("--truth ", 1)[1]).value > 10_000
