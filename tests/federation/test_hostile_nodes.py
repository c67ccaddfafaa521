"""One or two nodes with a right key and any numbers: the view of the others stays readable and goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from prontosched.errors import FederationError
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import SUMMARIES, LocalBus, LocalLink
from prontosched.federation.member import ViewSubscriber
from prontosched.federation.message import LARGEST, MAX_STATISTIC_NUMBERS, GlobalView, Summary
from prontosched.federation.schema import MAX_METRICS, SchemaCache, checked_metrics
from prontosched.federation.service import AggregatorService
from prontosched.federation.tree import MAX_NODES, Tree
from prontosched.subspace import Subspace

from .fleets import names, summary_of

FEATURES, SAMPLES = 12, 400
RNG = np.random.default_rng(5)
LOADING = np.linalg.qr(RNG.standard_normal((FEATURES, 3)))[0] * [6.0, 4.0, 2.0]


def honest(name: str, sequence: int = 1) -> Summary:
    data = LOADING @ RNG.standard_normal((3, SAMPLES)) + 0.2 * RNG.standard_normal((FEATURES, SAMPLES))
    found = summary_of(name, data, rank=5, standardise=True, sequence=sequence)
    return replace(found, statistics={"learned.sums": RNG.standard_normal(40)})


def over(name: str, metrics: tuple[str, ...]) -> Summary:
    """Return what a node with these metrics would send."""
    count = len(metrics)
    return Summary(
        node=name,
        metrics=metrics,
        subspace=Subspace(np.eye(count)[:, :1], np.ones(1)),
        samples=1e6,
        mean=np.zeros(count),
        deviation=np.ones(count),
        spread=np.zeros(count),
        counts=np.full(count, 1e6),
        incarnation=1,
        sequence=1,
    )


def full(value: float) -> np.ndarray:
    return np.full(FEATURES, value)


NEARLY = 0.9999 * LARGEST
ATTACKS: dict[str, Callable[[Summary], Summary]] = {
    "more statistics than a message may have": lambda s: replace(
        s, statistics={f"x{n}": np.ones(2) for n in range(64)}
    ),
    "all the numbers that statistics may have": lambda s: replace(
        s, statistics={"x": np.ones(MAX_STATISTIC_NUMBERS - 20)}
    ),
    "long names of statistics": lambda s: replace(s, statistics={"x" * 200_000: np.ones(1)}),
    "statistics as large as they may be": lambda s: replace(
        s, statistics={"learned.sums": np.full(40, NEARLY)}
    ),
    "levels and spread as large as they may be": lambda s: replace(
        s,
        mean=full(NEARLY if s.node.endswith("1") else -NEARLY),
        spread=full(NEARLY),
        samples=1e6,
        counts=full(1e6),
    ),
    "a huge deviation of metrics that it never measured": lambda s: replace(
        s, deviation=full(NEARLY), counts=full(0.0)
    ),
    "a huge deviation of metrics that it hardly measured": lambda s: replace(
        s, deviation=full(NEARLY), counts=full(1e-30)
    ),
    "no deviation in more samples than it has": lambda s: replace(
        s, deviation=full(1e-30), counts=full(1e6), samples=1.0, subspace=None
    ),
    "as many metrics as a message may name, in more samples than there are": lambda s: replace(
        over(s.node, tuple(f"a{n:04d}" for n in range(MAX_METRICS))), counts=np.full(MAX_METRICS, NEARLY)
    ),
    "names of metrics as long as a message may be": lambda s: over(
        s.node, tuple(f"{s.node}{n:04d}".ljust(190, "x") for n in range(2600))
    ),
    "many metrics and statistics": lambda s: replace(
        over(s.node, tuple(f"a{n:04d}" for n in range(MAX_METRICS))), statistics={"x": np.ones(32_768)}
    ),
}


def view_beside(*bad: Summary, racks: bool) -> GlobalView:
    """Return what a node reads of the view after these joined three honest nodes, which then spoke again."""
    clock = [1000.0]
    bus = LocalBus(lambda: clock[0])
    link, schemas = LocalLink(bus), SchemaCache(LocalLink(bus))
    tree = Tree() if racks else Tree(depth=1)
    services = [AggregatorService(LocalLink(bus), Aggregator(name), tree=tree) for name in ("rack", "")]
    views = ViewSubscriber(LocalLink(bus), SchemaCache(LocalLink(bus)), lambda _: False)
    for sequence in range(4):
        clock[0] += 61.0
        good = [honest(f"rack/n{n}", sequence + 1) for n in range(3)]
        for summary in (*good, *(bad if sequence else ())):
            schemas.publish(summary.metrics)
            link.put(SUMMARIES, tree.key(summary.node), replace(summary, sequence=sequence).to_bytes())
        for service in services:
            service.turn()
        views.poll()
    assert not views.errors, views.last_error
    assert views.view is not None
    assert services[-1].view is not None
    assert views.view.revision == services[-1].view.revision == 4
    return views.view


@pytest.mark.parametrize("racks", [True, False])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_node_neither_stops_the_view_nor_takes_it_over(attack: str, racks: bool) -> None:
    bad = [ATTACKS[attack](honest(f"rack/bad{n}")) for n in (1, 2)]
    view = view_beside(*bad, racks=racks)

    assert 3 <= view.nodes <= 5
    assert set(names(FEATURES)) <= set(view.metrics)
    assert "learned.sums" in view.statistics


def test_aggregators_that_claim_all_nodes_there_can_be_leave_the_view_readable() -> None:
    claims = [replace(honest(f"other{n}"), merged=True, nodes=MAX_NODES) for n in (1, 2)]

    assert view_beside(*claims, racks=True).nodes == MAX_NODES


def test_a_schema_with_a_name_twice_is_refused_as_fast_as_any_other() -> None:
    metrics = [f"m{n:04d}" for n in range(MAX_METRICS - 1)]
    began = time.process_time()
    checked_metrics(metrics)
    plain = time.process_time() - began
    with pytest.raises(FederationError, match="names of their own, got 'm8190' twice"):
        checked_metrics([*metrics, metrics[-1]])

    assert time.process_time() - began < 20.0 * plain
