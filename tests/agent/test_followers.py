"""What follows the loop: gates, federations, the service manager."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import replace

import numpy as np
import pytest

from prontosched.agent.config import check, closes_nodes, make_followers, make_nodes
from prontosched.agent.config import make_agent as assemble
from prontosched.agent.federation import FederationFollower
from prontosched.agent.followers import GateFollower, ServiceManager
from prontosched.agent.store.decision_log import DecisionLog
from prontosched.agent.store.state import Disk
from prontosched.agent.views import status
from prontosched.errors import SettingsError
from prontosched.gates.controller import Controller
from prontosched.gates.gate import Verdict, label
from prontosched.gates.policy import Rules
from prontosched.pipeline.presets import make_node
from prontosched.settings import AgentSettings
from prontosched.telemetry.source import Sample
from tests.agent.machine import METRICS, Machine, make_agent, next_tick
from tests.agent.test_api import surge
from tests.agent.test_loop import run
from tests.gates.memory_gate import ListingMemoryGate, MemoryGate, RankingMemoryGate
from tests.processes import wait_for


def gated(gate, *, enforce, ticks, **given):
    """Run for some ticks with a gate; return the agent, still open."""
    rules = Rules(enforce=enforce, min_hold_seconds=0, min_accept_seconds=0, observe_seconds=0)
    follower = GateFollower(gate, rules)
    agent = make_agent(Machine(surge), followers=[follower], **given)

    async def go():
        while agent.pace.ticks < ticks:
            await next_tick(agent)
            await agent.tick()

    asyncio.run(go())
    return agent, follower


def test_a_rejecting_node_is_closed_at_its_scheduler_and_opened_at_the_end():
    gate = MemoryGate("n1")
    agent, follower = gated(gate, enforce=True, ticks=61)
    wait_for(lambda: gate.reasons["n1"].startswith("pronto: "))
    held = status(agent)["followers"]["gate"]
    asyncio.run(agent.close())

    assert held["mode"] == "enforce"
    assert gate.reasons["n1"] == ""
    assert follower.status()["refusals"] == 1


def test_a_slow_scheduler_is_told_of_closed_nodes_first_and_not_for_ever(monkeypatch):
    class Slow(RankingMemoryGate):
        def _call(self, what, node):
            if what in ("accept", "restore"):
                time.sleep(0.2)
            super()._call(what, node)

    monkeypatch.setattr("prontosched.agent.followers.LONGEST_CLOSING_SECONDS", 1.0)
    gate = Slow(*(f"n{number}" for number in range(100)))
    follower = GateFollower(gate, Rules(enforce=True, veto=True, max_refusing=0.05))
    dispatcher = follower._dispatcher
    for name in gate.reasons:
        follower._controllers[name] = Controller(gate, name, rules=follower.rules, dispatcher=dispatcher)

    def carried():
        now = time.time()
        for number, controller in enumerate(follower._controllers.values()):
            score = 0.9 if number >= 95 else 0.2
            controller.apply(Verdict(number >= 95, score, "busy", now + 60), now)
        return len(gate.ranks) == 100 and follower.status()["refusing"] == 5

    wait_for(carried)
    begin = time.monotonic()
    follower.close()

    assert time.monotonic() - begin < 3
    assert not any(gate.reasons.values())
    assert gate.ranks
    assert dispatcher.join(10.0)


def test_exporters_are_known_to_the_scheduler_by_their_hosts_each_once(tmp_path):
    hook = ("command=true", f"folder={tmp_path}")
    fleet = AgentSettings(source="prometheus", target=("n1:9100", "n2:9100"), gate="hook", gate_option=hook)
    follower = next(one for one in make_followers(fleet) if isinstance(one, GateFollower))
    names = [follower._name_of(node) for node in ("n1:9100", "N2.example:9100", "n3/custom")]

    assert names == ["n1", "N2.example", "n3"]
    for changed in (
        {"target": ("n1:9100", "http://n1:9200/metrics")},
        {"gate_option": (*hook, "node=n1")},
    ):
        with pytest.raises(SettingsError, match="must be one for each node, got 2 for n1"):
            check(replace(fleet, **changed))


def test_a_node_that_left_is_opened_and_stays_counted():
    gate = MemoryGate("n1", "n2")
    agent, follower = gated(gate, enforce=True, ticks=61)
    wait_for(lambda: gate.reasons["n1"].startswith("pronto: "))
    refused = follower.status()["refusals"]

    follower._part({"n2"})
    wait_for(lambda: gate.reasons["n1"] == "")

    assert follower.status()["refusals"] == refused == 1
    assert follower.status()["nodes"] == []
    asyncio.run(agent.close())


def test_a_system_without_a_thread_for_the_gate_is_a_fault(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("prontosched.gates.controller.Dispatcher._summon", refused)
    agent, _ = gated(MemoryGate("n1"), enforce=True, ticks=5)

    assert agent.faults["gate"] == 5
    assert agent.last_fault == "gate: can't start new thread"


def test_in_shadow_mode_nothing_is_changed_but_all_is_counted():
    gate = MemoryGate("n1")
    agent, follower = gated(gate, enforce=False, ticks=61)
    wait_for(lambda: follower.status()["refusals"] == 1)
    asyncio.run(agent.close())

    assert gate.changes() == []
    assert agent.gate_level("n1") == 0


def test_what_the_gate_did_is_in_the_decision_log(tmp_path):
    disk = Disk(tmp_path, "machine")
    begin = time.time()
    agent, follower = gated(RankingMemoryGate("n1"), enforce=True, ticks=61, disk=disk)
    wait_for(lambda: follower.status()["levels"] == {4: 1})
    asyncio.run(agent.tick())
    asyncio.run(agent.close())
    (point,) = DecisionLog(disk.log.path).history("n1", begin - 1, time.time() + 1, points=1)

    assert point["timesteps"] == 62
    assert 0.0 < point["preferred_share"] <= point["rejecting_share"]
    assert point["closed_share"] == 0.0


def test_a_refusal_that_the_floor_withholds_is_contended_and_says_so():
    gate = ListingMemoryGate("n1", "worse")
    gate.reasons["worse"] = label(Verdict(True, 1e9, "drowning", time.time() + 3600.0))
    agent, follower = gated(gate, enforce=True, ticks=61)
    wait_for(lambda: follower.held_open("n1"))
    found, own = agent.answer(), agent.answer(own=True)
    asyncio.run(agent.close())

    assert (found.accept, found.state) == (True, "contended")
    assert "capacity floor" in found.held_by
    assert (own.accept, own.state, own.held_by) == (False, "refusing", "")
    assert gate.reasons["n1"] == ""


def test_a_gate_that_hangs_does_not_slow_the_loop():
    gate = MemoryGate("n1")
    gate.stuck.clear()
    begin = time.monotonic()
    agent, _ = gated(gate, enforce=True, ticks=80)
    took = time.monotonic() - begin
    gate.stuck.set()
    asyncio.run(agent.close())

    assert took < 10.0
    assert agent.nodes.tally.decisions == 80
    assert not agent.faults


def test_nodes_of_an_embedded_federation_share_one_view():
    def give(i):
        base = np.sin(0.3 * i * np.arange(1, 6))
        return [
            Sample(name, METRICS, base * (k + 1) + 0.1 * np.cos(i + k), 1000.0 + i, 1.0, 10.0)
            for k, name in enumerate(("a", "b", "c"))
        ]

    follower = FederationFollower.embedded()
    agent = run(make_agent(Machine(give), followers=[follower]), ticks=120)
    found = follower.status()

    assert not agent.faults
    assert found["embedded"]
    assert found["members"] == 3
    assert found["errors"] == 0, found["last_error"]
    assert found["root"]["children"] == 3
    assert found["view_revision"] is not None


def test_a_lone_node_has_no_one_to_federate_with_and_no_trouble():
    follower = FederationFollower.embedded()
    agent = run(make_agent(Machine(), followers=[follower]), ticks=40)

    assert not agent.faults
    assert follower.status()["errors"] == 0


def test_a_bus_that_is_not_there_stops_no_decision():
    """NATS on a port where nobody listens: the node decides alone."""
    settings = AgentSettings(nats="nats://127.0.0.1:9", name="site/rack/n1")
    agent = make_agent(Machine(), followers=make_followers(settings))
    run(agent, ticks=30)

    assert agent.nodes.tally.decisions == 30
    assert not agent.faults
    found = status(agent)["followers"]["federation"]
    assert found["connected"] is False


def test_a_node_on_the_bus_is_heard_by_others(tmp_path):
    from prontosched.federation.link import DECISIONS
    from prontosched.federation.message import DecisionMessage
    from prontosched.federation.nats import NatsLink
    from tests.federation.buses import Bus

    bus = Bus(tmp_path).start()
    try:
        settings = AgentSettings(nats=bus.url, name="site/rack/n1")
        agent = make_agent(Machine(), interval=0.02, followers=make_followers(settings))
        other = NatsLink(bus.url, name="other")
        feed = other.subscribe(DECISIONS, ">")
        heard = []

        async def go():
            for _ in range(300):
                await next_tick(agent)
                await agent.tick()
                heard.extend(entry for entry in feed.drain() if entry.value)
                if heard:
                    break
            await agent.close()

        asyncio.run(go())
        other.close()
    finally:
        bus.kill()

    assert DecisionMessage.from_bytes(heard[0].value).node == "site/rack/n1"


def test_faults_that_the_bus_reports_are_faults_of_the_agent(tmp_path):
    from tests.federation.buses import Bus, eventually

    bus = Bus(tmp_path).start()
    agent = make_agent(Machine(), followers=make_followers(AgentSettings(nats=bus.url, name="rack/n1")))
    link = agent.followers[0].link
    try:
        eventually(lambda: link.connected)
        assert not agent.faults
    finally:
        bus.kill()
    eventually(lambda: link.faults)
    run(agent, ticks=2)

    assert agent.faults["federation"] == 1
    assert agent.last_fault == "federation: the connection was lost"


def test_an_unknown_gate_is_refused_with_those_there_are():
    with pytest.raises(SettingsError, match="no gate is called 'slrum'"):
        make_followers(AgentSettings(gate="slrum"))


def test_the_service_manager_hears_ready_alive_and_stopping(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(5)
        agent = make_agent(Machine(), followers=[ServiceManager({"NOTIFY_SOCKET": path})])
        run(agent, ticks=2)
        heard = [manager.recv(4096).decode() for _ in range(3)]

    assert heard[0].startswith("READY=1\nWATCHDOG=1\nSTATUS=accepting: ")
    assert heard[1].startswith("WATCHDOG=1\n")
    assert heard[2] == "STOPPING=1"


@pytest.mark.parametrize(("interval", "asked"), [(60.0, "WATCHDOG_USEC=240000000"), (1.0, "")])
def test_a_watchdog_outlasts_ticks_that_are_far_apart(tmp_path, interval, asked):
    """The unit allows a minute without a word; an agent that reads every minute is well and says one a minute."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(5)
        follower = ServiceManager({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "60000000"})
        run(make_agent(Machine(), followers=[follower], interval=interval), ticks=1)
        heard = manager.recv(4096).decode().splitlines()

    assert heard[0] == "READY=1"
    assert ([line for line in heard if line.startswith("WATCHDOG_USEC")] or [""]) == [asked]


