"""Connections that only stay open: who asks is answered, and every tick decides."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import time

import pytest

from prontosched.agent.http.connections import MOST_CONNECTIONS, Connections
from prontosched.agent.logs import LineBudget
from tests.agent.machine import METRICS, Machine, make_agent, sample
from tests.agent.test_loop import run
from tests.agent.test_process import address, ask, listen, wait_for


def idle_connections(url: str, count: int, stack: contextlib.ExitStack) -> int:
    """Open connections that say nothing, as many as this process may; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(count + 200, hard) if hard != resource.RLIM_INFINITY else count + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    host, port = url.removeprefix("http://").split(":")
    for i in range(min(count, max(soft, most) - 150)):
        one = stack.enter_context(socket.socket())
        one.settimeout(10.0)
        one.connect((host, int(port)))
        if i % 3 == 0:  # some have begun to ask
            one.sendall(b"GET /v1/decision HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    return min(count, max(soft, most) - 150)


def decides_among(start, tmp_path, count):
    process = start("agent", *listen(), "--interval", "0.2", "--no-probe")
    url = address(tmp_path)
    wait_for(lambda: ask(url)["tally"]["decisions"] > 5)
    held = len(os.listdir(f"/proc/{process.pid}/fd"))  # of the machine's own files, which may be many
    with contextlib.ExitStack() as stack:
        opened = idle_connections(url, count, stack)
        before = ask(url)
        begin = time.monotonic()
        for _ in range(20):
            assert ask(url, "/v1/decision")["stale"] is False
        took = time.monotonic() - begin
        wait_for(lambda: ask(url)["loop"]["ticks"] >= before["loop"]["ticks"] + 10)
        after = ask(url)
        descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
    ticks = after["loop"]["ticks"] - before["loop"]["ticks"]
    # A question may come in the middle of a tick.
    assert abs(after["tally"]["decisions"] - before["tally"]["decisions"] - ticks) <= 1
    assert after["faults"] == {}
    assert took < 20.0
    assert descriptors < held + MOST_CONNECTIONS + 200
    return opened


def test_with_many_idle_connections_every_tick_decides_and_answers_come(start, tmp_path):
    assert decides_among(start, tmp_path, 1500) > MOST_CONNECTIONS


@pytest.mark.soak
def test_with_five_thousand_idle_connections_every_tick_decides_and_answers_come(start, tmp_path):
    assert decides_among(start, tmp_path, 5000) > MOST_CONNECTIONS


class Held:
    """A connection that notes whether it was closed."""

    def __init__(self, *, serving: bool = False) -> None:
        self.serving = serving
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def test_one_beyond_the_bound_takes_the_place_of_the_longest_idle():
    connections = Connections(most=3, most_of_peer=2)
    held = [Held(serving=True), Held(), Held()]
    for one in held:
        connections.add(one, "")
    connections.answered(held[1])
    connections.add(Held(), "")

    assert [one.dropped for one in held] == [False, False, True]
    assert (len(connections), connections.closed) == (3, 1)


def test_one_peer_makes_room_among_its_own():
    connections = Connections(most=10, most_of_peer=2)
    others = [Held(), Held()]
    for one in others:
        connections.add(one, "10.0.0.1")
    own = [Held(), Held(), Held()]
    for one in own:
        connections.add(one, "10.0.0.2")
    for one in (*others, *own):
        connections.remove(one)

    assert [one.dropped for one in others] == [False, False]
    assert [one.dropped for one in own] == [True, False, False]
    assert len(connections) == 0


def test_a_storm_of_lines_is_cut_and_counted():
    now = [0.0]
    budget = LineBudget(10, 1.0, clock=lambda: now[0])
    lines = [logging.LogRecord("x", logging.ERROR, "", 0, "trouble %d", (i,), None) for i in range(1000)]
    passed = sum(budget.filter(line) for line in lines)
    now[0] = 1.0

    assert passed == 10
    assert budget.filter(lines[0])
    assert lines[0].getMessage() == "trouble 0 (990 lines before it were left out)"


def test_missing_telemetry_is_a_fault_and_an_agent_without_it_is_not_healthy():
    def give(i):
        return [sample(i) if i < 20 else sample(i, metrics=METRICS[:2])]

    agent = run(make_agent(Machine(give), patience=50), ticks=30)

    assert agent.faults["source"] == 10
    assert "telemetry is missing, n1: 3 of 5 metrics" in agent.last_fault
    assert "3 of 5 metrics" in agent.health.trouble
