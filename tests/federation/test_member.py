"""Members and aggregators together, within one process."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from prontosched.codec import decode, encode
from prontosched.decision import Decision
from prontosched.federation.leases import LeaderLease, NodeCount
from prontosched.federation.link import DECISIONS, SUMMARIES, VIEWS, LocalLink
from prontosched.federation.member import Member
from prontosched.federation.message import DecisionMessage, GlobalView
from prontosched.federation.schema import fingerprint
from prontosched.federation.service import AggregatorDiscovery
from prontosched.federation.tree import Tree
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import make_node
from prontosched.subspace import distance

from .fleets import angle
from .simulated import METRICS, Simulated, Stream

TREE_NAMES = [f"{site}/r{rack}/n{node}" for site in ("paris", "rome") for rack in (1, 2) for node in (1, 2)]


def captured(node: Node, stream: Stream, basis: np.ndarray, count: int = 400) -> float:
    """Share of the variance of fresh vectors that a basis captures, in the node's units."""
    raw = np.stack([stream.read() for _ in range(count)], axis=1)
    scaled = (raw - raw.mean(axis=1, keepdims=True)) / node.scaling.deviation[:, None]
    return float(np.sum((basis.T @ scaled) ** 2) / np.sum(scaled**2))


def newcomer(steps: int, *, kind: int, seed: int) -> tuple[float, float]:
    """Variance captured by a node that joins a fleet of kind 0, with the view and without."""
    fleet = Simulated(TREE_NAMES[:4])
    fleet.step(120)
    fleet.join("paris/r1/new", Stream(seed, kind=kind))
    alone, stream = make_node("paper", metrics=METRICS), Stream(seed, kind=kind)
    fleet.step(steps)
    for _ in range(steps):
        alone.step(stream.read())
    joined = fleet.nodes["paris/r1/new"][0]
    return captured(joined, stream, joined.view.basis), captured(alone, stream, alone.view.basis)


def test_the_root_counts_every_node_and_sample_once() -> None:
    fleet = Simulated(TREE_NAMES)
    fleet.step(200)

    assert fleet.view.nodes == len(TREE_NAMES)
    assert fleet.view.samples == 200 * len(TREE_NAMES)
    assert NodeCount(LocalLink(fleet.board))() == len(TREE_NAMES)


def test_the_view_is_the_subspace_that_all_machines_share() -> None:
    fleet = Simulated(TREE_NAMES, preset="default")
    fleet.step(600)
    _, _, stream = fleet.nodes["paris/r1/n1"]
    covariance = stream.loading @ stream.loading.T + np.eye(len(METRICS))
    scale = np.sqrt(np.diag(covariance))
    leading = np.linalg.eigh(covariance / np.outer(scale, scale))[1][:, -3:]

    assert angle(fleet.view.subspace.cut(3), leading) < 0.1


def test_a_new_node_projects_on_the_view_before_its_own_first_block() -> None:
    fleet = Simulated(TREE_NAMES)
    fleet.step(200)
    fleet.join("paris/r1/new", Stream(77))
    fleet.step(2)
    node, member, _ = fleet.nodes["paris/r1/new"]

    assert member.adopted == 1
    assert node.embedding.subspace is None
    assert node.view is not None


def test_a_new_node_captures_more_with_the_view_than_without() -> None:
    pairs = [newcomer(12, kind=0, seed=seed) for seed in (70, 71, 72)]
    with_view, alone = np.mean(pairs, axis=0)

    assert with_view > 1.1 * alone


@pytest.mark.parametrize("steps", [10, 50, 150])
def test_a_heterogeneous_node_is_not_harmed_by_the_view(steps: int) -> None:
    pairs = [newcomer(steps, kind=9, seed=seed) for seed in (70, 71)]
    with_view, alone = np.mean(pairs, axis=0)

    assert with_view > 0.97 * alone


def test_adopting_never_touches_what_a_node_propagates() -> None:
    joined, apart = Simulated(TREE_NAMES), Simulated(TREE_NAMES)
    joined.step(120)
    apart.step(120, aggregate=False)
    for name in TREE_NAMES:
        own, other = joined.nodes[name][0].embedding.subspace, apart.nodes[name][0].embedding.subspace
        np.testing.assert_array_equal(own.basis, other.basis)
        np.testing.assert_array_equal(own.singular_values, other.singular_values)

    assert joined.nodes[TREE_NAMES[0]][1].adopted > 1
    assert apart.nodes[TREE_NAMES[0]][1].adopted == 0


