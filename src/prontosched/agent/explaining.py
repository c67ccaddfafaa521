"""Why a node answers as it does: its directions, its last rejection, what changed.

Covers: what an agent remembers for that and how it is put together; the arithmetic
is `prontosched.explain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prontosched.agent.answer import plain
from prontosched.agent.nodes import Insight
from prontosched.agent.probe import probe_view
from prontosched.agent.views import record_of, settings_of
from prontosched.explain import Change, Part, changes, directions, drivers, families, sentence, turning
from prontosched.subspace import Array, Subspace

if TYPE_CHECKING:
    from prontosched.agent.loop import Agent

TOP = 6


class Memory:
    """What is worth remembering of each node for an explanation: its last rejection and last block.

    Notes
    -----
    Memory: three subspaces, one vector and one rejection per node. Of more than `MOST` nodes
    only the rejections are followed, `MOST` new ones per timestep and the last `KEPT`.
    """

    name = "memory"
    MOST = 64
    KEPT = 1024

    def __init__(self) -> None:
        self._rejections: dict[str, dict[str, Any]] = {}
        self._insights: dict[str, Insight] = {}
        self._steps: dict[str, int] = {}  # of a rejection that goes on
        self._now: dict[str, Subspace] = {}
        self._before: dict[str, Subspace] = {}

    def follow(self, agent: Agent) -> None:
        """Look at the timestep just made."""
        names = agent.nodes.names
        few = len(names) <= self.MOST
        for name in names if few else agent.nodes.changed[: self.MOST]:
            insight = agent.nodes.insight(name)
            if few and insight is not None and insight.subspace is not None:
                self._note_block(name, insight.subspace)
            decision = agent.nodes.known(name, words=False).decision
            if decision is not None and decision.raised:
                self._note_rejection(agent, name, insight)
            else:
                self._steps.pop(name, None)

    def _note_block(self, name: str, subspace: Subspace) -> None:
        last = self._now.get(name)
        if subspace is last:
            return
        if last is None and len(self._now) >= self.KEPT:
            oldest = next(iter(self._now))
            del self._now[oldest]
            self._before.pop(oldest, None)
        if last is not None and last.features == subspace.features:
            self._before[name] = last
        self._now[name] = subspace

    def _note_rejection(self, agent: Agent, name: str, insight: Insight | None) -> None:
        known = agent.nodes.known(name)
        self._rejections.pop(name, None)  # so that the last to come is the last in line
        if len(self._rejections) >= self.KEPT:
            oldest = next(iter(self._rejections))
            for held in (self._rejections, self._insights, self._steps):
                held.pop(oldest, None)
        self._rejections[name] = {
            "time": plain(agent.wall()),
            "reason": "" if known.decision is None else known.decision.reason,
            "score": None if known.decision is None else plain(float(known.decision.score)),
            "cpu_ready_percent": plain(float(known.ready)),
            "offenders": agent.offenders.words,
        }
        if insight is not None and insight.vector is not None:
            self._insights[name] = self._over_all_steps(name, insight, insight.vector)

    def _over_all_steps(self, name: str, insight: Insight, vector: Array) -> Insight:
        """Return what a rejection is explained by: the mean of its vectors, in which chance evens out."""
        before, steps = self._insights.get(name), self._steps.get(name, 0)
        self._steps[name] = steps + 1
        if insight.by_spikes or not steps or before is None or before.metrics != insight.metrics:
            return insight._replace(vector=vector.copy())
        assert before.vector is not None
        return insight._replace(vector=before.vector + (vector - before.vector) / (steps + 1))

    def last_rejection(self, name: str) -> dict[str, Any] | None:
        """Return a node's last rejection and what stood out while it lasted, or None."""
        found, insight = self._rejections.get(name), self._insights.get(name)
        if found is None:
            return None
        parts = [] if insight is None else _all_drivers(insight)
        return {
            **found,
            "drivers": _parts(parts[:TOP]),
            "families": _parts(families(parts)),
            "words": sentence(parts[:3]),
        }

    def change(self, name: str, metrics: tuple[str, ...]) -> Change | None:
        """Say what the last block changed, or None where there was only one."""
        before, now = self._before.get(name), self._now.get(name)
        if before is None or now is None or before.features != len(metrics) or now.features != len(metrics):
            return None
        return changes(before, now, metrics)

    def status(self) -> dict[str, Any]:
        """Return how many nodes are followed."""
        return {"nodes": len(self._now)}

    def close(self) -> None:
        """Do nothing: there is nothing to let go."""


def explanation(agent: Agent, node: str | None = None) -> dict[str, Any]:
    """Return why a node answers as it does, as plain values.

    Raises
    ------
    KeyError
        There is no such node, or there are several and none is named.
    """
    found = agent.answer(node)
    explained: dict[str, Any] = {
        "node": found.node,
        "decision": found.as_json(),
        "directions": [],
        "drivers": [],
        "last_rejection": agent.memory.last_rejection(found.node),
        "change": None,
        "projections": [],
        "spikes": None,
        "record": None,
        "budget": None,
        "offenders": agent.offenders.view(),
        "probe": probe_view(agent),
    }
    if not agent.nodes.names:
        return explained
    explained["record"] = record_of(agent.nodes, found.node)
    explained["budget"] = plain(settings_of(agent.nodes, found.node).get("budget"))
    insight = agent.nodes.insight(found.node)
    if insight is None or insight.subspace is None:
        return explained
    explained["projections"] = [plain(float(p)) for p in insight.projections]
    explained["spikes"] = None if insight.spikes is None else [int(s) for s in insight.spikes]
    explained["directions"] = [
        {
            "number": d.number,
            "singular_value": plain(d.singular_value),
            "strength": plain(d.strength),
            "sign": d.sign,
            "parts": _parts(d.parts),
            "families": _parts(d.families),
            "words": sentence(d.parts[:3]),
        }
        for d in directions(insight.subspace, insight.metrics, top=TOP)
    ]
    explained["drivers"] = _parts(_all_drivers(insight)[:TOP])
    if (change := agent.memory.change(found.node, insight.metrics)) is not None:
        explained["change"] = {
            "distance": plain(change.distance),
            "words": turning(change.distance),
            "rank_before": change.rank_before,
            "rank": change.rank,
            "gained": _parts(change.gained),
            "lost": _parts(change.lost),
        }
    return explained


def drivers_now(agent: Agent, node: str, most: int = 2) -> list[str]:
    """Return the metrics that set a node's present apart, the strongest first."""
    insight = agent.nodes.insight(node)
    return [] if insight is None else [part.metric for part in _all_drivers(insight)[:most]]


def _all_drivers(insight: Insight) -> list[Part]:
    if insight.subspace is None or insight.vector is None:
        return []
    every = len(insight.metrics)
    spikes = insight.spikes if insight.by_spikes else None
    return drivers(insight.vector, insight.subspace, insight.metrics, spikes=spikes, top=every)


def _parts(parts: list[Part]) -> list[dict[str, Any]]:
    return [{"metric": p.metric, "share": plain(p.share), "sign": p.sign} for p in parts]
