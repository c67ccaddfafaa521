"""An agent that does not decide says so, everywhere and with the reason."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from dataclasses import replace

import numpy as np
import pytest

from prontosched.agent.diagnosis import diagnose
from prontosched.agent.followers import ServiceManager
from prontosched.agent.http.auth import Access
from prontosched.agent.http.client import Client, find_agent
from prontosched.agent.http.server import Server
from prontosched.agent.views import status
from prontosched.cli.options import find
from prontosched.errors import IntegrationError
from prontosched.gates.gate import Observed
from prontosched.settings import AgentSettings
from prontosched.telemetry.prometheus import PrometheusSource
from tests.agent.machine import Clock, Machine, make_agent, sample
from tests.agent.test_diagnosis import REPORT
from tests.agent.test_followers import gated
from tests.agent.test_process import address, listen, wait_for
from tests.gates.memory_gate import MemoryGate


def ticked(agent, clock, ticks):
    """Tick once a second on a clock that the test moves."""

    async def go():
        for _ in range(ticks):
            agent.pace.begin()
            await agent.tick()
            clock.now += 1.0

    asyncio.run(go())
    return agent


def agent_of(give, **given):
    clock = Clock()
    return make_agent(Machine(give), clock=clock, interval=1.0, **given), clock


def broken(i):
    raise OSError("the wire is cut")


def test_an_agent_that_decides_is_healthy():
    agent, clock = agent_of(None)

    assert ticked(agent, clock, 5).health.trouble == ""


def test_an_agent_whose_source_breaks_is_not_healthy_after_three_intervals():
    agent, clock = agent_of(lambda i: [sample(i)] if i < 5 else broken(i))
    ticked(agent, clock, 6)
    early = agent.health.trouble
    ticked(agent, clock, 1)

    assert early == ""
    assert agent.health.trouble == "no decision for 3 s: source: the wire is cut"


def test_an_agent_that_recovers_is_healthy_again():
    agent, clock = agent_of(lambda i: broken(i) if i < 6 else [sample(i)])
    ticked(agent, clock, 6)
    before = agent.health.trouble
    ticked(agent, clock, 1)

    assert "the wire is cut" in before
    assert agent.health.trouble == ""


def test_a_source_that_gives_nothing_is_named():
    agent, clock = agent_of(lambda i: [])
    ticked(agent, clock, 4)

    assert agent.health.trouble == "no decision for 4 s: the source gives no telemetry"
    assert agent.answer().reason == "no decision yet (the source gives no telemetry): accepting, as set"


def test_an_agent_that_decides_with_a_fault_at_every_tick_is_not_healthy():
    class Broken:
        name = "pager"

        def follow(self, agent):
            raise RuntimeError("no one to page")

        def status(self):
            return {}

        def close(self):
            pass

    agent, clock = agent_of(None, followers=[Broken()])
    ticked(agent, clock, 2)
    early = agent.health.trouble
    ticked(agent, clock, 1)

    assert early == ""
    assert agent.health.trouble == "every tick faults: pager: no one to page"
    assert agent.nodes.tally.decisions == 3


def test_the_answer_says_what_is_wrong():
    agent, clock = agent_of(broken)
    ticked(agent, clock, 1)
    found = agent.answer()

    assert found.reason == "no decision yet (source: the wire is cut): accepting, as set"


def test_a_stale_answer_says_what_went_wrong_since():
    agent, clock = agent_of(lambda i: [sample(i)] if i < 5 else broken(i))
    ticked(agent, clock, 20)

    assert agent.answer().reason == "no telemetry for 16 s (source: the wire is cut): accepting, as set"


def test_a_fault_that_is_over_is_not_held_against_the_next_silence():
    agent, clock = agent_of(lambda i: broken(i) if i == 2 else [sample(i)] if i < 5 else [])
    ticked(agent, clock, 20)

    assert agent.answer().reason == "no telemetry for 16 s: accepting, as set"


@pytest.fixture
def silent_port():
    """Return a port that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_target_that_never_answers_is_reported_within_one_interval(start, tmp_path, silent_port):
    target = f"127.0.0.1:{silent_port}"
    process = start("agent", *listen(), "--source", "prometheus", "--target", target, "--interval", "0.5s")
    line = next(line for line in process.stderr if "no telemetry from" in line)
    url = address(tmp_path)

    def unhealthy():
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=5)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        return None

    code, health = wait_for(unhealthy)
    found = find_agent(url, tmp_path)
    reason = found.decision()["reason"]
    process.terminate()
    process.communicate(timeout=60)

    assert line.startswith(f"pronto: source: no telemetry from {target}: no answer in")
    assert code == 503
    assert health["ok"] is False
    assert f"no telemetry from {target}" in health["reason"]
    assert health["faults"] > 0
    # An agent that is not healthy still answers, and says why.
    assert reason.startswith("no decision yet (")
    assert "no answer in" in reason


