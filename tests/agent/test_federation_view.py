"""The federation as an agent shows it, and crowds that take part in one."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import numpy as np
import pytest
from click.testing import CliRunner
from jsonschema_rs import validator_for

from prontosched.agent.config import make_followers, place_of
from prontosched.agent.federation import MAX_MEMBERS, FederationFollower, TreeView
from prontosched.agent.http.api import description
from prontosched.agent.http.auth import Access
from prontosched.cli.federation import command
from prontosched.federation.link import LocalBus, LocalLink
from prontosched.federation.nats import NatsLink
from prontosched.federation.tree import Tree
from prontosched.settings import AgentSettings
from prontosched.telemetry.source import Sample
from tests.agent.machine import Machine
from tests.agent.test_api import asking, get
from tests.federation.buses import Bus, eventually

METRICS = tuple(f"m{i}" for i in range(16))
THREE = ("rack-a/n1", "rack-a/n2", "rack-b/n1")


def fleet_of(names, *, odd=None, seed=1):
    """A source of nodes that share four factors; `odd` has others."""
    rng = np.random.default_rng(seed)
    common = np.linalg.qr(rng.standard_normal((16, 8)))[0] * 5.0

    def give(i):
        return [
            Sample(
                name,
                METRICS,
                (common[:, 4:] if name == odd else common[:, :4]) @ rng.standard_normal(4)
                + 0.5 * rng.standard_normal(16),
                1000.0 + i,
                1.0,
                10.0,
            )
            for name in names
        ]

    return Machine(give)


async def settled(client, holds=lambda found: True):
    """Tick and ask until the answer is whole and `holds`."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for _ in range(20):
            await client.agent.tick()
        status, found = await get(client, "/v1/federation")
        if status == 200 and found["note"] == "" and holds(found):
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"no such answer: {found['nodes']} nodes, {found['note']}")


def far_apart(members):
    """Whether the first lies by half again farther from the view than the second."""
    return members[0]["distance"] > 1.5 * members[1]["distance"]


def check_schema(found):
    validator_for(description()["components"]["schemas"]["Federation"]).validate(found)


def test_an_agent_on_its_own_says_that_it_is_in_no_federation():
    status, found = asking(lambda client: get(client, "/v1/federation"))

    assert status == 200
    check_schema(found)
    assert found["joined"] is False
    assert found["groups"] == found["members"] == []


def test_a_lone_node_with_an_embedded_federation_is_alone():
    _, found = asking(
        lambda client: get(client, "/v1/federation"), followers=[FederationFollower.embedded()], ticks=40
    )

    assert found["joined"] is False


def test_an_embedded_federation_is_shown_as_the_tree_that_the_names_give():
    found = asking(
        lambda client: settled(client, lambda found: found["nodes"] == 3 and found["revision"]),
        machine=fleet_of(THREE),
        followers=[FederationFollower.embedded()],
        ticks=60,
    )

    check_schema(found)
    assert (found["joined"], found["embedded"], found["connected"]) == (True, True, True)
    assert [(g["name"], g["parent"], g["children"], g["nodes"]) for g in found["groups"]] == [
        ("", None, 2, 3),
        ("rack-a", "", 2, 2),
        ("rack-b", "", 1, 1),
    ]
    assert {member["name"] for member in found["members"]} == set(THREE)
    assert all(member["accept"] is not None and member["reason"] for member in found["members"])
    assert found["saved"]["messages_sent"] > 0


def test_a_crowd_takes_part_and_its_outlier_comes_first():
    names = [f"rack-{i // 25}/n{i:03d}" for i in range(100)]
    odd = names[60]
    found = asking(
        lambda client: settled(
            client, lambda found: found["view_nodes"] == 100 and found["members"][0]["name"] == odd
        ),
        machine=fleet_of(names, odd=odd),
        followers=[FederationFollower.embedded()],
        ticks=100,
    )

    check_schema(found)
    assert found["members"][0]["name"] == odd
    distances = [member["distance"] for member in found["members"]]
    assert distances == sorted(distances, reverse=True)
    assert [group["children"] for group in found["groups"]] == [4, 25, 25, 25, 25]
    assert found["view_nodes"] == 100


def test_a_crowd_with_flat_names_gets_a_tree_of_two_levels_and_a_bounded_answer():
    names = [f"n{i:03d}" for i in range(130)]
    found = asking(
        lambda client: settled(client, lambda found: found["nodes"] == 130),
        machine=fleet_of(names),
        followers=[FederationFollower.embedded()],
        ticks=60,
    )

    assert len(found["members"]) == MAX_MEMBERS
    assert found["more"] == 130 - MAX_MEMBERS
    assert len(found["groups"]) == 1 + 5
    assert sum(group["children"] for group in found["groups"][1:]) == 130


