"""What an operator sees of the federation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from prontosched.cli.federation import command
from prontosched.errors import FederationError
from prontosched.federation.link import DECISIONS, SUMMARIES, LocalLink
from prontosched.federation.monitor import take_snapshot
from prontosched.federation.nats import NatsLink
from prontosched.federation.tree import Tree

from .buses import Bus
from .simulated import Simulated, Stream

NAMES = [f"rack{rack}/n{node}" for rack in (1, 2) for node in (1, 2, 3)]


@pytest.fixture(scope="module")
def fleet() -> Simulated:
    fleet = Simulated(NAMES, epsilon=0.05)
    fleet.join("rack2/odd", Stream(50, kind=9))
    fleet.step(200)
    return fleet


def test_outliers_come_first(fleet: Simulated) -> None:
    seen = take_snapshot(LocalLink(fleet.board), tree=fleet.tree)

    assert len(seen.nodes) == 7
    assert seen.nodes[0].name == "rack2/odd"
    assert seen.nodes[0].distance > 1.5 * seen.nodes[1].distance
    assert [row.name for row in seen.rows if row.aggregator] == ["rack1", "rack2"]
    assert seen.revision == fleet.view.revision


def test_an_aggregator_whose_nodes_have_left_is_no_node() -> None:
    fleet = Simulated(NAMES)
    fleet.step(40)
    for _, member, _ in fleet.nodes.values():
        member.leave()
    seen = take_snapshot(LocalLink(fleet.board), tree=fleet.tree)

    assert seen.nodes == []
    assert [group.name for group in seen.groups(fleet.tree)] == ["", "rack1", "rack2"]
    assert all(group.nodes == 0 for group in seen.groups(fleet.tree))


def test_those_who_follow_another_tree_are_counted_and_told_what_to_do(fleet: Simulated) -> None:
    seen = take_snapshot(LocalLink(fleet.board), tree=Tree(depth=1))

    assert seen.nodes == []
    assert seen.misplaced == 7
    assert take_snapshot(LocalLink(fleet.board), tree=fleet.tree).misplaced == 0
    assert any("same depth and shards" in line for line in seen.warnings)


def test_without_the_client_library_the_extra_is_named() -> None:
    code = "import sys; sys.modules['nats'] = None; import prontosched.federation.nats"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert found.returncode == 1
    assert "a bus needs the extra 'agent': " in found.stderr.splitlines()[-1]


def test_what_epsilon_saved_is_counted_in_messages_and_bytes(fleet: Simulated) -> None:
    saved = take_snapshot(LocalLink(fleet.board), tree=fleet.tree).saved

    assert saved["messages_saved"] > 0
    assert 0.0 < saved["share_saved"] < 1.0
    assert saved["bytes_saved"] > 500 * saved["messages_saved"]


def test_a_decision_that_has_expired_is_no_decision(fleet: Simulated) -> None:
    fresh = take_snapshot(LocalLink(fleet.board), tree=fleet.tree)
    fleet.time += 3600.0
    later = take_snapshot(LocalLink(fleet.board), tree=fleet.tree)
    fleet.time -= 3600.0

    assert all(row.accept is not None for row in fresh.nodes)
    assert all(row.accept is None for row in later.nodes)
    assert all(row.age_seconds >= 3600.0 for row in later.nodes)


def test_rubbish_on_the_bus_is_counted_and_hidden(fleet: Simulated) -> None:
    stranger = LocalLink(fleet.board)
    stranger.put(SUMMARIES, "rack1.rubbish", b"rubbish")
    stranger.put(DECISIONS, "rack1.rubbish", b"rubbish")
    seen = take_snapshot(stranger, tree=fleet.tree)

    assert seen.unreadable == 2
    assert len(seen.nodes) == 7


def test_a_bus_that_does_not_answer_is_said_so() -> None:
    link = NatsLink("nats://127.0.0.1:1", timeout=0.2)
    try:
        with pytest.raises(FederationError, match=r"the bus must answer within 0\.3 s"):
            take_snapshot(link, seconds=0.3)
    finally:
        link.close()


def test_the_command_prints_the_tree_in_words_and_as_json(
    shared_bus: Bus, link_to: Callable[..., NatsLink], fleet: Simulated
) -> None:
    group = uuid.uuid4().hex[:12]
    link = link_to(shared_bus, group=group)
    for topic, values in fleet.board.values.items():
        for entry in values.values():
            link.put(topic, entry.key, entry.value)
    assert link.flush(20)
    address = f"{shared_bus.url}/{group}"

    words = CliRunner().invoke(command, ["--nats", address, "--top", "3"])
    assert words.exit_code == 0, words.output
    assert words.output.startswith("7 nodes, global view")
    assert "rack2/odd" in words.output.splitlines()[4]
    assert "and 4 more" in words.output
    found = json.loads(CliRunner().invoke(command, ["--nats", address, "--json"]).output)
    assert found["nodes"] == 7
    assert found["rows"][2]["name"] == "rack2/odd"


def test_the_command_without_a_bus_and_without_an_agent_is_asked_wrongly() -> None:
    found = CliRunner().invoke(command, ["--agent", "none"])

    assert found.exit_code == 2
    assert "name the bus with --nats" in found.output


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("PRONTO_AGGREGATE_NATS", ["aggregate"]), ("PRONTO_FEDERATION_NATS", ["federation", "--wait", "1"])],
)
def test_a_password_need_not_stand_on_a_command_line(name: str, arguments: list[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "prontosched", *arguments],
        env={**os.environ, name: "http://user:s3cret@host"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 1
    assert found.stderr == (
        "pronto: a bus must be given as nats://host:port or tls://host:port, got 'http://host'\n"
    )
