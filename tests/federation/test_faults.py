"""Faults, on real processes and a real server: decisions go on, the view comes back the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nats
import numpy as np
import pytest

from prontosched.federation.link import MESSAGE_LIMIT

from .buses import eventually
from .clusters import Cluster
from .namespaces import NEAR, wire

WORKERS = {"east": ["east/n0", "east/n1"], "west": ["west/n0", "west/n1"], "lone": ["lone/n0"]}
BLOCK = 10
TWO_BLOCKS = 2 * BLOCK


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all faults in turn; the nodes in the west live an hour ahead."""
    cluster = Cluster(tmp_path_factory.mktemp("faults"), WORKERS, clock_ahead=3600.0)
    try:
        cluster.step(50)
        cluster.expect_equal()
        yield cluster
    finally:
        cluster.close()


def test_a_clock_an_hour_ahead_changes_nothing(cluster: Cluster) -> None:
    cluster.step(TWO_BLOCKS)

    assert cluster.expect_equal()["nodes"] == 5
    assert cluster.expect_equal(place="west")["nodes"] == 5


def test_nodes_decide_without_a_bus_and_the_view_comes_back(cluster: Cluster) -> None:
    before = cluster.expect_equal()
    cluster.bus.kill()
    cluster.step(3 * BLOCK)
    cluster.bus.start()
    cluster.step(TWO_BLOCKS)

    assert cluster.expect_equal()["revision"] > before["revision"]


def test_a_standby_takes_over_from_an_aggregator_killed_in_mid_merge(cluster: Cluster) -> None:
    memory = cluster.workers["east"].memory
    cluster.step(BLOCK)
    cluster.aggregators.pop(0).kill()
    cluster.step(TWO_BLOCKS)
    cluster.expect_equal()
    cluster.aggregators.append(cluster.aggregate())
    cluster.step(BLOCK)
    cluster.aggregators.pop(0).kill()
    cluster.step(TWO_BLOCKS)

    cluster.expect_equal()
    cluster.aggregators.append(cluster.aggregate())
    assert cluster.workers["east"].memory < 1.3 * memory


def test_a_node_restarted_with_old_state_is_counted_once(cluster: Cluster, tmp_path: Path) -> None:
    state = tmp_path / "state"
    cluster.workers["lone"].ask(f"save {state}")
    cluster.step(3 * BLOCK)
    cluster.restart_with_old_state("lone", state)
    cluster.step(TWO_BLOCKS)

    assert cluster.expect_equal()["nodes"] == 5


def test_a_flood_of_malformed_and_oversized_messages_changes_nothing(cluster: Cluster) -> None:
    memory = cluster.aggregators[0].memory
    cluster.step(BLOCK)
    asyncio.run(flood(cluster.bus.url, messages=1500))
    cluster.step(TWO_BLOCKS)

    cluster.expect_equal()
    assert cluster.aggregators[0].memory < 1.5 * memory


async def flood(url: str, *, messages: int) -> None:
    """Send rubbish under honest and invented names, as anyone on an open bus could."""
    client = await nats.connect(url)
    rng = np.random.default_rng(5)
    huge = bytes(MESSAGE_LIMIT + 5000)
    for index in range(messages):
        name = ("east.n0", "east", f"east.fake{index}", f"fake{index % 50}")[index % 4]
        topic = ("summaries", "summaries", "schemas", "decisions", "views")[index % 5]
        value = huge if index % 50 == 0 else rng.bytes(int(rng.integers(0, 5000)))
        key = "global" if topic == "views" else name
        await client.publish(f"$KV.pronto-faults-{topic}.{key}", value)
    await client.flush()
    await client.close()


def test_a_partition_of_half_the_nodes_heals_to_the_same_view(tmp_path: Path) -> None:
    with wire() as pair:
        halves = {"east": ["east/n0", "east/n1"], "west": ["west/n0", "west/n1"]}
        cluster = Cluster(tmp_path, halves, near=pair.near, far=pair.far, host=NEAR)
        try:
            cluster.step(2 * BLOCK)
            cluster.expect_equal()
            pair.cut()
            eventually(lambda: not cluster.step(BLOCK)["west"]["connected"], message="the cut")
            pair.heal()
            cluster.step(TWO_BLOCKS)

            assert cluster.expect_equal()["nodes"] == 4
            assert cluster.expect_equal(place="west")["nodes"] == 4
        finally:
            cluster.close()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_faults_at_random_for_minutes_leave_the_same_view(tmp_path: Path, rng: np.random.Generator) -> None:
    """All faults in random order, again and again, under an hour-ahead clock and a cut wire."""
    with wire() as pair:
        cluster = Cluster(tmp_path, WORKERS, near=pair.near, far=pair.far, host=NEAR, clock_ahead=3600.0)
        try:
            cluster.step(50)
            cluster.expect_equal()
            memory = [process.memory for process in (*cluster.aggregators, cluster.workers["east"])]
            for round_ in range(40):
                fault = ("bus", "wire", "aggregator", "state")[
                    round_ % 4 if round_ < 8 else int(rng.integers(4))
                ]
                state = tmp_path / f"state{round_}"
                cluster.workers["lone"].ask(f"save {state}")
                if fault == "bus":
                    cluster.bus.kill()
                elif fault == "wire":
                    pair.cut()
                elif fault == "aggregator":
                    cluster.aggregators.pop(0).kill()
                cluster.step(int(rng.integers(1, 6)) * BLOCK)
                if fault == "bus":
                    cluster.bus.start()
                elif fault == "wire":
                    pair.heal()
                elif fault == "aggregator":
                    cluster.aggregators.append(cluster.aggregate())
                else:
                    cluster.restart_with_old_state("lone", state)
                cluster.step(TWO_BLOCKS)
                cluster.expect_equal(seconds=90)
            after = [process.memory for process in (*cluster.aggregators, cluster.workers["east"])]
            assert max(after) < 1.3 * max(memory)
        finally:
            cluster.close()