def test_a_node_that_has_seen_much_does_not_ask_for_the_view() -> None:
    fleet = Simulated(TREE_NAMES)
    fleet.step(60)
    (old, member, _), (_, young, _) = (fleet.nodes[name] for name in TREE_NAMES[:2])
    old.timestep = 2200
    before = member.adopted, young.adopted
    fleet.step(60)

    assert member.adopted == before[0]
    assert young.adopted > before[1]
    assert old.view is old.embedding.subspace


def test_epsilon_saves_messages_and_costs_little() -> None:
    careful, sparing = Simulated(TREE_NAMES, epsilon=0.0), Simulated(TREE_NAMES, epsilon=0.05)
    careful.step(250)
    sparing.step(250)
    rule = sparing.nodes[TREE_NAMES[0]][1].summaries.rule

    assert rule.sent_count < 0.6 * careful.nodes[TREE_NAMES[0]][1].summaries.rule.sent_count
    assert rule.sent_count + rule.skipped_count >= 25
    assert distance(careful.view.subspace.cut(3), sparing.view.subspace.cut(3)) < 0.05


def test_a_silent_node_expires_and_one_that_leaves_is_gone_at_once() -> None:
    fleet = Simulated(TREE_NAMES)
    fleet.step(20)
    fleet.nodes.pop("paris/r1/n1")[1].leave()
    fleet.step(1)
    assert fleet.view.nodes == len(TREE_NAMES) - 1

    fleet.nodes.pop("paris/r1/n2")
    fleet.step(100)
    assert fleet.view.nodes == len(TREE_NAMES) - 1
    fleet.step(260)
    assert fleet.view.nodes == len(TREE_NAMES) - 2


def test_an_aggregator_whose_children_all_left_is_gone_at_once() -> None:
    fleet = Simulated(TREE_NAMES)
    fleet.step(30)
    for name in TREE_NAMES[:4]:
        fleet.nodes.pop(name)[1].leave()
    fleet.step(2)
    assert fleet.view.nodes == 4
    for name in TREE_NAMES[4:]:
        fleet.nodes.pop(name)[1].leave()
    fleet.step(2)

    assert fleet.view.nodes == 4
    assert [len(service.aggregator.children) for service in fleet.services] == [0] * 7
    fleet.join("paris/r1/n1", Stream(0))
    fleet.step(12)
    assert fleet.view.nodes == 1


def test_a_node_restarted_with_old_state_is_counted_once() -> None:
    fleet = Simulated(TREE_NAMES)
    fleet.step(100)
    node, _, stream = fleet.nodes["rome/r1/n1"]
    old = node.to_bytes()
    fleet.step(100)
    fleet.join("rome/r1/n1", stream, Node.from_bytes(old))
    fleet.step(20)

    assert fleet.view.nodes == len(TREE_NAMES)
    assert fleet.view.samples == 220 * (len(TREE_NAMES) - 1) + 120


def test_an_aggregator_that_starts_again_comes_to_the_same_view() -> None:
    calm, troubled = Simulated(TREE_NAMES), Simulated(TREE_NAMES)
    calm.step(200)
    troubled.step(100)
    troubled.services = [troubled.service(service.aggregator.name) for service in troubled.services]
    troubled.step(100)

    assert troubled.view.samples == calm.view.samples
    assert distance(troubled.view.subspace.cut(4), calm.view.subspace.cut(4)) < 1e-6
    assert troubled.view.revision > calm.view.revision - 5


