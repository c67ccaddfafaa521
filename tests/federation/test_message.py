"""Messages: they survive the way, and nothing malformed gets in."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.codec import encode
from prontosched.errors import FederationError
from prontosched.federation.link import MESSAGE_LIMIT
from prontosched.federation.message import DecisionMessage, GlobalView, Summary, UnknownSchemaError
from prontosched.federation.schema import (
    checked_metrics,
    fingerprint,
    hashed,
    schema_from_bytes,
    schema_to_bytes,
)
from prontosched.subspace import Subspace

from .fleets import factor_data, names, summary_of


def example(features: int = 20, rank: int = 5, seed: int = 3) -> Summary:
    rng = np.random.default_rng(seed)
    return summary_of("rack1/n1", factor_data(rng, features, 200), rank=rank, standardise=True)


def known(summary: Summary | GlobalView):
    return lambda schema: summary.metrics if schema == fingerprint(summary.metrics) else None


def packed(summary: Summary, **changes: object) -> bytes:
    """A summary whose checksum is right and some fields are not."""
    subspace = summary.subspace
    fields = {
        "node": summary.node,
        "incarnation": 1,
        "sequence": 1,
        "sent": 0,
        "skipped": 0,
        "schema": fingerprint(summary.metrics),
        "samples": summary.samples,
        "nodes": 1,
        "mean": summary.mean,
        "deviation": summary.deviation,
        "basis": subspace.basis,
        "strengths": subspace.singular_values,
    }
    return encode("summary", 1, {**fields, **changes})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), features=st.integers(3, 40), rank=st.integers(1, 6))
def test_a_summary_survives_the_way_to_single_precision(seed: int, features: int, rank: int) -> None:
    sent = dataclasses.replace(
        example(features, rank, seed), statistics={"head.gram": np.arange(6.0).reshape(2, 3)}, skipped=7
    )
    read = Summary.from_bytes(sent.to_bytes(), known(sent))

    assert read.node == sent.node
    assert read.version == sent.version
    assert (read.samples, read.nodes, read.skipped) == (sent.samples, sent.nodes, 7)
    np.testing.assert_allclose(read.subspace.basis, sent.subspace.basis, atol=1e-7)
    np.testing.assert_allclose(read.subspace.singular_values, sent.subspace.singular_values, rtol=1e-6)
    np.testing.assert_allclose(read.deviation, sent.deviation, rtol=1e-6)
    np.testing.assert_array_equal(read.counts, sent.counts)
    np.testing.assert_array_equal(read.statistics["head.gram"], sent.statistics["head.gram"])


def test_a_summary_of_134_metrics_is_about_four_kilobytes() -> None:
    assert 3_500 < len(example(features=134, rank=5).to_bytes()) < 4_400


def test_a_view_survives_the_way_with_spread_and_counts() -> None:
    summary = dataclasses.replace(example(), spread=np.arange(20.0), counts=np.arange(20.0), nodes=12)
    view = GlobalView.of(summary, revision=9)
    read = GlobalView.from_bytes(view.to_bytes(), known(view))

    assert (read.revision, read.nodes) == (9, 12)
    np.testing.assert_array_equal(read.spread, view.spread)
    np.testing.assert_array_equal(read.counts, view.counts)


def test_a_summary_without_a_subspace_is_a_sign_of_life() -> None:
    young = dataclasses.replace(example(), subspace=None, samples=0.0, counts=np.zeros(20))

    assert Summary.from_bytes(young.to_bytes(), known(young)).subspace is None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_altered_bytes_never_pass_and_never_raise_anything_else(data: st.DataObject) -> None:
    raw = bytearray(example().to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])

    with pytest.raises(FederationError, match="summary: "):
        Summary.from_bytes(cut, known(example()))


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.floats(),
    st.text(max_size=30),
    st.lists(st.integers(), max_size=3),
    st.integers(0, 12).map(lambda n: np.full(n, np.nan)),
    st.integers(0, 12).map(lambda n: np.full((n, n), 1e30)),
    st.just(np.array(3.0)),
)


@settings(max_examples=150, deadline=None)
@given(field=st.sampled_from(["node", "incarnation", "samples", "nodes", "mean", "deviation", "basis", "strengths",
                              "schema", "spread", "counts"]), value=junk)  # fmt: skip
def test_a_field_of_the_wrong_kind_is_refused_with_a_reason(field: str, value: object) -> None:
    harmless = {("samples", int), ("nodes", int), ("incarnation", int), ("node", str), ("samples", float)}
    data = packed(example(), **{field: value})
    if (field, type(value)) in harmless:
        with contextlib.suppress(FederationError):
            Summary.from_bytes(data, known(example()))
    else:
        with pytest.raises(FederationError, match="must"):
            Summary.from_bytes(data, known(example()))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"basis": np.ones((20, 5))}, "must have an orthonormal basis"),
        # Infinite squares of either sign add up to no number at all.
        ({"basis": 1e200 * np.eye(20)[:, :5]}, "must have an orthonormal basis"),
        ({"basis": 1e200 * np.outer([1, 1] * 10, [1, -1, 1, -1, 1])}, "must have an orthonormal basis"),
        ({"basis": 1e200 * np.resize([1.0, 1.0, -1.0], (20, 5))}, "must have an orthonormal basis"),
        ({"basis": np.eye(21)[:, :5]}, "must have a basis of 20 rows"),
        ({"strengths": np.array([1.0, 2.0, 3.0, 4.0, 5.0])}, "falling singular values"),
        ({"strengths": np.array([1e9, 4.0, 3.0, 2.0, 1.0])}, "that 200 standardised samples can have"),
        ({"samples": 1e20}, "plausible counts"),
        ({"deviation": -np.ones(20)}, "deviations and counts from 0"),
        ({"mean": np.full(20, np.inf)}, "mean must be finite"),
        ({"statistic:x": np.array([np.nan])}, "finite statistics"),
        ({f"statistic:{i}": np.zeros(1) for i in range(70)}, "at most 64 statistics"),
        ({"statistic:x": np.zeros(70_000)}, "summary: data must be at most|at most 64 statistics of 65536"),
        ({"node": "a//b"}, "a name must be 1 to 8 parts"),
        ({"sequence": -1}, "sequence must be a whole number from 0"),
    ],
)
def test_what_cannot_be_true_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(FederationError, match=reason):
        Summary.from_bytes(packed(example(), **changes), known(example()))


def test_an_oversized_message_is_refused_before_it_is_looked_at() -> None:
    with pytest.raises(FederationError, match="data must be at most"):
        Summary.from_bytes(b"PRON" + bytes(MESSAGE_LIMIT), known(example()))


def test_a_newer_version_is_refused_with_advice() -> None:
    data = encode("summary", 99, {})
    with pytest.raises(FederationError, match="written by a newer Pronto"):
        Summary.from_bytes(data, known(example()))


def test_an_unknown_schema_is_told_apart_from_an_error() -> None:
    sent = example()
    with pytest.raises(UnknownSchemaError, match="wait until its names arrive") as caught:
        Summary.from_bytes(sent.to_bytes(), lambda _schema: None)

    assert caught.value.schema == fingerprint(sent.metrics)


def test_a_schema_must_match_its_fingerprint() -> None:
    data = schema_to_bytes(names(5))

    assert schema_from_bytes(data, expected=fingerprint(names(5))) == names(5)
    with pytest.raises(FederationError, match="must have the fingerprint"):
        schema_from_bytes(data, expected=fingerprint(names(6)))


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ([], "1 to 8192 metrics, got 0"),
        (["a", "a"], "got 'a' twice"),
        (["a", ""], "printable characters"),
        (["a\n"], "printable characters"),
        ("cpu", "1 to 8192 metrics"),
        ([1], "printable characters"),
    ],
)
def test_a_schema_that_is_none_is_refused(metrics: object, reason: str) -> None:
    with pytest.raises(FederationError, match=reason):
        checked_metrics(metrics)


def test_hashed_names_agree_among_holders_of_the_key_and_hide_the_names() -> None:
    one, other = hashed(names(30), b"key-of-sixteen-b"), hashed(names(30), b"key-of-sixteen-b")

    assert one == other
    assert len(set(one)) == 30
    assert not set(one) & set(hashed(names(30), b"another-sixteen-"))
    assert not any(name in token for name in names(30) for token in one)
    with pytest.raises(FederationError, match="at least 16 bytes, got 5"):
        hashed(names(3), b"short")


@given(score=st.floats(), reason=st.text(max_size=600), accept=st.booleans())
def test_a_decision_survives_the_way(score: float, reason: str, accept: bool) -> None:
    sent = DecisionMessage("n1", accept, score, reason, issued=10.0, valid_until=20.0)
    read = DecisionMessage.from_bytes(sent.to_bytes())

    assert read.reason == "".join(one if one.isprintable() else " " for one in reason[:400])
    assert read.accept == accept
    assert read.score == score or np.isnan(score)
    assert not read.expired(19.9)
    assert read.expired(20.0)


@pytest.mark.parametrize("field", ["accept", "score", "reason", "valid_until", "node"])
def test_a_decision_without_a_field_is_refused(field: str) -> None:
    fields = {"node": "n", "accept": True, "score": 1.0, "reason": "r", "issued": 1.0, "valid_until": 2.0,
              "threshold": 1.0, "probability": 0.5}  # fmt: skip
    del fields[field]

    with pytest.raises(FederationError, match=field):
        DecisionMessage.from_bytes(encode("decision", 1, fields))


def test_a_summary_never_holds_more_directions_than_metrics() -> None:
    sent = dataclasses.replace(example(), subspace=Subspace(np.eye(20), np.linspace(2, 1, 20)))

    assert Summary.from_bytes(sent.to_bytes(), known(sent)).subspace.rank == 20
