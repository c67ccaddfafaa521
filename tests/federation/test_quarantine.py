"""Whatever one message does, those of others are read, and its sender is named once."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from prontosched.federation.aggregator import Aggregator
from prontosched.federation.leases import LONGEST_SECONDS, Claim, RefusalLeases, grant
from prontosched.federation.link import DECISIONS, SUMMARIES, VIEWS, LocalBus, LocalLink
from prontosched.federation.member import ViewSubscriber
from prontosched.federation.message import DecisionMessage, GlobalView, Summary
from prontosched.federation.monitor import FederationMonitor
from prontosched.federation.schema import SchemaCache
from prontosched.federation.service import AggregatorDiscovery, AggregatorService
from prontosched.federation.tree import Tree

from .fleets import factor_data, summary_of

DATA = factor_data(np.random.default_rng(0), 6, 200)


@pytest.fixture
def bus() -> LocalBus:
    bus = LocalBus(lambda: 1000.0)
    SchemaCache(LocalLink(bus)).publish(summary_of("n1", DATA, rank=3).metrics)
    for name in ("n1", "n2", "n3"):
        LocalLink(bus).put(SUMMARIES, name, summary_of(name, DATA, rank=3).to_bytes())
    return bus


def unforeseen(method: Any, about: str) -> Any:
    """Let a method fail as no check foresaw when it meets `about`."""

    def failing(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        for one in found if isinstance(found, list) else [found]:
            if about in repr(getattr(one, "node", "")) or about in repr(getattr(one, "reason", "")):
                raise ZeroDivisionError("as no check foresaw")
        return found

    return failing


def test_an_aggregator_reads_on(
    bus: LocalBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Summary, "from_bytes", unforeseen(Summary.from_bytes, "n2"))
    service = AggregatorService(LocalLink(bus), Aggregator(""))
    discovery = AggregatorDiscovery(
        LocalLink(bus), Tree(), lambda name: AggregatorService(LocalLink(bus), Aggregator(name))
    )
    for _ in range(3):
        service.turn()
        LocalLink(bus).put(SUMMARIES, "n2", summary_of("n2", DATA, rank=3).to_bytes())
        LocalLink(bus).put(SUMMARIES, "n4", b"rubbish")

    assert service.view is not None
    assert service.view.nodes == 2
    assert service.rejected == 5
    assert service.quarantined == {"n2", "n4"}
    assert sum("refused from n2" in record.message for record in caplog.records) == 1
    assert sum("refused from n4" in record.message for record in caplog.records) == 1
    assert len(discovery.services()) == 1


def test_a_summary_that_cannot_be_merged_leaves_the_others_merged(
    bus: LocalBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = AggregatorService(LocalLink(bus), Aggregator(""))
    service.turn()
    merge = Aggregator._merge

    def failing(self: Aggregator, summaries: list[Summary]) -> Summary:
        if any(summary.node == "n5" for summary in summaries):
            raise np.linalg.LinAlgError("SVD did not converge")
        return merge(self, summaries)

    monkeypatch.setattr(Aggregator, "_merge", failing)
    LocalLink(bus).put(SUMMARIES, "n5", summary_of("n5", DATA, rank=3).to_bytes())
    service.turn()
    LocalLink(bus).put(SUMMARIES, "n4", summary_of("n4", DATA, rank=3).to_bytes())
    service.turn()

    assert sorted(service.aggregator.children) == ["n1", "n2", "n3", "n4"]
    assert service.view is not None
    assert service.view.nodes == 4
    assert service.quarantined == {"n5"}


def test_members_and_monitors_read_on(bus: LocalBus, monkeypatch: pytest.MonkeyPatch) -> None:
    link = LocalLink(bus)
    views = ViewSubscriber(LocalLink(bus), SchemaCache(LocalLink(bus)), lambda _: False)
    view = GlobalView.of(summary_of("", DATA, rank=3), 3).to_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(GlobalView, "from_bytes", lambda *_: 1 // 0)
        link.put(VIEWS, "global", view)
        assert views.poll() is views.poll() is None
        assert views.errors == 1
    link.put(VIEWS, "global", view)
    assert views.poll() is not None
    monkeypatch.setattr(DecisionMessage, "from_bytes", unforeseen(DecisionMessage.from_bytes, "bad"))
    for name, reason in (("n1", "bad"), ("n2", "good")):
        link.put(DECISIONS, name, DecisionMessage(name, True, 0.0, reason, 0.0, 9e9).to_bytes())
    # Under another's key, in another's name.
    link.put(DECISIONS, "n3", DecisionMessage("n2", False, 0.0, "forged", 0.0, 9e9).to_bytes())
    seen = FederationMonitor(LocalLink(bus))
    seen.poll()

    assert {row.name: row.accept for row in seen.snapshot().nodes} == {"n1": None, "n2": True, "n3": None}
    assert seen.snapshot().unreadable == 2


def test_no_claim_holds_its_place_for_ever(bus: LocalBus) -> None:
    def rule(words: Any, nodes: int) -> list[str]:
        return sorted(words, key=lambda name: -words[name][1])[:1]

    link = LocalLink(bus)
    liars = {f"liar{n}": Claim(float("inf"), until, granted=True) for n, until in enumerate((1e300, 1e6))}
    granted = grant(liars, "n1", Claim(0.5, 1060.0), rule, nodes=4, now=1000.0)
    assert granted.keys() == {"n1"}
    assert granted["n1"].granted
    leases = RefusalLeases(link, rule, nodes=4)
    assert leases.tell("n1", refuse=True, score=0.5, valid_until=LONGEST_SECONDS + 10.0, now=0.0)
    assert leases.refusing().keys() == {"n1"}


def test_a_refusal_is_told_at_the_level_of_a_warning(bus: LocalBus, caplog: pytest.LogCaptureFixture) -> None:
    LocalLink(bus).put(SUMMARIES, "n1", b"rubbish")
    with caplog.at_level(logging.WARNING):
        AggregatorService(LocalLink(bus), Aggregator("")).turn()

    assert "refused from n1: summary: data must begin with" in caplog.text