def test_a_service_manager_that_has_gone_is_counted_and_stops_nobody(tmp_path):
    agent = make_agent(Machine(), followers=[ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})])
    run(agent, ticks=3)

    assert agent.faults["service-manager"] == 3
    assert agent.nodes.tally.decisions == 3
    # It decides, so that nobody must restart it.
    assert agent.health.trouble == ""


def test_another_budget_keeps_the_node_and_starts_the_signal_anew(tmp_path):
    def make(budget):
        settings = AgentSettings(budget=budget, state=tmp_path, interval=0.001, source="generated")
        return assemble(settings, Machine())

    first = run(make(0.1), ticks=40)
    same = make(0.1)
    run(same, ticks=1)
    other = make(0.2)
    run(other, ticks=1)

    assert first.nodes.only.node.timestep == 40
    assert same.nodes.message.endswith("warm, 5 metrics")
    assert same.nodes.only.node.timestep == 41
    assert "the signal starts anew" in other.nodes.message
    # What the refusals of the other signal were worth is not this one's record.
    assert [same.nodes.only.record.timesteps, other.nodes.only.record.timesteps] == [41, 1]
    assert other.nodes.only.node.timestep == 42
    assert other.nodes.only.node.signal.policy.budget == 0.2


def test_the_papers_signal_brings_the_papers_preset(tmp_path):
    settings = AgentSettings(signal="paper", state=tmp_path, interval=0.001, source="generated")
    agent = run(assemble(settings, Machine()), ticks=30)
    embedding, replayed = agent.nodes.only.node.embedding, make_node("paper").embedding

    assert embedding.settings() == replayed.settings()
    assert (embedding.forgetting, embedding.spare) == (1.0, 0)


