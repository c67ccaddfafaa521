"""Subspace: an orthonormal basis with its singular values, the value all stages share.

Covers: making a subspace from a block of vectors (`summarise`), folding a block
into one (`extend`), merging two (`merge`) or many (`merge_all`), how far two lie
apart (`distance`), and the two rules behind all of them: the leading directions of a
Gram matrix (`leading`, `leading_exactly`) and the sign of a direction (`align_signs`).
Does not cover: following a stream; see `prontosched.pipeline`.

A column is a timestep everywhere: a block has shape `(d, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

# At the sizes met here np.linalg.eigh spends a third of its time on checks before it comes to this.
_eigh: Callable[[Array], tuple[Array, Array]] = getattr(
    getattr(np.linalg, "_umath_linalg", None), "eigh_lo", np.linalg.eigh
)

# Directions weaker than this, relative to the strongest, are rounding error: kept
# as a basis vector they would be arbitrary, and not orthogonal to the others.
NEGLIGIBLE = 1e-12
# A Gram matrix holds squares of singular values, and an eigenvalue is off by about 1e-16 of
# the largest one. Where the weakest square kept is more than this share of the largest,
# directions are orthonormal to 1e-12. Below it a full SVD is taken instead.
GRAM_TRUST = 1e-4
# Squares of larger values overflow once a few are added up.
LARGEST = 1e150
# Of one table of a node: what is larger is a mistake, or saved state that was tampered with.
MOST_ROWS, MOST_NUMBERS = 100_000, 1 << 25


_put = object.__setattr__


def room(rows: int, columns: int) -> Array:
    """Return a table of zeros; refuse one that no node needs before it takes any memory."""
    if not (0 <= rows <= MOST_ROWS and 0 <= rows * columns <= MOST_NUMBERS):
        raise ValueError(
            f"a node must hold tables of at most {MOST_ROWS} rows and {MOST_NUMBERS} numbers, got {rows} x {columns}"
        )
    return np.zeros((rows, columns))


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

    def __repr__(self) -> str:
        strengths = ", ".join(f"{value:.4g}" for value in self.singular_values)
        return f"Subspace({self.features} metrics, {self.rank} directions of strength [{strengths}])"

    def explain(self, metrics: Sequence[str] | None = None, *, top: int = 5) -> list[dict[str, float]]:
        """Return for each direction its `top` metrics with their weights, the heaviest first.

        Examples
        --------
        >>> Subspace(np.array([[0.6], [-0.8]]), np.array([2.0])).explain(("load", "idle"))
        [{'idle': -0.8, 'load': 0.6}]
        """
        names = [str(i) for i in range(self.features)] if metrics is None else list(metrics)
        if len(names) != self.features:
            raise ValueError(f"metrics must be {self.features} names, got {len(names)}")
        order = np.argsort(-np.abs(self.basis), axis=0, kind="stable")[:top]
        return [
            {names[i]: float(self.basis[i, direction]) for i in order[:, direction]}
            for direction in range(self.rank)
        ]

    def to_frame(self, metrics: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the basis as a data frame: a row for each metric, a column for each direction."""
        import pandas as pd

        return pd.DataFrame(self.basis, index=metrics, columns=range(1, self.rank + 1))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{number}</td><td>{strength:.4g}</td><td>"
            + ", ".join(f"{name} ({weight:+.2f})" for name, weight in parts.items())
            + "</td></tr>"
            for number, (strength, parts) in enumerate(
                zip(self.singular_values, self.explain(), strict=True), start=1
            )
        )
        head = "<tr><th>direction</th><th>strength</th><th>heaviest metrics, by number</th></tr>"
        return f"<table>{head}{rows}</table>"

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
        hint = ": give its transpose" if block.shape[1:] == (old.features,) else ""
        raise ValueError(f"block must have {old.features} rows (metrics), got {block.shape[0]}{hint}")
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
    if at_once is not None and min(sum(part.rank for part in parts), *features) > at_once:
        groups = [_merged(group, 2 * keep) for group in _grouped(parts, at_once)]
        if len(groups) < len(parts):
            return merge_all((g for g in groups if g is not None), rank=rank, spare=spare, at_once=at_once)
    return _merged(parts, keep)


def _merged(parts: list[Subspace], keep: int) -> Subspace | None:
    bases = np.concatenate([part.basis for part in parts], axis=1)
    return _leading(bases * np.concatenate([part.singular_values for part in parts]), keep)


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


def leading(gram: Array, rank: int | NDArray[np.intp]) -> tuple[Array, Array, Any]:
    """Return eigenvalues and eigenvectors of a finite Gram matrix, weakest first, and whether to trust them.

    The `rank` leading ones must be exact enough. For a stack of matrices everything has a
    leading axis, and `rank` may be one number for each.

    Examples
    --------
    >>> squares, vectors, trusted = leading(np.diag([1.0, 4.0, 1e-9]), 2)
    >>> squares[-2:], trusted
    (array([1., 4.]), True)
    """
    squares, vectors = _eigh(gram)
    if gram.ndim == 2 and isinstance(rank, int):
        return squares, vectors, GRAM_TRUST * squares.item(-1) < squares.item(-rank)
    weakest = squares[np.arange(len(gram)), squares.shape[1] - rank]
    return squares, vectors, GRAM_TRUST * squares[:, -1] < weakest


def leading_exactly(rows: Array, rank: int) -> tuple[Array, Array] | None:
    """Return at most `rank` leading right directions of `rows` `(n, d)`, as rows, and their strengths.

    By a full SVD: exact for weak directions too. Negligible directions are dropped. None
    comes back for rows that are all zero, or not finite.
    """
    if not max(rows.max(), -rows.min()) < LARGEST:
        return None
    _, strengths, directions = np.linalg.svd(rows, full_matrices=False)
    strongest = float(strengths[0])
    if strongest == 0.0:
        return None
    kept = min(rank, int(np.count_nonzero(strengths > NEGLIGIBLE * strongest)))
    # Copies: a slice would keep the whole untruncated array alive.
    return directions[:kept].copy(), strengths[:kept].copy()


def align_signs(rows: Array, before: Array) -> Array:
    """Return a sign for each direction, given as rows `(..., r, d)`: 1 or -1.

    A direction keeps to the side of the one `before` it, `(..., k, d)`. One that has none,
    or a zero one, gets a non-negative sum.

    Examples
    --------
    >>> align_signs(np.array([[0.6, 0.8], [0.8, -0.6]]), np.array([[-1.0, 0.0]]))
    array([-1.,  1.])
    """
    sides: Array = rows.sum(axis=-1)
    shared = min(rows.shape[-2], before.shape[-2])
    if shared:
        along = np.einsum("...rd,...rd->...r", rows[..., :shared, :], before[..., :shared, :])
        sides[..., :shared] = np.where(along != 0.0, along, sides[..., :shared])
    return np.where(sides < 0.0, -1.0, 1.0)


def _leading(wide: Array, rank: int) -> Subspace | None:
    """Return the leading left singular directions of a matrix, dropping negligible ones."""
    rank = min(rank, *wide.shape)
    tall = wide.shape[1] < wide.shape[0]
    squares, vectors, trusted = leading(wide.T @ wide if tall else wide @ wide.T, rank)
    if trusted:
        strengths = np.sqrt(squares[-rank:])[::-1].copy()
        # Weakest first: BLAS takes no reversed array.
        kept = vectors[:, -rank:]
        return Subspace((wide @ kept)[:, ::-1] / strengths if tall else kept[:, ::-1].copy(), strengths)
    found = leading_exactly(wide.T, rank)
    return None if found is None else Subspace(found[0].T, found[1])
