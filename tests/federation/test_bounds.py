"""What arrives without end is held without growing, and harms only its sender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from prontosched.codec import encode
from prontosched.federation import link as links
from prontosched.federation import schema as schemas
from prontosched.federation import signing
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import Claim, LeaderLease, RefusalLeases, _write
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
from prontosched.federation.monitor import FederationMonitor
from prontosched.federation.nats import NatsLink
from prontosched.federation.publisher import Propagation
from prontosched.federation.schema import SchemaCache, fingerprint, schema_to_bytes
from prontosched.federation.service import AggregatorService
from prontosched.federation.signing import Window
from prontosched.gates.policy import closed_nodes

from .buses import Bus, eventually
from .fleets import factor_data, summary_of

SUMMARY = summary_of("rack1/n1", factor_data(np.random.default_rng(0), 6, 200), rank=3, standardise=True)


def test_a_sender_of_endless_names_loses_its_own_oldest_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signing, "MAX_HEARD", 100)
    window = Window()
    assert window.take("rack1.n1", b"honest", (1, 5))
    for number in range(1000):
        assert window.take(f"rack2.n{number}", b"endless", (1, number))

    assert len(window) == 101
    assert not window.take("rack1.n1", b"honest", (1, 4))
    # Its newest names are still guarded; the oldest begin anew, as for a reader that has just started.
    assert not window.take("rack2.n999", b"endless", (1, 998))
    assert window.take("rack2.n0", b"endless", (1, 0))


def test_a_name_that_is_renewed_is_not_forgotten_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "MAX_HEARD", 10)
    window = Window()
    for number in range(100):
        assert window.take("renewed", b"sender", (1, 2 * number))
        assert window.take(f"n{number}", b"sender", (1, 2 * number + 1))

    assert not window.take("renewed", b"sender", (1, 197))


def test_unread_values_are_bounded_in_bytes_and_come_again_after_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MAX_UNREAD_BYTES", 10_000)
    subscription = Subscription(SUMMARIES, ">")
    for number in range(100):
        subscription.deliver(Entry(f"n{number}", bytes(1000), number, 0.0))

    assert len(subscription.drain()) == 10
    subscription.deliver(Entry("n99", bytes(1000), 99, 0.0))
    assert [entry.key for entry in subscription.drain()] == ["n99"]


def test_invented_fingerprints_do_not_keep_out_a_schema_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [0.0]
    bus = LocalBus(lambda: time[0])
    here, there = LocalLink(bus), SchemaCache(LocalLink(bus))
    metrics = ("cpu", "disk")
    here.put(SCHEMAS, fingerprint(metrics), schema_to_bytes(metrics))
    for number in range(2 * schemas.MAX_PENDING):
        assert there(f"{number:032x}") is None
    # Those that were asked for first have a moment to arrive.
    assert there(fingerprint(metrics)) is None

    time[0] += schemas.PATIENCE_SECONDS
    assert there(fingerprint(metrics)) == metrics


def test_a_publisher_of_ever_new_schemas_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_SCHEMAS", 4)
    bus, forgotten = LocalBus(), []
    link = LocalLink(bus)
    link.forget = lambda topic, key: forgotten.append(key)  # type: ignore[method-assign]
    cache = SchemaCache(link)
    for number in range(10):
        cache.publish((f"m{number}",))

    assert forgotten == [fingerprint((f"m{number}",)) for number in range(6)]


def test_a_schema_is_put_again_after_an_hour() -> None:
    time = [1e6]
    bus = LocalBus(lambda: time[0])
    cache = SchemaCache(LocalLink(bus))
    cache.publish(("cpu",))
    bus.values[SCHEMAS].clear()
    time[0] += 3599.0
    cache.publish(("cpu",))
    assert not bus.values[SCHEMAS]

    time[0] += 1.0
    cache.publish(("cpu",))
    assert bus.values[SCHEMAS]


def test_a_monitor_holds_no_more_of_what_it_cannot_read_than_of_senders() -> None:
    bus = LocalBus()
    link = LocalLink(bus)
    monitor = FederationMonitor(LocalLink(bus), max_senders=50)
    message = SUMMARY.to_bytes()
    for number in range(200):
        link.put(SUMMARIES, f"rack1.n{number}", message)
        link.put(DECISIONS, f"rack1.n{number}", b"rubbish")
    monitor.poll()

    assert monitor.pending == 50
    assert monitor.snapshot().unreadable == 50


def test_a_standby_holds_nothing_of_names_that_came_and_went() -> None:
    bus = LocalBus()
    link = LocalLink(bus)
    holder, standby = (
        AggregatorService(
            LocalLink(bus), Aggregator(""), lease=LeaderLease(LocalLink(bus), "", name, seconds=60.0)
        )
        for name in ("holder", "standby")
    )
    holder.turn()
    holder.schemas.publish(SUMMARY.metrics)
    for number in range(50):
        link.put(SUMMARIES, f"n{number}", replace(SUMMARY, node=f"n{number}").to_bytes())
        standby.turn()
        link.put(SUMMARIES, f"n{number}", b"")
        standby.turn()

    assert standby.received > 0
    assert not standby._unmerged


def test_an_aggregator_publishes_nothing_before_it_has_read_the_bus() -> None:
    bus = LocalBus()
    link = LocalLink(bus)
    service = AggregatorService(link, Aggregator(""))
    service.schemas.publish(SUMMARY.metrics)
    link.put(SUMMARIES, "n1", replace(SUMMARY, node="n1").to_bytes())
    service.subscription.ready = False
    assert not service.turn()
    assert not bus.values[VIEWS]

    service.subscription.ready = True
    assert service.turn()
    assert service.view is not None


def test_who_lost_the_lease_does_not_send_again_what_it_said_until_it_has_it_back() -> None:
    bus, time, forgotten = LocalBus(), [0.0], []
    link = LocalLink(bus)
    link.forget = lambda topic, key: forgotten.append((topic, key))  # type: ignore[method-assign]
    lease = LeaderLease(link, "", "first", seconds=3.0, clock=lambda: time[0])
    service = AggregatorService(link, Aggregator(""), lease=lease)
    service.schemas.publish(SUMMARY.metrics)
    link.put(SUMMARIES, "n1", replace(SUMMARY, node="n1").to_bytes())
    assert service.turn()
    assert CENSUS_KEY in bus.values[VIEWS]
    other = LeaderLease(LocalLink(bus), "", "second", seconds=3.0, clock=lambda: time[0])
    assert not other.acquire()
    time[0] = 4.0
    assert other.acquire()
    service.turn()

    assert forgotten == [(VIEWS, CENSUS_KEY)]
    # The bus comes back empty: whoever holds the lease now says all of it again.
    bus.values[VIEWS].clear()
    other.release()
    assert service.turn()
    assert bus.values[VIEWS].keys() == {VIEW_KEY, CENSUS_KEY}


def test_a_bus_whose_clock_went_back_is_told_again_and_expires_nobody_for_it() -> None:
    rule = Propagation(max_age_seconds=60.0)
    rule.sent(SUMMARY, now=10_000.0)
    assert not rule.aged(10_059.0)
    assert rule.aged(9_000.0)

    aggregator = Aggregator("rack1", expiry_seconds=180.0)
    aggregator.receive(SUMMARY, now=10_000.0)
    assert aggregator.expire(1_000.0) == []
    assert aggregator.expire(1_181.0) == [SUMMARY.node]


def test_withdrawn_values_are_not_kept_for_a_bus_that_comes_back(
    shared_bus: Bus, link_to: Callable[..., NatsLink]
) -> None:
    link = link_to(shared_bus, group="withdrawn")
    for number in range(20):
        link.put(DECISIONS, f"n{number}", b"accept")
    assert link.flush(60)
    for number in range(20):
        link.put(DECISIONS, f"n{number}", b"")
    link.put(DECISIONS, "stays", b"accept")
    assert link.flush(60)

    assert list(link._newest) == [(DECISIONS, "stays")]


def test_who_fills_the_store_of_leases_keeps_nobody_from_renewing_one(
    bus: Bus, link_to: Callable[..., NatsLink]
) -> None:
    aggregator, flood = (link_to(bus, name=name, timeout=20.0) for name in ("aggregator", "flood"))
    assert aggregator.wait_until_connected(60)
    assert flood.wait_until_connected(60)
    lease = LeaderLease(aggregator, "", "holder", seconds=0.0)
    assert lease.acquire()
    rubbish = encode("claims", 1, {"rubbish": np.zeros(MESSAGE_LIMIT - 4096, np.uint8)})
    for number in range(150):
        flood.put(LEASES, f"refusals.claims.p{number}", rubbish)
        if number % 25 == 0:
            assert flood.flush(60)
            assert lease.acquire()
    eventually(lambda: flood.flush(1))

    assert flood.refused == 0
    assert lease.acquire()
    assert lease.takeovers == 1


def test_claims_of_nodes_that_have_no_key_do_not_lift_the_capacity_floor() -> None:
    link = LocalLink(LocalBus())
    link.most_nodes = lambda place: 4  # type: ignore[method-assign]
    leases = RefusalLeases(link, lambda words, nodes: closed_nodes(words, nodes=nodes, share=0.25), nodes=4)
    invented = {f"invented{number}": Claim(0.0, link.now() + 600.0, refuse=False) for number in range(1000)}
    link.put(LEASES, leases.key, _write(invented))
    until = link.now() + 60.0
    told = [leases.tell(f"n{n}", refuse=True, score=0.9, valid_until=until) for n in range(4)]

    assert told == [True, False, False, False]
