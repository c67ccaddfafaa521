"""Signed messages: what counts, what is dropped, and how one key follows another."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import FederationError
from prontosched.federation import signing
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import LeaderLease, NodeCount, RefusalLeases
from prontosched.federation.link import DECISIONS, LEASES, SCHEMAS, SUMMARIES, VIEWS, Entry
from prontosched.federation.member import ViewSubscriber
from prontosched.federation.message import DecisionMessage, GlobalView, census_to_bytes
from prontosched.federation.monitor import take_snapshot
from prontosched.federation.nats import NatsLink
from prontosched.federation.publisher import Propagation, SummaryPublisher
from prontosched.federation.schema import SchemaCache
from prontosched.federation.service import AggregatorService
from prontosched.federation.signing import Identity, KeyRing, Seals, next_path, read_identity
from prontosched.federation.tree import Tree

from .buses import Bus, eventually
from .fleets import factor_data, summary_of

SUMMARY = summary_of("rack1/n1", factor_data(np.random.default_rng(0), 6, 200), rank=3, standardise=True)


class Federation:
    """Registered keys by name, and seals or links for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "keys"
        self.lines: list[str] = []
        for role, name in (("node", "rack1/n1"), ("node", "rack1/n2"), ("aggregator", "rack1")):
            self.register(role, name)
        self.register("aggregator", "root")

    def path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.key"

    def register(self, role: str, name: str) -> None:
        self.lines.append(f"{role} {name} {read_identity(self.path(name)).public}")
        self.write()

    def write(self) -> None:
        self.file.write_text("# who may say what\n\n" + "\n".join(self.lines) + "\n")
        os.utime(self.file, ns=(time.time_ns(), time.time_ns()))

    def ring(self) -> KeyRing:
        return KeyRing(self.file, Tree())

    def seals(self, name: str, *, group: str = "g", incarnation: int = 5) -> Seals:
        identity = read_identity(self.path(name))
        identity.incarnation = incarnation
        return Seals(group, self.ring(), identity)

    def reader(self) -> Seals:
        return Seals("g", self.ring())


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def arrive(seals: Seals, topic: str, key: str, value: bytes) -> Entry | None:
    check = seals.window(topic)
    assert check is not None
    return check(Entry(key, value, 1, 0.0))


KEYS = [
    ("rack1/n1", SUMMARIES, "rack1.n1"),
    ("rack1/n1", DECISIONS, "rack1.n1"),
    ("rack1/n1", LEASES, "refusals.claims.all"),
    ("rack1", SUMMARIES, "rack1"),
    ("rack1", LEASES, "seats.rack1"),
    ("root", VIEWS, "global"),
    ("root", VIEWS, "census"),
    ("root", LEASES, "seats.=root"),
]


@pytest.mark.parametrize(("name", "topic", "key"), KEYS)
def test_each_speaks_for_its_own_place_and_no_other_does(
    federation: Federation, name: str, topic: str, key: str
) -> None:
    allowed = {name} | ({"rack1/n1", "rack1/n2"} if key.startswith("refusals.") else set())
    for other in ("rack1/n1", "rack1/n2", "rack1", "root"):
        reader = federation.reader()
        found = arrive(reader, topic, key, federation.seals(other).seal(topic, key, b"hello"))
        if other in allowed:
            assert found is not None
            assert found.value == b"hello"
            assert reader.dropped == 0
        else:
            assert found is None
            assert reader.dropped == 1


