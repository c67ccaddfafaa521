"""The capacity floor on the bus: who may refuse is one rule over what all nodes told."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from prontosched.federation.leases import Claim, LeaderLease, RefusalLeases, Rule, grant
from prontosched.federation.link import LEASES, LocalBus, LocalLink


class Clock:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


asks = st.tuples(st.integers(0, 7).map(lambda n: f"n{n}"), st.booleans(), st.floats(0, 1), st.floats(0.1, 30))


def shared(share: float) -> Rule:
    """Let the worst of those that refuse be closed, up to a share of the nodes."""

    def rule(words: Mapping[str, tuple[bool, float, bool]], nodes: int) -> list[str]:
        worst = sorted(words, key=lambda name: (-words[name][1], name))
        return [name for name in worst[: int(share * nodes)] if words[name][0]]

    return rule


def ask(leases: RefusalLeases, node: str, score: float, seconds: float = 60.0, now: float = 0.0) -> bool:
    return leases.tell(node, refuse=True, score=score, valid_until=now + seconds, now=now)


@settings(max_examples=60)
@given(steps=st.lists(asks, max_size=60), share=st.floats(0, 1))
def test_leave_is_given_by_the_rule_and_to_nobody_whose_word_has_ended(
    steps: list[tuple[str, bool, float, float]], share: float
) -> None:
    table: dict[str, Claim] = {}
    rule = shared(share)
    for now, (node, refuse, score, seconds) in enumerate(steps):
        claim = Claim(score, now + seconds, refuse)
        table = grant(table, node, claim, rule, nodes=8, now=float(now))
        granted = {name for name, one in table.items() if one.granted}

        assert all(one.valid_until > now for one in table.values())
        assert granted == set(rule({n: (one.refuse, one.score, False) for n, one in table.items()}, 8))


def test_the_calmest_gives_way_first() -> None:
    leases = RefusalLeases(LocalLink(LocalBus()), shared(0.5), nodes=4)
    for node, score in [("a", 0.3), ("b", 0.8), ("c", 0.6), ("d", 0.1)]:
        ask(leases, node, score)

    assert sorted(leases.refusing()) == ["b", "c"]
    assert not ask(leases, "a", 0.3)


def test_the_rule_hears_who_holds_a_lease_and_of_nodes_that_stay_open() -> None:
    heard: list[dict[str, tuple[bool, float, bool]]] = []

    def rule(words: Mapping[str, tuple[bool, float, bool]], nodes: int) -> list[str]:
        heard.append(dict(words))
        return [name for name, (refuse, _, _) in words.items() if refuse]

    leases = RefusalLeases(LocalLink(LocalBus()), rule, nodes=4)
    assert ask(leases, "a", 0.5)
    assert not leases.tell("b", refuse=False, score=0.9, valid_until=60.0, now=0.0)
    assert ask(leases, "a", 0.5)

    assert heard[-1] == {"a": (True, 0.5, True), "b": (False, 0.9, False)}


def test_word_that_says_nothing_new_is_not_written_again() -> None:
    clock = Clock()
    link = LocalLink(LocalBus(clock))
    leases = RefusalLeases(link, shared(0.5), nodes=4)
    ask(leases, "a", 0.5)
    before = link.get(LEASES, leases.key)
    for _ in range(20):
        clock.time += 1.0
        assert ask(leases, "a", 0.52)

    assert link.get(LEASES, leases.key) == before
    clock.time += 15.0
    assert ask(leases, "a", 0.52)
    assert leases.refusing()["a"].valid_until == clock.time + 60.0


def test_a_lease_ends_by_itself_and_can_be_given_back() -> None:
    clock = Clock()
    leases = RefusalLeases(LocalLink(LocalBus(clock)), shared(0.5), nodes=2)
    ask(leases, "a", 0.9, 10.0)
    clock.time += 11.0
    assert ask(leases, "b", 0.1, 10.0)

    leases.release("b")
    assert leases.refusing() == {}


def test_a_clock_an_hour_ahead_neither_keeps_nor_breaks_leases() -> None:
    clock = Clock()
    leases = RefusalLeases(LocalLink(LocalBus(clock)), shared(0.5), nodes=2)
    ask(leases, "right", 0.9, 30.0, now=1000.0)

    assert not ask(leases, "ahead", 0.5, 30.0, now=4600.0)
    clock.time += 31.0
    assert ask(leases, "ahead", 0.5, 30.0, now=4600.0)
    clock.time += 31.0
    assert leases.refusing() == {}


def test_without_a_bus_no_new_refusal_but_a_held_one_lasts() -> None:
    clock = Clock()
    link = LocalLink(LocalBus(clock))
    leases = RefusalLeases(link, shared(1.0), nodes=2)
    ask(leases, "a", 0.9, 10.0)
    link.close()

    assert ask(leases, "a", 0.9, 10.0)
    assert not ask(leases, "b", 0.9, 10.0)
    clock.time += 11.0
    assert not ask(leases, "a", 0.9, 10.0)


def test_a_damaged_table_is_begun_anew() -> None:
    link = LocalLink(LocalBus())
    leases = RefusalLeases(link, shared(0.5), nodes=2)
    link.put(LEASES, leases.key, b"not a table")

    assert ask(leases, "a", 0.9)


def test_many_threads_never_break_the_floor() -> None:
    board = LocalBus()

    def claim(index: int) -> None:
        ask(RefusalLeases(LocalLink(board), shared(0.25), nodes=16), f"n{index:02}", 0.5)

    threads = [threading.Thread(target=claim, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    leases = RefusalLeases(LocalLink(board), shared(0.25), nodes=16)
    assert sorted(leases.refusing()) == ["n00", "n01", "n02", "n03"]


def test_a_standby_leads_only_after_silence() -> None:
    watch, board = Clock(), LocalBus()
    first = LeaderLease(LocalLink(board), "rack1", "first", seconds=5.0, clock=watch)
    second = LeaderLease(LocalLink(board), "rack1", "second", seconds=5.0, clock=watch)
    assert first.acquire()
    assert not second.acquire()

    for _ in range(20):
        watch.time += 2.0
        assert first.acquire()
        assert not second.acquire()
    watch.time += 5.1

    assert second.acquire()
    assert not first.acquire()


def test_a_lease_given_up_is_free_at_once() -> None:
    watch, board = Clock(), LocalBus()
    first = LeaderLease(LocalLink(board), "", "first", clock=watch)
    second = LeaderLease(LocalLink(board), "", "second", clock=watch)
    first.acquire()
    assert not second.acquire()

    first.release()
    assert second.acquire()


def test_a_holder_cut_off_for_too_long_no_longer_leads() -> None:
    watch, link = Clock(), LocalLink(LocalBus())
    lease = LeaderLease(link, "", "first", seconds=5.0, clock=watch)
    lease.acquire()
    link.close()
    watch.time += 3.0
    assert lease.acquire()

    watch.time += 3.0
    assert not lease.acquire()
