"""A table goes in, decisions, measures and a picture come out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import prontosched
from prontosched import make_node
from prontosched.evaluation.measures import average_precision


def table(rows: int = 900) -> pd.DataFrame:
    """Contention every sixty rows, announced by one metric; a column of text beside it."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 4)), columns=["cpu", "net", "disk", "forks"])
    ready = np.full(rows, 0.3)
    for start in range(50, rows - 12, 60):
        frame.loc[start - 3 : start - 1, "forks"] += 15.0
        ready[start : start + 8] = 30.0
    frame["cpu_ready"] = ready
    frame["host"] = "n1"
    frame["when"] = pd.date_range("2026-01-01", periods=rows, freq="s")
    return frame


def test_three_lines_from_a_frame_to_measures():
    result = prontosched.replay(table(), timestamp="when", tolerance="5%")
    found = result.measures(truth=5.0)

    assert len(result) == 900
    assert result.node.metrics == ("cpu", "net", "disk", "forks")
    assert found["recall"] > found["present_recall"] > 0.5
    assert found["contended_accepted"] < 0.2
    assert found["calibration_error"] < 0.1
    assert result.time[1] - result.time[0] == 1.0


def test_a_frame_a_file_and_an_array_give_the_same_decisions(tmp_path):
    frame = table().drop(columns=["host", "when"])
    path = tmp_path / "one.csv"
    frame.to_csv(path, index=False)
    metrics = frame.drop(columns="cpu_ready")

    results = [
        prontosched.replay(frame),
        prontosched.replay(pl.DataFrame(frame.to_dict("list"))),
        prontosched.replay(path),
        prontosched.replay(metrics.to_numpy(), ready=frame["cpu_ready"]),
        prontosched.replay(metrics, ready=frame["cpu_ready"].to_numpy()),
    ]

    node = make_node()
    by_hand = [
        node.step(row, ready=now).probability
        for row, now in zip(metrics.to_numpy(), frame["cpu_ready"], strict=True)
    ]
    for result in results:
        np.testing.assert_array_equal(result.probability, by_hand)


def test_the_measures_are_the_evaluators():
    result = prontosched.replay(table())
    spike = result.ready >= 5.0
    label = np.array([spike[t + 1 : t + 6].any() for t in range(len(result))])[:-5]

    found = result.measures(truth=5.0, horizon=5)

    assert found["average_precision"] == pytest.approx(average_precision(result.probability[:-5], label))
    assert found["downtime"] == pytest.approx(result.raised[:-5].mean())


def test_a_result_becomes_a_frame_and_a_picture(tmp_path):
    result = prontosched.replay(table())
    frame = result.to_frame()
    result.plot().savefig(tmp_path / "replay.png")

    assert set(frame["state"]) <= {"accepting", "contended", "refusing"}
    assert (frame["state"] == "refusing").sum() == result.raised.sum() > 0
    assert (tmp_path / "replay.png").stat().st_size > 10_000
    assert repr(result).startswith("Replay(900 rows, ")


def test_wrong_tables_are_refused_in_words(tmp_path):
    two = pd.DataFrame({"node": ["a", "b"], "cpu": [1.0, 2.0], "ready": [0.0, 0.0]})
    two.to_csv(tmp_path / "two.csv", index=False)

    with pytest.raises(ValueError, match="must have a column 'rdy'"):
        prontosched.replay(table(), ready="rdy")
    with pytest.raises(ValueError, match="at least 0, NaN where unknown, got -1 at timestep 1"):
        prontosched.replay(np.ones((3, 2)), ready=[0.0, -1.0, 0.0])
    with pytest.raises(ValueError, match="needs node=, one of 'a', 'b'"):
        prontosched.replay(tmp_path / "two.csv")
    with pytest.raises(ValueError, match="at least one row"):
        prontosched.replay(np.ones((0, 2)))
    with pytest.raises(ValueError, match="rows of metrics"):
        prontosched.replay(np.ones(5))
    assert len(prontosched.replay(tmp_path / "two.csv", node="b")) == 1


def test_the_examples_of_the_python_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(200).rename(columns={"cpu_ready": "ready"}).drop(columns=["host", "when"]).to_csv(
        "host.csv", index=False
    )
    page = Path(__file__).parents[2] / "docs" / "python.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)

    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})
    assert Path("host.png").exists()


def test_the_columns_of_a_frame_mean_what_those_of_its_file_do(tmp_path):
    frame = table(300).drop(columns=["host", "when"])
    frame["timestamp"] = 1_700_000_000.0 + np.arange(300)
    frame["utilisation"] = 40.0
    frame["probe_slowdown"] = 1.0 + frame["cpu_ready"]
    frame["node"] = "n1"
    frame.to_csv(tmp_path / "one.csv", index=False)

    of_frame, of_file = prontosched.replay(frame), prontosched.replay(tmp_path / "one.csv")

    assert of_frame.node.metrics == of_file.node.metrics == ("cpu", "net", "disk", "forks")
    np.testing.assert_array_equal(of_frame.probability, of_file.probability)
    np.testing.assert_array_equal(of_frame.time, of_file.time)


def test_a_lazy_frame_and_an_index_of_dates_are_understood():
    frame = table(200).drop(columns="host")
    lazy = pl.DataFrame(frame.drop(columns="when").to_dict("list")).lazy()
    dated = frame.set_index("when")

    np.testing.assert_array_equal(prontosched.replay(lazy).ready, frame["cpu_ready"])
    assert np.diff(prontosched.replay(dated).time[:3]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("place", ["column", "index"])
def test_times_with_a_zone_and_missing_ones_are_understood(place):
    times = pd.date_range("2026-01-01", periods=30, freq="s", tz="Europe/Berlin").insert(0, pd.NaT)
    table = pd.DataFrame({"ready": np.ones(31), "cpu": np.arange(31.0)})
    frame = table.assign(timestamp=times) if place == "column" else table.set_index(times)

    found = prontosched.replay(frame).time

    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], 1767222000.0 + np.arange(30))


@pytest.mark.parametrize("ticks_a_second", [1, 10**3, 10**6, 10**9])
def test_times_as_numbers_become_seconds_whatever_their_unit(ticks_a_second):
    times = (1_700_000_000 + np.arange(30)) * ticks_a_second
    found = prontosched.replay(pd.DataFrame({"timestamp": times, "ready": 1.0, "cpu": np.arange(30.0)}))

    assert found.time.tolist() == pytest.approx((1_700_000_000 + np.arange(30)).tolist(), abs=1e-3)


def test_columns_of_one_name_and_an_unknown_node_are_refused_in_words():
    with pytest.raises(ValueError, match="different names, got ready, cpu, cpu"):
        prontosched.replay(pd.DataFrame(np.ones((9, 3)), columns=["ready", "cpu", "cpu"]))
    with pytest.raises(ValueError, match="at least one row of node 'c', got none"):
        prontosched.replay(pd.DataFrame({"node": ["a", "b"], "cpu": [1.0, 2.0]}), node="c")
