"""`/metrics` follows the conventions of Prometheus, and the alert rules hold on it. promtool is the judge."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prontosched.agent.followers import GateFollower
from prontosched.agent.http.metrics import _FOLLOWERS, _SIGNAL, exposition
from prontosched.gates.policy import Rules
from tests.agent.machine import Machine, make_agent, sample
from tests.gates.memory_gate import ListingMemoryGate
from tests.processes import wait_for
from tests.requirements import require_program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "pronto.rules.yml"


def pulsing(i: int) -> list:
    """Twenty-two contentions of ten timesteps, then one that goes on."""
    return [sample(i, ready=40.0 if i % 40 >= 30 or i >= 900 else 0.5, used=50.0)]


def values(page: str) -> dict[str, dict[str, float]]:
    return {
        family.name: {"/".join([one.name, *one.labels.values()]): one.value for one in family.samples}
        for family in text_string_to_metric_families(page)
    }


@pytest.fixture(scope="module")
def page() -> str:
    """What an agent serves that refuses, with a gate that holds its only node open."""
    rules = Rules(enforce=True, veto=True, min_hold_seconds=0, min_accept_seconds=0, observe_seconds=0)
    gate = GateFollower(ListingMemoryGate("n1"), rules)
    agent = make_agent(Machine(pulsing), preset="default", followers=[gate])

    async def run() -> None:
        for _ in range(905):
            await agent.tick()

    asyncio.run(run())
    wait_for(lambda: gate.status()["held_open"] == 1, what="the lone node to be held open")
    made = exposition(agent).decode()
    asyncio.run(agent.close())
    return made


def test_promtool_finds_nothing_wrong_with_the_metrics(page: str) -> None:
    found = subprocess.run(
        [require_program("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_one_unit_per_metric_and_base_units(page: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(page)}

    assert [name for name in families if re.search("percent|_ms|milli|micro|kilo", name)] == []
    assert {label for family in families.values() for one in family.samples for label in one.labels} <= {
        *("node", "state", "part", "kind", "direction", "le", "version"),
    }
    for name, family in families.items():
        if name.endswith("_ratio") and "slowdown" not in name and "ready" not in name:
            assert all(0.0 <= one.value <= 1.0 for one in family.samples), name


def test_metrics_say_what_the_node_its_record_and_its_gate_say(page: str) -> None:
    found = values(page)

    assert found["pronto_cpu_ready_ratio"]["pronto_cpu_ready_ratio/n1"] == 0.4
    assert 0.0 < found["pronto_signal_recall_ratio"]["pronto_signal_recall_ratio"] <= 1.0
    assert found["pronto_gate_held_open_nodes"]["pronto_gate_held_open_nodes"] == 1.0


def test_the_time_to_the_next_opening_comes_from_past_contentions(page: str) -> None:
    calm = make_agent(Machine(), preset="default")
    asyncio.run(calm.tick())

    # Ten timesteps of 10 ms each was the length of all so far; this one has lasted five.
    assert values(page)["pronto_time_to_opening_seconds"][
        "pronto_time_to_opening_seconds/n1"
    ] == pytest.approx(0.05)
    assert values(exposition(calm).decode())["pronto_time_to_opening_seconds"] == {
        "pronto_time_to_opening_seconds/n1": 0.0
    }


@pytest.mark.parametrize(
    "arguments", [("check", "rules", RULES.name), ("test", "rules", "pronto.rules.test.yml")]
)
def test_promtool_finds_that_the_alerts_fire_when_they_should(arguments: tuple[str, ...]) -> None:
    found = subprocess.run(
        [require_program("promtool"), *arguments],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert found.returncode == 0, found.stdout + found.stderr
    assert "SUCCESS" in found.stdout


def test_every_alert_asks_for_what_is_served_and_has_a_runbook(page: str) -> None:
    rules, runbooks = RULES.read_text(), (ROOT / "docs" / "runbooks.md").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    served = set(values(page)) | {f"pronto_signal_{name}" for name, _ in _SIGNAL.values()}
    served |= {f"pronto_{name}" for name, _ in _FOLLOWERS.values()}

    assert len(alerts) == 6
    assert set(re.findall(r"expr: .*?(pronto_\w+)", rules)) <= served
    assert re.findall(r"^## (\w+)", runbooks, re.MULTILINE) == alerts
    assert re.findall(r"runbook: docs/runbooks\.md#(\w+)", rules) == [name.lower() for name in alerts]