@pytest.mark.parametrize(("name", "topic", "key"), KEYS)
def test_a_message_counts_only_where_and_as_it_was_signed(
    federation: Federation, name: str, topic: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = federation.seals(name).seal(topic, key, b"hello")
    stranger = Seals("g", federation.ring(), Identity.make())
    elsewhere = {SUMMARIES: "rack1.n2", DECISIONS: "rack1.n2", VIEWS: "census", LEASES: "seats.rack2"}[topic]
    wrong = {
        "altered content": (topic, key, sealed[:-1] + b"0"),
        "another sequence": (topic, key, sealed[:20] + b"\7" + sealed[21:]),
        "cut": (topic, key, sealed[:50]),
        "unsigned": (topic, key, b"hello"),
        "deleted": (topic, key, b""),
        "an unknown key": (topic, key, stranger.seal(topic, key, b"hello")),
        "another group": (topic, key, federation.seals(name, group="h").seal(topic, key, b"hello")),
        "another topic": (DECISIONS if topic == SUMMARIES else SUMMARIES, key, sealed),
        "another key": (topic, elsewhere if elsewhere != key else "global", sealed),
    }
    for what, (where, under, value) in wrong.items():
        reader = federation.reader()
        assert arrive(reader, where, under, value) is None, what
        assert reader.dropped == 1, what
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        reader = federation.reader()
        for _ in range(5):
            arrive(reader, topic, key, b"hello")
    assert reader.dropped == 5
    assert len(caplog.records) == 1
    assert (name if "refusals" not in key else "claims/all") in caplog.text


def test_nothing_counts_after_a_newer_message(federation: Federation) -> None:
    sender, again = federation.seals("rack1/n1"), federation.seals("rack1/n1", incarnation=6)
    first, second = (sender.seal(SUMMARIES, "rack1.n1", text) for text in (b"1", b"2"))
    restarted = again.seal(SUMMARIES, "rack1.n1", b"3")
    check = federation.reader().window(SUMMARIES)
    assert check is not None
    heard = [
        check(Entry("rack1.n1", one, 0, 0.0)) for one in (first, second, second, first, restarted, second)
    ]

    assert [one.outdated for one in heard if one] == [False, False, False, True, False, True]


def test_the_last_message_of_one_aggregator_does_not_count_after_its_standby_spoke(
    federation: Federation, tmp_path: Path
) -> None:
    standby = read_identity(tmp_path / "standby.key")
    federation.lines.append(f"aggregator root {standby.public}")
    federation.write()
    last = federation.seals("root", incarnation=9).seal(VIEWS, "global", b"50")
    newer = Seals("g", federation.ring(), standby).seal(VIEWS, "global", b"60")
    check = federation.reader().window(VIEWS)
    assert check is not None
    heard = [check(Entry("global", one, 0, 0.0)) for one in (last, newer, last, newer)]

    assert [one.outdated for one in heard if one] == [False, False, True, False]


def test_a_lease_that_someone_puts_back_counts_as_none(federation: Federation) -> None:
    holder = federation.seals("root")
    reader = federation.reader()
    renewed = [holder.seal(LEASES, "seats.=root", b"a") for _ in range(2)]

    def asked(value: bytes, revision: int) -> bytes:
        entry = reader.answer(LEASES, Entry("seats.=root", value, revision, 0.0))
        assert entry is not None
        assert entry.revision == revision
        return entry.value

    assert asked(renewed[0], 1) == b"a"
    assert asked(renewed[0], 1) == b"a"
    assert asked(renewed[1], 2) == b"a"
    assert asked(renewed[1], 3) == b""
    assert asked(renewed[0], 4) == b""
    assert reader.answer(LEASES, None) is None


def test_answers_that_are_remembered_are_bounded_and_the_one_asked_for_again_stays(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "MAX_HEARD", 10)
    holder, reader = federation.seals("rack1/n1"), federation.reader()
    kept = [holder.seal(LEASES, "refusals.kept", b"a") for _ in range(2)]
    for number in range(50):
        one = holder.seal(LEASES, f"refusals.{number}", b"a")
        for key, value in (("kept", kept[1]), (str(number), one)):
            assert reader.answer(LEASES, Entry(f"refusals.{key}", value, 1, 0.0)).value == b"a"

    assert len(reader._asked) == 10
    assert reader.answer(LEASES, Entry("refusals.kept", kept[0], 2, 0.0)).value == b""


def test_names_of_metrics_need_no_seal(federation: Federation) -> None:
    assert federation.seals("root").seal(SCHEMAS, "f00", b"names") == b"names"
    assert federation.reader().window(SCHEMAS) is None


def test_a_key_is_made_once_for_its_owner_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "federation.key"
    first = Identity.open(path)

    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FederationError, match="must belong to one process, got a second: give it sign=FILE"):
        Identity.open(path)
    first.close()
    second = Identity.open(path)
    assert second.public == first.public
    assert second.incarnation > first.incarnation
    second.close()
    path.chmod(0o604)
    with pytest.raises(FederationError, match="must be closed to others, got one they can open: chmod 600"):
        read_identity(path)
    path.chmod(0o600)
    assert [file.name for file in path.parent.iterdir() if file.name.startswith(".")] == []
    path.write_text("no key")
    with pytest.raises(FederationError, match="must hold a private key"):
        read_identity(path)


