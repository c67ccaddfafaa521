"""Subspace: an orthonormal basis with its singular values, the value all stages share.

Covers: making a subspace from a block of vectors (`summarise`), folding a block
into one (`extend`), merging two (`merge`) or many (`merge_all`), and telling how
far two lie apart (`distance`).
Does not cover: following a stream; see `prontosched.pipeline`.

A column is a timestep everywhere: a block has shape `(d, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# At the sizes met here np.linalg.eigh spends a third of its time on checks before it comes to this.
_eigh: Callable[[Array], tuple[Array, Array]] = getattr(
    getattr(np.linalg, "_umath_linalg", None), "eigh_lo", np.linalg.eigh
)

# Directions weaker than this, relative to the strongest, are rounding error: kept
# as a basis vector they would be arbitrary, and not orthogonal to the others.
NEGLIGIBLE = 1e-12
# Squares of singular values lose their weak end to rounding. Below this ratio of
# squares the Gram matrix is not trusted and a full SVD is taken instead.
GRAM_TRUST = 1e-4


_put = object.__setattr__


@dataclass(init=False, frozen=True, slots=True, eq=False)
class Subspace:
    """The leading directions of a stream and how strong each is.

    Stands for the second moment `basis @ diag(singular_values)**2 @ basis.T`, so
    singular values are those of the data matrix: they grow with the square root
    of the number of vectors seen.

    Attributes
    ----------
    basis
        Orthonormal directions, one per column, `(d, r)`. Paper: U.
    singular_values
        Strength of each direction, `(r,)`, largest first, all positive. Paper: Σ.
    lineage
        Stands for the stream behind it: from one subspace to the next of a lineage,
        directions keep their signs. None promises nothing.

    Examples
    --------
    >>> east = Subspace(np.array([[1.0], [0.0]]), np.array([3.0]))
    >>> east.features, east.rank
    (2, 1)
    """

    basis: Array
    singular_values: Array
    lineage: object

    def __init__(self, basis: Array, singular_values: Array, lineage: object = None) -> None:
        if singular_values.shape != basis.shape[1:] or basis.ndim != 2:
            raise ValueError(
                f"basis must be (d, r) with r singular values, got {basis.shape} and {singular_values.shape}"
            )
        _put(self, "basis", basis)
        _put(self, "singular_values", singular_values)
        _put(self, "lineage", lineage)

    @property
    def features(self) -> int:
        """Number of metrics, d."""
        return int(self.basis.shape[0])

    @property
    def rank(self) -> int:
        """Number of directions, r."""
        return int(self.basis.shape[1])

    def cut(self, rank: int) -> Subspace:
        """Return the same subspace with at most `rank` directions."""
        if rank >= self.rank:
            return self
        return Subspace(self.basis[:, :rank].copy(), self.singular_values[:rank].copy())

    def energy(self) -> float:
        """Return the share of the weakest direction in the sum of singular values. Paper: E_r."""
        return float(self.singular_values[-1] / self.singular_values.sum())


def summarise(block: Array, *, rank: int) -> Subspace | None:
    """Return the leading `rank` directions of `block`, or None if it is all zero.

    Equal to the truncated SVD of the block. Fewer directions come back when the
    block spans fewer.

    Examples
    --------
    >>> summarise(np.array([[3.0, 0.0], [0.0, 4.0]]), rank=1).singular_values
    array([4.])
    """
    return extend(None, block, rank=rank)


def extend(old: Subspace | None, block: Array, *, rank: int, forgetting: float = 1.0) -> Subspace | None:
    """Return the best subspace of at most `rank` directions for `old` and a raw block.

    Equal, up to the sign of each direction, to the leading part of the SVD of
    `[forgetting * basis * singular_values, block]`. The block enters whole:
    cutting it to `rank` first would bias the singular values low.

    Parameters
    ----------
    old
        What was known before; None for nothing.
    block
        Raw vectors, one per column, `(d, b)`; all finite.
    rank
        Directions to keep.
    forgetting
        Weight of `old`, in (0, 1]. Paper: λ.
    """
    if old is None:
        return _leading(block, rank)
    if old.features != block.shape[0]:
        raise ValueError(f"block must have {old.features} rows (metrics), got {block.shape[0]}")
    return _leading(np.hstack([old.basis * (forgetting * old.singular_values), block]), rank)


def merge(
    old: Subspace | None,
    new: Subspace | None,
    *,
    rank: int | None = None,
    forgetting: float = 1.0,
    enhancing: float = 1.0,
    spare: int = 0,
) -> Subspace | None:
    """Return the best subspace of at most `rank` directions for both inputs.

    Equal, up to the sign of each direction, to the leading part of the SVD of
    `[forgetting * old, enhancing * new]`. Neither input is changed, and merging
    with nothing is the identity.

    Parameters
    ----------
    old, new
        The older and the newer operand; None for nothing.
    rank
        Directions to keep, the larger of the two ranks when not given.
    forgetting
        Weight of `old`, in (0, 1]. Paper: λ, λ₁.
    enhancing
        Weight of `new`, at least 1. Paper: λ₂.
    spare
        Directions kept beyond `rank`. Truncation is what makes merging depend on
        its order; a few spare directions inside a tree bring it close to exact.

    Examples
    --------
    >>> east = Subspace(np.array([[1.0], [0.0]]), np.array([3.0]))
    >>> north = Subspace(np.array([[0.0], [1.0]]), np.array([4.0]))
    >>> merge(east, north, rank=2).singular_values
    array([4., 3.])

    References
    ----------
    Paper, appendix "Merging subspaces", algorithm Merge.
    """
    if not 0.0 < forgetting <= 1.0:
        raise ValueError(f"forgetting must be in (0, 1], got {forgetting}")
    if enhancing < 1.0:
        raise ValueError(f"enhancing must be at least 1, got {enhancing}")
    if old is None or new is None:
        one = new if old is None else old
        return one if one is None or rank is None else one.cut(rank + spare)
    if old.features != new.features:
        raise ValueError(
            f"cannot merge {new.features} metrics into {old.features}: align both to one list of metrics first"
        )
    keep = (max(old.rank, new.rank) if rank is None else rank) + spare
    weighted = np.hstack(
        [
            old.basis * (forgetting * old.singular_values),
            new.basis * (enhancing * new.singular_values),
        ]
    )
    return _leading(weighted, keep)


def merge_all(
    subspaces: Iterable[Subspace], *, rank: int, spare: int = 0, at_once: int | None = None
) -> Subspace | None:
    """Return the best subspace of at most `rank + spare` directions for all inputs at once.

    Equal to the truncated SVD of all weighted bases side by side, so the order of
    the inputs does not matter.

    Parameters
    ----------
    rank, spare
        Directions to keep.
    at_once
        Directions factorised together, at least four times those to keep. More of them
        are first merged in groups of so many, which keep twice the directions asked
        for. A factorisation costs the cube of its columns, so that is faster, and no
        longer exact: in a tree of fan-out 32 it adds about a fifth to what truncation loses
        anyway. None takes all together.
    """
    parts = list(subspaces)
    if not parts:
        return None
    features = {part.features for part in parts}
    if len(features) > 1:
        raise ValueError(
            f"all subspaces must have one number of metrics, got {sorted(features)}: "
            "align them to one list of metrics first"
        )
    keep = rank + spare
    if at_once is not None and at_once < 4 * keep:
        raise ValueError(f"at_once must be at least four times the {keep} directions to keep, got {at_once}")
    columns = sum(part.rank for part in parts)
    if at_once is not None and min(columns, *features) > at_once:
        groups = [merge_all(group, rank=2 * keep) for group in _grouped(parts, at_once)]
        if len(groups) < len(parts):
            return merge_all((g for g in groups if g is not None), rank=rank, spare=spare, at_once=at_once)
    rows = np.empty((columns, features.pop()))
    at = 0
    for part in parts:
        np.multiply(part.basis.T, part.singular_values[:, None], out=rows[at : at + part.rank])
        at += part.rank
    return _leading(rows.T, keep)


def _grouped(parts: list[Subspace], columns: int) -> Iterator[list[Subspace]]:
    """Yield neighbours together, at most so many directions of them."""
    group: list[Subspace] = []
    room = columns
    for part in parts:
        if group and part.rank > room:
            yield group
            group, room = [], columns
        group.append(part)
        room -= part.rank
    yield group


def distance(
    one: Subspace | None, other: Subspace | None, *, kind: Literal["projector", "elementwise"] = "projector"
) -> float:
    """Return how far two subspaces lie apart, 0 for the same and 1 for orthogonal ones.

    `projector` compares what the bases span: blind to the sign of a direction and
    to rotations within the subspace, and defined for unequal ranks. `elementwise`
    is the paper's absdiff, the largest difference of absolute entries; a change of
    rank counts as infinitely far.

    Examples
    --------
    >>> a = Subspace(np.eye(3)[:, :2], np.ones(2))
    >>> b = Subspace(-np.eye(3)[:, [1, 0]], np.ones(2))
    >>> distance(a, b)
    0.0
    """
    if one is None or other is None:
        return 0.0 if one is other else 1.0 if kind == "projector" else float("inf")
    if one.features != other.features:
        raise ValueError(
            f"cannot compare {one.features} metrics with {other.features}: align both to one list of metrics first"
        )
    if kind == "elementwise":
        if one.rank != other.rank:
            return float("inf")
        return float(np.max(np.abs(np.abs(one.basis) - np.abs(other.basis)), initial=0.0))
    apart = one.rank + other.rank - 2.0 * float(np.sum((one.basis.T @ other.basis) ** 2))
    larger = max(one.rank, other.rank)
    # Rounding leaves a few eps under the root; without this equal bases would be 1e-8 apart.
    return float(np.sqrt(apart / (2 * larger))) if apart > 1e-14 * larger else 0.0


def eigen(gram: Array) -> tuple[Array, Array]:
    """Return the eigenvalues, ascending, and eigenvectors of a finite symmetric matrix, or of a stack of them."""
    return _eigh(gram)


def _leading(wide: Array, rank: int) -> Subspace | None:
    """Return the leading left singular directions of a matrix, dropping negligible ones."""
    rank = min(rank, *wide.shape)
    tall = wide.shape[1] < wide.shape[0]
    squares, vectors = eigen(wide.T @ wide if tall else wide @ wide.T)
    if squares[-1] > 0.0 and squares[-rank] > GRAM_TRUST * squares[-1]:
        strengths = np.sqrt(squares[-rank:])[::-1].copy()
        # Weakest first: BLAS takes no reversed array.
        leading = vectors[:, -rank:]
        basis = (wide @ leading)[:, ::-1] / strengths if tall else leading[:, ::-1].copy()
        return Subspace(basis, strengths)
    directions, strengths, _ = np.linalg.svd(wide, full_matrices=False)
    return truncate(directions, strengths, rank)


def truncate(directions: Array, strengths: Array, rank: int) -> Subspace | None:
    """Keep at most `rank` directions and none that are negligible; None if nothing is left."""
    strongest = float(strengths[0]) if strengths.size else 0.0
    kept = min(rank, int(np.count_nonzero(strengths > NEGLIGIBLE * strongest)))
    if not kept:
        return None
    # Copies: a slice would keep the whole untruncated array alive.
    return Subspace(directions[:, :kept].copy(), strengths[:kept].copy())
