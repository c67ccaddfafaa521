"""Merging and comparing subspaces, against the SVD of everything at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.subspace import Subspace, align_signs, distance, extend, leading, merge, merge_all, summarise

seeds = st.integers(0, 2**32 - 1)


def random_subspace(rng: np.random.Generator, features: int, rank: int, scale: float = 1.0) -> Subspace:
    basis, _ = np.linalg.qr(rng.standard_normal((features, rank)))
    return Subspace(basis, scale * np.sort(rng.uniform(0.5, 5.0, rank))[::-1])


def second_moment(subspace: Subspace | None) -> np.ndarray:
    assert subspace is not None
    weighted = subspace.basis * subspace.singular_values
    return weighted @ weighted.T


def defect(subspace: Subspace | None) -> float:
    assert subspace is not None
    return float(np.abs(subspace.basis.T @ subspace.basis - np.eye(subspace.rank)).max())


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 40), st.integers(1, 6), st.integers(1, 6))
def test_merge_equals_the_svd_of_both_sides_in_either_order(
    seed: int, features: int, r1: int, r2: int
) -> None:
    rng = np.random.default_rng(seed)
    one = random_subspace(rng, features, min(r1, features))
    other = random_subspace(rng, features, min(r2, features))
    rank = one.rank + other.rank
    exact = np.linalg.svd(
        np.hstack([one.basis * one.singular_values, other.basis * other.singular_values]), compute_uv=False
    )
    merged, reverse = merge(one, other, rank=rank), merge(other, one, rank=rank)

    assert merged is not None
    np.testing.assert_allclose(merged.singular_values, exact[: merged.rank], atol=1e-9)
    np.testing.assert_allclose(second_moment(merged), second_moment(reverse), atol=1e-9)
    np.testing.assert_allclose(second_moment(merged), second_moment(one) + second_moment(other), atol=1e-9)
    assert defect(merged) < 1e-9


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(0.1, 1.0), st.floats(1.0, 4.0))
def test_merge_weighs_the_older_side_down_and_the_newer_side_up(
    seed: int, forgetting: float, enhancing: float
) -> None:
    rng = np.random.default_rng(seed)
    one, other = random_subspace(rng, 12, 3), random_subspace(rng, 12, 3)
    merged = merge(one, other, rank=6, forgetting=forgetting, enhancing=enhancing)
    expected = forgetting**2 * second_moment(one) + enhancing**2 * second_moment(other)

    np.testing.assert_allclose(second_moment(merged), expected, atol=1e-9)


def test_merge_with_nothing_is_the_identity(rng: np.random.Generator) -> None:
    one = random_subspace(rng, 8, 3)

    assert merge(one, None) is one
    assert merge(None, one) is one
    assert merge(None, None) is None


def test_merge_leaves_its_inputs_alone(rng: np.random.Generator) -> None:
    one, other = random_subspace(rng, 8, 3), random_subspace(rng, 8, 2)
    before = one.basis.copy(), one.singular_values.copy(), other.basis.copy()
    merge(one, other, rank=3)

    np.testing.assert_array_equal(one.basis, before[0])
    np.testing.assert_array_equal(one.singular_values, before[1])
    np.testing.assert_array_equal(other.basis, before[2])


def test_merging_nearly_equal_bases_stays_orthonormal(rng: np.random.Generator) -> None:
    one = random_subspace(rng, 30, 4)
    nudged, _ = np.linalg.qr(one.basis + 1e-9 * rng.standard_normal(one.basis.shape))
    merged = merge(one, Subspace(nudged, one.singular_values), rank=8)

    assert defect(merged) < 1e-9


def test_spare_directions_bring_a_tree_of_merges_closer_to_the_exact_svd(rng: np.random.Generator) -> None:
    leaves = [random_subspace(rng, 40, 8) for _ in range(8)]
    exact = merge_all(leaves, rank=4)

    def chain(spare: int) -> Subspace | None:
        total: Subspace | None = None
        for leaf in leaves:
            total = merge(total, leaf, rank=4, spare=spare)
        assert total is not None
        return total.cut(4)

    assert distance(chain(8), exact) < distance(chain(0), exact)


@settings(max_examples=30, deadline=None)
@given(seeds, st.permutations(range(5)))
def test_merging_many_at_once_does_not_depend_on_their_order(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [random_subspace(rng, 20, 3) for _ in range(5)]
    one, other = merge_all(parts, rank=15), merge_all([parts[i] for i in order], rank=15)

    np.testing.assert_allclose(second_moment(one), second_moment(other), atol=1e-9)


def test_merge_refuses_different_numbers_of_metrics(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="cannot merge 5 metrics into 8: align both"):
        merge(random_subspace(rng, 8, 2), random_subspace(rng, 5, 2))


@pytest.mark.parametrize("forgetting", [0.0, -1.0, 1.1, float("nan")])
def test_merge_refuses_a_forgetting_outside_its_range(rng: np.random.Generator, forgetting: float) -> None:
    with pytest.raises(ValueError, match=r"forgetting must be in \(0, 1\]"):
        merge(random_subspace(rng, 8, 2), random_subspace(rng, 8, 2), forgetting=forgetting)


def test_an_all_zero_block_leaves_nothing_known() -> None:
    assert summarise(np.zeros((5, 3)), rank=2) is None


def test_extend_with_a_block_inside_the_span_keeps_the_basis_orthonormal(rng: np.random.Generator) -> None:
    subspace = summarise(rng.standard_normal((20, 3)) @ rng.standard_normal((3, 10)), rank=4)
    for _ in range(50):
        assert subspace is not None
        subspace = extend(subspace, subspace.basis @ rng.standard_normal((subspace.rank, 10)), rank=4)

    assert subspace is not None
    assert subspace.rank == 3
    assert defect(subspace) < 1e-12


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_distance_is_blind_to_signs_and_rotations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = random_subspace(rng, 15, 4)
    turn, _ = np.linalg.qr(rng.standard_normal((4, 4)))

    assert distance(one, Subspace(one.basis @ turn, one.singular_values)) < 1e-7


def test_distance_runs_from_zero_to_one_and_takes_unequal_ranks() -> None:
    axes = np.eye(6)
    one = Subspace(axes[:, :2], np.ones(2))

    assert distance(one, one) == 0.0
    assert distance(one, Subspace(axes[:, 2:4], np.ones(2))) == pytest.approx(1.0)
    assert 0.0 < distance(one, Subspace(axes[:, :3], np.ones(3))) < 1.0


def test_elementwise_distance_fires_on_a_change_of_rank_and_overlooks_a_sign_within() -> None:
    diagonal = np.array([[1.0], [1.0]]) / np.sqrt(2)
    mirrored = np.array([[1.0], [-1.0]]) / np.sqrt(2)
    one, other = Subspace(diagonal, np.ones(1)), Subspace(mirrored, np.ones(1))

    assert distance(one, other, kind="elementwise") == 0.0
    assert distance(one, Subspace(np.eye(2), np.ones(2)), kind="elementwise") == float("inf")
    assert distance(one, other) == pytest.approx(1.0)


def test_eigenproblems_are_solved_as_numpy_solves_them(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((5, 6, 9))
    gram = rows @ rows.swapaxes(1, 2)

    squares, vectors, _ = leading(gram, 3)

    np.testing.assert_allclose(squares, np.linalg.eigvalsh(gram))
    np.testing.assert_allclose(vectors * squares[:, None] @ vectors.swapaxes(1, 2), gram, atol=1e-12)


def test_merging_in_groups_hardly_adds_to_what_truncation_loses(rng: np.random.Generator) -> None:
    shared = rng.standard_normal((80, 4))
    leaves = [
        Subspace(np.linalg.qr(shared + rng.standard_normal((80, 4)))[0], np.array([9.0, 7.0, 5.0, 3.0]))
        for _ in range(64)
    ]
    exact = merge_all(leaves, rank=4)
    whole, grouped = (
        [merge_all(leaves[i : i + 16], rank=4, spare=2, at_once=at_once) for i in range(0, 64, 16)]
        for at_once in (None, 24)
    )
    truncated, both = (
        distance(merge_all([part for part in parts if part is not None], rank=4), exact)
        for parts in (whole, grouped)
    )

    assert truncated > 0.0
    assert both < 2.0 * truncated


def test_few_inputs_are_merged_together_whatever_the_groups(rng: np.random.Generator) -> None:
    leaves = [Subspace(np.linalg.qr(rng.standard_normal((20, 3)))[0], np.ones(3)) for _ in range(4)]
    one, other = merge_all(leaves, rank=3), merge_all(leaves, rank=3, at_once=12)

    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.basis, other.basis)


def test_groups_too_small_to_merge_are_refused() -> None:
    with pytest.raises(
        ValueError, match="at_once must be at least four times the 8 directions to keep, got 31"
    ):
        merge_all([Subspace(np.eye(3)[:, :1], np.ones(1))], rank=4, spare=4, at_once=31)


def test_signs_follow_the_direction_before_and_new_ones_sum_to_no_less_than_zero(
    rng: np.random.Generator,
) -> None:
    before = np.linalg.qr(rng.standard_normal((9, 3)))[0].T
    rows = np.linalg.qr(rng.standard_normal((9, 5)))[0].T
    signs = align_signs(rows, before)
    turned = rows * signs[:, None]

    assert set(np.abs(signs)) == {1.0}
    assert (np.einsum("rd,rd->r", turned[:3], before) > 0.0).all()
    assert (turned[3:].sum(axis=1) >= 0.0).all()
    padded = np.concatenate([before, np.zeros((2, 9))])
    np.testing.assert_array_equal(align_signs(rows[None], padded[None])[0], signs)


def test_weak_directions_of_a_gram_matrix_are_not_trusted(rng: np.random.Generator) -> None:
    turn, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    gram = turn @ np.diag([1.0, 1e-2, 1e-3, 1e-6]) @ turn.T

    assert leading(gram, 3)[2]
    assert not leading(gram, 4)[2]
    assert leading(np.stack([gram, gram]), np.array([3, 4]))[2].tolist() == [True, False]
