"""What the benchmarks measure and print."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import benchmarks
from benchmarks.core import node_rows
from benchmarks.embeddings import compare, draw, subspace_error, table
from benchmarks.federation import one_error, one_view, scale
from benchmarks.row import Row
from benchmarks.worth import Plan, _held_out, _rows, same_kind

ROOT = Path(__file__).parents[2]


def test_tools_and_benchmarks_are_in_the_source_archive_and_not_in_the_wheel() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]

    assert targets["wheel"] == {"packages": ["src/prontosched"]}
    assert {"benchmarks", "tools"} <= set(targets["sdist"]["include"])
    for module in (ROOT / "src" / "prontosched").rglob("*.py"):
        assert not re.search(r"(?m)^\s*(from|import) (benchmarks|tools)\b", module.read_text()), module


@pytest.mark.soak
def test_a_row_of_the_core_has_a_figure_and_a_goal() -> None:
    rows = [row.as_json() for row in node_rows()]

    assert {"name", "value", "goal", "unit", "met"} <= rows[0].keys()
    assert all(row["value"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("a", 2.0, "x", 3.0), True),
        (Row("a", 2.0, "x", 3.0, "more"), False),
        (Row("a", 2.0, "x"), None),
    ],
)
def test_a_goal_is_met_on_its_right_side(row: Row, met: bool | None) -> None:
    assert row.met is met


def test_the_command_prints_a_table_or_a_list_of_rows() -> None:
    table = CliRunner().invoke(benchmarks, ["federation", "--nodes", "100"])
    found = json.loads(CliRunner().invoke(benchmarks, ["federation", "--nodes", "100", "--json"]).stdout)

    assert table.exit_code == 0, table.output
    assert len(table.stdout.splitlines()) == 1 + len(found)
    assert any(row["name"].startswith("shared scale, nodes keep 0 spare") for row in found)
    assert any(row["name"] == "100 nodes: messages to a fresh view" for row in found)


def test_the_cost_of_a_view_is_counted_in_messages_and_bytes() -> None:
    found = one_view(250, features=40)

    assert found["messages"] == 250 + 3 + 1
    assert 250 * 1000 < found["bytes"] < 250 * 2500
    assert found["distance"] < 0.01
    assert {row.name.partition(":")[0] for row in scale(150, features=20)} >= {"100 nodes", "150 nodes"}


def test_spare_directions_bring_the_view_closer_to_the_svd_of_all_data() -> None:
    none, one, four = (one_error(None, spare=spare, nodes=12) for spare in (0, 1, 4))

    assert four < one < 0.5 * none
    assert one_error(4.0, spare=1, nodes=12) < 0.02


def test_worth_compares_the_same_machine_with_and_without_the_view() -> None:
    plan = Plan(3, 300, (((60,), 1),))
    machines = same_kind(3, seed=1, steps=400)
    courses = _held_out(machines, plan)
    alone, joined = courses[60]["alone"], courses[60]["view"]

    assert len(alone) == len(joined) == 3
    for one, other in zip(alone, joined, strict=True):
        assert (one.contention == other.contention).all()
        # No view before the first block is full: a node alone captures nothing there.
        assert one.captured[:10].sum() == 0.0
        assert other.captured[5:10].sum() > 0.0
    rows = {row.name: row.value for row in _rows("x", courses, variance_floor=1.0)}
    assert rows["x: variance captured, first 60 steps, view against alone"] > 1.0
    assert not math.isnan(rows["x: variance captured, first 60 steps, alone"])


def test_streaming_pca_is_compared_on_the_same_streams(tmp_path: Path) -> None:
    found = list(compare(rows=400, repeats=1))
    by = {(one.method, one.stream): one for one in found}
    draw(found, tmp_path / "embeddings.png")

    assert {one.stream for one in found} == {"clear", "telemetry", "drift"}
    assert all(0.0 <= one.error <= 1.0 and one.vectors_per_second > 0 for one in found)
    assert by["FPCA-Edge", "clear"].error < 0.01 < by["Frequent Directions", "clear"].error
    assert by["scikit-learn IncrementalPCA", "clear"].error < 0.01
    assert by["FPCA-Edge, forgetting 0.98", "drift"].error < by["FPCA-Edge", "drift"].error
    assert len(table(found).splitlines()) == 2 + len(found) // 3
    assert (tmp_path / "embeddings.png").stat().st_size > 10_000


def test_orthogonal_subspaces_are_one_apart_and_equal_ones_nought() -> None:
    axes = np.eye(6)

    assert subspace_error(axes[:, :2], axes[:, 2:4]) == pytest.approx(1.0)
    assert subspace_error(axes[:, :2], -axes[:, [1, 0]]) == pytest.approx(0.0)
