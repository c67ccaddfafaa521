"""The simulated cluster: its physics, its placers and rules, and what a study says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prontosched.simulation.cluster import Arrivals, Cluster, Finished, Job, bounded_pareto_mean
from prontosched.simulation.placers import PLACERS, make_placer
from prontosched.simulation.rules import Coin, Present, rule_names
from prontosched.simulation.run import Scenario, simulate
from prontosched.simulation.sensors import Reading, Sensors
from prontosched.simulation.study import collect, outcomes, over_seeds
from prontosched.simulation.tenants import BurstyTenants, TraceTenants
from tests.test_cli import pronto

SMALL = Scenario(nodes=12, steps=400, load=0.35)


def run_alone(cluster: Cluster, tenants: np.ndarray, seconds: int = 400) -> list[Finished]:
    return [job for _ in range(seconds) for job in cluster.step(tenants)]


def test_a_job_alone_on_an_idle_node_is_not_slowed_down() -> None:
    cluster = Cluster(2, cores=4)
    cluster.place(Job(width=2.0, work=15.0, prelude=3.0, arrival=0.0), node=1)
    (job,) = run_alone(cluster, np.zeros(2))

    assert job.slowdown == pytest.approx(1.0)
    assert job.end == pytest.approx(3.0 + 7.5)


def test_oversubscribed_cpus_are_shared_in_proportion() -> None:
    """Four CPUs, eight wanted by the tenants and two by the job: it gets two fifths of its speed."""
    cluster = Cluster(1, cores=4)
    cluster.place(Job(width=2.0, work=20.0, prelude=0.0, arrival=0.0), node=0)
    (job,) = run_alone(cluster, np.array([8.0]))

    assert job.end == pytest.approx(10.0 / 0.4)


def test_cpu_ready_is_what_waits_and_zero_while_nothing_does() -> None:
    cluster = Cluster(2, cores=4)
    cluster.step(np.array([3.0, 6.0]))

    np.testing.assert_allclose(cluster.ready(), [0.0, 50.0])
    np.testing.assert_allclose(cluster.utilisation(), [75.0, 100.0])


def test_work_is_conserved(rng: np.random.Generator) -> None:
    cluster, arrivals = Cluster(4, cores=8), Arrivals(10.0, rng)
    placed = 0.0
    for _ in range(300):
        for job in arrivals.step(cluster.time):
            cluster.place(job, int(rng.integers(4)))
            placed += job.work
        cluster.step(np.zeros(4))
    before = cluster.busy_seconds
    run_alone(cluster, np.zeros(4), 4000)
    done = cluster.busy_seconds

    assert cluster.running == 0
    np.testing.assert_allclose(cluster.allocated, 0.0, atol=1e-9)
    assert before < done
    assert done >= placed * 0.98


def test_arriving_work_has_the_mean_it_is_asked_for(rng: np.random.Generator) -> None:
    arrivals = Arrivals(50.0, rng)
    jobs = [job for t in range(4000) for job in arrivals.step(float(t))]

    assert sum(job.work for job in jobs) / 4000 == pytest.approx(50.0, rel=0.1)
    assert max(job.work for job in jobs) > 20 * np.median([job.work for job in jobs])
    assert bounded_pareto_mean(1.0, 1e9, 2.0) == pytest.approx(2.0, rel=1e-3)


def test_the_oracles_look_ahead_is_what_then_happens(rng: np.random.Generator) -> None:
    tenants = BurstyTenants(5, 8.0, rng, burst_every=30.0)
    for _ in range(200):
        promised = tenants.ahead(1)
        wanted, _ = tenants.step()
        np.testing.assert_array_equal(promised, wanted)


def test_announced_bursts_show_before_they_come(rng: np.random.Generator) -> None:
    tenants = BurstyTenants(20, 8.0, rng, announced=1.0, burst_every=60.0)
    steps = [tenants.step() for _ in range(400)]
    wanted, signs = np.array([w for w, _ in steps]), np.array([s for _, s in steps])
    onset = (wanted[1:] > 6.0) & (wanted[:-1] < 4.5)
    before = signs[:-1][onset]

    assert onset.sum() > 20
    assert (before > 0.5).mean() > 0.8
    assert (signs > 0).mean() < 0.4


def test_a_background_trace_is_replayed_from_other_moments(rng: np.random.Generator) -> None:
    tenants = TraceTenants(3, 8.0, np.arange(0.0, 100.0), rng)
    first, _ = tenants.step()
    second, _ = tenants.step()

    assert len(set(first.tolist())) > 1
    np.testing.assert_allclose((second - first)[second > first], 0.08)
    with pytest.raises(ValueError, match="at least 10 known values, got 2"):
        TraceTenants(3, 8.0, np.array([1.0, 2.0]), rng)


@pytest.mark.parametrize("name", sorted(PLACERS))
def test_every_placer_offers_nodes_that_exist(name: str, rng: np.random.Generator) -> None:
    cluster = Cluster(6, 8.0)
    placer = make_placer(name, cluster, rng)
    placer.observe(Reading(np.zeros((6, 1)), np.zeros(6), np.arange(6.0)))
    nobody = np.zeros(6, bool)

    for count in (1, 3, 99):
        nodes = placer.candidates(Job(1.0, 5.0, 0.0, 0.0), count, nobody)
        assert len(nodes) == min(count, 6)
        assert set(nodes.tolist()) <= set(range(6))


@pytest.mark.parametrize("name", ["least-loaded", "least-allocated", "packer"])
def test_placers_that_rank_leave_refusing_nodes_to_the_last(name: str, rng: np.random.Generator) -> None:
    cluster = Cluster(6, 8.0)
    placer = make_placer(name, cluster, rng)
    placer.observe(Reading(np.zeros((6, 1)), np.zeros(6), np.zeros(6)))
    refusing = np.array([True, True, True, True, False, False])

    assert set(placer.candidates(Job(1.0, 5.0, 0.0, 0.0), 2, refusing).tolist()) == {4, 5}


def test_rules_spend_their_budget_and_no_more(rng: np.random.Generator) -> None:
    reading = Reading(np.zeros((30, 1)), np.zeros(30), np.zeros(30))
    coin, present = Coin(0.1, rng), Present(30, 0.1)
    spent = {"coin": 0.0, "present": 0.0}
    for _ in range(600):
        reading = reading._replace(ready=rng.exponential(1.0, 30))
        spent["coin"] += coin.decide(reading, 0.0).mean()
        spent["present"] += present.decide(reading, 0.0).mean()

    assert spent["coin"] / 600 == pytest.approx(0.1, abs=0.02)
    assert spent["present"] / 600 == pytest.approx(0.1, abs=0.03)


def test_telemetry_is_late_by_the_delay(rng: np.random.Generator) -> None:
    cluster, sensors = Cluster(1, 4.0), Sensors(1, rng, delay=3)
    seen = []
    for t in range(8):
        cluster.step(np.array([4.0 if t == 2 else 0.0]))
        seen.append(sensors.read(cluster, np.zeros(1)).utilisation[0])

    assert seen == [0.0, 0.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0]


def test_the_same_seed_gives_the_same_outcome_and_the_same_jobs_for_every_rule() -> None:
    one, two = (simulate(SMALL, "random", "ready", 7) for _ in range(2))
    other = simulate(SMALL, "random", "nothing", 7)

    assert one == two
    assert one.jobs + one.unfinished == pytest.approx(other.jobs + other.unfinished, abs=8)


@pytest.mark.parametrize("rule", rule_names())
def test_every_rule_runs_and_finishes_jobs(rule: str) -> None:
    outcome = simulate(SMALL, "two-choices", rule, 3)

    assert outcome.jobs > 50
    assert outcome.slowdown_mean >= 1.0
    assert 0.0 <= outcome.downtime < 0.5
    assert (outcome.downtime == 0.0) == (rule == "nothing")


def test_knowing_the_future_helps_and_a_coin_does_not() -> None:
    scenario = Scenario(nodes=30, steps=900, load=0.35)
    means = {
        rule: np.mean([simulate(scenario, "random", rule, seed).slowdown_mean for seed in (1, 2)])
        for rule in ("nothing", "coin", "ready", "oracle")
    }

    assert means["oracle"] < means["ready"] < means["nothing"]
    assert means["coin"] > means["ready"]


def test_intervals_cover_their_mean_and_shrink_with_seeds() -> None:
    few, many = over_seeds([1.0, 1.2, 1.1]), over_seeds([1.0, 1.2, 1.1] * 4)

    assert few.low < few.mean < few.high
    assert many.high - many.low < few.high - few.low


def test_a_study_is_the_same_whatever_the_number_of_workers(tmp_path: Path) -> None:
    scenario, grid = Scenario(nodes=6, steps=150), (["random"], ["nothing", "ready"], [1, 2])
    one = collect(scenario, *grid, list(outcomes(scenario, *grid, workers=1)))
    two = collect(scenario, *grid, list(outcomes(scenario, *grid, workers=2)))

    assert json.dumps(one.as_json()) == json.dumps(two.as_json())


def test_the_command_prints_a_table_a_figure_and_findings(tmp_path: Path) -> None:
    figure = tmp_path / "slowdown.png"
    ran = pronto(
        "simulate", "--nodes", "8", "--steps", "200", "--seeds", "2", "--placers", "random",
        "--rules", "nothing,ready,learned", "--figure", str(figure),
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert "slowdown with learned" in ran.stdout
    assert figure.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rules", "psychic"], "must be among nothing, coin, ready"),
        (["--placers", "best"], "must be among random, round-robin"),
        (["--nodes", "1"], "1"),
    ],
)
def test_wrong_names_are_refused_with_those_known(arguments: list[str], says: str) -> None:
    ran = pronto("simulate", *arguments)

    assert ran.returncode == 2
    assert says in ran.stderr
