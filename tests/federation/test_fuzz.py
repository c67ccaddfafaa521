"""Messages with a right envelope and checksum, and any content: refused in words, or harmless."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prontosched.codec import decode, encode
from prontosched.errors import FederationError
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import Claim, _read, _write, grant
from prontosched.federation.link import SUMMARIES, Entry
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
from prontosched.federation.signing import Identity, KeyRing, Seals
from prontosched.federation.tree import Tree
from prontosched.gates.policy import closed_nodes
from tests.fuzzing import SECONDS, broken, fuzz, odd_value

from .fleets import factor_data, summary_of

pytestmark = pytest.mark.fuzz

SUMMARY = summary_of("rack1/n1", factor_data(np.random.default_rng(0), 6, 200), rank=3, standardise=True)
HONEST = summary_of("rack1/n2", factor_data(np.random.default_rng(1), 6, 200), rank=3, standardise=True)
DECISION = DecisionMessage("rack1/n1", True, 0.5, "calm", 100.0, 110.0)


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


@pytest.mark.parametrize("kind", KINDS)
def test_any_content_is_refused_in_words_or_harmless(kind: str) -> None:
    data, check = KINDS[kind]
    fields = decode(data, kind=kind, version=VERSIONS.get(kind, 1))

    def attempt(rng: random.Random) -> None:
        with np.errstate(all="ignore"):
            message = mutated(rng, kind, fields)
        check(message)

    refused, _ = fuzz(f"message-{kind}", attempt, FederationError, seconds=SECONDS / 3)

    assert refused > 50


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_are_refused_in_words(kind: str) -> None:
    data, check = KINDS[kind]

    def attempt(rng: random.Random) -> None:
        check(broken(rng, data, 4)[: rng.randint(0, 2 * len(data))])

    refused, _ = fuzz(f"bytes-{kind}", attempt, FederationError, seconds=SECONDS / 3)

    assert refused > 50


def test_a_table_of_leases_of_any_content_grants_within_the_floor() -> None:
    table = {f"n{number}": Claim(0.1 * number, 60.0, granted=number == 7) for number in range(8)}
    fields = decode(_write(table), kind="claims", version=1)

    def rule(words: Mapping[str, tuple[bool, float, bool]], nodes: int) -> frozenset[str]:
        return closed_nodes(words, nodes=nodes, share=0.25)

    def attempt(rng: random.Random) -> None:
        changed = dict(fields)
        for name in rng.sample(sorted(fields), rng.randint(1, 2)):
            changed[name] = odd_value(rng, fields[name])
        with np.errstate(all="ignore"):
            data = encode("claims", 1, changed)
        found = _read(broken(rng, data) if rng.random() < 0.2 else data)
        granted = grant(found, "n3", Claim(0.9, 60.0), rule, nodes=8, now=0.0, most=8)
        assert sum(claim.granted for claim in granted.values()) <= 2
        assert _read(_write(granted)).keys() == granted.keys()

    assert fuzz("leases", attempt, FederationError, seconds=SECONDS / 3)[1] > 50


def test_a_seal_of_any_bytes_opens_nothing_but_what_was_signed(tmp_path: Path) -> None:
    identity, ring = Identity.make(), tmp_path / "keys"
    ring.write_text(f"node rack1/* {identity.public}")
    seals = Seals("fuzz", KeyRing(ring, Tree()), identity)
    sealed = seals.seal(SUMMARIES, "rack1.n1", b"what was signed")
    check = seals.window(SUMMARIES)
    assert check is not None

    def attempt(rng: random.Random) -> None:
        key = rng.choice(["rack1.n1", "rack1.n2", "rack2.n1", "n1", "", "=root", "=FF", "a.b.c"])
        data = sealed if key != "rack1.n1" and rng.random() < 0.5 else broken(rng, sealed)
        found = check(Entry(key, data, 0, 0.0))
        assert found is None or data == sealed
        if found is None:
            raise FederationError("dropped")

    assert fuzz("seals", attempt, FederationError, seconds=SECONDS / 3)[0] > 50


def test_a_file_of_keys_of_any_content_is_read_or_one_clear_line(memory_path: Path) -> None:
    path = memory_path / "keys"
    makers = [Identity.make() for _ in range(3)]
    lines = [f"node rack1/* {makers[0].public} {makers[0].user}", "# a remark", ""]
    lines += [f"aggregator root {makers[1].public}", f"viewer desk {makers[2].public}  # who looks"]

    def attempt(rng: random.Random) -> None:
        words = [line.split(" ") for line in lines]
        line = rng.choice(words)
        line[rng.randrange(len(line))] = rng.choice([str(odd_value(rng)), rng.choice(rng.choice(words))])
        data = "\n".join(" ".join(line) for line in words).encode("utf-8", "surrogatepass")
        path.write_bytes(broken(rng, data) if rng.random() < 0.5 else data)
        ring = KeyRing(path, Tree())
        assert 0 <= ring.most_nodes("") <= 10_000_000
        for one in makers:
            ring.grants(one.key_id)

    refused, taken = fuzz("keys", attempt, FederationError, seconds=SECONDS / 3)
    assert refused > 5
    assert taken > 5
