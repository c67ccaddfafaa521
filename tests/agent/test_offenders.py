"""Who waits and who runs: in reasons, explanations and metrics of the node, and nowhere else."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from prontosched.agent.loop import Agent
from prontosched.agent.nodes import Answer
from prontosched.agent.offenders import SHOWN, Offenders
from prontosched.agent.views import explanation
from prontosched.gates.gate import read_decision
from prontosched.telemetry.linux.threads import Consumer
from tests.agent.machine import Machine, make_agent, sample

WORDS = "3.1 CPUs waiting: postgres.service 1.9, build-7 1.2; CPUs used by backup.service 1.8"
THREE = (
    Consumer("postgres.service", 0.3, 1.9),
    Consumer("build-7", 0.1, 1.2),
    Consumer("backup.service", 1.8, 0.0, 0.0, 0.4),
)


class Busy(Machine):
    """A machine that is contended, and whose source knows by whom."""

    def __init__(self, consumers: tuple[Consumer, ...] = THREE, ready: float = 90.0) -> None:
        super().__init__(lambda i: [sample(i, ready=ready, used=100.0)])
        self.consumers = consumers


def watched(source: Machine, naming: str = "names", ticks: int = 12, **options: Any) -> Agent:
    agent = make_agent(source, preset="default", offenders=naming, **options)
    for _ in range(ticks):
        asyncio.run(agent.tick())
    return agent


def test_a_refusal_names_who_waits_and_who_runs() -> None:
    agent = watched(Busy())

    found = agent.answer()

    assert found.state == "refusing"
    assert found.offenders == WORDS
    assert found.as_json()["reason"].endswith(f"; {WORDS}")


def test_what_schedulers_and_the_federation_are_told_has_no_names() -> None:
    found = watched(Busy()).answer()

    assert "postgres" not in found.reason
    verdict = read_decision(
        json.dumps(found.as_json()).encode(), now=0.0, clock_ahead=0.0, valid_seconds=60.0
    )
    assert "postgres" not in verdict.reason
    assert verdict.reason == found.reason


def test_a_node_that_accepts_accuses_nobody() -> None:
    agent = watched(Busy(ready=0.0))

    assert agent.answer().state == "accepting"
    assert agent.answer().offenders == ""


def test_an_explanation_ranks_them() -> None:
    found = explanation(watched(Busy()))

    ranked = found["offenders"]
    assert [one["name"] for one in ranked["consumers"]] == ["postgres.service", "build-7", "backup.service"]
    assert ranked["consumers"][2]["background_cpus"] == 0.4
    assert (ranked["waiting_cpus"], ranked["used_cpus"]) == (pytest.approx(3.1), pytest.approx(2.2))
    assert found["last_rejection"]["offenders"] == WORDS


def test_hashed_names_are_the_same_within_one_run_and_tell_nothing() -> None:
    agent = watched(Busy(), "hashed")

    names = [one["name"] for one in explanation(agent)["offenders"]["consumers"]]

    assert names == [one["name"] for one in explanation(agent)["offenders"]["consumers"]]
    assert all(len(name) == 8 and int(name, 16) >= 0 for name in names)
    assert names[0] in agent.answer().as_json()["reason"]
    assert "postgres" not in json.dumps(explanation(agent)) + json.dumps(agent.answer().as_json())
    assert names != [one["name"] for one in Offenders(Busy(), "hashed").view()["consumers"]]


def test_turned_off_nothing_is_said() -> None:
    agent = watched(Busy(), "off")

    assert agent.answer().offenders == ""
    assert explanation(agent)["offenders"] == {"naming": "off", "note": "turned off", "consumers": []}


def test_a_source_that_does_not_see_them_says_so() -> None:
    agent = watched(Machine())

    assert explanation(agent)["offenders"]["note"] == "source machine does not see who waits and who runs"


def test_their_number_is_bounded() -> None:
    many = tuple(Consumer(f"unit-{i}.service", 0.1, 0.2 * i) for i in range(100))
    agent = watched(Busy(many))

    assert len(explanation(agent)["offenders"]["consumers"]) <= SHOWN
    assert len(agent.answer().offenders) < 200


def test_every_field_of_an_answer_that_others_are_told_is_free_of_names() -> None:
    """Whatever is added to an answer: `offenders` alone may name what runs on the node."""
    found: Answer = watched(Busy()).answer()
    rest = dataclasses.replace(found, offenders="")

    assert "postgres" not in repr(rest)
