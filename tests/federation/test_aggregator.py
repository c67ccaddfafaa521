"""Aggregators against the exact SVD: any tree, order, duplicates and losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.errors import FederationError
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.message import Summary
from prontosched.subspace import Array

from .fleets import align, angle, exact, factor_data, names, summary_of

FEATURES, SAMPLES = 12, 40
seeds = st.integers(0, 10_000)


def leaves(
    seed: int, count: int, *, rank: int = FEATURES, shared: bool = True
) -> tuple[list[Array], list[Summary]]:
    """Data and summaries of `count` nodes; every node sees the same factors in its own way."""
    rng = np.random.default_rng(seed)
    common = factor_data(rng, FEATURES, SAMPLES * count)
    blocks = [
        common[:, i * SAMPLES : (i + 1) * SAMPLES] * (1.0 if shared else rng.uniform(0.5, 2))
        for i in range(count)
    ]
    return blocks, [summary_of(f"n{i}", block, rank=rank) for i, block in enumerate(blocks)]


def numbered(summary: Summary | None, name: str) -> Summary:
    """An aggregator's result, as its parent would hear it."""
    assert summary is not None
    return replace(summary, node=name, incarnation=1, sequence=1)


def tree_of(summaries: list[Summary], shape: str, *, spare: int) -> Summary:
    """Merge summaries in a star, a chain or a deep binary tree."""
    if shape == "star":
        groups = [summaries]
    elif shape == "chain":
        held = summaries[0]
        for index, summary in enumerate(summaries[1:]):
            held = numbered(star([held, summary], spare), f"chain{index}")
        return held
    else:
        level = summaries
        while len(level) > 1:
            groups = [level[i : i + 2] for i in range(0, len(level), 2)]
            level = [numbered(star(group, spare), f"l{len(level)}-{i}") for i, group in enumerate(groups)]
        return level[0]
    return numbered(star(groups[0], spare), "root")


def star(summaries: list[Summary], spare: int) -> Summary | None:
    aggregator = Aggregator("", rank=3, spare=spare)
    for summary in summaries:
        aggregator.receive(summary, now=0.0)
    return aggregator.merged()


@settings(max_examples=30, deadline=None)
@given(seed=seeds, count=st.integers(2, 9), shape=st.sampled_from(["star", "chain", "deep"]))
def test_with_all_ranks_kept_every_tree_equals_the_svd_of_all_data(seed: int, count: int, shape: str) -> None:
    blocks, summaries = leaves(seed, count)
    root = tree_of(summaries, shape, spare=FEATURES - 3)
    truth = exact(blocks, 3)

    assert root.subspace is not None
    np.testing.assert_allclose(root.subspace.singular_values[:3], truth.singular_values, rtol=1e-9)
    assert angle(root.subspace.cut(3), truth) < 1e-6
    assert root.samples == SAMPLES * count
    assert root.nodes == count


@settings(max_examples=30, deadline=None)
@given(seed=seeds, shape=st.sampled_from(["star", "chain", "deep"]))
def test_truncated_trees_stay_close_to_the_svd_of_all_data(seed: int, shape: str) -> None:
    blocks, summaries = leaves(seed, 8, rank=5)
    root = tree_of(summaries, shape, spare=2)

    assert root.subspace is not None
    assert angle(root.subspace.cut(3), exact(blocks, 3)) < 0.02


@settings(max_examples=30, deadline=None)
@given(seed=seeds, data=st.data())
def test_order_duplicates_and_replays_change_not_a_single_bit(seed: int, data: st.DataObject) -> None:
    _, first = leaves(seed, 6)
    _, second = leaves(seed + 1, 6)
    newer = [summary_with(s, sequence=2) for s in second]
    calm = Aggregator("")
    for summary in newer:
        calm.receive(summary, now=0.0)

    stormy = Aggregator("")
    arrivals = data.draw(st.permutations(first + newer + newer))
    for summary in arrivals:
        stormy.receive(summary, now=0.0)
    for summary in first:
        assert not stormy.receive(summary, now=1.0)

    one, other = calm.merged(), stormy.merged()
    assert one is not None
    assert other is not None
    assert one.subspace
    assert other.subspace
    np.testing.assert_array_equal(one.subspace.basis, other.subspace.basis)
    np.testing.assert_array_equal(one.subspace.singular_values, other.subspace.singular_values)
    assert one.samples == other.samples


