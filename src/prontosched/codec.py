"""State and messages as bytes: versioned, checksummed, bounded, never pickled.

Layout: four magic bytes, the length of a JSON header, the header, the raw bytes
of all arrays in the header's order, and a checksum of everything before it. The
header carries plain values; arrays keep their bits. Symmetric matrices are kept and sent as
their upper triangles (`pack_symmetric`).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from prontosched.errors import NewerStateError, StateError

MAGIC = b"PRON"
MAX_BYTES = 64 * 1024 * 1024
MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_DIMENSIONS = 4
# Of an array without numbers, whose lengths cost nothing here and may cost much where it is used.
MAX_EMPTY_LENGTH = 1 << 20
DTYPES = frozenset(
    {"float64", "float32", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint8", "bool"}
)
# Asking an array for the name of its type takes longer than copying its numbers.
_LITTLE = {name: np.dtype(name).newbyteorder("<") for name in DTYPES}
_NAMES = {np.dtype(name): name for name in DTYPES}

# Largest difference of a symmetric matrix from its transpose, as a share of its largest entry: rounding.
ASYMMETRY = 1e-7

_LENGTH = struct.Struct("<I")
_CHECK_BYTES = 16


def encode(kind: str, version: int, fields: Mapping[str, Any]) -> bytes:
    """Return `fields` as bytes: numbers, strings, booleans, None, lists of those, and arrays.

    Examples
    --------
    >>> data = encode("demo", 1, {"count": 3, "weights": np.array([0.5, 0.25])})
    >>> decode(data, kind="demo", version=1)["weights"]
    array([0.5 , 0.25])
    """
    plain: dict[str, Any] = {}
    arrays: list[tuple[str, str, tuple[int, ...]]] = []
    payload: list[bytes] = []
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            dtype = _NAMES.get(value.dtype) or value.dtype.name
            if dtype not in DTYPES:
                raise TypeError(f"array {name!r} must be of one of {sorted(DTYPES)}, got {dtype}")
            arrays.append((name, dtype, value.shape))
            payload.append(value.astype(_LITTLE[dtype], copy=False).tobytes())
        else:
            plain[name] = value.item() if isinstance(value, np.generic) else value
    header = json.dumps(
        {"kind": kind, "version": version, "values": plain, "arrays": arrays}, separators=(",", ":")
    ).encode()
    body = b"".join([MAGIC, _LENGTH.pack(len(header)), header, *payload])
    return body + _checksum(body)


def decode(data: bytes, *, kind: str, version: int, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Return what `encode` was given, or raise `StateError` saying what is wrong.

    Parameters
    ----------
    kind, version
        What the caller can read. An older version comes back with its number under
        `"version"`; a newer one is refused.
    limit
        Longest input looked at, in bytes.
    """
    header, start = _header(data, limit)
    if header.get("kind") != kind:
        raise StateError(f"expected {kind!r} data, got {header.get('kind')!r}: give data of the right kind")
    found = header.get("version")
    if not isinstance(found, int) or found < 1:
        raise StateError(f"{kind} data must carry a version from 1, got {found!r}: discard it")
    if found > version:
        raise NewerStateError(
            f"{kind} data must be of version {version} or older, got {found}: it was written by a newer Pronto; "
            "upgrade, or set it aside"
        )
    fields: dict[str, Any] = dict(header["values"])
    for entry in header["arrays"]:
        if not (isinstance(entry, list) and len(entry) == 3 and all(isinstance(e, str) for e in entry[:2])):
            raise StateError(f"an array must have name, type and shape, got {entry!r}: discard it")
        name, dtype, shape = entry
        fields[name], start = _array(data, start, name, dtype, shape)
    if start != len(data) - _CHECK_BYTES:
        raise StateError(
            f"{kind} data must end with its arrays, got {len(data) - _CHECK_BYTES - start} bytes more"
        )
    fields["version"] = found
    return fields


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES).digest()


def _header(data: bytes, limit: int) -> tuple[dict[str, Any], int]:
    if len(data) > limit:
        raise StateError(f"data must be at most {limit} bytes, got {len(data)}: discard it")
    start = len(MAGIC) + _LENGTH.size
    if len(data) < start + _CHECK_BYTES or data[: len(MAGIC)] != MAGIC:
        raise StateError(
            f"data must begin with {MAGIC!r}, got {bytes(data[:4])!r} in {len(data)} bytes: it is not Pronto's"
        )
    if _checksum(data[:-_CHECK_BYTES]) != data[-_CHECK_BYTES:]:
        raise StateError(
            f"the checksum of {len(data)} bytes does not match: they are truncated or altered; set them aside"
        )
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    if length > min(MAX_HEADER_BYTES, len(data) - start - _CHECK_BYTES):
        raise StateError(f"the header must fit its data, got {length} of {len(data)} bytes: discard it")
    try:
        header = json.loads(data[start : start + length])
        valid = isinstance(header["values"], dict) and isinstance(header["arrays"], list)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"the header must be a JSON object, got {error}: discard it") from error
    if not valid:
        raise StateError("the header must hold values and arrays, got other types: discard it")
    return header, start + length


def _array(data: bytes, start: int, name: Any, dtype: Any, shape: Any) -> tuple[np.ndarray[Any, Any], int]:
    if dtype not in DTYPES or not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise StateError(
            f"array {name!r} must be of a known type and shape, got {dtype!r} {shape!r}: discard it"
        )
    longest = MAX_EMPTY_LENGTH if 0 in shape else MAX_BYTES
    if not all(isinstance(n, int) and 0 <= n <= longest for n in shape):
        raise StateError(f"array {name!r} must have lengths from 0 to {longest}, got {shape!r}: discard it")
    count, little = math.prod(shape), _LITTLE[dtype]
    end = start + count * little.itemsize
    if end > len(data) - _CHECK_BYTES:
        raise StateError(f"array {name!r} of shape {shape} must fit {len(data)} bytes: they are truncated")
    array = np.frombuffer(data, dtype=little, count=count, offset=start).astype(dtype).reshape(shape)
    return array, end


def is_symmetric(value: np.ndarray[Any, Any]) -> bool:
    """Tell whether these are square matrices `(..., n, n)` that equal their transposes, but for rounding."""
    if value.ndim < 2 or value.shape[-1] != value.shape[-2] or not value.size:
        return False
    apart = np.abs(value - np.swapaxes(value, -1, -2)).max()
    return bool(apart <= ASYMMETRY * np.abs(value).max())


def pack_symmetric(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the upper triangles `(..., n (n + 1) / 2)` of matrices `(..., n, n)`, row by row.

    Examples
    --------
    >>> pack_symmetric(np.array([[1.0, 2.0], [2.0, 3.0]]))
    array([1., 2., 3.])
    """
    side = matrix.shape[-1]
    return np.take(matrix.reshape(*matrix.shape[:-2], side * side), _triangle(side)[0], axis=-1)


def unpack_symmetric(triangle: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    """Return the matrices `(..., side, side)` that `pack_symmetric` was given."""
    return np.take(triangle, _triangle(side)[1], axis=-1)


@lru_cache(maxsize=16)
def _triangle(side: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return where the triangle lies in the flat matrix, and each entry of the matrix in the triangle."""
    row, column = np.triu_indices(side)
    matrix = np.zeros((side, side), np.intp)
    matrix[row, column] = matrix[column, row] = np.arange(row.size)
    return row * side + column, matrix