def test_a_token_is_asked_for_here_too():
    async def ask(client):
        refused = await get(client, "/v1/federation")
        return refused, await get(client, "/v1/federation", headers={"Authorization": "Bearer secret"})

    (refused, _), (allowed, _) = asking(ask, access=Access(token="secret"))

    assert (refused, allowed) == (401, 200)


def test_the_command_asks_the_agent_and_prints_its_tree():
    async def ask(client):
        await settled(client, lambda found: found["nodes"] == 3 and found["revision"])
        url = str(client.make_url("/"))
        return [
            await asyncio.to_thread(CliRunner().invoke, command, ["--agent", url, *options])
            for options in (["--top", "2"], ["--json"])
        ]

    fleet = {"machine": fleet_of(THREE), "followers": [FederationFollower.embedded()], "ticks": 60}
    text, plain = asking(ask, access=Access(), **fleet)

    lines = text.output.splitlines()
    assert text.exit_code == plain.exit_code == 0, text.output
    assert lines[0].startswith("3 nodes, global view ")
    assert lines[1].startswith("  rack-a: 2 nodes")
    assert lines[3].split() == ["node", "from", "view", "age", "samples", "decision"]
    assert lines[6] == "and 1 more"
    check_schema(json.loads(plain.output))


def test_the_command_says_that_a_lone_agent_is_in_no_federation():
    async def ask(client):
        url = str(client.make_url("/"))
        return await asyncio.to_thread(CliRunner().invoke, command, ["--agent", url])

    assert asking(ask, access=Access()).output.startswith("in no federation")


def test_a_name_without_a_place_takes_no_part_and_keeps_no_one_from_it():
    names = [*(f"rack/n{i:03d}" for i in range(79)), "http://host//metrics"]
    follower = FederationFollower.embedded()
    found = asking(
        lambda client: settled(client, lambda found: found["view_nodes"] == 79),
        machine=fleet_of(names),
        followers=[follower],
        ticks=60,
    )

    assert found["view_nodes"] == 79
    assert follower.status()["errors"] == 1
    assert "joined by '/'" in follower.status()["last_error"]


def test_nobody_watches_the_bus_when_nobody_asks():
    board = LocalBus()
    view = TreeView(lambda: LocalLink(board), Tree, embedded=True, refresh_seconds=0.02, idle_seconds=0.3)
    eventually(view.ask)
    assert board._subscriptions
    eventually(lambda: not board._subscriptions, message="the feeds are closed")
    eventually(view.ask)
    view.close()

    assert not board._subscriptions
    assert not [t for t in threading.enumerate() if t.name == "pronto-federation"]


def test_a_bus_that_cannot_be_opened_is_said_so():
    def refuse():
        raise OSError("no way")

    view = TreeView(refuse, Tree, embedded=False, refresh_seconds=0.02)
    found = eventually(view.ask)
    view.close()

    check_schema(found)
    assert found["joined"] is True
    assert found["connected"] is False
    assert found["note"] == "cannot watch the federation: OSError"


@pytest.mark.parametrize(
    ("given", "node", "place"),
    [
        ({"name": "rack/n1", "synthetic": 1, "source": "generated"}, "rack/n1", "rack/n1"),
        ({"name": "rack/n1"}, "rack/n1", "rack/n1"),
        ({"name": "rack/n1", "source": "trace"}, "recorded", "rack/n1"),
        ({"name": "rack", "target": ("a", "b"), "source": "prometheus"}, "a", "rack/a"),
        ({}, "host", "host"),
    ],
)
def test_a_node_joins_under_the_name_it_was_given_and_no_longer_one(given, node, place):
    assert place_of(AgentSettings(**given), node) == place


def test_an_agent_on_the_bus_shows_the_others_and_says_when_the_bus_is_away(tmp_path):
    bus = Bus(tmp_path).start()
    other = NatsLink(bus.url, name="other")
    names = [f"rack-{i // 40}/n{i:03d}" for i in range(80)]

    async def ask(client):
        settings = AgentSettings(nats=bus.url, source="generated", synthetic=80)
        client.agent.followers += make_followers(settings)[:1]
        while True:
            for _ in range(20):
                await client.agent.tick()
            status, found = await get(client, "/v1/federation")
            if status == 200 and found["nodes"] == 80 and found["note"] == "":
                break
            await asyncio.sleep(0.02)
        bus.kill()
        while True:
            _, away = await get(client, "/v1/federation")
            if not away["connected"]:
                return found, away
            await asyncio.sleep(0.05)

    try:
        found, away = asking(ask, machine=fleet_of(names), ticks=30)
    finally:
        other.close()
        bus.kill()

    check_schema(away)
    assert (found["joined"], found["embedded"], found["connected"]) == (True, False, True)
    assert [group["name"] for group in found["groups"]] == ["", "rack-0", "rack-1"]
    assert found["revision"] is None
    assert away["nodes"] == 80
    assert "the bus does not answer" in away["note"]