def test_another_embedding_starts_the_node_cold(tmp_path):
    def make(**given):
        return assemble(AgentSettings(state=tmp_path, interval=0.001, source="generated", **given), Machine())

    run(make(signal="paper"), ticks=30)
    other = run(
        make(signal="paper", embedding="spirit", energy_bounds="0.95,0.98", weights="raw", hold=3), ticks=5
    )
    node = other.nodes.only.node

    assert "the settings of the embedding changed" in other.nodes.message
    assert (node.embedding.name, node.embedding.energy_bounds, node.timestep) == ("spirit", (0.95, 0.98), 5)
    assert (node.signal.weights, node.signal.hold) == ("raw", 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"energy_bounds": "0.1"}, "energy-bounds must be two shares of energy, the lower first"),
        ({"energy_bounds": "0.2,0.1"}, "energy-bounds must be two shares of energy, the lower first"),
        ({"energy_bounds": "0.1,0.2", "embedding": "power-method"}, "power-method has no energy-bounds"),
        ({"embedding": "pca"}, "no embedding is called .pca."),
        ({"embedding": "power-method", "nats": "nats://127.0.0.1:1"}, "a federation merges by them"),
        ({"weights": "raw"}, "signal learned has no weights"),
        ({"signal": "paper", "hold": 2.5}, "hold must be at least 0 timesteps, a whole number"),
    ],
)
def test_settings_that_no_node_can_have_are_refused(tmp_path, given, message):
    with pytest.raises(SettingsError, match=message):
        assemble(AgentSettings(state=tmp_path, **given), Machine())


