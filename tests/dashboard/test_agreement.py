"""All who tell of a node tell the same: both pages, `status`, `explain` and the metrics, at one moment."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from prontosched.agent.config import make_agent
from prontosched.agent.http.auth import Access
from prontosched.agent.http.metrics import exposition
from prontosched.agent.http.server import Server
from prontosched.agent.loop import Agent
from prontosched.cli import cli
from prontosched.dashboard.app import routes
from prontosched.settings import AgentSettings
from prontosched.telemetry.source import Sample
from tests.agent.machine import METRICS, Machine, next_tick
from tests.dashboard.conftest import Watched, until

CODES = {"accepting": 0, "refusing": 1, "contended": 3}
KINDS = {"accepting": "accept", "refusing": "refuse", "contended": "contended"}
WORDS = {"accepting": "Accepting jobs", "refusing": "Refusing jobs", "contended": "Contended"}
CALM, DROWNING = 0.2, 250.0


def give(i: int, ready: float) -> list[Sample]:
    vector = np.sin(np.arange(5) + 0.7 * i) + 2.0
    return [Sample("n1", METRICS, vector, 1000.0 + i, ready if i >= 60 else CALM, 40.0)]


@contextmanager
def stopped_clock(folder: Path, ready: float, **options: Any) -> Iterator[tuple[str, Agent]]:
    """Serve an agent that has made 100 decisions and makes no more, so that all see one moment."""
    settings = AgentSettings(
        state=folder, keep=False, interval=0.001, valid=3600.0, source="generated", **options
    )
    agent = make_agent(settings, Machine(lambda i: give(i, ready)))
    server = Server(agent, Access("127.0.0.1", 0, None, None), routes())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> str:
        while agent.pace.ticks < 100:
            await next_tick(agent)
            await agent.tick()
        return await server.start()

    async def end() -> None:
        await agent.close()
        await server.stop()

    try:
        yield asyncio.run_coroutine_threadsafe(begin(), loop).result(60), agent
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def called(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("state", "ready", "options"),
    [
        ("accepting", CALM, {}),
        ("refusing", DROWNING, {}),
        ("contended", DROWNING, {"budget": 0.01}),
    ],
)
def test_pages_commands_and_metrics_tell_the_same_of_one_moment(
    browser: Any, tmp_path: Path, state: str, ready: float, options: dict[str, Any]
) -> None:
    with stopped_clock(tmp_path, ready, **options) as (url, agent):
        code, said = called("status", "--agent", url, "--json")
        found = json.loads(said)
        worded_code, worded = called("status", "--agent", url)
        _, explained = called("explain", "--agent", url)
        page = exposition(agent).decode()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        states = {one.labels["state"]: one.value for one in samples if one.name == "pronto_state"}
        values = {one.name: one.value for one in samples}
        with Watched(browser, url + "/") as node, Watched(browser, url + "/fleet") as fleet:
            for watched in (node, fleet):
                until(watched.page, "document.getElementById('word').textContent !== '…'")
                until(watched.page, "document.getElementById('downtime').textContent !== '–'")
            told = {name: node.page.inner_text(f"#{name}") for name in
                    ("word", "reason", "ready", "probability", "downtime", "tally")}  # fmt: skip
            many = {name: fleet.page.inner_text(f"#{name}") for name in
                    ("word", "reason", "ready", "refusing", "contended", "downtime", "refusers")}  # fmt: skip
            looks = [watched.page.get_attribute(".hero", "class") for watched in (node, fleet)]
            icons = [
                watched.page.get_attribute(element, name)
                for watched in (node, fleet)
                for element, name in (("#logo", "src"), ("#favicon", "href"))
            ]
            bar_hidden = node.page.locator("#downtime-bar").is_hidden()
            complaints = node.complaints + fleet.complaints

        # One state, everywhere.
        assert found["state"] == state
        assert (code, worded_code) == (CODES[state],) * 2
        assert states == {"accepting": 0.0, "contended": 0.0, "refusing": 0.0} | {state: 1.0}
        assert told["word"] == WORDS[state]
        assert looks == [f"card hero {KINDS[state]}"] * 2
        assert set(icons) == {f"/static/icon-{state}.svg"}
        assert (many["refusing"], many["contended"]) == (
            "100.0 %" if state == "refusing" else "0.0 %",
            "100.0 %" if state == "contended" else "0.0 %",
        )
        # One reason, and one expectation.
        assert found["reason"] in worded
        assert found["reason"] in explained
        assert told["reason"][1:] == f"{found['reason']}."[1:]
        assert ("No node expects contention." in many["reason"]) is (state == "accepting")
        assert (found["probability"] >= 0.5) is (state != "accepting")
        assert values["pronto_probability"] == found["probability"]
        assert told["probability"] == ("< 1 %" if found["probability"] < 0.005 else "100 %")
        assert (found["reason"] in many["refusers"]) is (state != "accepting")
        # One figure for the refused time, and no bar without a budget.
        assert told["downtime"] == many["downtime"] == f"{100 * values['pronto_downtime_ratio']:.1f} %"
        assert told["ready"] == many["ready"] == ("0.2 %" if ready < 1 else "250 %")
        assert bar_hidden is ("budget" not in options)
        assert complaints == []


def test_who_holds_a_contended_node_open_is_told_everywhere(browser: Any, tmp_path: Path) -> None:
    with stopped_clock(tmp_path, DROWNING, budget=0.01) as (url, _):
        found = json.loads(called("status", "--agent", url, "--json")[1])
        words = [called(command, "--agent", url)[1] for command in ("status", "explain")]
        with Watched(browser, url + "/") as watched:
            until(watched.page, "document.getElementById('word').textContent === 'Contended'")
            words.append(watched.page.inner_text("#decision"))

    assert "the budget of 1%" in found["held_by"]
    assert all(found["held_by"] in said for said in words)


def test_a_refusal_that_nothing_enforces_says_so(browser: Any, tmp_path: Path) -> None:
    shadow = {"gate": "hook", "gate_option": ("command=/bin/true",)}
    for options, said in (({}, "No gate enforces this"), (shadow, "Shadow mode: nothing enforces this")):
        with stopped_clock(tmp_path, DROWNING, **options) as (url, _):
            with Watched(browser, url + "/") as node, Watched(browser, url + "/fleet") as fleet:
                until(node.page, "document.getElementById('word').textContent === 'Refusing jobs'")
                until(
                    node.page,
                    "(said) => document.getElementById('beside').textContent.startsWith(said)",
                    arg=said,
                )
                until(
                    fleet.page,
                    "document.getElementById('reason').textContent.includes('Nothing enforces it')",
                )
            assert "nothing enforces this" in called("status", "--agent", url)[1]
