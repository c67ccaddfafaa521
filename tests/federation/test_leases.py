"""The capacity floor: never more than the share refuse, the least certain give way."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.federation.leases import Refusal, RefusalLeases, grant
from prontosched.federation.link import LEASES, Board, LocalLink
from prontosched.federation.seat import Seat


class Clock:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


asks = st.tuples(st.integers(0, 7).map(lambda n: f"n{n}"), st.floats(0, 1), st.floats(0.1, 30))


@settings(max_examples=60)
@given(steps=st.lists(asks, max_size=60), allowed=st.integers(0, 4))
def test_the_table_never_holds_more_than_allowed(steps: list[tuple[str, float, float]], allowed: int) -> None:
    table: dict[str, Refusal] = {}
    for now, (node, score, seconds) in enumerate(steps):
        granted, table = grant(table, node, Refusal(score, now + seconds), allowed=allowed, now=float(now))

        assert len(table) <= allowed
        assert granted == (node in table)


def test_the_least_certain_gives_way_first() -> None:
    leases = RefusalLeases(LocalLink(Board()), share=0.5, nodes=4, margin=0.0)
    for node, score in [("a", 0.3), ("b", 0.8), ("c", 0.6), ("d", 0.1)]:
        leases.try_refuse(node, score=score, valid_until=60.0, now=0.0)

    assert sorted(leases.refusing()) == ["b", "c"]
    assert not leases.try_refuse("a", score=0.3, valid_until=60.0, now=0.0)


def test_a_newcomer_barely_more_certain_does_not_take_a_lease() -> None:
    leases = RefusalLeases(LocalLink(Board()), share=0.5, nodes=2, margin=0.05)
    leases.try_refuse("a", score=0.50, valid_until=60.0, now=0.0)

    assert not leases.try_refuse("b", score=0.52, valid_until=60.0, now=0.0)
    assert leases.try_refuse("b", score=0.60, valid_until=60.0, now=0.0)


def test_a_lease_ends_by_itself_and_can_be_given_back() -> None:
    clock = Clock()
    leases = RefusalLeases(LocalLink(Board(clock)), share=0.5, nodes=2)
    leases.try_refuse("a", score=0.9, valid_until=10.0, now=0.0)
    clock.time += 11.0
    assert leases.try_refuse("b", score=0.1, valid_until=10.0, now=0.0)

    leases.release("b")
    assert leases.refusing() == {}


def test_a_clock_an_hour_ahead_neither_keeps_nor_breaks_leases() -> None:
    clock = Clock()
    leases = RefusalLeases(LocalLink(Board(clock)), share=0.5, nodes=2)
    leases.try_refuse("right", score=0.9, valid_until=1030.0, now=1000.0)

    assert not leases.try_refuse("ahead", score=0.5, valid_until=4630.0, now=4600.0)
    clock.time += 31.0
    assert leases.try_refuse("ahead", score=0.5, valid_until=4630.0, now=4600.0)
    clock.time += 31.0
    assert leases.refusing() == {}


def test_a_lone_node_may_refuse_unless_told_otherwise() -> None:
    assert RefusalLeases(LocalLink(Board()), share=0.2, nodes=1).allowed() == 1
    assert RefusalLeases(LocalLink(Board()), share=0.2, nodes=1, at_least=0).allowed() == 0
    assert RefusalLeases(LocalLink(Board()), share=0.3, nodes=10).allowed() == 3


def test_without_a_bus_no_new_refusal_but_a_held_one_lasts() -> None:
    clock = Clock()
    link = LocalLink(Board(clock))
    leases = RefusalLeases(link, share=1.0, nodes=2)
    leases.try_refuse("a", score=0.9, valid_until=10.0, now=0.0)
    link.close()

    assert leases.try_refuse("a", score=0.9, valid_until=10.0, now=0.0)
    assert not leases.try_refuse("b", score=0.9, valid_until=10.0, now=0.0)
    clock.time += 11.0
    assert not leases.try_refuse("a", score=0.9, valid_until=10.0, now=0.0)


def test_a_damaged_table_is_begun_anew() -> None:
    link = LocalLink(Board())
    leases = RefusalLeases(link, share=0.5, nodes=2)
    link.put(LEASES, leases.key, b"not a table")

    assert leases.try_refuse("a", score=0.9, valid_until=10.0, now=0.0)


def test_many_threads_never_break_the_floor() -> None:
    board = Board()
    granted: list[str] = []

    def ask(index: int) -> None:
        leases = RefusalLeases(LocalLink(board), share=0.25, nodes=16, margin=10.0)
        if leases.try_refuse(f"n{index}", score=0.5, valid_until=60.0, now=0.0):
            granted.append(f"n{index}")

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    leases = RefusalLeases(LocalLink(board), share=0.25, nodes=16)
    assert len(granted) == 4
    assert sorted(leases.refusing()) == sorted(granted)


def test_share_outside_nought_to_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"share must be from 0 to 1, got 1\.5"):
        RefusalLeases(LocalLink(Board()), share=1.5, nodes=2)


def test_a_standby_is_seated_only_after_silence() -> None:
    watch, board = Clock(), Board()
    first = Seat(LocalLink(board), "rack1", "first", seconds=5.0, clock=watch)
    second = Seat(LocalLink(board), "rack1", "second", seconds=5.0, clock=watch)
    assert first.claim()
    assert not second.claim()

    for _ in range(20):
        watch.time += 2.0
        assert first.claim()
        assert not second.claim()
    watch.time += 5.1

    assert second.claim()
    assert not first.claim()


def test_a_seat_given_up_is_free_at_once() -> None:
    watch, board = Clock(), Board()
    first = Seat(LocalLink(board), "", "first", clock=watch)
    second = Seat(LocalLink(board), "", "second", clock=watch)
    first.claim()
    assert not second.claim()

    first.leave()
    assert second.claim()


def test_a_holder_cut_off_for_too_long_no_longer_counts_as_seated() -> None:
    watch, link = Clock(), LocalLink(Board())
    seat = Seat(link, "", "first", seconds=5.0, clock=watch)
    seat.claim()
    link.close()
    watch.time += 3.0
    assert seat.claim()

    watch.time += 3.0
    assert not seat.claim()
