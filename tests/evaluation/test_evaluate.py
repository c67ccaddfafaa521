"""The evaluator as a whole: it finds what is there, rejects what is not, and gives the same numbers anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from prontosched.cli import main
from prontosched.cli.evaluate import command
from prontosched.evaluation.evaluate import Evaluation, evaluate, run_parts
from prontosched.evaluation.generators import Control, plan_control
from prontosched.evaluation.inputs import Columns, Setting, chunk_size, plan_traces
from prontosched.evaluation.report import print_outcome

METHODS = ("paper", "t2+spe", "ready", "random", "clock", "accept")


def run(kind: str, methods: tuple[str, ...] = METHODS, nodes: int = 5, steps: int = 1500) -> Evaluation:
    plan = plan_control(kind, nodes=nodes, steps=steps, seed=3)
    return evaluate(plan, Setting(methods=methods, truth="5%"), workers=1)


@pytest.fixture(scope="module")
def positive() -> Evaluation:
    return run("positive")


@pytest.fixture(scope="module")
def negative() -> Evaluation:
    return run("negative")


def method(evaluation: Evaluation, name: str) -> dict[str, Any]:
    return next(row for row in evaluation.outcome["methods"] if row["name"] == name)


def without_speed(outcome: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in outcome.items() if key != "performance"}


def test_planted_precursors_are_found(positive: Evaluation) -> None:
    found = method(positive, "t2+spe")

    assert all(found["better_than_null"].values())
    assert found["better_than_ready"]
    assert found["honest"]["quiet_roc"]["value"] > 0.75
    assert "T² + SPE" in positive.outcome["comparison"]


def test_the_value_itself_is_blind_to_planted_precursors(positive: Evaluation) -> None:
    assert method(positive, "ready")["honest"]["quiet_roc"]["value"] == pytest.approx(0.5, abs=0.06)
    assert not method(positive, "ready")["better_than_null"]["recall"]


def test_nothing_is_found_where_nothing_is_planted(negative: Evaluation) -> None:
    assert negative.outcome["comparison"] == (
        "At 10% downtime, no method is better than the same signal shifted in time; "
        "none is better than current CPU Ready."
    )
    assert not any(row["better_than_null"]["quiet"] for row in negative.outcome["methods"])


def test_a_coin_and_a_clock_find_what_they_cost(negative: Evaluation) -> None:
    for name in ("random", "clock"):
        assert method(negative, name)["honest"]["recall"]["value"] == pytest.approx(0.10, abs=0.035)


def test_a_clock_has_full_success_by_the_papers_measure_and_so_has_its_shift(negative: Evaluation) -> None:
    found = method(negative, "clock")

    assert found["paper"]["success"]["mean"] > 0.99
    assert found["null"]["success"]["shifted"] > 0.99
    assert not found["better_than_null"]["success"]


def test_always_accepting_has_no_downtime_and_no_curve(negative: Evaluation) -> None:
    found = method(negative, "accept")

    assert found["own"]["downtime"]["value"] == 0
    assert found["own"]["contended_accepted"]["value"] == 1
    assert found["honest"]["recall"]["value"] is None


def test_the_outcome_is_plain_json_without_nan(positive: Evaluation) -> None:
    assert json.loads(json.dumps(positive.outcome, allow_nan=False))["format"] == 2


def test_intervals_enclose_their_value_and_within_is_no_wider(positive: Evaluation) -> None:
    found = method(positive, "t2+spe")["honest"]["recall"]

    assert found["low"] <= found["value"] <= found["high"]
    assert found["within_high"] - found["within_low"] <= 1.5 * (found["high"] - found["low"])


def test_the_same_seed_gives_the_same_numbers(positive: Evaluation) -> None:
    assert without_speed(run("positive").outcome) == without_speed(positive.outcome)


def test_more_workers_give_the_same_numbers(positive: Evaluation) -> None:
    plan = plan_control("positive", nodes=5, steps=1500, seed=3)
    assert len(plan.parts) == 2

    two = evaluate(plan, Setting(methods=METHODS, truth="5%"), workers=2)

    assert without_speed(two.outcome) == without_speed(positive.outcome)


def test_chunks_depend_on_the_number_of_nodes_alone() -> None:
    assert [chunk_size(nodes) for nodes in (1, 7, 32, 60, 200, 1000)] == [4, 4, 8, 32, 50, 128]


def test_a_generated_node_is_the_same_in_any_chunk() -> None:
    alone = list(Control("positive", 3, 2, 1, 300).aligned(128))
    among = list(Control("positive", 3, 0, 4, 300).aligned(128))

    assert all(np.array_equal(a[0].vectors, b[2].vectors) for a, b in zip(alone, among, strict=True))


def test_what_is_generated_does_not_depend_on_how_much_is_asked_for_at_once() -> None:
    whole = next(Control("positive", 3, 0, 1, 300).aligned(300))[0]
    pieces = [chunks[0] for chunks in Control("positive", 3, 0, 1, 300).aligned(64)]

    assert np.allclose(whole.vectors, np.concatenate([piece.vectors for piece in pieces]))
    assert np.allclose(whole.ready, np.concatenate([piece.ready for piece in pieces]))


def test_few_nodes_one_by_one_and_many_as_arrays_decide_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = run("positive", ("learned", "paper"), nodes=3, steps=400)
    monkeypatch.setattr("prontosched.evaluation.scorers.FEW", 0)

    arrays = run("positive", ("learned", "paper"), nodes=3, steps=400)

    for name in ("learned", "paper"):
        for figure, found in method(arrays, name)["own"].items():
            assert found["value"] == pytest.approx(method(one_by_one, name)["own"][figure]["value"]), figure
        assert method(arrays, name)["curve"] == method(one_by_one, name)["curve"]


def test_goals_are_printed_when_the_learned_signal_is_among_the_methods() -> None:
    found = run("positive", ("learned", "ready"), nodes=2, steps=700).outcome["goals"]

    assert {"recall at 10% downtime against current CPU Ready", "expected calibration error"} <= {
        row["what"] for row in found
    }
    assert all(row["met"] in (True, False, None) for row in found)


def test_the_one_line_rule_accepts_no_contention_and_refuses_as_often_as_there_is_some(
    positive: Evaluation,
) -> None:
    own, data = method(positive, "ready")["own"], positive.outcome["data"]

    assert own["contended_accepted"]["value"] == 0
    assert own["downtime"]["value"] == pytest.approx(data["spike_share"], rel=0.05)


def test_figures_of_every_node_average_to_those_of_the_method(positive: Evaluation) -> None:
    found = method(positive, "t2+spe")

    assert [row["node"] for row in found["nodes"]] == positive.outcome["data"]["names"]
    mean = sum(row["recall"] for row in found["nodes"]) / len(found["nodes"])
    assert mean == pytest.approx(found["own"]["recall"]["value"])


def test_a_published_limit_means_nothing_where_the_unit_is_unknown(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    lines = ["timestamp,load,utilisation,metric"]
    lines += [f"{20 * t},{rng.gamma(2.0):.4f},{rng.random():.4f},{rng.random():.4f}" for t in range(400)]
    path = tmp_path / "host.csv"
    path.write_text("\n".join(lines))
    plan = plan_traces([str(path)], Columns(ready="load"))

    found = evaluate(plan, Setting(methods=("r1m", "koordinator", "ready")), workers=1)

    assert method(found, "r1m")["own"]["downtime"]["value"] is None
    assert method(found, "r1m")["honest"]["recall"]["value"] is not None
    # Utilisation between 0 and 1 is a share: its 95th percentile lies above 65 %.
    assert method(found, "koordinator")["own"]["downtime"]["value"] > 0.9


def test_a_sweep_runs_the_published_signal_once_per_value() -> None:
    plan = plan_control("negative", nodes=1, steps=400, seed=1)
    setting = Setting(methods=("ready",), truth="5%", sweeps=(("rank", (2.0, 4.0)), ("lag", (20.0,))))

    names = [row["name"] for row in evaluate(plan, setting, workers=1).outcome["methods"]]

    assert names == ["ready", "paper[rank=2]", "paper[rank=4]", "paper[lag=20]"]


def test_the_papers_data_set_is_extrapolated_from_the_measured_rate(positive: Evaluation) -> None:
    scale = positive.outcome["performance"]["paper_data_set"]

    assert scale["node_steps"] == 30_000 * 28 * 4320
    ratio = scale["hours_on_workers"]["8"] / scale["hours_on_workers"]["64"]
    assert ratio == pytest.approx(8)


def test_dask_gives_the_same_numbers(positive: Evaluation) -> None:
    plan = plan_control("positive", nodes=5, steps=1500, seed=3)

    spread = evaluate(plan, Setting(methods=METHODS, truth="5%"), engine="dask", workers=1)

    assert without_speed(spread.outcome) == without_speed(positive.outcome)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(Exception, match="engine must be local or dask, got 'spark'"):
        run_parts([], Setting(methods=METHODS), engine="spark")


def test_the_command_prints_the_verdict_and_a_table() -> None:
    arguments = [
        "--control",
        "negative",
        "--nodes",
        "1",
        "--steps",
        "300",
        "--methods",
        "ready,random",
        "--workers",
        "1",
    ]

    result = CliRunner().invoke(command, arguments)

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Is it worth obeying here? Too early (record about ")
    assert "current CPU Ready" in result.stdout


def test_real_servers_are_read_without_being_told_their_columns(shared_data: Path) -> None:
    plan = plan_traces([str(shared_data / "data" / "smd")], Columns())

    assert [len(part.paths) for part in plan.parts] == [4, 3]
    feed, unit = plan.parts[0].open()
    assert feed.ready_column == "load_1"
    assert "load_5" not in feed.metrics
    assert unit == "other"


@pytest.mark.soak
def test_real_servers_rank_methods_as_measured_before(shared_data: Path) -> None:
    plan = plan_traces([str(shared_data / "data" / "smd")], Columns())
    setting = Setting(methods=("paper", "ready", "ewma", "utilisation", "random"))

    found = evaluate(plan, setting).outcome
    recall = {row["name"]: row["honest"]["recall"]["value"] for row in found["methods"]}

    assert recall["random"] == pytest.approx(0.10, abs=0.01)
    assert recall["paper"] == pytest.approx(0.12, abs=0.02)
    assert min(recall["ready"], recall["ewma"], recall["utilisation"]) > 0.38


def test_main_reports_a_missing_trace_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", "/nowhere/host.parquet"])

    assert stopped.value.code == 1
    assert capsys.readouterr().err == "pronto: /nowhere/host.parquet: no such file\n"


def test_timing_says_what_a_node_step_took_in_bare_steps_and_on_what() -> None:
    plan = plan_control("negative", nodes=1, steps=600, seed=1)

    found = evaluate(plan, Setting(methods=("learned", "ready"), truth="5%"), workers=1, timed=True)

    timing = found.outcome["performance"]["timing"]
    assert timing["times_a_bare_step"] == pytest.approx(
        timing["microseconds_per_node_step"] / timing["microseconds_of_a_bare_step"]
    )
    assert sum(timing["microseconds_by_part"].values()) == pytest.approx(timing["microseconds_per_node_step"])
    assert any("learned" in part for part in timing["microseconds_by_part"])
    assert "times a bare step of a default node" in print_outcome(found.outcome)
