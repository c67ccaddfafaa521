"""What an operator meets on a bad day, and what a peer with a right key may try: the federation goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prontosched.cli import extender_bus
from prontosched.errors import FederationError
from prontosched.federation import link as links
from prontosched.federation import nats, signing
from prontosched.federation.address import Address
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import (
    CENSUS_KEPT_SECONDS,
    TABLE_BYTES,
    Claim,
    LeaderLease,
    NodeCount,
    RefusalLeases,
    _read,
    _write,
    grant,
)
from prontosched.federation.link import (
    CENSUS_KEY,
    DECISIONS,
    LEASES,
    MESSAGE_LIMIT,
    SCHEMAS,
    SUMMARIES,
    VIEW_KEY,
    VIEWS,
    Entry,
    LocalBus,
    LocalLink,
    Subscription,
)
from prontosched.federation.member import ViewSubscriber
from prontosched.federation.message import DecisionMessage, GlobalView, Summary, census_to_bytes
from prontosched.federation.monitor import FederationMonitor
from prontosched.federation.nats import NatsLink
from prontosched.federation.publisher import Propagation, SummaryPublisher
from prontosched.federation.schema import SchemaCache
from prontosched.federation.service import AggregatorDiscovery, AggregatorService
from prontosched.federation.signing import Identity, KeyRing, next_path, read_identity
from prontosched.federation.tree import Tree, name_of, split

from .buses import Bus, eventually
from .fleets import factor_data, summary_of

DATA = factor_data(np.random.default_rng(0), 6, 200)


def summary(name: str, sequence: int = 1) -> Summary:
    return summary_of(name, DATA, rank=3, standardise=True, sequence=sequence)


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> LocalBus:
    board = LocalBus(clock)
    SchemaCache(LocalLink(board)).publish(summary("n1").metrics)
    return board


def test_a_withdrawal_that_is_put_again_later_takes_nobody_out_of_the_view(board: LocalBus) -> None:
    root = AggregatorService(LocalLink(board), Aggregator(""))
    LocalLink(board).put(SUMMARIES, "n1", summary("n1").to_bytes())
    root.turn()
    root.subscription.deliver(Entry("n1", b"", 0, board.clock(), outdated=True))
    root.turn()

    assert list(root.aggregator.children) == ["n1"]


def test_a_subscription_that_nobody_reads_for_long_holds_the_newest_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MAX_UNREAD_BYTES", 10_000)
    for keep in (False, True):
        subscription = Subscription(DECISIONS, ">")
        subscription.keep_replaced = keep
        for number in range(100):
            subscription.deliver(Entry("n1", bytes([number]) * 1000, number, 0.0))

        assert [entry.value[0] for entry in subscription.drain()] == [99]
        for number in range(100):
            subscription.deliver(Entry(f"n{number % 10}", bytes([number]) * 1000, number, 0.0))

        # Full, and each value yet gives way to its next.
        assert [entry.value[0] for entry in subscription.drain()] == list(range(90, 100))


def test_a_message_that_waits_for_its_schema_is_not_read_again_before_that_came(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    board, reads = LocalBus(clock), []
    read = Summary.from_bytes
    monkeypatch.setattr(Summary, "from_bytes", lambda *args: reads.append(1) or read(*args))
    root, monitor = AggregatorService(LocalLink(board), Aggregator("")), FederationMonitor(LocalLink(board))
    LocalLink(board).put(SUMMARIES, "n1", summary("n1").to_bytes())
    for _ in range(5):
        root.turn()
        monitor.poll()
    assert len(reads) == 2
    assert monitor.pending == 1
    SchemaCache(LocalLink(board)).publish(summary("n1").metrics)
    root.turn()
    monitor.poll()

    assert list(root.aggregator.children) == ["n1"]
    assert monitor.pending == 0
    assert [row.name for row in monitor.snapshot().nodes] == ["n1"]


def test_messages_that_wait_for_their_schema_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prontosched.federation.schema.MAX_UNREAD_BYTES", 10_000)
    cache = SchemaCache(LocalLink(LocalBus()), max_held=1000)
    for number in range(100):
        cache.hold(number, Entry(f"n{number}", bytes(1000), 0, 0.0), f"{number:032x}")
    assert len(cache.held) == 10
    assert cache.take({3: Entry("n3", b"", 0, 0.0)})[3].value == b""
    cache.hold("next", Entry("next", bytes(1000), 0, 0.0), "0" * 32)

    assert len(cache.held) == 10


def test_a_schema_that_cannot_exist_is_not_waited_for(
    board: LocalBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prontosched.federation.message.fingerprint", lambda metrics: "../*")
    LocalLink(board).put(SUMMARIES, "n1", summary("n1").to_bytes())
    root = AggregatorService(LocalLink(board), Aggregator(""))
    root.turn()

    assert root.rejected == 1
    assert "32 digits" in root.last_rejection


@pytest.mark.parametrize("name", ["n\x1b[2J", "n\n1", "n\u202e1"])
def test_no_name_or_reason_can_control_a_terminal_or_a_log(name: str) -> None:
    with pytest.raises(FederationError, match="printable"):
        split(name)
    assert name_of(f"rack.{name}").isprintable()
    assert name_of("rack.n=0A1") == "rack.n=0A1"
    told = DecisionMessage("n1", True, 0.0, f"because {name}", 0.0, 1.0)
    assert DecisionMessage.from_bytes(told.to_bytes()).reason.isprintable()


@pytest.mark.parametrize("probability", [float("inf"), -0.1, 1e300])
def test_a_chance_of_contention_that_is_none_is_refused(probability: float) -> None:
    told = DecisionMessage("n1", True, 0.0, "", 0.0, 1.0, probability=probability)
    with pytest.raises(FederationError, match="from 0 to 1"):
        DecisionMessage.from_bytes(told.to_bytes())


def test_the_largest_numbers_there_are_stop_neither_the_view_nor_a_sender(
    board: LocalBus, clock: Clock
) -> None:
    link = LocalLink(board)
    link.put(VIEWS, VIEW_KEY, GlobalView.of(summary(""), 2**62 - 1).to_bytes())
    root = AggregatorService(link, Aggregator(""))
    views = ViewSubscriber(LocalLink(board), SchemaCache(LocalLink(board)), lambda _: False)
    for sequence in (1, 2):
        clock.time += 61.0
        link.put(SUMMARIES, "n1", summary("n1", sequence).to_bytes())
        root.turn()
    assert views.poll() is not None
    assert not views.errors

    link.put(SUMMARIES, "n2", replace(summary("n2"), incarnation=2**62 - 1).to_bytes())
    sender = SummaryPublisher(
        LocalLink(board), "n2", tree=Tree(), schemas=SchemaCache(link), rule=Propagation()
    )
    assert sender.publish(summary("n2"))
    assert Summary.from_bytes(board.values[SUMMARIES]["n2"].value, lambda _: summary("n2").metrics)


def test_racks_that_were_renamed_make_room_for_new_ones(board: LocalBus, clock: Clock) -> None:
    link = LocalLink(board)
    discovery = AggregatorDiscovery(
        LocalLink(board), Tree(), lambda name: AggregatorService(LocalLink(board), Aggregator(name)), most=4
    )
    for number in range(20):
        clock.time += 200.0
        rack = f"rack{number}"
        link.put(SUMMARIES, f"{rack}.n1", summary(f"{rack}/n1").to_bytes())
        for one in discovery.services():
            one.turn()
        assert rack in [one.aggregator.name for one in discovery.services()]
        assert len(discovery.services()) <= 4


def shared(words: dict[str, tuple[bool, float, bool]], nodes: int) -> list[str]:
    return sorted(words, key=lambda name: -words[name][1])[: max(1, nodes // 4)]


@pytest.mark.parametrize("length", [200, 25_000])
def test_who_fills_the_table_of_claims_keeps_nobody_from_renewing_a_lease(
    board: LocalBus, length: int
) -> None:
    link = LocalLink(board)
    claim, count = Claim(0.1, link.now() + 3000.0, refuse=False), (MESSAGE_LIMIT - 1000) // (length + 35)
    names = [f"{number:05d}".ljust(length, "x") for number in range(count)]
    fill = "x" * (MESSAGE_LIMIT - 300 - len(_write(dict.fromkeys(names, claim))))
    link.put(LEASES, RefusalLeases.key, _write(dict.fromkeys([*names, fill], claim)))
    assert MESSAGE_LIMIT - 300 < len(board.values[LEASES][RefusalLeases.key].value) < MESSAGE_LIMIT - 200
    leases = RefusalLeases(link, shared, nodes=4000)
    for number in range(300):
        assert leases.tell(f"n{number}", refuse=True, score=0.9, valid_until=60.0, now=0.0)

    assert len(board.values[LEASES][RefusalLeases.key].value) < MESSAGE_LIMIT - 200
    assert leases.refusing().keys() >= {f"n{number}" for number in range(300)}


def test_beyond_the_most_nodes_the_claim_written_longest_ago_goes() -> None:
    table: dict[str, Claim] = {}
    for name in ("z", "y", "b", "a"):
        table = _read(_write(grant(table, name, Claim(0.5, 60.0), shared, nodes=4, now=0.0, most=3)))

    assert list(table) == ["y", "b", "a"]
    assert sum(len(name) for name in table) < TABLE_BYTES


def test_a_census_that_nobody_renews_stops_lifting_the_capacity_floor(board: LocalBus, clock: Clock) -> None:
    census = NodeCount(LocalLink(board))
    LocalLink(board).put(VIEWS, CENSUS_KEY, census_to_bytes(1000))
    assert census() == 1000
    clock.time += CENSUS_KEPT_SECONDS - 1.0
    assert census() == 1000
    clock.time += 2.0
    assert census() == 1
    assert NodeCount(LocalLink(board))() == 1


def test_the_census_is_renewed_every_minute_however_seldom_the_view_is(board: LocalBus, clock: Clock) -> None:
    root = AggregatorService(LocalLink(board), Aggregator(""), rule=Propagation(max_age_seconds=3600.0))
    told = LocalLink(board).subscribe(VIEWS, CENSUS_KEY)
    for sequence in range(1, 4):
        LocalLink(board).put(SUMMARIES, "n1", summary("n1", sequence).to_bytes())
        root.turn()
        clock.time += 61.0
        assert len(told.drain()) == 1


def test_two_holders_of_one_name_do_not_both_lead(board: LocalBus) -> None:
    """Two containers of one host may both be its process 1."""
    leases = [LeaderLease(LocalLink(board), "", "host-1", seconds=60.0) for _ in range(2)]

    assert [lease.acquire() for lease in leases] == [True, False]
    assert [lease.acquire() for lease in leases] == [True, False]


def test_a_monitor_forgets_decisions_that_ended_without_a_word(board: LocalBus, clock: Clock) -> None:
    monitor = FederationMonitor(LocalLink(board), max_senders=10)
    for number in range(100):
        clock.time += 100.0
        until = clock.time + 60.0
        name = f"n{number}"
        LocalLink(board).put(DECISIONS, name, DecisionMessage(name, True, 0.0, "", 0.0, until).to_bytes())
        LocalLink(board).put(SUMMARIES, f"other.{number}", summary("elsewhere/n1").to_bytes())
        monitor.poll()
        assert monitor.snapshot().misplaced >= 1
    LocalLink(board).put(SUMMARIES, "n99", summary("n99").to_bytes())
    monitor.poll()

    assert [row.accept for row in monitor.snapshot().nodes] == [True]


def test_a_node_with_enormous_deviations_is_shown_as_far_from_the_view(board: LocalBus) -> None:
    link = LocalLink(board)
    link.put(VIEWS, VIEW_KEY, GlobalView.of(summary(""), 1).to_bytes())
    odd = summary_of("n2", factor_data(np.random.default_rng(7), 6, 200, factors=1), rank=3)
    link.put(
        SUMMARIES,
        "n2",
        replace(odd, deviation=np.full(6, 1e30), samples=1e12, counts=np.full(6, 1e12)).to_bytes(),
    )
    strong = replace(odd, subspace=replace(odd.subspace, singular_values=odd.subspace.singular_values * 2e7))
    link.put(SUMMARIES, "n3", replace(strong, node="n3", deviation=np.full(6, 1e30), samples=1e15).to_bytes())
    monitor = FederationMonitor(LocalLink(board))
    monitor.poll()
    near, far = (next(row for row in monitor.snapshot().nodes if row.name == name) for name in ("n2", "n3"))

    assert far.distance == pytest.approx(near.distance, rel=1e-3)
    assert far.distance > 0.1


def test_nodes_that_ended_without_a_word_keep_no_new_ones_from_the_extender(
    monkeypatch: pytest.MonkeyPatch, board: LocalBus, clock: Clock
) -> None:
    monkeypatch.setattr(extender_bus, "MOST_NODES", 5)
    decisions = extender_bus.BusDecisions(LocalLink(board), clock=clock)
    for number in range(20):
        clock.time += 30.0
        name = f"n{number}"
        told = DecisionMessage(name, True, 0.0, "", 0.0, clock.time + 60.0)
        LocalLink(board).put(DECISIONS, name, told.to_bytes())
        assert name in decisions.verdicts()


def test_keys_that_cannot_be_read_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signing, "RELOAD_SECONDS", 0.0)
    path = tmp_path / "keys"
    path.write_text(f"node n1 {Identity.make().public}\n")
    ring = KeyRing(path, Tree())
    path.unlink()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert ring.most_nodes("") == 1

    assert len(caplog.records) == 1


def test_a_second_process_does_not_take_up_the_next_key_of_one_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "federation.key"
    running = Identity.open(path)
    following = read_identity(next_path(path))
    with pytest.raises(FederationError, match="one process"):
        Identity.open(path, registered=lambda _: True)
    running.close()
    restarted = Identity.open(path, registered=lambda _: True)

    assert restarted.public == following.public
    with pytest.raises(FederationError, match="one process"):
        Identity.open(path)
    restarted.close()


def test_addresses_of_ipv6_keep_their_brackets_and_broken_ones_are_told() -> None:
    assert Address.parse("nats://[::1]:4333,[fe80::2]").servers == (
        "nats://[::1]:4333",
        "nats://[fe80::2]:4222",
    )
    for text in ("nats://[::1", "nats://a,,b", "nats://a,http://b", "nats://a:99999"):
        with pytest.raises(FederationError, match="a bus must be given as"):
            Address.parse(text)
    for option in ("epsilon=nan", "max_age=inf", "max_age=nan"):
        with pytest.raises(FederationError, match="must be"):
            Address.parse(f"nats://a?{option}")


def test_a_bus_is_reached_over_ipv6(tmp_path: Path, link_to: Callable[..., NatsLink]) -> None:
    bus = Bus(tmp_path, host="::1").start()
    try:
        link = link_to(bus, address=f"nats://[::1]:{bus.port}/test")
        assert link.wait_until_connected(60)
        link.close()
    finally:
        bus.kill()


def test_a_message_that_no_bus_takes_ends_no_connection(bus: Bus, link_to: Callable[..., NatsLink]) -> None:
    link = link_to(bus)
    assert link.wait_until_connected(60)
    link.put(SCHEMAS, "0" * 32, bytes(2_000_000))
    link.put(DECISIONS, "n1", b"accept")
    assert link.flush(60)

    assert (link.refused, link.sessions, link.faults) == (1, 1, 0)


def test_a_clock_that_was_set_is_noticed_while_connected(
    bus: Bus, link_to: Callable[..., NatsLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "RESYNC_SECONDS", 0.2)
    link = link_to(bus)
    assert link.wait_until_connected(60)
    # As if the bus's clock had been set back by an hour, or this machine had slept.
    link._offset += 3600.0
    eventually(lambda: abs(link.now() - time.time()) < 60.0)

    assert link.sessions == 1


def test_nobody_falls_silent_because_a_clock_was_set_forward(
    bus: Bus, link_to: Callable[..., NatsLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "RESYNC_SECONDS", 3.0)
    link, node = link_to(bus, name="root"), link_to(bus, name="n1")
    assert link.wait_until_connected(60)
    link._offset -= 3600.0
    root = AggregatorService(link, Aggregator(""))
    eventually(lambda: root.subscription.ready)
    SchemaCache(node).publish(summary("n1").metrics)
    node.put(SUMMARIES, "n1", summary("n1").to_bytes())
    eventually(lambda: root.turn() or root.aggregator.children)
    eventually(lambda: abs(link.now() - time.time()) < 60.0)
    root.turn()

    assert list(root.aggregator.children) == ["n1"]


def test_a_bus_that_lost_its_store_has_the_view_again_at_once(board: LocalBus) -> None:
    lease = LeaderLease(LocalLink(board), "", "host", seconds=0.0)
    root = AggregatorService(LocalLink(board), Aggregator(""), lease=lease)
    LocalLink(board).put(SUMMARIES, "n1", summary("n1").to_bytes())
    root.turn()
    assert VIEW_KEY in board.values[VIEWS]
    for values in board.values.values():
        values.clear()
    root.turn()
    root.turn()

    assert root.speaking
    assert board.values[VIEWS].keys() == {VIEW_KEY, CENSUS_KEY}
