"""Vectors with names, of any kind of number; objects that say what they are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from prontosched import (
    FPCAEdge,
    FrequentDirections,
    LearnedSignal,
    PowerMethod,
    RejectJob,
    Spirit,
    extend,
    make_fleet,
    make_node,
    replay,
)
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


def test_signals_embeddings_and_fleets_say_their_settings_and_state_in_one_line():
    learned, fleet, fpca = make_node(), make_fleet("paper", nodes=2, features=3), FPCAEdge(2, 5)
    before = repr(learned.signal)
    for row in vectors():
        learned.step(row, ready=0.5)
        fleet.step(np.vstack([row, row]))
        fpca.learn_one(row)
    spirit = Spirit(2)
    spirit.learn_many(vectors().T)

    assert before.startswith("LearnedSignal(tolerance='5%', horizon=5, likelihood=0.5")
    assert before.endswith("enforcing=False; no labelled step yet)")
    assert repr(learned.signal).endswith("; 55 labelled steps, 0.0% before contention)")
    assert repr(RejectJob(2.0)).startswith("RejectJob(threshold=2.0, ")
    assert repr(fleet) == "Fleet(2 nodes, fpca, RejectJobFleet, 3 metrics, timestep=60)"
    assert repr(fpca).endswith("growth='spare'; 3 metrics, 12 blocks)")
    assert repr(spirit) == "Spirit(rank=2, forgetting=0.96, holdoff=1; 3 metrics, 60 vectors)"
    assert repr(PowerMethod(2)) == "PowerMethod(rank=2, seed=0; no vector yet)"
    assert "\n" not in repr(LearnedSignal(budget=0.2))


@pytest.mark.parametrize(
    "make",
    [lambda: FPCAEdge(2, 10), lambda: Spirit(2), lambda: FrequentDirections(2), lambda: PowerMethod(2, 10)],
)
def test_a_block_in_the_wrong_orientation_is_refused_with_a_hint(make):
    embedding = make()
    embedding.learn_many(vectors().T)

    with pytest.raises(ValueError, match=r"must be \(3, n\), got \(60, 3\): .* give its transpose"):
        embedding.learn_many(vectors())
    with pytest.raises(ValueError, match=r"must be \(3, n\), got \(5, 4\)$"):
        embedding.learn_many(np.ones((5, 4)))
    with pytest.raises(ValueError, match="must have 3 metrics as the first one had"):
        embedding.learn_one(np.ones(4))
    with pytest.raises(ValueError, match=r"must be \(d, n\), got"):
        make().learn_many(np.ones(4))
    with pytest.raises(ValueError, match="give its transpose"):
        extend(embedding.subspace, vectors(), rank=2)


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda rows, columns: pl.DataFrame(rows, schema=columns)])
def test_the_rows_of_a_frame_are_vectors(frame):
    rows = (vectors() * 10).round().astype(int)
    of_array, of_frame, of_lists = FPCAEdge(2, 10), FPCAEdge(2, 10), FPCAEdge(2, 10)
    of_array.learn_many(rows.T)
    of_frame.learn_many(frame(rows, columns=NAMES))
    for row in rows.tolist():
        of_lists.learn_one(row)

    np.testing.assert_array_equal(of_array.subspace.basis, of_frame.subspace.basis)
    np.testing.assert_array_equal(of_array.subspace.basis, of_lists.subspace.basis)


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda rows, columns: pl.DataFrame(rows, schema=columns)])
def test_the_columns_of_a_fleets_frame_are_matched_by_name(frame):
    names = tuple(NAMES)
    plain, named = (make_fleet("paper", nodes=2, features=3, metrics=names) for _ in range(2))
    for row in vectors():
        expected = plain.step(np.vstack([row, 2.0 * row]))
        decision = named.step(frame(np.vstack([row, 2.0 * row])[:, ::-1], columns=NAMES[::-1]))
        np.testing.assert_array_equal(decision.score, expected.score)

    assert list(decision.to_frame()["score"]) == expected.score.tolist()


def test_a_table_is_no_vector():
    with pytest.raises(ValueError, match=r"one row, got 60: prontosched\.replay takes whole tables"):
        make_node().step(pd.DataFrame(vectors(), columns=NAMES))


def test_cpu_ready_below_zero_is_refused_by_nodes_and_fleets_and_unknown_in_a_trace(tmp_path):
    (tmp_path / "one.csv").write_text("cpu,ready\n1,0\n2,-3\n")

    with pytest.raises(ValueError, match="at least 0, NaN where unknown, got -1 at timestep 0"):
        make_node().step(np.ones(3), ready=-1.0)
    fleet = make_fleet(nodes=3, features=3)
    fleet.step(np.ones((3, 3)), ready=np.array([0.0, np.nan, -1.0]), present=np.array([True, True, False]))
    with pytest.raises(ValueError, match="at least 0, NaN where unknown, got -2 at timestep 1"):
        fleet.step(np.ones((3, 3)), ready=np.array([np.nan, -2.0, -np.inf]))
    np.testing.assert_array_equal(replay(tmp_path / "one.csv").ready, [0.0, np.nan])


def test_a_subspace_becomes_a_frame_of_metrics_and_directions():
    frame = Subspace(np.array([[0.6], [-0.8], [0.0]]), np.array([2.0])).to_frame(NAMES)

    assert frame.loc["net", 1] == -0.8
