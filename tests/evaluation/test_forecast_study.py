"""A whole study on a small generated data set: tables, answers, report, and going on after a stop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets.paper_shape import PaperShape
from prontosched.evaluation.forecast import models, paper_tables, study
from prontosched.evaluation.forecast.answers import QUESTIONS, all_tables, answer, compare
from prontosched.evaluation.forecast.panel import read_traces, trace_example, trace_panel
from prontosched.evaluation.forecast.report import as_json, as_plain_text, tables_of, write_report
from prontosched.evaluation.forecast.study import (
    ForecastOutcome,
    ForecastSettings,
    StudyResult,
    StudySettings,
    describe_lack,
    lay_out_tasks,
    mean_rmse,
    node_rmse,
    pick_targets,
    run_forecast,
)


@contextmanager
def no_bar(label: str, size: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ForecastSettings:
    return ForecastSettings(
        shape=PaperShape(clusters=1, hosts=1, vms=6, days=18, seed=2),
        study=StudySettings(targets=1, windows=3, alarm_days=1),
        cache=tmp_path_factory.mktemp("cache"),
    )


@pytest.fixture(scope="module")
def outcome(settings: ForecastSettings) -> Iterator[ForecastOutcome]:
    with pytest.MonkeyPatch.context() as patch:
        # Two orders to choose from instead of twelve: the choice itself is tested elsewhere.
        patch.setattr(models, "MOST_TERMS", 0)
        yield run_forecast(settings, no_bar)


def write_trace(path: Path, ready: np.ndarray, *, interval: float = 60.0, column: str = "ready") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{1_700_000_000 + interval * at:.0f},{value:.4f},{at % 7},{at % 5}" for at, value in enumerate(ready)
    ]
    path.write_text(f"timestamp,{column},mem_free,disk\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_study_fills_every_table_it_is_long_enough_for(outcome: ForecastOutcome) -> None:
    tables = {table.key: table for table in tables_of(outcome)}

    for key in ("daily", "similar", "windows", "fixed-accuracy", "percentiles-balanced", "statistical-plain"):
        (grid,) = tables[key].ours
        known = [value for row in grid.rows.values() for value in row if not math.isnan(value)]
        assert known, key
    (daily,) = tables["daily"].ours
    assert not math.isnan(daily.rows["naive"][0])
    assert math.isnan(daily.rows["naive"][1])  # 18 days hold no past window of 21


def test_ours_and_the_papers_numbers_never_share_a_grid(outcome: ForecastOutcome) -> None:
    for table in tables_of(outcome):
        assert not [grid.origin for grid in table.ours if "paper" in grid.origin]
        if table.paper is not None:
            assert table.paper.origin.startswith(paper_tables.SOURCE)


def test_papers_tables_are_as_printed(outcome: ForecastOutcome) -> None:
    tables = {table.key: table for table in tables_of(outcome)}
    text = tables["daily"].paper.as_text()

    assert "127.61" in text
    assert "100.23*" in text
    assert tables["windows"].paper.rows["naive"] == [
        *(122.39, 219.55, 335.22, 236.8, 1052.41, 837.71, 876.16)
    ]
    assert tables["percentiles-accuracy"].paper.shares == pytest.approx((13.28, 10.18, 7.3))


def test_a_second_run_takes_up_all_finished_pieces(
    settings: ForecastSettings, outcome: ForecastOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(
        study, "_do", lambda task: done.append(task.name) or (task.name, task.work(*task.arguments))
    )
    again = run_forecast(settings, no_bar)

    assert [name for name in done if not name.startswith("cluster-")] == []
    assert as_json(again, "") == as_json(outcome, "")


def test_a_run_that_was_stopped_does_only_what_is_missing_and_ends_alike(
    settings: ForecastSettings, outcome: ForecastOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = next(held.parent for held in settings.cache.glob("*/alarm-p90-17.json"))
    (folder / "alarm-p90-17.json").unlink()
    (folder / "alarm-median-17.json").write_text("{half", encoding="utf-8")
    done: list[str] = []
    monkeypatch.setattr(
        study, "_do", lambda task: done.append(task.name) or (task.name, task.work(*task.arguments))
    )
    again = run_forecast(settings, no_bar)

    assert sorted(n for n in done if not n.startswith("cluster-")) == ["alarm-median-17", "alarm-p90-17"]
    assert as_json(again, "") == as_json(outcome, "")


def test_report_is_one_page_that_needs_nothing_else(outcome: ForecastOutcome, tmp_path: Path) -> None:
    written = write_report(outcome, tmp_path / "out.html", command="pronto forecast <x>", seconds=61.0)
    page = written[0].read_text(encoding="utf-8")
    numbers = json.loads(written[1].read_text(encoding="utf-8"))

    assert "pronto forecast &lt;x&gt;" in page
    assert page.count("<svg") == 4
    assert not [
        mark for mark in ('src="http', 'href="http', "<script", "@import", "url(http") if mark in page
    ]
    assert {p.name for p in written[2].iterdir()} == {
        f"{name}.{kind}" for name in ("example", "daily", "windows", "alarms") for kind in ("svg", "png")
    }
    assert numbers["published"]["daily"]["svm"]["same cluster, 21 days"] == 100.23
    assert numbers["data_sets"][0]["generated"] is True


def test_same_seed_writes_the_same_figures(outcome: ForecastOutcome, tmp_path: Path) -> None:
    pages = [
        write_report(outcome, tmp_path / str(n) / "o.html", command="c", seconds=1.0)[0] for n in range(2)
    ]

    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_text_names_each_data_set_and_answers_four_questions(outcome: ForecastOutcome) -> None:
    text = as_plain_text(outcome)

    assert "[generated data set, in ms]" in text
    assert [f"Q{n} " in text for n in range(1, 5)] == [True] * 4
    assert "nan" not in text.lower().replace("tenan", "")


def test_question_without_numbers_is_not_answered(outcome: ForecastOutcome) -> None:
    given = answer(outcome.studied[0].result)

    assert set(given) == set(QUESTIONS)
    assert given["how much past"].verdict.startswith("Not answered: the data set is too short")
    assert answer(StudyResult())["which method"].verdict == "Not answered: there are no forecasts."


def made_up(by_method: dict[str, float], nodes: int = 8) -> dict[str, dict[str, dict[int, float]]]:
    rng = np.random.default_rng(1)
    level = rng.uniform(50.0, 150.0, nodes)
    return {
        key: {
            f"n{n}": {step: factor * level[n] * sign for step, sign in enumerate((1, -1, 1))}
            for n in range(nodes)
        }
        for key, factor in by_method.items()
    }


def test_answers_follow_the_numbers() -> None:
    keys = {f"same node/{m}": 1.0 for m in ("naive", "expsmo", "arima", "svm")}
    keys |= {f"same cluster/{m}": 0.5 for m in ("naive", "expsmo", "arima", "svm")}
    keys |= {f"similar/{g}": 0.5 for g in ("ordered", "euclidean", "correlation", "sts", "cort", "acf")}
    better = {key: 0.8 * value for key, value in keys.items()}
    result = StudyResult(daily={14: made_up(keys), 21: made_up(better)})
    result.windows = {
        86_400: made_up({"naive": 1.0, "expsmo": 1.1, "arima": 1.2, "svm": 0.6}),
        900: made_up({"naive": 5.0, "expsmo": 6.0, "arima": 7.0, "svm": 8.0}),
    }
    given = answer(result)

    assert given["how many"].verdict == "Using other nodes lowers the error."
    assert given["how much past"].verdict == "21 days are better than 14."
    assert given["how far"].verdict.endswith("windows of 1 day.")
    assert "SVM 1" in given["which method"].numbers[0]


def test_a_difference_within_its_interval_is_not_called_one(rng: np.random.Generator) -> None:
    first = {f"n{n}": float(value) for n, value in enumerate(rng.uniform(90, 110, 6))}
    second = {f"n{n}": float(value) for n, value in enumerate(rng.uniform(90, 110, 6))}
    found = compare(first, second)

    assert found is not None
    assert not found.clear
    assert found.words().startswith("no clear difference")
    assert compare({}, second) is None


def test_four_nodes_are_too_few_for_a_clear_difference() -> None:
    found = compare(dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", 2.0))

    assert found is not None
    assert not found.clear


def test_few_clusters_give_more_nodes_each_so_that_six_are_forecast_in_all() -> None:
    picked = [pick_targets(20, StudySettings(), cluster=0, clusters=clusters) for clusters in (1, 3, 10)]

    assert [len(set(nodes)) for nodes in picked] == [6, 2, 2]
    assert pick_targets(3, StudySettings(), cluster=0, clusters=1) == [0, 1, 2]
    assert len(pick_targets(20, StudySettings(targets=1), cluster=0, clusters=1)) == 1


def test_average_rmse_is_over_nodes_not_over_forecasts() -> None:
    errors = {"m": {"a": {0: 1.0, 1: 1.0, 2: 1.0}, "b": dict.fromkeys(range(30), 3.0), "c": {0: 9.0}}}

    assert node_rmse(errors, "m") == {"a": 1.0, "b": 3.0}
    assert mean_rmse(errors, "m") == 2.0


def test_traces_of_one_folder_are_a_cluster_on_one_clock(tmp_path: Path, rng: np.random.Generator) -> None:
    course = rng.random(1440 * 2)
    write_trace(tmp_path / "rack1" / "a.csv", course)
    late = write_trace(tmp_path / "rack1" / "b.csv", course)
    late.write_text("\n".join([late.read_text().splitlines()[0], *late.read_text().splitlines()[61:]]) + "\n")
    write_trace(tmp_path / "rack2" / "c.csv", course)
    panel = trace_panel(read_traces([tmp_path]), windows=4)

    assert [(c.name, c.nodes) for c in panel.clusters] == [("rack1", ("a", "b")), ("rack2", ("c",))]
    medians = panel.clusters[0].windows[3600].levels
    assert np.isnan(medians[1, 0])
    np.testing.assert_allclose(medians[1, 1:], medians[0, 1:])


def test_percent_per_cpu_becomes_milliseconds_and_other_columns_stay(tmp_path: Path) -> None:
    percent = read_traces([write_trace(tmp_path / "a.csv", np.full(40, 5.0))])
    other = read_traces([write_trace(tmp_path / "b.csv", np.full(40, 5.0), column="load")], ready="load")
    summed = read_traces([write_trace(tmp_path / "c.csv", np.full(40, 3000.0), column="w_ms")], ready="w_ms")

    assert (percent.unit, percent.traces[0].ready[0]) == ("ms", 1000.0)
    assert (other.unit, other.traces[0].ready[0]) == ("load", 5.0)
    assert (summed.unit, summed.traces[0].ready[0]) == ("ms", 1000.0)


def test_thresholds_in_ms_are_not_applied_to_another_unit(tmp_path: Path, rng: np.random.Generator) -> None:
    write_trace(tmp_path / "a.csv", rng.random(96 * 20), interval=900.0, column="load")
    panel = trace_panel(read_traces([tmp_path], ready="load"), windows=3)
    kinds = {
        t.name.split("-")[1] for t in lay_out_tasks(panel, StudySettings()) if t.name.startswith("alarm-")
    }

    assert "p90" in kinds
    assert not [kind for kind in kinds if kind.endswith("ms")]


def test_trace_too_short_for_days_is_joined_by_the_generated_data_set(
    tmp_path: Path, settings: ForecastSettings, outcome: ForecastOutcome, rng: np.random.Generator
) -> None:
    path = write_trace(tmp_path / "a.csv", rng.random(46))
    joined = run_forecast(
        ForecastSettings(traces=(path,), shape=settings.shape, study=settings.study, cache=settings.cache),
        no_bar,
    )

    assert [one.panel.generated for one in joined.studied] == [False, True]
    assert joined.studied[0].panel.lengths() == [900]
    assert any("daily medians from 14 days need" in line for line in describe_lack(joined.studied[0].panel))
    assert as_json(joined, "")["data_sets"][1] == as_json(outcome, "")["data_sets"][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestamp,a\n1,2\n61,3\n", "no column of CPU Ready among 'a'"),
        ("timestamp,ready,a\n1,,2\n61,,3\n", "must be known somewhere, got none"),
        ("timestamp,ready,a\n1,1,2\n2,1,2\n3,1,2\n900000,1,3\n", "mostly without gaps, got 4 rows"),
        ("timestamp,ready,a\n", "at least one row"),
    ],
)
def test_bad_trace_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(TelemetryError, match=message):
        read_traces([path])


def test_bad_trace_among_good_ones_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    good = write_trace(tmp_path / "a.csv", np.ones(40))
    (tmp_path / "b.csv").write_text("timestamp,x\n1,2\n", encoding="utf-8")
    coarse = write_trace(tmp_path / "c.csv", np.ones(40), interval=300.0)
    found = read_traces([good, tmp_path / "b.csv", coarse])

    assert [trace.node for trace in found.traces] == ["a"]
    assert any("b.csv" in line and "no column of CPU Ready" in line for line in found.warnings)
    assert any("one interval (60 s)" in line for line in found.warnings)


def test_unsorted_double_and_odd_rows_are_counted(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.csv", np.ones(40))
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[5] = lines[5].replace("1.0000", "oops")
    lines.insert(20, lines[19])
    lines.insert(30, lines[10])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = read_traces([path])

    assert (found.rows, found.dropped) == (42, 2)
    assert any("text in a number" in line for line in found.warnings)
    assert "42 read, 2 dropped" in trace_panel(found, windows=3).card["rows"]


def test_example_is_drawn_from_a_trace_with_metrics_of_memory(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    long = read_traces([write_trace(tmp_path / "a.csv", rng.random(125))])
    short = read_traces([write_trace(tmp_path / "b.csv", rng.random(60))])

    example = trace_example(long)
    assert example is not None
    assert (example.node, example.metrics, len(example.actual)) == ("a", 1, 60)
    assert trace_example(short) is None


def test_smd_machines_are_long_enough_for_every_table_but_thresholds_in_ms(shared_data: Path) -> None:
    traces = read_traces(sorted((shared_data / "data" / "smd").glob("*.parquet")))
    panel = trace_panel(traces, windows=3)

    assert (panel.unit, panel.days, len(panel.clusters[0].nodes)) == ("load_1", 32, 7)
    assert len(panel.lengths()) == 7
    assert all_tables({})[0].paper is not None