def summary_with(summary: Summary, **changes: object) -> Summary:
    return replace(summary, **changes)  # type: ignore[arg-type]


def test_cumulative_summaries_are_not_counted_twice(rng: np.random.Generator) -> None:
    data = [factor_data(rng, FEATURES, 600) for _ in range(4)]
    aggregator = Aggregator("", rank=3)
    for sequence in range(1, 61):
        for index, block in enumerate(data):
            summary = summary_of(f"n{index}", block[:, : 10 * sequence], rank=FEATURES, sequence=sequence)
            aggregator.receive(summary, now=float(sequence))

    merged = aggregator.merged()
    assert merged is not None
    assert merged.subspace is not None
    strongest = exact(data, 1).singular_values[0]
    assert merged.subspace.singular_values[0] == pytest.approx(strongest, rel=1e-9)


def test_a_lost_message_is_made_up_for_by_the_next(rng: np.random.Generator) -> None:
    data = [factor_data(rng, FEATURES, 100) for _ in range(3)]
    lossy, whole = Aggregator(""), Aggregator("")
    for sequence in range(1, 11):
        for index, block in enumerate(data):
            summary = summary_of(f"n{index}", block[:, : 10 * sequence], rank=6, sequence=sequence)
            whole.receive(summary, now=0.0)
            if sequence == 10 or rng.random() < 0.5:
                lossy.receive(summary, now=0.0)

    one, other = lossy.merged(), whole.merged()
    assert one is not None
    assert other is not None
    assert one.subspace
    assert other.subspace
    np.testing.assert_array_equal(one.subspace.basis, other.subspace.basis)


def test_a_node_that_starts_again_with_old_state_replaces_its_former_self(rng: np.random.Generator) -> None:
    data = factor_data(rng, FEATURES, 100)
    aggregator = Aggregator("")
    aggregator.receive(summary_of("n", data, rank=4, sequence=50, incarnation=1), now=0.0)

    assert aggregator.receive(summary_of("n", data[:, :20], rank=4, sequence=1, incarnation=2), now=1.0)
    assert not aggregator.receive(summary_of("n", data, rank=4, sequence=51, incarnation=1), now=2.0)
    merged = aggregator.merged()
    assert merged is not None
    assert merged.samples == 20


def test_silent_children_expire_and_duplicates_do_not_keep_them_alive(rng: np.random.Generator) -> None:
    data = factor_data(rng, FEATURES, 30)
    aggregator = Aggregator("", expiry_seconds=10.0)
    aggregator.receive(summary_of("quiet", data, rank=3), now=0.0)
    aggregator.receive(summary_of("alive", data, rank=3), now=0.0)
    aggregator.receive(summary_of("quiet", data, rank=3), now=9.0)
    aggregator.receive(summary_of("alive", data, rank=3, sequence=2), now=9.0)

    assert aggregator.expire(11.0) == ["quiet"]
    assert sorted(aggregator.children) == ["alive"]


def test_one_child_too_many_is_refused_by_name(rng: np.random.Generator) -> None:
    data = factor_data(rng, FEATURES, 30)
    aggregator = Aggregator("rack1", fan_out=2)
    for name in ("a", "b"):
        aggregator.receive(summary_of(name, data, rank=3), now=0.0)

    with pytest.raises(FederationError, match="'rack1' must have at most 2 children, got 'c'"):
        aggregator.receive(summary_of("c", data, rank=3), now=0.0)
    assert aggregator.receive(summary_of("a", data, rank=3, sequence=2), now=0.0)


def test_no_node_outweighs_the_fleet_by_claiming_samples(rng: np.random.Generator) -> None:
    honest = [factor_data(rng, FEATURES, 100) for _ in range(4)]
    aggregator = Aggregator("", rank=3, largest_weight=100.0)
    for index, block in enumerate(honest):
        aggregator.receive(summary_of(f"n{index}", block, rank=6), now=0.0)
    calm = aggregator.merged()
    liar = summary_of("liar", factor_data(rng, FEATURES, 100) * 1e4, rank=6)
    aggregator.receive(summary_with(liar, samples=1e10), now=0.0)

    merged = aggregator.merged()
    assert calm is not None
    assert merged is not None
    assert merged.samples == 500
    assert merged.subspace is not None
    assert calm.subspace is not None
    assert merged.subspace.singular_values[0] < 3 * calm.subspace.singular_values[0]


