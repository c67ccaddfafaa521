"""Messages with a right envelope and checksum, and any content: refused in words, or harmless.

`make soak ARGS=tests/federation/test_fuzz.py` tries a thousand times as many.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

from prontosched.codec import decode, encode
from prontosched.errors import FederationError
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.message import (
    VERSIONS,
    DecisionMessage,
    GlobalView,
    Summary,
    census_to_bytes,
    read_count,
    read_fields,
)
from prontosched.federation.schema import schema_from_bytes, schema_to_bytes

from .fleets import factor_data, summary_of

SUMMARY = summary_of("rack1/n1", factor_data(np.random.default_rng(0), 6, 200), rank=3, standardise=True)
HONEST = summary_of("rack1/n2", factor_data(np.random.default_rng(1), 6, 200), rank=3, standardise=True)
DECISION = DecisionMessage("rack1/n1", True, 0.5, "calm", 100.0, 110.0)


NUMBERS = [None, True, False, 0, 1, -1, 2**62, -(2**70), 10**400, -(10**400), 1e39, -1e308, 0.1]
TEXTS = ["", "a", "rack1/n1", "..", "a/" * 150, "\ud800", "x" * 5000, "\x00", "\n"]
LISTS = [[], [[]], ["\ud800"], [1, 2], {}, {"a": {"b": []}}, [None] * 40, ["n"] * 33]
ODD: list[Any] = [*NUMBERS, *TEXTS, *LISTS]


def odd_value(rng: random.Random, old: Any) -> Any:
    """Return something that a field may hold and should not."""
    if isinstance(old, np.ndarray) and rng.random() < 0.7:
        new = old.astype(np.float64)
        kind = rng.randrange(6)
        if kind == 0 and new.size:
            new.flat[rng.randrange(new.size)] = rng.choice(
                [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e31, 1e-45, -1.0]
            )
        elif kind == 1:
            new = new * rng.choice([0.0, -1.0, 1e20, 1e30, 1e-30])
        elif kind == 2:
            new = new[..., :-1]
        elif kind == 3:
            new = new.astype(rng.choice(["float32", "int64", "bool"]))
        elif kind == 4:
            new = np.atleast_2d(new).T
        else:
            new = np.zeros(rng.choice([(0,), (0, 5), (3, 0), (1, 1, 1)]))
        return new
    return rng.choice(ODD)


def mutated(rng: random.Random, kind: str, fields: dict[str, Any]) -> bytes:
    """Return a message of a kind with one to three fields changed, added or left out."""
    changed = dict(fields)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(
            [*changed, "statistic:x", "symmetric:x", "clashes", "spread", "counts", "merged", "nodes"]
        )
        if rng.random() < 0.1:
            changed.pop(name, None)
        else:
            changed[name] = odd_value(rng, changed.get(name))
    version = VERSIONS.get(kind, 1) if rng.random() < 0.95 else rng.choice([0, -1, 2, 10**400, "1", None])
    changed.pop("version", None)
    return encode(kind, version, changed)


def check_summary(data: bytes) -> None:
    found = Summary.from_bytes(data, lambda _: SUMMARY.metrics)
    again = Summary.from_bytes(found.to_bytes(), lambda _: SUMMARY.metrics)
    assert again.node == found.node
    aggregator = Aggregator("rack1")
    aggregator.receive(HONEST, now=0.0)
    aggregator.receive(found, now=0.0)
    merged = aggregator.merged()
    # What the aggregator sends on is accepted by whoever receives it.
    assert merged is not None
    Summary.from_bytes(merged.to_bytes(), lambda _: merged.metrics)


def check_view(data: bytes) -> None:
    found = GlobalView.from_bytes(data, lambda _: SUMMARY.metrics)
    GlobalView.from_bytes(found.to_bytes(), lambda _: SUMMARY.metrics)


def check_decision(data: bytes) -> None:
    found = DecisionMessage.from_bytes(data)
    DecisionMessage.from_bytes(found.to_bytes())
    found.expired(1.0)


def check_census(data: bytes) -> None:
    assert read_count(read_fields(data, "census"), "nodes") >= 0


def check_schema(data: bytes) -> None:
    assert all(name.encode() for name in schema_from_bytes(data, expected="anything"))


KINDS = {
    "summary": (SUMMARY.to_bytes(), check_summary),
    "view": (GlobalView.of(SUMMARY, 3).to_bytes(), check_view),
    "decision": (DECISION.to_bytes(), check_decision),
    "census": (census_to_bytes(5), check_census),
    "schema": (schema_to_bytes(SUMMARY.metrics), check_schema),
}


def fuzz(kind: str, count: int, seed: int) -> tuple[int, int]:
    data, check = KINDS[kind]
    fields = decode(data, kind=kind, version=VERSIONS.get(kind, 1))
    rng = random.Random(seed)
    refused = accepted = 0
    for number in range(count):
        with np.errstate(all="ignore"):
            message = mutated(rng, kind, fields)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                check(message)
                accepted += 1
            except FederationError as error:
                refused += bool(str(error).encode())
            except Exception as error:
                raise AssertionError(f"{kind}, seed {seed}, message {number}: {error!r}") from error
    return refused, accepted


@pytest.mark.parametrize("kind", KINDS)
def test_any_content_is_refused_in_words_or_harmless(kind: str) -> None:
    refused, accepted = fuzz(kind, 1500, seed=0)

    assert refused > 300
    assert refused + accepted == 1500


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_very_much_of_any_content_is_refused_in_words_or_harmless(kind: str) -> None:
    for seed in range(1, 1001):
        fuzz(kind, 1500, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_are_refused_in_words(kind: str) -> None:
    data, check = KINDS[kind]
    rng = random.Random(1)
    for _ in range(500):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            check(bytes(broken[: rng.randint(0, len(broken))]))
        except FederationError:
            continue