def test_starts_are_numbered_upwards_though_the_clock_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for now in (2_000_000_000.0, 1_000_000_000.0, 1_000_000_001.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        identity = Identity.open(tmp_path / "k.key")
        found.append(identity.incarnation)
        identity.close()

    assert found == [2_000_000_000_000, 2_000_000_000_001, 2_000_000_000_002]


def test_a_key_follows_another_without_a_message_lost(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prontosched.federation.signing.RELOAD_SECONDS", 0.0)
    path, reader = federation.path("rack1/n1"), federation.reader()

    def start() -> tuple[str, bool]:
        identity = Identity.open(path, registered=federation.ring().registered)
        sealed = Seals("g", federation.ring(), identity).seal(DECISIONS, "rack1.n1", b"x")
        identity.close()
        return identity.public, arrive(reader, DECISIONS, "rack1.n1", sealed) is not None

    old = start()
    following = read_identity(next_path(path)).public
    unregistered = start()
    old_line = federation.lines.pop(0)
    federation.lines += [old_line, f"node rack1/n1 {following}"]
    federation.write()
    before = federation.seals("rack1/n1")
    both = start()

    assert old == unregistered == (before.identity.public, True)
    assert both == (following, True)
    # While both are registered the old one counts too; afterwards no more.
    assert arrive(reader, DECISIONS, "rack1.n1", before.seal(DECISIONS, "rack1.n1", b"x")) is not None
    federation.lines.remove(old_line)
    federation.write()
    assert arrive(reader, DECISIONS, "rack1.n1", before.seal(DECISIONS, "rack1.n1", b"x")) is None
    assert start() == (following, True)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("node n1 rubbish", "line 1 of .*a key must be ed25519: and 32 bytes as base64"),
        (
            "king n1 ed25519:" + "A" * 43 + "=",
            "line 1 of .*a line has node, aggregator or viewer, a place and a key",
        ),
        (
            "node ed25519:" + "A" * 43 + "=",
            "line 1 of .*a line has node, aggregator or viewer, a place and a key",
        ),
        ("node a//b ed25519:" + "A" * 43 + "=", "a name must be 1 to 8 parts"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, match: str) -> None:
    (tmp_path / "keys").write_text(line)
    with pytest.raises(FederationError, match=match):
        KeyRing(tmp_path / "keys", Tree())


def test_a_file_that_breaks_later_leaves_the_keys_as_they_were(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("prontosched.federation.signing.RELOAD_SECONDS", 0.0)
    reader, sender = federation.reader(), federation.seals("rack1/n1")
    federation.file.write_text("rubbish")
    for _ in range(3):
        assert arrive(reader, DECISIONS, "rack1.n1", sender.seal(DECISIONS, "rack1.n1", b"x")) is not None

    assert caplog.text.count("the keys stay as they were") == 1


def test_one_line_may_stand_for_all_places_of_a_rack(federation: Federation) -> None:
    federation.lines = [f"node rack1/* {read_identity(federation.path('rack1/n1')).public}"]
    federation.write()
    sender, reader = federation.seals("rack1/n1"), federation.reader()

    assert arrive(reader, DECISIONS, "rack1.any", sender.seal(DECISIONS, "rack1.any", b"x")) is not None
    assert arrive(reader, DECISIONS, "rack10.any", sender.seal(DECISIONS, "rack10.any", b"x")) is None
    assert arrive(reader, DECISIONS, "rack1", sender.seal(DECISIONS, "rack1", b"x")) is None


# On a real bus.


@pytest.fixture
def signed(
    shared_bus: Bus, federation: Federation, link_to: Callable[..., NatsLink]
) -> Callable[..., NatsLink]:
    group = f"signed{time.time_ns() % 10**9}"

    def connect(name: str | None, *, keys: bool = True) -> NatsLink:
        address = f"{shared_bus.url}/{group}" + (f"?keys={federation.file}" if keys else "")
        identity = federation.path(name) if name else None
        link = link_to(shared_bus, address=address, name=name or "viewer", identity=identity)
        assert link.wait_until_connected(20), link.last_error
        return link

    return connect


def test_a_signed_federation_works_from_node_to_view_and_back(signed: Callable[..., NatsLink]) -> None:
    links = {name: signed(name) for name in ("rack1/n1", "rack1/n2", "rack1", "root")}
    services = [
        AggregatorService(
            links[name or "root"],
            Aggregator(name),
            rule=Propagation(epsilon=0.0, max_age_seconds=1.0),
            lease=LeaderLease(links[name or "root"], name, name or "root"),
        )
        for name in ("rack1", "")
    ]
    publishers = {}
    for name in ("rack1/n1", "rack1/n2"):
        link = links[name]
        publishers[name] = SummaryPublisher(
            link, name, tree=Tree(), schemas=SchemaCache(link), rule=Propagation()
        )
        eventually(lambda name=name: publishers[name].publish(SUMMARY))
    views = ViewSubscriber(links["rack1/n1"], SchemaCache(links["rack1/n1"]), lambda _: True)
    census = NodeCount(links["rack1/n1"])

    def two() -> bool:
        for service in services:
            service.turn()
        return bool(views.poll() and views.view.nodes == 2 and census() == 2)

    eventually(two)
    leases = RefusalLeases(links["rack1/n1"], lambda words, nodes: sorted(words)[:1], nodes=census)
    assert leases.tell("rack1/n1", refuse=True, score=0.9, valid_until=9.0, now=0.0)
    theirs = RefusalLeases(links["rack1/n2"], lambda words, nodes: sorted(words)[:1], nodes=census)
    assert not theirs.tell("rack1/n2", refuse=True, score=0.9, valid_until=9.0, now=0.0)
    seen = take_snapshot(signed(None), seconds=20)
    assert seen.signed
    assert len(seen.nodes) == 2
    assert {link.dropped for link in links.values()} == {0}
    # One who was given no keys reads the same, unchecked.
    plain = take_snapshot(signed(None, keys=False), seconds=20)
    assert not plain.signed
    assert plain.revision == seen.revision
    publishers["rack1/n1"].withdraw()

    def one() -> bool:
        for service in services:
            service.turn()
        return census() == 1

    eventually(one)


def test_nothing_that_is_forged_on_the_bus_counts(signed: Callable[..., NatsLink]) -> None:
    """An open bus, and one on it who writes every key, unsigned and with another's right key."""
    root, node, viewer = signed("root"), signed("rack1/n1"), signed(None)
    service = AggregatorService(root, Aggregator(""), lease=LeaderLease(root, "", "root", seconds=60.0))
    eventually(lambda: service.turn() or service.status()["speaking"])
    views = ViewSubscriber(node, SchemaCache(node), lambda _: True)
    census = NodeCount(node)
    attackers = [signed(None, keys=False), signed("rack1/n2")]
    schema = SchemaCache(attackers[0])
    schema.publish(SUMMARY.metrics)
    forged = {
        (VIEWS, "global"): GlobalView.of(SUMMARY, 9).to_bytes(),
        (VIEWS, "census"): census_to_bytes(10_000),
        (SUMMARIES, "rack1"): summary_of(
            "rack1", factor_data(np.random.default_rng(0), 6, 99), rank=3
        ).to_bytes(),
        (DECISIONS, "rack1.n1"): DecisionMessage("rack1/n1", False, 1.0, "forged", 0.0, 9e9).to_bytes(),
        (LEASES, "seats.=root"): b"usurper",
    }
    before = [link.dropped for link in (root, node)]
    for attacker in attackers:
        for (topic, key), value in forged.items():
            attacker.put(topic, key, value)
        assert attacker.flush()
    eventually(lambda: node.dropped >= before[1] + 4 and root.dropped >= before[0] + 2)

    assert views.poll() is None
    assert census() == 1
    service.turn()
    assert service.received == 0
    # A forged seat is no seat: the root takes it back at once.
    assert LeaderLease(root, "", "root", seconds=60.0).acquire()
    seen = take_snapshot(viewer, seconds=20)
    assert seen.rows == ()
    assert seen.revision is None
    assert seen.dropped >= 3


def test_a_lying_aggregator_or_root_cannot_lift_the_capacity_floor(
    federation: Federation, signed: Callable[..., NatsLink], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("rack2/n1", "rack2/n2"):
        federation.register("node", name)
    root, liar, node = signed("root"), signed("rack1"), signed("rack2/n1")
    service = AggregatorService(root, Aggregator(""))
    SchemaCache(liar).publish(SUMMARY.metrics)
    claim = replace(SUMMARY, node="rack1", merged=True, incarnation=1, sequence=1)
    census = NodeCount(node)
    liar.put(SUMMARIES, "rack1", replace(claim, nodes=10_000_000).to_bytes())

    eventually(lambda: service.turn() or service.status()["overstated"] == ["rack1"])
    eventually(lambda: service.turn() or census() == 2, message="as many as are registered in rack1")
    assert service.view is not None
    assert service.view.nodes == 2
    assert caplog.text.count("rack1 claims 10000000 nodes: counted as the 2 that have a key") == 1
    # Not even the root can: those who take leave by its census know the keys too.
    root.put(VIEWS, "census", census_to_bytes(1_000_000))
    eventually(lambda: census() == 4, message="as many as are registered at all")
    # A node does not become an aggregator by saying so.
    node.put(SUMMARIES, "rack2.n1", replace(claim, node="rack2/n1").to_bytes())
    rack = AggregatorService(signed(None), Aggregator("rack2"))
    eventually(lambda: rack.turn() or rack.rejected)
    assert "the key of 'rack2/n1' must be that of aggregator, got one of node" in rack.last_rejection
    assert not rack.aggregator.children


def test_no_count_of_samples_outweighs_the_fleet() -> None:
    honest = [replace(SUMMARY, node=f"rack1/n{number}") for number in range(4)]
    liar = replace(SUMMARY, node="rack1/liar", mean=SUMMARY.mean + 1e6, samples=1e15, counts=np.full(6, 1e29))
    aggregator = Aggregator("rack1", largest_weight=200.0)
    for summary in (*honest, liar):
        aggregator.receive(summary, now=0.0)
    merged = aggregator.merged()

    assert merged is not None
    assert merged.mean == pytest.approx(SUMMARY.mean + 1e6 / 5)
    assert merged.counts == pytest.approx(np.full(6, 1000.0))
