"""Studies: intervals, goals, tables and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prontosched.simulation.report import table, words
from prontosched.simulation.rules import RATIONED, RULES
from prontosched.simulation.run import Scenario
from prontosched.simulation.study import (
    Goal,
    SeedInterval,
    SimulationStudy,
    busy_name,
    cells_of,
    goals,
    over_seeds,
    run_cells,
    whole_grid,
)
from tests.processes import called, wait_for

# The short form of the goals: enough steps for the signal to have learned, few nodes and seeds.
SHORT = Scenario(nodes=40, steps=2000)


def study_of(scenario: Scenario, placers: list[str], rules: list[str], seeds: list[int]) -> SimulationStudy:
    cells = cells_of(busy_name(scenario.busy), scenario, placers, rules)
    return SimulationStudy({"scenario": cells}, tuple(seeds), dict(run_cells(cells, seeds, workers=1)))


def test_intervals_cover_their_mean_and_shrink_with_seeds() -> None:
    few, many = over_seeds([1.0, 1.2, 1.1]), over_seeds([1.0, 1.2, 1.1] * 4)

    assert few.low < few.mean < few.high
    assert many.high - many.low < few.high - few.low


def test_the_interval_of_many_seeds_is_students_too() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = [float(k) for k in range(13)]
    found = over_seeds(values)
    low, high = stats.t.interval(0.95, 12, loc=6.0, scale=stats.sem(values))

    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)


def test_one_seed_has_no_interval_in_words_or_in_json() -> None:
    one = over_seeds([1.25])

    assert str(one) == "1.250"
    assert one.as_json() == {"mean": 1.25, "low": None, "high": None}


def test_a_study_is_the_same_whatever_the_number_of_workers() -> None:
    cells = cells_of("small", Scenario(nodes=6, steps=150), ["random"], ["nothing", "ready"])
    one, two = (
        SimulationStudy({"scenario": cells}, (1, 2), dict(run_cells(cells, [1, 2], workers=workers)))
        for workers in (1, 2)
    )

    assert json.dumps(one.as_json()) == json.dumps(two.as_json())


@pytest.mark.parametrize("ending", ["killed", "Ctrl-C"])
def test_workers_end_with_the_process_that_started_them(ending: str, tmp_path: Path) -> None:
    arguments = ["simulate", "--nodes", "60", "--steps", "20000", "--placers", "random"]
    arguments += ["--rules", "pronto,paper", "--workers", "2"]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "prontosched", *arguments], stderr=errors, start_new_session=True
        ) as parent,
    ):
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")

        def workers() -> list[Path]:
            started = [Path("/proc", pid) for pid in children.read_text().split()]
            return [path for path in started if b"spawn_main" in (path / "cmdline").read_bytes()]

        def simulating(worker: Path) -> bool:
            return len(list((worker / "task").iterdir())) > 1  # one watches the parent

        started = wait_for(lambda: len(found := workers()) == 2 and found, what="two workers")
        wait_for(lambda: all(map(simulating, started)), what="workers that simulate")
        blocked = [re.search(r"SigBlk:\s+(\w+)", (path / "status").read_text()) for path in started]
        assert all(mask and int(mask[1], 16) & 1 << signal.SIGINT - 1 for mask in blocked)
        try:
            if ending != "killed":
                os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
                assert parent.wait(30) == 130
                assert (tmp_path / "errors").read_text().split() == ["simulating", "pronto:", "stopped"]
        finally:
            parent.kill()

    wait_for(lambda: not any(path.exists() for path in started), what="no worker is left")


def test_the_whole_grid_has_every_scenario_that_the_goals_ask_for() -> None:
    grid = whole_grid(Scenario())
    names = {cell.name for cells in grid.values() for cell in cells}

    assert {busy_name(b) for b in (0.66, 0.8, 0.9, 0.95)} <= names
    assert {"jobs of 3 s", "jobs of 10 s", "jobs of 600 s", "regular tenants", "announced tenants"} <= names
    assert {"chronic tenants", "mixed tenants", "unequal nodes"} <= names
    assert {cell.placer for cell in grid["placers"]} == {"random", "two-choices", "least-allocated"}


def test_a_goal_is_met_on_its_side_of_the_bound_only() -> None:
    figure = SeedInterval(0.5, 0.4, 0.6)

    assert Goal("a", figure, 0.6, True).met
    assert not Goal("a", figure, 0.4, True).met
    assert Goal("a", figure, 0.4, False).met
    assert str(Goal("a", figure, 0.6, False)).startswith("missed")


@pytest.mark.timeout(240)
def test_preference_alone_beats_present_values_and_closes_nothing() -> None:
    """The short form of the goals by utilisation."""
    rules = ["nothing", "trimaran-score", "r1m-score", "ready-score", "pronto-prefer"]
    study = study_of(SHORT, ["least-allocated"], rules, [1, 2, 3])
    name = busy_name(SHORT.busy)
    removed = {rule: study.removed(name, "least-allocated", rule).mean for rule in rules[1:]}

    assert removed["pronto-prefer"] > max(removed["r1m-score"], removed["trimaran-score"])
    assert removed["pronto-prefer"] > removed["ready-score"] - 0.02
    assert removed["pronto-prefer"] > 0.33
    assert study.interval(name, "least-allocated", "pronto-prefer", "downtime").mean == 0.0


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_default_beats_the_one_line_rule_with_a_placer_that_looks_at_nothing() -> None:
    """The short form of the goals by placer."""
    study = study_of(SHORT, ["random"], ["nothing", "ready", "pronto"], [1, 2])
    name = busy_name(SHORT.busy)

    assert study.ratio(name, "random", "pronto").mean < 0.6
    assert study.ratio(name, "random", "pronto", "ready").mean < 1.0
    assert study.interval(name, "random", "pronto", "downtime").mean <= 0.25


def test_tables_and_words_say_every_rule_that_was_run() -> None:
    study = study_of(
        Scenario(nodes=8, steps=200), ["least-allocated"], ["nothing", "ready", "pronto", "oracle"], [1, 2]
    )
    text = "\n".join([*table(study, "scenario"), *words(study)])

    for rule in ("nothing", "ready", "pronto", "oracle"):
        assert f"  {rule}" in text
    assert "preference and veto remove" in text
    assert goals(study)


def test_the_command_prints_tables_goals_words_and_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / "slowdown.png"
    ran = called(
        "simulate", "--nodes", "8", "--steps", "200", "--seeds", "2", "--placers", "least-allocated",
        "--rules", "nothing,ready,pronto-prefer,pronto", "--workers", "1", "--figure", str(figure),
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert "bursty tenants, utilisation 0.66, least-allocated" in ran.stdout
    assert "Goals: " in ran.stdout
    assert "nowhere worse than the placer alone" in ran.stdout
    assert figure.stat().st_size > 5000


def test_a_figure_without_the_placer_alone_is_refused_in_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = called("simulate", "--rules", "ready", "--figure", str(tmp_path / "slowdown.png"))

    assert ran.returncode == 2
    assert "--rules must have nothing among them, got ready" in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("equal", [[], ["--equal-downtime"]])
def test_all_rules_are_those_of_the_kind_that_was_asked_for(equal: list[str]) -> None:
    ran = called(
        "simulate", "--nodes", "4", "--steps", "100", "--seeds", "1", "--placers", "random", "--workers", "1",
        "--rules", "all", "--json", *equal,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    rules = [cell["rule"] for cell in json.loads(ran.stdout)["parts"]["scenario"]]
    assert rules == (["nothing", *RATIONED] if equal else list(RULES))


def test_the_command_compares_at_equal_downtime_and_in_json() -> None:
    ran = called(
        "simulate", "--nodes", "8", "--steps", "400", "--seeds", "2", "--placers", "random", "--workers", "1",
        "--equal-downtime", "--rules", "nothing,coin,ready", "--json",
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    cells = json.loads(ran.stdout)["parts"]["scenario"]
    closed = {cell["rule"]: cell["downtime"]["mean"] for cell in cells}
    assert closed["nothing"] == 0.0
    assert closed["coin"] == pytest.approx(0.1, abs=0.05)
    assert closed["ready"] == pytest.approx(0.1, abs=0.06)


def test_a_run_too_short_for_any_job_is_refused_and_too_many_cpus_in_use_are_told() -> None:
    few = [
        "--nodes",
        "20",
        "--steps",
        "100",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--rules",
        "nothing",
        "--json",
    ]
    short, busy = (
        called("simulate", *few, *more) for more in (["--length", "600"], ["--length", "3", "--busy", "0.05"])
    )

    assert short.returncode == 1
    assert "at least one job must come after the warm-up and be able to end in time" in short.stderr
    assert busy.returncode == 0, busy.stderr
    assert "of the CPUs were in use, not 5% as asked" in busy.stderr
    assert json.loads(busy.stdout)["parts"]["scenario"][0]["slowdown_mean"]["low"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rules", "psychic"], "must be among nothing, pronto"),
        (["--placers", "best"], "must be among random, two-choices"),
        (["--tenants", "noisy"], "must be one of bursty, announced"),
        (["--parts", "whole"], "must be among placers, utilisation"),
        (["--nodes", "1"], "1"),
    ],
)
def test_wrong_names_are_refused_with_those_known(arguments: list[str], says: str) -> None:
    ran = called("simulate", *arguments)

    assert ran.returncode == 2
    assert says in ran.stderr


def test_rules_without_a_score_are_refused_at_equal_downtime() -> None:
    ran = called("simulate", "--equal-downtime", "--rules", "paper")

    assert ran.returncode != 0
    assert "at equal downtime must be among nothing, coin" in ran.stderr


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_whole_grid_meets_the_goals_that_it_met() -> None:
    """The default grid, five seeds. What `docs/simulation.md` lists as missed may stay so, nothing else."""
    ran = subprocess.run(
        [sys.executable, "-m", "prontosched", "simulate", "--json"],
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    missed = [goal for goal in json.loads(ran.stdout)["goals"] if not goal["met"]]
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    assert [goal for goal in missed if goal["claim"].split(";")[0] not in page] == []
