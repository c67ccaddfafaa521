"""One scale for the fleet, and the way back to a node's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.federation.aggregator import Aggregator
from prontosched.federation.message import GlobalView, Summary
from prontosched.federation.pooling import pooled_scale, view_in_units

from .fleets import angle, exact, factor_data, names, summary_of

FEATURES = 16


def fleet(
    rng: np.random.Generator, *, nodes: int, rank: int, ratio: float
) -> tuple[list[np.ndarray], list[Summary]]:
    """Nodes that see the same factors with deviations up to `ratio` apart."""
    data = factor_data(rng, FEATURES, nodes * 100)
    blocks = []
    for node in range(nodes):
        block = data[:, node * 100 : (node + 1) * 100]
        blocks.append(rng.uniform(1, ratio, (FEATURES, 1)) * block + rng.normal(0, 10, (FEATURES, 1)))
    return blocks, [summary_of(f"n{i}", b, rank=rank, standardise=True) for i, b in enumerate(blocks)]


def merged_of(summaries: list[Summary], **options: int) -> Summary:
    aggregator = Aggregator("", **options)
    for summary in summaries:
        aggregator.receive(summary, now=0.0)
    merged = aggregator.merged()
    assert merged is not None
    return merged


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999))
def test_with_all_ranks_kept_the_pooled_view_equals_the_svd_on_the_pooled_scale(seed: int) -> None:
    blocks, summaries = fleet(np.random.default_rng(seed), nodes=5, rank=FEATURES, ratio=4.0)
    merged = merged_of(summaries, rank=3, spare=FEATURES - 3)

    within = np.sqrt(np.mean([b.var(axis=1) for b in blocks], axis=0))
    truth = exact([(b - b.mean(axis=1, keepdims=True)) / within[:, None] for b in blocks], 3)
    np.testing.assert_allclose(merged.deviation, within, rtol=1e-9)
    assert merged.subspace is not None
    assert angle(merged.subspace.cut(3), truth) < 1e-6


def test_pooled_scaling_with_truncated_summaries_stays_within_a_stated_error() -> None:
    errors = []
    for seed in range(10):
        blocks, summaries = fleet(np.random.default_rng(seed), nodes=8, rank=6, ratio=2.0)
        merged = merged_of(summaries, rank=3)
        within = np.sqrt(np.mean([b.var(axis=1) for b in blocks], axis=0))
        truth = exact([(b - b.mean(axis=1, keepdims=True)) / within[:, None] for b in blocks], 3)
        assert merged.subspace is not None
        errors.append(angle(merged.subspace.cut(3), truth))

    assert np.median(errors) < 0.05
    assert max(errors) < 0.1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), split=st.integers(1, 5))
def test_the_pooled_scale_is_the_same_in_one_step_or_through_a_tree(seed: int, split: int) -> None:
    _, summaries = fleet(np.random.default_rng(seed), nodes=6, rank=4, ratio=3.0)
    flat = pooled_scale(summaries, names(FEATURES))
    left, right = merged_of(summaries[:split]), merged_of(summaries[split:])
    deep = pooled_scale([left, right], names(FEATURES))

    for one, other in zip(flat, deep, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_spread_holds_how_far_levels_lie_apart(rng: np.random.Generator) -> None:
    blocks, summaries = fleet(rng, nodes=6, rank=4, ratio=1.5)
    levels = np.stack([b.mean(axis=1) for b in blocks])

    np.testing.assert_allclose(merged_of(summaries).spread, levels.std(axis=0))


def view_of(summary: Summary) -> GlobalView:
    return GlobalView.of(summary, 1)


def test_a_view_comes_back_in_the_units_and_the_order_of_the_node(rng: np.random.Generator) -> None:
    blocks, summaries = fleet(rng, nodes=6, rank=FEATURES, ratio=3.0)
    view = view_of(merged_of(summaries, rank=3, spare=FEATURES - 3))
    order = rng.permutation(FEATURES)
    metrics = tuple(names(FEATURES)[i] for i in order)
    deviation = blocks[0].std(axis=1)[order]

    mine = view_in_units(view, metrics, deviation, rank=3, samples=view.samples)

    truth = exact([((b - b.mean(axis=1, keepdims=True))[order]) / deviation[:, None] for b in blocks], 3)
    assert mine is not None
    assert angle(mine, truth) < 1e-6
    np.testing.assert_allclose(mine.singular_values, truth.singular_values, rtol=1e-9)


def test_a_node_without_samples_sees_the_view_in_the_units_of_the_fleet(rng: np.random.Generator) -> None:
    _, summaries = fleet(rng, nodes=4, rank=8, ratio=2.0)
    view = view_of(merged_of(summaries, rank=4))

    mine = view_in_units(view, view.metrics, None, rank=4)

    assert mine is not None
    assert view.subspace is not None
    assert angle(mine, view.subspace.cut(4)) < 1e-6
    assert mine.singular_values[0] ** 2 == pytest.approx(view.subspace.singular_values[0] ** 2 / view.samples)


def test_a_node_that_shares_no_metric_gets_no_view(rng: np.random.Generator) -> None:
    _, summaries = fleet(rng, nodes=3, rank=4, ratio=2.0)
    view = view_of(merged_of(summaries))

    assert view_in_units(view, ("other", "metrics"), np.ones(2), rank=2) is None


def test_constant_and_never_seen_metrics_leave_no_trace_in_the_view(rng: np.random.Generator) -> None:
    data = factor_data(rng, FEATURES, 100)
    data[3] = 7.0
    summaries = [summary_of(f"n{i}", data, rank=6, standardise=True) for i in range(3)]
    merged = merged_of(summaries)

    assert merged.subspace is not None
    assert np.all(np.isfinite(merged.subspace.basis))
    assert np.abs(merged.subspace.basis[3]).max() < 1e-9
