"""State and messages as bytes."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.codec import MAGIC, _checksum, decode, encode
from prontosched.errors import NewerStateError, StateError


def test_everything_survives_the_round_trip_bit_for_bit() -> None:
    fields = {
        "count": 3,
        "ratio": 0.1 + 0.2,
        "unknown": float("nan"),
        "name": "rack/ü",
        "nothing": None,
        "names": ["a", "b"],
        "weights": np.array([[0.1, np.nan], [np.inf, -0.0]]),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 4)),
        "small": np.arange(3, dtype=np.int8),
    }
    back = decode(encode("demo", 2, fields), kind="demo", version=3)

    assert back["version"] == 2
    assert back["ratio"] == fields["ratio"]
    assert np.isnan(back["unknown"])
    assert (back["name"], back["nothing"], back["names"]) == ("rack/ü", None, ["a", "b"])
    for name in ("weights", "flags", "empty", "small"):
        assert back[name].dtype == fields[name].dtype  # type: ignore[attr-defined]
        assert back[name].tobytes() == fields[name].tobytes()  # type: ignore[attr-defined]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_altered_or_truncated_bytes_are_refused_with_one_clear_line(data: st.DataObject) -> None:
    good = encode("demo", 1, {"weights": np.arange(6.0), "name": "x"})
    position = data.draw(st.integers(0, len(good) - 1))
    bad = (
        good[:position]
        if data.draw(st.booleans())
        else good[:position] + bytes([good[position] ^ data.draw(st.integers(1, 255))]) + good[position + 1 :]
    )

    with pytest.raises(StateError, match=r"must|does not match"):
        decode(bad, kind="demo", version=1)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_without_a_crash(data: bytes) -> None:
    with pytest.raises(StateError):
        decode(data, kind="demo", version=1)


@pytest.mark.parametrize(
    "header",
    [
        {"kind": "demo", "version": 1, "values": {}, "arrays": [["a", "object", [1]]]},
        {"kind": "demo", "version": 1, "values": {}, "arrays": [["a", "float64", [2**40]]]},
        {"kind": "demo", "version": 1, "values": {}, "arrays": [["a", "float64", [-1]]]},
        {"kind": "demo", "version": 1, "values": {}, "arrays": [["a", "float64", [1000]]]},
        {"kind": "demo", "version": 0, "values": {}, "arrays": []},
        {"kind": "demo", "version": "1", "values": {}, "arrays": []},
        {"kind": "other", "version": 1, "values": {}, "arrays": []},
        {"kind": "demo", "version": 1, "values": [], "arrays": []},
        {"kind": "demo", "version": 1, "values": {}, "arrays": [["a", ["float64"], [1]]]},
        {"kind": "demo", "version": 1, "values": {}, "arrays": [["a"], 7]},
        {"kind": "demo", "version": 1},
        [],
    ],
)
def test_a_hostile_header_with_a_right_checksum_is_refused(header: object) -> None:
    text = json.dumps(header).encode()
    body = MAGIC + struct.pack("<I", len(text)) + text

    with pytest.raises(StateError):
        decode(body + _checksum(body), kind="demo", version=1)


def test_a_newer_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(NewerStateError, match="written by a newer Pronto; upgrade, or set it aside"):
        decode(encode("demo", 9, {}), kind="demo", version=1)


def test_input_beyond_the_limit_is_not_looked_at() -> None:
    with pytest.raises(StateError, match="at most 100 bytes, got"):
        decode(encode("demo", 1, {"a": np.zeros(100)}), kind="demo", version=1, limit=100)


def test_objects_are_never_encoded() -> None:
    with pytest.raises(TypeError, match="array 'a' must be of one of"):
        encode("demo", 1, {"a": np.array([object()])})
