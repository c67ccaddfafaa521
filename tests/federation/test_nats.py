"""The link over a real nats-server: the same promises as within one process."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from prontosched.errors import FederationError
from prontosched.federation.address import Address
from prontosched.federation.leases import LeaderLease, RefusalLeases
from prontosched.federation.link import (
    DECISIONS,
    LEASES,
    MESSAGE_LIMIT,
    SUMMARIES,
    Link,
    LinkDownError,
    LocalBus,
    LocalLink,
)
from prontosched.federation.member import Member
from prontosched.federation.nats import NatsLink
from prontosched.federation.tree import Tree

from .buses import Bus, eventually


@pytest.fixture(params=["local", "nats"])
def pair(request: pytest.FixtureRequest, link_to: Callable[..., NatsLink]) -> tuple[Link, Link]:
    """Two links that hear each other, in one process and over NATS."""
    if request.param == "local":
        board = LocalBus()
        return LocalLink(board), LocalLink(board)
    bus = request.getfixturevalue("shared_bus")
    group = uuid.uuid4().hex[:12]
    links = link_to(bus, group=group, name="one"), link_to(bus, group=group, name="other")
    for link in links:
        assert link.wait_until_connected(60)
    return links


def drained(feed, count: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def enough() -> bool:
        found.update({entry.key: entry.value for entry in feed.drain()})
        return len(found) >= count

    eventually(enough, message=f"{count} values, got {sorted(found)}")
    return found


def test_a_feed_gives_what_lay_there_and_what_comes(pair: tuple[Link, Link]) -> None:
    one, other = pair
    one.put(SUMMARIES, "rack1.n1", b"before")
    eventually(lambda: one.get(SUMMARIES, "rack1.n1"))
    feed = other.subscribe(SUMMARIES, "rack1.*")
    eventually(lambda: feed.ready)
    one.put(SUMMARIES, "rack1.n2", b"after")
    one.put(SUMMARIES, "rack2.n3", b"not for us")

    assert drained(feed, 2) == {"rack1.n1": b"before", "rack1.n2": b"after"}


def test_a_feed_on_one_key_needs_no_wildcard(pair: tuple[Link, Link]) -> None:
    one, other = pair
    one.put(DECISIONS, "a.b/c=2E", b"1")
    feed = other.subscribe(DECISIONS, "a.b/c=2E")

    assert drained(feed, 1) == {"a.b/c=2E": b"1"}


def test_only_one_of_two_can_replace_a_revision(pair: tuple[Link, Link]) -> None:
    one, other = pair
    first = one.compare_and_set(LEASES, "k", b"1", revision=0)
    assert first

    assert other.compare_and_set(LEASES, "k", b"2", revision=0) is None
    second = other.compare_and_set(LEASES, "k", b"2", revision=first)
    assert second is not None
    assert second > first
    assert one.compare_and_set(LEASES, "k", b"3", revision=first) is None
    entry = one.get(LEASES, "k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", second)
    assert one.get(LEASES, "nothing") is None


def test_both_ends_share_the_clock_of_the_bus(pair: tuple[Link, Link]) -> None:
    one, other = pair

    assert abs(one.now() - other.now()) < 0.2
    assert one.now() == pytest.approx(time.time(), abs=1.0)


def test_the_capacity_floor_holds_over_the_bus(pair: tuple[Link, Link]) -> None:
    def rule(words: Mapping[str, tuple[bool, float, bool]], nodes: int) -> list[str]:
        return sorted(words)[: nodes // 2]

    leases = [RefusalLeases(link, rule, nodes=4) for link in pair]
    told = {"refuse": True, "score": 0.5, "valid_until": 60.0, "now": 0.0}
    answers = [leases[i % 2].tell(f"n{i}", **told) for i in range(4)]

    assert answers == [True, True, False, False]
    assert sorted(leases[1].refusing()) == ["n0", "n1"]
    leases[1].release("n0")
    leases[1].release("n2")
    assert leases[0].tell("n3", **told)


def test_a_lease_passes_on_when_its_holder_falls_silent(pair: tuple[Link, Link]) -> None:
    first, second = (LeaderLease(link, "rack1", f"holder{i}", seconds=0.4) for i, link in enumerate(pair))
    assert first.acquire()
    assert not second.acquire()

    eventually(second.acquire)
    assert not first.acquire()


def test_values_put_while_the_bus_is_away_arrive_when_it_is_back(
    bus: Bus, link_to: Callable[..., NatsLink]
) -> None:
    link, reader = link_to(bus, name="w"), link_to(bus, name="r")
    feed = reader.subscribe(SUMMARIES, ">")
    assert link.wait_until_connected(60)
    bus.kill()
    eventually(lambda: not link.connected)
    started = time.perf_counter()
    for value in range(100):
        link.put(SUMMARIES, "n1", f"{value}".encode())
    assert time.perf_counter() - started < 10  # each would wait a second
    with pytest.raises(LinkDownError, match="the bus must be connected"):
        link.get(SUMMARIES, "n1")
    bus.start()

    eventually(lambda: any(entry.value == b"99" for entry in feed.drain()))


def test_a_bus_that_lost_its_store_gets_everything_again(bus: Bus, link_to: Callable[..., NatsLink]) -> None:
    link = link_to(bus)
    link.put(SUMMARIES, "n1", b"kept")
    assert link.flush()
    bus.kill()
    bus.folder = bus.folder / "another"
    bus.folder.mkdir()
    bus.start()

    def back() -> bool:
        try:
            return link.get(SUMMARIES, "n1") is not None
        except LinkDownError:
            return False

    eventually(back)


def test_what_the_bus_will_not_take_is_counted_and_does_not_block(
    shared_bus: Bus, link_to: Callable[..., NatsLink]
) -> None:
    link = link_to(shared_bus, group="toolong")
    link.put(SUMMARIES, "n1", bytes(MESSAGE_LIMIT + 1000))
    link.put(SUMMARIES, "n2", b"fine")

    assert link.flush()
    assert link.refused == 1
    assert link.get(SUMMARIES, "n1") is None
    assert link.get(SUMMARIES, "n2") is not None


def test_groups_on_one_bus_do_not_hear_each_other(shared_bus: Bus, link_to: Callable[..., NatsLink]) -> None:
    one, other = link_to(shared_bus, group="red"), link_to(shared_bus, group="blue")
    one.put(SUMMARIES, "n1", b"red")
    assert one.flush()
    assert other.wait_until_connected(60)

    assert other.get(SUMMARIES, "n1") is None


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nats://h:1/a.b", "group must be 1 to 32 letters"),
        ("http://h:1", "a bus must be given as nats://host:port"),
        ("nats://h:1?color=red", "an address may have creds, ca"),
        ("nats://h:99999", "a bus must be given as .*Port out of range"),
        ("nats://h:1?shards=many", "address of the bus"),
        ("nats://h:1?trigger=never", "trigger must be projector or elementwise, got 'never'"),
        ("nats://h:1?epsilon=-1", "epsilon must be at least 0"),
        ("nats://h:1?max_age=soon", "address of the bus"),
        ("nats://h:1?shards=0", "shards must be from 1 to 4096, got 0"),
        ("nats://h:1?creds=/nowhere/node.creds", "creds must name a credentials file"),
        ("tls://h:1?ca=/nowhere/ca.pem", "must be readable PEM files"),
        ("nats://h:1?names=/nowhere/key", "names must be a readable file"),
        ("nats://h:1?names=/dev/null", "must hold a key of 16 to 1024 bytes, got 0"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused(address: str, message: str) -> None:
    with pytest.raises(FederationError, match=message):
        NatsLink(address)


def test_the_address_can_set_when_members_propagate() -> None:
    link = NatsLink("nats://127.0.0.1:1?epsilon=0.2&trigger=elementwise&max_age=30", timeout=0.2)
    link.close()
    rule = Member(link, "n1").summaries.rule

    assert (rule.epsilon, rule.kind, rule.max_age_seconds) == (0.2, "elementwise", 30.0)


def test_the_address_can_name_a_key_for_metric_names(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key of more than sixteen bytes\n")
    link = NatsLink(f"nats://127.0.0.1:1?names={tmp_path / 'key'}", timeout=0.2)
    link.close()

    assert Member(link, "n1").name_key == b"a key of more than sixteen bytes"


def test_an_address_says_everything_in_one_setting() -> None:
    found = Address.parse("tls://u:p%40ss@a:1,tls://b:2/prod?ca=/ca&cert=/c&key=/k&depth=2&shards=8")

    assert found.servers == ("tls://a:1", "tls://b:2")
    assert (found.group, found.user, found.password) == ("prod", "u", "p@ss")
    assert (found.ca, found.cert, found.key) == ("/ca", "/c", "/k")
    assert found.tree == Tree(depth=2, shards=8)
    assert Address.parse("bus").servers == ("nats://bus:4222",)


def test_closing_without_a_bus_ends_the_thread() -> None:
    link = NatsLink("nats://127.0.0.1:1", timeout=0.5)
    eventually(lambda: link.last_error)
    link.close()

    assert not [thread for thread in threading.enumerate() if thread.name == "nats member"]
    assert not link.connected


def test_who_asks_for_tls_never_speaks_in_the_clear(
    shared_bus: Bus, link_to: Callable[..., NatsLink]
) -> None:
    link = link_to(shared_bus, address=f"tls://user:secret@127.0.0.1:{shared_bus.port}/test")

    eventually(lambda: link.last_error)
    assert "must speak TLS" in link.last_error
    assert link.sessions == 0


def test_a_bus_that_goes_and_comes_is_told_once_each(
    bus: Bus, link_to: Callable[..., NatsLink], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prontosched.federation")
    link = link_to(bus)
    assert link.wait_until_connected(60)
    bus.kill()
    eventually(lambda: link.last_error)
    time.sleep(1.0)
    bus.start()
    eventually(lambda: link.sessions == 2)
    told = [record.getMessage() for record in caplog.records]

    assert [text.partition(" bus")[0] for text in told] == ["on the", "the", "back on the"]
    assert "Connect call failed" in link.last_error or not link.last_error


def test_faults_that_the_bus_reports_are_counted(tmp_path: Path, link_to: Callable[..., NatsLink]) -> None:
    """A user that is refused, a right that is missing, and a connection that is lost."""
    (tmp_path / "bus.conf").write_text(
        f'''
        jetstream {{ store_dir: "{tmp_path}/store" }}
        authorization {{ users: [ {{
            user: member, password: right
            permissions: {{ publish: {{ deny: "$KV.pronto-test-decisions.forbidden" }} }}
        }} ] }}
        '''
    )
    bus = Bus(tmp_path, config=tmp_path / "bus.conf").start()
    place = f"127.0.0.1:{bus.port}/test"
    try:
        stranger = link_to(bus, address=f"nats://member:wrong@{place}")
        eventually(lambda: stranger.faults)
        assert "authorization violation" in stranger.last_fault.lower()
        stranger.close()

        member = link_to(bus, address=f"nats://member:right@{place}")
        member.put(DECISIONS, "allowed", b"1")
        assert member.flush(60)
        assert member.faults == 0
        member.put(DECISIONS, "forbidden", b"1")
        eventually(lambda: member.refused)
        assert member.faults >= 1
        assert "permissions violation" in member.last_fault.lower()
        before = member.faults
    finally:
        bus.kill()
    eventually(lambda: member.faults > before)
    assert member.last_fault == "the connection was lost"


def test_a_bus_that_is_not_there_is_no_fault() -> None:
    link = NatsLink("nats://127.0.0.1:1", timeout=0.5)
    eventually(lambda: link.last_error)
    link.close()

    assert (link.faults, link.last_fault) == (0, "")