def test_metrics_merge_by_name_whatever_their_order(rng: np.random.Generator) -> None:
    data = factor_data(rng, FEATURES, 200)
    shuffled = rng.permutation(FEATURES)
    own = names(FEATURES)
    aggregator = Aggregator("", rank=3)
    aggregator.receive(summary_of("a", data[:, :100], rank=FEATURES, metrics=own), now=0.0)
    other = tuple(own[i] for i in shuffled)
    aggregator.receive(summary_of("b", data[shuffled, 100:], rank=FEATURES, metrics=other), now=0.0)

    merged = aggregator.merged()
    assert merged is not None
    assert merged.subspace is not None
    assert merged.metrics == own
    assert angle(merged.subspace.cut(3), exact([data], 3)) < 1e-6


def test_a_tenth_of_foreign_metrics_hardly_turns_the_shared_ones() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        features, per_node = 60, 100
        loading = rng.standard_normal((features, 3)) * [1.5, 1.1, 0.8]
        shared = slice(0, 54)
        own = names(features)
        aggregator = Aggregator("", rank=3)
        alone = []
        for node in range(10):
            data = loading @ rng.standard_normal((3, per_node)) + 0.5 * rng.standard_normal(
                (features, per_node)
            )
            here = [*range(54), *(range(54, 57) if node % 2 else range(57, 60))]
            metrics = tuple(own[i] for i in here)
            aggregator.receive(
                summary_of(f"n{node}", data[here], rank=6, metrics=metrics, standardise=True), now=0.0
            )
            kept = data[shared]
            alone.append((kept - kept.mean(axis=1, keepdims=True)) / kept.std(axis=1, keepdims=True))
        merged = aggregator.merged()
        assert merged is not None
        assert merged.subspace is not None
        over_shared = align(merged.subspace.cut(3), merged.metrics, own[shared])

        assert over_shared is not None
        assert angle(over_shared, exact(alone, 3)) < 0.05
        np.testing.assert_array_equal(merged.counts, [1000.0] * 54 + [500.0] * 6)


def test_a_rolling_upgrade_of_the_schema_loses_nothing(rng: np.random.Generator) -> None:
    data = factor_data(rng, FEATURES, 400)
    old, new = names(FEATURES)[:-2], names(FEATURES)
    aggregator = Aggregator("", rank=3)
    for upgraded in range(5):
        for node in range(4):
            block = data[:, node * 100 : (node + 1) * 100]
            metrics = new if node < upgraded else old
            summary = summary_of(
                f"n{node}", block[: len(metrics)], rank=8, metrics=metrics, sequence=upgraded + 1
            )
            aggregator.receive(summary, now=float(upgraded))
        merged = aggregator.merged()

        assert merged is not None
        assert merged.subspace is not None
        assert merged.nodes == 4
        assert merged.samples == 400
        assert dict(zip(merged.metrics, merged.counts, strict=True)).get(new[-1], 0.0) == 100 * upgraded
        kept = align(merged.subspace.cut(3), merged.metrics, old)
        assert kept is not None
        assert angle(kept, exact([data[:-2]], 3)) < 0.05


def test_named_statistics_add_up_over_nodes(rng: np.random.Generator) -> None:
    data = factor_data(rng, FEATURES, 30)
    aggregator = Aggregator("")
    for node in range(3):
        summary = summary_of(f"n{node}", data, rank=3)
        statistics = {"gram": np.full((2, 2), node + 1.0), "count": np.array([10.0])}
        if node == 2:
            statistics = {"gram": np.full((3, 3), 9.0), "count": np.array([10.0])}
        aggregator.receive(summary_with(summary, statistics=statistics), now=0.0)

    merged = aggregator.merged()
    assert merged is not None
    np.testing.assert_array_equal(merged.statistics["count"], [30.0])
    # Two nodes share 2 x 2, one another shape: the majority's is summed.
    np.testing.assert_array_equal(merged.statistics["gram"], np.full((2, 2), 3.0))
