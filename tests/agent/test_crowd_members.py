"""A crowd speaks in turn, within the time it is given."""

from __future__ import annotations

import asyncio

from prontosched.agent.crowd_members import CrowdMembers
from prontosched.federation.link import DECISIONS, SUMMARIES, Board, LocalLink
from prontosched.federation.tree import Tree
from tests.agent.machine import make_agent
from tests.agent.test_federation_view import fleet_of


def crowd_of(names):
    """A crowd that has seen thirty vectors of each node, and its clock."""
    agent = make_agent(fleet_of(names), followers=[])

    async def go():
        for _ in range(30):
            await agent.tick()
        await agent.abandon()

    asyncio.run(go())
    return agent.nodes, agent.pace.clock()


def test_where_time_is_short_a_few_nodes_speak_and_none_is_forgotten():
    names = [f"rack/n{i:03d}" for i in range(100)]
    crowd, now = crowd_of(names)
    board = Board()
    members = CrowdMembers(LocalLink(board), Tree(), str)
    spoken = []
    for _ in range(20):
        left = iter(range(4))
        members.follow(crowd, now, lambda left=left: next(left, None) is not None)
        spoken.append(len(board.values[SUMMARIES]))

    assert spoken[0] == 5
    assert spoken == list(range(5, 101, 5))
    assert len(board.values[DECISIONS]) == 100
    members.leave()
    assert not any(entry.value for entry in board.values[SUMMARIES].values())


def test_a_node_whose_decision_turned_speaks_before_all_others():
    names = [f"rack/n{i:03d}" for i in range(80)]
    crowd, now = crowd_of(names)
    board = Board()
    members = CrowdMembers(LocalLink(board), Tree(), str)
    members.follow(crowd, now, lambda: True)
    held = {key: entry.revision for key, entry in board.values[DECISIONS].items()}
    crowd.standing().raised[77] ^= True
    members.follow(crowd, now, lambda: False)

    changed = [key for key, entry in board.values[DECISIONS].items() if entry.revision != held[key]]
    assert changed == ["rack.n077"]
