"""The simulated cluster: its physics, its placers and rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.gates.policy import Rules, places
from prontosched.simulation.cluster import (
    Cluster,
    Jobs,
    NodeTelemetry,
    Sensors,
    bounded_pareto_mean,
    draw_jobs,
)
from prontosched.simulation.placers import PLACERS, Choice, View
from prontosched.simulation.rules import RATIONED, RULES, ClusterGate, RuleContext, make_rule
from prontosched.simulation.run import Scenario, simulate
from prontosched.simulation.tenants import (
    BEYOND,
    TENANTS,
    Tenants,
    bursty,
    read_background,
    regular,
    replayed,
    shipped_background,
)

SMALL = Scenario(nodes=12, steps=400)


def jobs_of(*rows: tuple[float, float, float]) -> Jobs:
    """Return jobs that all come at once: width, work and prelude of each."""
    width, work, prelude = np.array(rows).T
    return Jobs(np.zeros(len(rows), np.int64), width, work, prelude)


def run_alone(cluster: Cluster, tenants: np.ndarray, seconds: int = 400) -> None:
    for _ in range(seconds):
        cluster.step(tenants)


def test_a_job_alone_on_an_idle_node_is_not_slowed_down() -> None:
    cluster = Cluster(np.array([4.0, 4.0]), jobs_of((2.0, 15.0, 3.0)))
    cluster.place(0, node=1)
    run_alone(cluster, np.zeros(2))

    assert cluster.end[0] == pytest.approx(3.0 + 7.5)
    assert cluster.jobs.ideal[0] == pytest.approx(10.5)


def test_oversubscribed_cpus_are_shared_in_proportion() -> None:
    """Four CPUs, eight wanted by the tenants and two by the job: it gets two fifths of its speed."""
    cluster = Cluster(np.array([4.0]), jobs_of((2.0, 20.0, 0.0)))
    cluster.place(0, node=0)
    run_alone(cluster, np.array([8.0]))

    assert cluster.end[0] == pytest.approx(10.0 / 0.4)


def test_cpu_ready_is_what_waits_and_zero_while_nothing_does() -> None:
    cluster = Cluster(np.array([4.0, 4.0]), jobs_of((1.0, 1.0, 0.0)))
    cluster.step(np.array([3.0, 6.0]))

    np.testing.assert_allclose(cluster.ready(), [0.0, 50.0])
    np.testing.assert_allclose(cluster.utilisation(), [75.0, 100.0])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 12.0))
def test_all_the_work_of_jobs_that_end_is_done_and_no_more(seed: int, tenants: float) -> None:
    rng = np.random.default_rng(seed)
    jobs = draw_jobs(6.0, 60, rng, length=5.0)
    cluster = Cluster(np.full(4, 8.0), jobs, overcommit=100.0)
    for _ in range(60):
        for job in np.flatnonzero(jobs.arrival == cluster.time):
            cluster.place(int(job), int(rng.integers(4)))
        cluster.step(np.full(4, tenants))
        assert cluster.work_done <= cluster.time * 32.0 + 1e-6
    run_alone(cluster, np.full(4, tenants), 4000)

    assert cluster.running == 0
    np.testing.assert_allclose(cluster.allocated, 0.0, atol=1e-9)
    assert cluster.work_done == pytest.approx(jobs.work.sum())
    assert (cluster.end - cluster.start >= jobs.ideal - 1e-6).all()


def test_a_full_node_takes_no_job() -> None:
    cluster = Cluster(np.array([4.0]), jobs_of((4.0, 9.0, 0.0), (1.0, 9.0, 0.0)))
    cluster.place(0, node=0)

    with pytest.raises(ValueError, match="must have 1 CPUs left, got 0"):
        cluster.place(1, node=0)


@pytest.mark.parametrize("length", [None, 3.0, 100.0])
def test_arriving_work_has_the_mean_it_is_asked_for(length: float | None, rng: np.random.Generator) -> None:
    jobs = draw_jobs(50.0, 4000, rng, length=length)

    assert jobs.work.sum() / 4000 == pytest.approx(50.0, rel=0.1)
    if length is None:
        assert jobs.work.max() > 20 * np.median(jobs.work)
    else:
        assert jobs.ideal.mean() == pytest.approx(length, rel=0.05)
        assert jobs.ideal.max() <= 1.5 * length
    assert bounded_pareto_mean(1.0, 1e9, 2.0) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("kind", sorted(TENANTS))
def test_tenants_want_cpus_and_sometimes_more_than_there_are(kind: str, rng: np.random.Generator) -> None:
    tenants = TENANTS[kind][0](30, 1500, rng)

    assert tenants.wanted.shape == tenants.announced.shape == (1500, 30)
    assert (tenants.wanted >= 0).all()
    assert 0.02 < (tenants.wanted > 1.0).mean() < 0.4


def test_announced_bursts_show_before_they_come(rng: np.random.Generator) -> None:
    tenants = bursty(20, 400, rng, announced=1.0, every=60.0)
    wanted, signs = tenants.wanted, tenants.announced
    onset = (wanted[1:] > 0.75) & (wanted[:-1] < 0.56)
    before = signs[:-1][onset]

    assert onset.sum() > 20
    assert (before > 0.5).mean() > 0.8
    assert (signs > 0).mean() < 0.4
    assert not bursty(20, 400, rng, announced=0.0).announced.any()


def test_regular_tenants_come_at_the_same_minute_of_every_hour(rng: np.random.Generator) -> None:
    tenants = regular(20, 1200, rng)
    hours = (tenants.wanted > 0.75).reshape(20, 60, 20)
    same = hours.mean(axis=0)

    # For every node some minute is loaded in nearly every hour, and most minutes in almost none.
    assert (same.max(axis=0) > 0.9).all()
    assert np.median(same) < 0.15
    assert tenants.clock == 60.0


def test_chronic_tenants_fill_a_tenth_of_the_nodes_for_good(rng: np.random.Generator) -> None:
    full = (TENANTS["chronic"][0](30, 800, rng).wanted > 0.9).mean(axis=0)

    assert (full > 0.9).sum() == 3
    assert (full < 0.5).sum() == 27


def test_recorded_machines_are_replayed_with_their_own_metrics(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tmp_path / "machine.csv"
    rows = "".join(f"{i},{10 + i % 50},{i % 7}\n" for i in range(300))
    path.write_text("jobs,utilisation,cpu_ready\n" + rows)
    background = read_background([path])
    tenants = replayed(4, 50, rng, background)
    assert tenants.offset is not None

    assert background.metrics == ("jobs",)
    assert np.percentile(background.demand[0], 95) == pytest.approx(1.0)
    column = background.metrics.index("jobs")
    for step in (0, 7, 49):
        shown = tenants.own(step)
        assert shown is not None
        np.testing.assert_array_equal(shown[:, column], (tenants.offset + step) % 300)
        np.testing.assert_allclose(
            tenants.wanted[step], background.demand[0][((tenants.offset + step) % 300).astype(int)]
        )


def test_the_shipped_trace_can_be_tenants() -> None:
    pytest.importorskip("pyarrow")
    background = shipped_background()
    assert background is not None
    scenario = Scenario(nodes=4, steps=120, tenants="trace", background=background)

    assert len(background.metrics) > 50
    assert simulate(scenario, "least-allocated", "pronto", [1])[0].jobs > 0


def view(nodes: int = 6, **given: np.ndarray) -> View:
    zeros = np.zeros(nodes)
    return View(
        np.full(nodes, 8.0),
        given.get("allocated", zeros),
        given.get("load", zeros),
        given.get("stale", zeros),
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(PLACERS)), st.integers(1, 62), st.booleans(), st.integers(0, 1000))
def test_closed_nodes_never_get_jobs(name: str, bits: int, scored: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    able = np.array([bool(bits >> i & 1) for i in range(6)])
    score = rng.random(6) if scored else None
    levels = rng.integers(0, 3, 6) if scored and seed % 2 else None
    seen = view(allocated=8.0 * rng.random(6), load=rng.random(6), stale=rng.random(6))
    node = PLACERS[name](seen, Choice(1.0, able, score, levels, rng.random(6)), rng)

    assert able[node]


@pytest.mark.parametrize("name", ["least-loaded", "least-allocated", "packer", "random", "two-choices"])
def test_every_placer_goes_by_the_score_of_nodes_that_are_alike(name: str, rng: np.random.Generator) -> None:
    score, calm = np.array([0.9, 0.0, 0.9, 0.9, 0.9, 0.9]), np.zeros(6)
    choice = Choice(1.0, np.ones(6, bool), score, None, calm)
    chosen = [PLACERS[name](view(), choice, rng) for _ in range(300)]
    levels = Choice(1.0, np.ones(6, bool), score, (score > 0.5).astype(np.intp), calm)

    assert np.mean(np.array(chosen) == 1) > 0.25
    assert {PLACERS[name](view(), levels, rng) for _ in range(40)} == {1}


def test_a_job_just_placed_counts_at_once(rng: np.random.Generator) -> None:
    """Of two nodes of the same chance the one that got a job a moment ago is worse, with every placer."""
    recent = np.array([0.125, 0.0])
    seen = view(2, allocated=np.array([1.0, 0.0]))
    for name, place in PLACERS.items():
        for levels in (None, np.zeros(2, np.intp)):
            choice = Choice(1.0, np.ones(2, bool), np.zeros(2), levels, recent)
            chosen = [place(seen, choice, rng) for _ in range(200)]
            assert np.mean(chosen) > 0.6, (name, levels)


def test_telemetry_is_late_by_the_delay(rng: np.random.Generator) -> None:
    cluster, sensors = Cluster(np.array([4.0]), jobs_of((1.0, 1.0, 0.0))), Sensors(1, rng, delay=3)
    seen = []
    for t in range(8):
        cluster.step(np.array([4.0 if t == 2 else 0.0]))
        seen.append(sensors.read(cluster, np.zeros(1)).utilisation[0])

    assert seen == [0.0, 0.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 30), st.integers(0, 1000))
def test_the_gate_keeps_its_floor_and_its_holds_and_never_starves(nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gate = ClusterGate(nodes, Rules(min_hold_seconds=3.0, min_accept_seconds=3.0))
    before, since = gate.closed, np.full(nodes, 99)
    for _ in range(60):
        chance = rng.random(nodes) ** 2
        starved = bool(rng.random() < 0.1)
        closed = gate.close(chance >= 0.5, chance, starved=starved)
        assert closed.sum() <= places(nodes, 0.25)
        assert not (starved and closed.any())
        if not starved:
            newly = closed & ~before
            assert (since[newly] >= 3).all()
        since = np.where(closed == before, since + 1, 1)
        before = closed


def test_without_holds_no_node_is_closed_that_is_calmer_than_one_left_open(rng: np.random.Generator) -> None:
    for _ in range(200):
        chance = rng.random(12)
        gate = ClusterGate(12, Rules(min_hold_seconds=0.0, min_accept_seconds=0.0))
        closed = gate.close(chance >= 0.5, chance, starved=False)
        if closed.any():
            assert chance[closed].min() >= chance[~closed].max()


def world(nodes: int = 30) -> RuleContext:
    rng = np.random.default_rng(1)
    cluster = Cluster(np.full(nodes, 8.0), jobs_of((1.0, 1.0, 0.0)))
    tenants = Tenants(rng.exponential(0.4, (700 + BEYOND, nodes)), np.zeros((700 + BEYOND, nodes)))
    return RuleContext(cluster, tenants, 1, tuple(f"m{i}" for i in range(32)), 0.1, rng)


@pytest.mark.parametrize("name", sorted(RATIONED))
def test_at_equal_downtime_rules_spend_their_budget_and_no_more(name: str, rng: np.random.Generator) -> None:
    made = world()
    rule = make_rule(name, made, equal_downtime=True)
    spent = 0.0
    for step in range(600):
        made.cluster.step(8.0 * made.tenants.wanted[step])
        ready = np.asarray(rng.exponential(3.0, 30))
        reading = NodeTelemetry(rng.standard_normal((30, 32)), ready, 30.0 + 70.0 * rng.random(30))
        spent += rule.decide(reading, float(step), np.zeros(1, bool)).closed.mean()

    # Scores that change slowly are ranked within a past that they have left.
    within = 0.03 if name in ("coin", "ready") else 0.12
    assert spent / 600 == pytest.approx(0.1, abs=within)


def test_the_oracle_foresees_what_then_happens() -> None:
    made = world(2)
    made.tenants.wanted[:] = 0.2
    made.tenants.wanted[5:, 1] = 2.0
    short = Cluster(np.full(2, 8.0), jobs_of((1.0, 3.0, 0.0), (1.0, 40.0, 0.0)))
    oracle = make_rule("oracle", made._replace(cluster=short))

    assert oracle.score_for(0, slice(0, 2)).tolist() == [0.0, 0.0]  # type: ignore[attr-defined]
    quiet, loud = oracle.score_for(1, slice(0, 2)).tolist()  # type: ignore[attr-defined]
    assert quiet == 0.0
    assert loud == pytest.approx(1.125 * 35 / 40, rel=0.1)


def test_the_same_seeds_give_the_same_outcome_and_the_same_jobs_for_every_rule() -> None:
    one, two = (simulate(SMALL, "random", "ready", [7, 8]) for _ in range(2))
    others = [
        simulate(SMALL, placer, rule, [7, 8]) for placer in PLACERS for rule in ("nothing", "r1m-score")
    ]

    assert one == two
    assert one[0] != one[1]
    assert {tuple(o.jobs for o in outcomes) for outcomes in (one, *others)} == {(one[0].jobs, one[1].jobs)}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_runs_and_finishes_jobs(rule: str) -> None:
    (outcome,) = simulate(SMALL, "two-choices", rule, [3])
    free = rule in ("nothing", "oracle") or rule.endswith(("-score", "-prefer"))

    assert outcome.jobs > 50
    assert outcome.slowdown_mean >= 1.0
    assert outcome.slowdown_by_work >= 1.0
    assert outcome.throughput > 0.1
    assert outcome.downtime == 0.0 or not free


def test_jobs_queue_when_nodes_are_full_and_opening_more_helps() -> None:
    tight = Scenario(nodes=8, steps=500, busy=1.0, overcommit=0.5)
    (narrow,) = simulate(tight, "least-allocated", "nothing", [1])
    (wide,) = simulate(
        Scenario(nodes=8, steps=500, busy=1.0, overcommit=2.0), "least-allocated", "nothing", [1]
    )

    assert narrow.queueing_mean > 5.0
    assert wide.queueing_mean < 0.1 * narrow.queueing_mean


def test_unequal_nodes_have_the_same_number_of_each_size() -> None:
    (outcome,) = simulate(Scenario(nodes=12, steps=300, unequal=True), "least-allocated", "nothing", [1])

    assert outcome.jobs > 50


def test_the_utilisation_that_is_asked_for_comes_about() -> None:
    for busy in (0.5, 0.8):
        outcomes = simulate(Scenario(nodes=60, steps=1200, busy=busy), "least-allocated", "oracle", [1, 2])
        assert np.mean([o.utilisation for o in outcomes]) == pytest.approx(busy, abs=0.05)


def test_knowing_the_future_helps_most_and_every_score_helps() -> None:
    scenario = Scenario(nodes=40, steps=1200)
    lost = {
        rule: np.mean([o.excess for o in simulate(scenario, "least-allocated", rule, [1, 2, 3])])
        for rule in ("nothing", "ready", "ready-score", "oracle")
    }

    assert lost["oracle"] < 0.5 * lost["ready-score"]
    assert lost["ready-score"] < 0.9 * lost["nothing"]
    assert lost["ready"] < 0.9 * lost["nothing"]
