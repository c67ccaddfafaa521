"""Vectors with names, of any kind of number; objects that say what they are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from prontosched import make_node
from prontosched.subspace import Subspace

NAMES = ["cpu", "net", "disk"]


def vectors(count: int = 60) -> np.ndarray:
    return np.random.default_rng(0).normal((50.0, 5.0, 1.0), size=(count, 3))


def scores(rows: list) -> list[float]:
    node = make_node("paper")
    return [node.step(row).score for row in rows]


@pytest.mark.parametrize(
    "named",
    [
        lambda row: dict(zip(NAMES, row.tolist(), strict=True)),
        lambda row: dict(reversed(list(zip(NAMES, row.tolist(), strict=True)))),
        lambda row: pd.Series(row, index=NAMES),
        lambda row: pd.Series(row, index=NAMES)[::-1],
        lambda row: pd.DataFrame([row], columns=NAMES),
        lambda row: pl.DataFrame(dict(zip(NAMES, row.tolist(), strict=True))),
    ],
    ids=["dict", "dict in another order", "series", "series in another order", "frame", "polars"],
)
def test_named_metrics_are_matched_by_name(named):
    rows = vectors()
    node = make_node("paper", metrics=tuple(NAMES))

    assert [node.step(named(row)).score for row in rows] == scores(list(rows))


def test_the_first_names_are_the_metrics_a_missing_one_is_unknown_and_a_new_one_is_named():
    node = make_node()
    node.step({"cpu": 1.0, "net": 2.0})
    node.step({"net": 2.0})

    assert node.metrics == ("cpu", "net")
    assert node.timestep == 2
    with pytest.warns(UserWarning, match="left out: fan"):
        node.step({"cpu": 1.0, "net": 2.0, "fan": 3.0})


def test_names_after_vectors_without_names_are_refused():
    node = make_node()
    node.step(np.ones(2))

    with pytest.raises(ValueError, match="without names"):
        node.step({"cpu": 1.0, "net": 2.0})


@pytest.mark.parametrize("dtype", ["int16", "int64", "float32", "float16"])
def test_any_kind_of_number_will_do(dtype):
    rows = (vectors() * 10).round().astype(dtype)

    assert scores(list(rows)) == scores(list(rows.astype(float)))


def test_a_pandas_series_without_names_is_a_vector():
    rows = vectors()

    assert scores([pd.Series(row) for row in rows]) == scores(list(rows))


def test_objects_say_what_they_are():
    node = make_node(metrics=("<b>", "net"))
    for row in vectors()[:, :2]:
        decision = node.step(row, ready=0.5, utilisation=20.0)

    assert repr(node) == "Node(fpca, learned, 2 metrics, timestep=60)"
    assert repr(decision).startswith("Decision(accepting, probability=0.")
    assert "<td>accepting</td>" in decision._repr_html_()
    assert decision._replace(reason="<b>")._repr_html_().count("&lt;b&gt;") == 1
    assert "metrics, 2 directions" in repr(Subspace(np.eye(3)[:, :2], np.array([2.0, 1.0])))


def test_a_subspace_explains_itself_by_the_heaviest_metrics():
    subspace = Subspace(np.array([[0.6], [-0.8], [0.0]]), np.array([2.0]))

    assert subspace.explain(NAMES, top=2) == [{"net": -0.8, "cpu": 0.6}]
    assert "1 (-0.80), 0 (+0.60)" in subspace._repr_html_()
    with pytest.raises(ValueError, match="metrics must be 3 names, got 1"):
        subspace.explain(["cpu"])