def test_one_silent_target_of_two_is_counted_and_the_agent_is_healthy(silent_port):
    class Two(PrometheusSource):
        def read(self):
            super().read()
            return [sample(0)]

    source = Two([f"127.0.0.1:{silent_port}"], timeout_seconds=0.05)
    source.node = "n1"
    clock = Clock()
    agent = make_agent(source, clock=clock, interval=1.0)
    ticked(agent, clock, 4)
    source.close()

    assert agent.faults["source"] == 4
    assert agent.health.trouble == ""


def test_a_fault_nobody_foresaw_is_named_by_its_kind():
    clock = Clock()
    agent = make_agent(Machine(lambda i: [sample(i)] if i else {}["12423"]), clock=clock, interval=1.0)
    before = status(agent)["last_fault_seconds"]
    ticked(agent, clock, 2)
    clock.now += 90_000.0

    assert agent.last_fault == "source: KeyError('12423')"
    assert before is None
    assert 90_000.0 <= status(agent)["last_fault_seconds"] <= 90_002.0


def test_errors_of_a_gate_are_counted_as_the_log_names_them(caplog):
    class Deaf(MemoryGate):
        def observe(self, node) -> Observed:
            raise IntegrationError("scontrol: unable to contact the controller")

    agent, follower = gated(Deaf("n1"), enforce=True, ticks=20)
    wait_for(lambda: follower.errors > 0)
    asyncio.run(agent.tick())
    found, errors = status(agent), follower.errors
    follower.close()

    assert 1 <= found["faults"]["gate"] <= errors
    assert found["last_fault"] == "gate: scontrol: unable to contact the controller"
    assert any("unable to contact" in record.message for record in caplog.records)
    # A gate that cannot reach its scheduler is no reason to stop deciding.
    assert agent.health.trouble == ""


def test_the_service_manager_hears_why_and_no_longer_that_it_lives(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(5)
        follower = ServiceManager({"NOTIFY_SOCKET": path})
        agent, clock = agent_of(lambda i: [sample(i)] if i < 2 else broken(i), followers=[follower])
        ticked(agent, clock, 8)
        heard = [manager.recv(4096).decode() for _ in range(8)]

    assert heard[0].startswith("READY=1\nWATCHDOG=1\nSTATUS=accepting")
    assert all("WATCHDOG=1" in words for words in heard[:4])
    assert heard[-1] == "STATUS=not deciding: no decision for 6 s: source: the wire is cut"


def test_health_over_http_has_the_reason():
    async def go():
        agent, clock = agent_of(broken)
        server = Server(agent, Access("127.0.0.1", 0))
        url = await server.start()
        for _ in range(4):
            agent.pace.begin()
            await agent.tick()
            clock.now += 1.0
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, lambda: find_agent(url, None).health())
        await server.stop()
        await agent.close()
        return found

    assert asyncio.run(go())["reason"] == "no decision for 4 s: source: the wire is cut"


def test_a_folder_that_is_named_means_its_own_agent(tmp_path, monkeypatch):
    async def go():
        agent, _ = agent_of(lambda i: [sample(i)])
        server = Server(agent, Access("127.0.0.1", 0))
        url = await server.start()
        settings = AgentSettings(listen=url.partition("//")[2])
        monkeypatch.setattr("prontosched.cli.options.agent_settings", lambda: settings)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        loop = asyncio.get_running_loop()
        named = await loop.run_in_executor(None, lambda: find(None, None, None, tmp_path / "other")[0])
        usual = await loop.run_in_executor(None, lambda: find(None, None, None, None)[0])
        await server.stop()
        await agent.close()
        return named, usual

    named, usual = asyncio.run(go())

    assert named is None
    assert usual is not None


def test_a_vector_without_one_number_is_no_decision():
    agent, clock = agent_of(lambda i: [sample(i, vector=np.full(5, np.nan))])
    ticked(agent, clock, 4)

    assert agent.health.trouble.startswith("no decision for 4 s")


def test_check_says_that_an_agent_of_many_nodes_does_not_decide(tmp_path):
    def give(i):
        return [replace(sample(i), node=name) for name in ("n1", "n2")] if i < 2 else broken(i)

    async def go():
        agent, clock = agent_of(give)
        server = Server(agent, Access("127.0.0.1", 0))
        client = Client(await server.start())
        for _ in range(6):
            agent.pace.begin()
            await agent.tick()
            clock.now += 1.0
        settings = AgentSettings(state=tmp_path)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, lambda: diagnose(settings, REPORT, client))
        await server.stop()
        await agent.close()
        return found

    told = [one.what for one in asyncio.run(go()) if one.severity == "stops"]

    assert told == ["the agent does not decide: no decision for 5 s: source: the wire is cut"]
