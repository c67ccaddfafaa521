"""The leading directions of a few rows: the one factorisation behind FPCA-Edge."""

from __future__ import annotations

import numpy as np

from prontosched.subspace import LARGEST, Array, leading, leading_exactly


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
            squares, vectors, trusted = leading(gram, rank)
            if trusted:
                weighted = vectors.T[: -rank - 1 : -1].dot(rows)
                sides = vectors[:rank, : -rank - 1 : -1].diagonal()
                return weighted, np.sqrt(squares[: -rank - 1 : -1]), sides
    found = leading_exactly(rows, rank)
    if found is None:
        return None
    directions, strengths = found
    return directions * strengths[:, None], strengths, directions.dot(rows[: strengths.size].T).diagonal()


def gram_of(rows: Array) -> Array | None:
    """Return the products of rows with each other; None where they overflow and warnings are errors."""
    try:
        gram: Array = rows.dot(rows.T)
    except (RuntimeWarning, FloatingPointError):
        return None
    return gram