def test_an_option_the_signal_does_not_have_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"signal paper has no budget, got 0\.1"):
        assemble(AgentSettings(preset="paper", budget=0.1, state=tmp_path), Machine())


def test_enforcement_is_told_to_the_signal(tmp_path):
    settings = AgentSettings(
        gate="hook", gate_option=("command=/bin/true",), enforce=True, state=tmp_path, keep=False
    )
    agent = run(assemble(settings, Machine()), ticks=3)

    assert agent.nodes.only.node.signal.enforcing
    assert os.path.isdir(tmp_path)


@pytest.mark.parametrize(
    ("gate", "options", "enforce", "closes"),
    [
        ("slurm", (), True, False),
        ("slurm", ("veto=true",), True, True),
        ("slurm", ("veto=true",), False, False),
        ("hook", ("command=/bin/true",), True, True),
        ("hook", ("command=/bin/true", "veto=false"), True, False),
        (None, (), True, False),
    ],
)
def test_signal_counts_as_obeyed_only_where_refusals_close_the_node(gate, options, enforce, closes):
    """A gate that only ranks nodes keeps no job away: then what follows a refusal is still to be learned from."""
    settings = AgentSettings(gate=gate, gate_option=options, enforce=enforce)

    assert closes_nodes(settings) == closes
    assert make_nodes(settings, Machine()).enforcing == closes
