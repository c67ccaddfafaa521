"""Symmetric matrices as their upper triangles, which is all there is to keep or send of them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Beyond rounding: of the largest entry.
LOPSIDED = 1e-7


class _Places(NamedTuple):
    """Where the triangle lies in the flat matrix, and each entry of the matrix in the triangle."""

    triangle: NDArray[np.intp]
    matrix: NDArray[np.intp]


@lru_cache(maxsize=16)
def _places(side: int) -> _Places:
    row, column = np.triu_indices(side)
    matrix = np.zeros((side, side), np.intp)
    matrix[row, column] = matrix[column, row] = np.arange(row.size)
    return _Places(row * side + column, matrix)


def is_symmetric(value: Array) -> bool:
    """Tell whether these are square matrices `(..., n, n)` that equal their transposes, but for rounding."""
    if value.ndim < 2 or value.shape[-1] != value.shape[-2] or not value.size:
        return False
    apart = np.abs(value - np.swapaxes(value, -1, -2)).max()
    return bool(apart <= LOPSIDED * np.abs(value).max())


def upper(matrix: Array) -> Array:
    """Return the upper triangles `(..., n (n + 1) / 2)` of matrices `(..., n, n)`, row by row.

    Examples
    --------
    >>> upper(np.array([[1.0, 2.0], [2.0, 3.0]]))
    array([1., 2., 3.])
    """
    side = matrix.shape[-1]
    flat = matrix.reshape(*matrix.shape[:-2], side * side)
    return np.take(flat, _places(side).triangle, axis=-1)


def whole(triangle: Array, side: int) -> Array:
    """Return the symmetric matrices `(..., side, side)` of which `upper` returned these triangles."""
    return np.take(triangle, _places(side).matrix, axis=-1)