def test_a_seat_that_goes_back_and_forth_loses_no_summary() -> None:
    """Whoever is seated again must be newer than whoever sat there meanwhile."""
    names = ["east/n1", "east/n2"]
    fleet = Simulated(names)
    watch = [0.0]

    def pair(holder: str) -> list:
        made = [fleet.service(name) for name in ("east", "")]
        for service in made:
            lease = LeaderLease(
                service.link, service.aggregator.name, holder, seconds=5.0, clock=lambda: watch[0]
            )
            service.lease = lease
        return made

    one, other = pair("one"), pair("other")
    for turn in range(6):
        fleet.services = one if turn % 2 == 0 else other
        for service in fleet.services:
            service.turn()
        watch[0] += 20.0
        for _ in range(3):
            fleet.step(10)
            watch[0] += 2.0

        assert fleet.view.samples == fleet.decisions
    assert [service.lease.takeovers for service in one + other] == [3, 3, 3, 3]


def test_aggregators_are_found_from_the_names_of_the_nodes() -> None:
    fleet = Simulated(TREE_NAMES)
    found = AggregatorDiscovery(LocalLink(fleet.board), fleet.tree, fleet.service)
    for index in range(40):
        LocalLink(fleet.board).put(SUMMARIES, f"rubbish{index}.n1", b"rubbish")
    for _ in range(60):
        fleet.services = found.services()
        fleet.step(1)
    # Nobody speaks under the other names.
    fleet.time += 150.0
    for _ in range(60):
        fleet.services = found.services()
        fleet.step(1)

    needed = fleet.tree.aggregators(TREE_NAMES)
    assert [service.aggregator.name for service in fleet.services] == needed
    assert fleet.view.nodes == len(TREE_NAMES)


def test_a_clock_an_hour_ahead_changes_nothing() -> None:
    """Members have no clock of their own: all times are the bus's."""
    fleet = Simulated(TREE_NAMES)
    fleet.step(50)
    node, member, _ = fleet.nodes["rome/r1/n1"]
    node.step(fleet.nodes["rome/r1/n1"][2].read(), time=fleet.time + 3600.0)
    member.step(node, Decision(False, 0.0, 1.0, "fine"))
    fleet.step(100)

    entry = fleet.board.values[DECISIONS]["rome.r1.n1"]
    assert DecisionMessage.from_bytes(entry.value).valid_until <= fleet.time + 60.0
    assert fleet.view.samples == 150 * len(TREE_NAMES)


def test_a_decision_is_published_when_it_changes_and_before_it_expires() -> None:
    fleet = Simulated(["n1"])
    node, member, _ = fleet.nodes["n1"]
    feed = LocalLink(fleet.board).subscribe(DECISIONS, ">")
    seen = []
    for second in range(100):
        fleet.time += 1.0
        raised = 40 <= second < 45
        member.step(node, Decision(raised, float(raised), 1.0, "busy" if raised else "idle"))
        seen += [DecisionMessage.from_bytes(entry.value) for entry in feed.drain()]

    assert [message.accept for message in seen].count(False) == 1
    assert len(seen) <= 8
    for earlier, later in itertools.pairwise(seen):
        assert later.issued < earlier.valid_until


@pytest.mark.parametrize(
    "poison",
    [{"samples": 10**400}, {"node": "paris/r1/\ud800"}, {"nodes": 10_000_000}, {"mean": np.full(6, 1e39)}],
    ids=["overflow", "half a character", "ten million", "beyond single precision"],
)
def test_a_poisoned_summary_stops_no_aggregator_and_changes_no_view(poison: dict[str, Any]) -> None:
    fleet, calm = Simulated(TREE_NAMES), Simulated(TREE_NAMES)
    fleet.step(30)
    calm.step(30)
    genuine = fleet.board.values[SUMMARIES]["rome.r1.n1"].value
    fields = decode(genuine, kind="summary", version=1)
    fields.pop("version")
    data = encode("summary", 1, {**fields, "node": "paris/r1/poison", **poison})
    LocalLink(fleet.board).put(SUMMARIES, "paris.r1.poison", data)
    fleet.step(30)
    calm.step(30)

    assert fleet.view.samples == calm.view.samples
    assert fleet.view.nodes == calm.view.nodes
    assert sum(service.rejected for service in fleet.services) == 1


