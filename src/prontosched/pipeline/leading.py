"""The leading directions of a few rows: the one factorisation behind FPCA-Edge."""

from __future__ import annotations

import numpy as np

from prontosched.pipeline.embedding import LARGEST
from prontosched.subspace import GRAM_TRUST, NEGLIGIBLE, Array, eigen


def leading_rows(rows: Array, rank: int) -> tuple[Array, Array, Array] | None:
    """Return at most `rank` leading right directions of `rows` `(n, d)`, as rows.

    Each comes multiplied with its strength; then follow the strengths, and on which
    side of row 0, 1, 2, … direction 0, 1, 2, … lies, as numbers whose sign counts.
    Through the Gram matrix where that is exact enough, which it is for nearly all
    telemetry; else by a full SVD. Negligible directions are dropped. None comes
    back for rows that are all zero, or not finite.
    """
    if rank < rows.shape[0] < rows.shape[1]:
        gram = gram_of(rows)
        # No entry is larger than the largest on the diagonal, and NaN counts as larger still.
        if gram is not None and gram.item(gram.argmax()) < LARGEST:
            squares, vectors = eigen(gram)
            if GRAM_TRUST * squares.item(-1) < squares.item(-rank):
                weighted = vectors.T[: -rank - 1 : -1].dot(rows)
                sides = vectors[:rank, : -rank - 1 : -1].diagonal()
                return weighted, np.sqrt(squares[: -rank - 1 : -1]), sides
    leading = leading_exactly(rows, rank)
    if leading is None:
        return None
    directions, strengths = leading
    return directions * strengths[:, None], strengths, directions.dot(rows[: strengths.size].T).diagonal()


def gram_of(rows: Array) -> Array | None:
    """Return the products of rows with each other; None where they overflow and warnings are errors."""
    try:
        gram: Array = rows.dot(rows.T)
    except (RuntimeWarning, FloatingPointError):
        return None
    return gram


def leading_exactly(rows: Array, rank: int) -> tuple[Array, Array] | None:
    """Return what `leading_rows` does, by a full SVD: exact for weak directions too."""
    if not max(rows.max(), -rows.min()) < LARGEST:
        return None
    _, strengths, directions = np.linalg.svd(rows, full_matrices=False)
    strongest = float(strengths[0])
    if strongest == 0.0:
        return None
    kept = min(rank, int(np.count_nonzero(strengths > NEGLIGIBLE * strongest)))
    # Copies: a slice would keep the whole untruncated array alive.
    return directions[:kept].copy(), strengths[:kept].copy()