def test_nothing_malformed_on_the_bus_reaches_the_view() -> None:
    fleet, calm = Simulated(TREE_NAMES), Simulated(TREE_NAMES)
    stranger = LocalLink(fleet.board)
    rng = np.random.default_rng(0)
    genuine = None
    for step in range(100):
        fleet.step()
        calm.step()
        for _ in range(5):
            stranger.put(SUMMARIES, f"paris.r1.fake{rng.integers(50)}", rng.bytes(int(rng.integers(1, 6000))))
            stranger.put(VIEWS, "global" if step % 10 == 9 else "other", rng.bytes(300))
        if genuine is None and fleet.board.values[SUMMARIES].get("rome.r1.n1"):
            genuine = fleet.board.values[SUMMARIES]["rome.r1.n1"].value
            stranger.put(SUMMARIES, "paris.r1.mimic", genuine)
    fleet.step(10)
    calm.step(10)

    assert fleet.view.samples == calm.view.samples
    assert fleet.view.nodes == calm.view.nodes
    rejected = sum(service.rejected for service in fleet.services)
    assert rejected > 400
    assert sum(len(service.aggregator.children) for service in fleet.services) == 4 * 2 + 4 + 2


def test_a_member_survives_whatever_fails() -> None:
    class BrokenLink(LocalLink):
        def put(self, topic: str, key: str, value: bytes) -> None:
            raise RuntimeError("the bus is on fire")

    fleet = Simulated(["n1"])
    member = Member(BrokenLink(fleet.board), "n2")
    node = make_node("paper", metrics=METRICS)
    for _ in range(30):
        decision = node.step(Stream(1).read())
        assert member.step(node, decision) is False

    assert member.errors == 30
    assert member.last_error == "the bus is on fire"


def test_hashed_names_travel_and_merge_without_the_names() -> None:
    fleet = Simulated(["n1", "n2"])
    for _, member, _ in fleet.nodes.values():
        member.name_key = b"sixteen byte key"
    fleet.step(100)
    joined = fleet.join("n3", Stream(9))
    joined.name_key = b"sixteen byte key"
    fleet.step(3)

    assert joined.adopted
    assert not set(fleet.view.metrics) & set(METRICS)
    everything = b"".join(entry.value for topic in fleet.board.values.values() for entry in topic.values())
    assert not any(name.encode() in everything for name in METRICS)


def test_other_metrics_join_by_name() -> None:
    fleet = Simulated(["n1", "n2"])
    fleet.step(60)
    fleet.join("n3", Stream(3), metrics=tuple(f"other{i}" if i < 2 else METRICS[i] for i in range(16)))
    fleet.step(60)

    counts = dict(zip(fleet.view.metrics, fleet.view.counts, strict=True))
    assert counts["m05"] == 120 * 2 + 60
    assert counts["m00"] == 120 * 2
    assert counts["other0"] == 60
    assert fleet.nodes["n3"][1].adopted


def test_statistics_of_a_signal_reach_new_nodes() -> None:
    class Sharing:
        name = "sharing"

        def __init__(self) -> None:
            self.started: dict[str, np.ndarray] = {}

        def share(self) -> dict[str, np.ndarray]:
            return {"gram": np.array([[2.0, 1.0], [1.0, 3.0]]), "labels": np.array([10.0])}

        def start_from(self, shared: dict[str, np.ndarray]) -> None:
            self.started = dict(shared)

    fleet = Simulated(["n1", "n2", "n3"])
    for node, _, _ in fleet.nodes.values():
        node.signal.share = Sharing().share
    fleet.step(30)
    fleet.join("new", Stream(8))
    newcomer = Sharing()
    fleet.nodes["new"][0].signal.start_from = newcomer.start_from
    fleet.step(290)
    assert not newcomer.started
    fleet.step(20)

    np.testing.assert_array_equal(newcomer.started["labels"], [30.0])
    np.testing.assert_array_equal(newcomer.started["gram"], [[6.0, 3.0], [3.0, 9.0]])


def test_the_view_names_its_schema_and_survives_the_bus() -> None:
    fleet = Simulated(TREE_NAMES, tree=Tree(depth=2))
    fleet.step(60)
    entry = fleet.board.values[VIEWS]["global"]
    view = GlobalView.from_bytes(
        entry.value, lambda schema: METRICS if schema == fingerprint(METRICS) else None
    )

    assert view.revision == fleet.view.revision
    assert view.metrics == METRICS
