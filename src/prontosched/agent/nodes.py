"""What the agent decides for: one node, or many through one source.

Covers: stepping them with samples, in the order of their metrics, and what is known
of each afterwards. Which form it takes follows from the first samples: one name is a
`Node`, several are a `Fleet` (`prontosched.agent.many`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from prontosched.agent.answer import Known, expects
from prontosched.agent.probe_record import ProbeRecord
from prontosched.agent.schema import FAMILIAR_SHARE, PATIENCE, Schema, known_share
from prontosched.agent.tally import Tally
from prontosched.agent.track_record import TrackRecord
from prontosched.agent.transplant import with_metrics
from prontosched.errors import StateError
from prontosched.pipeline.node import Node
from prontosched.subspace import Array, Subspace
from prontosched.telemetry.source import Sample

LOG = logging.getLogger("prontosched.agent")
NICE = "cpu_nice_percent"
"""Saved state is used when at least this share of its metrics is still there."""


class Insight(NamedTuple):
    """What a decision was made from, for explanations.

    Attributes
    ----------
    vector
        The scaled telemetry vector, `(d,)`.
    subspace
        The directions it was projected on, or None while warming up.
    projections, spikes
        One value per direction; `spikes` is None until the detector is warm.
    by_spikes
        Whether the signal decides by spikes.
    """

    metrics: tuple[str, ...]
    vector: Array | None
    subspace: Subspace | None
    projections: Sequence[float]
    spikes: Sequence[int] | None
    by_spikes: bool = False


def background(sample: Sample) -> float:
    """Return the share of all CPUs in percent that low priority uses, 0 where that is not measured."""
    if NICE not in sample.metrics:
        return 0.0
    found = float(sample.vector[sample.metrics.index(NICE)])
    return found if found > 0.0 else 0.0


class Overview(NamedTuple):
    """All nodes at a glance, in the order of their names.

    Attributes
    ----------
    raised
        Whether each one's signal is raised.
    contended
        Whether each one expects contention.
    ready
        CPU Ready of each, NaN where unknown.
    """

    raised: list[bool]
    contended: list[bool]
    ready: list[float]


class Nodes(Protocol):
    """The nodes behind one agent."""

    fallback_name: str
    tally: Tally

    @property
    def names(self) -> list[str]:
        """Names of the nodes seen so far."""
        ...

    @property
    def changed(self) -> list[str]:
        """Names of the nodes whose signal was raised or lowered at the last timestep."""
        ...

    @property
    def features(self) -> int:
        """Metrics per node."""
        ...

    def step(self, samples: Sequence[Sample], now: float) -> None:
        """Carry one sample per node to a decision."""
        ...

    def known(self, name: str, *, words: bool = True) -> Known:
        """Return the newest that is known of a node; KeyError where there is none.

        Without `words` the reason may be empty: sentences for thousands cost more than decisions.
        """
        ...

    def overview(self) -> Overview:
        """Return all nodes at a glance."""
        ...

    def fresh(self, name: str | None, now: float) -> bool:
        """Tell whether the node (None: any node) was stepped at `now`."""
        ...

    def insight(self, name: str) -> Insight | None:
        """Return what the last decision of a node was made from; None before the first."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a restart needs, as plain values and arrays."""
        ...


class OneNode:
    """One node, built when its first sample tells the metrics.

    Parameters
    ----------
    build
        Makes a cold node for a list of metrics.
    name
        The node's name until a sample tells it.
    tolerance, horizon
        What counts as contention in the signal's own record.
    patience
        Samples with another set of metrics before the node is rebuilt for it.
    """

    def __init__(
        self,
        build: Callable[[tuple[str, ...]], Node],
        *,
        name: str,
        tolerance: float = 5.0,
        horizon: int = 10,
        patience: int = PATIENCE,
    ) -> None:
        self.fallback_name = name
        self.tolerance = tolerance
        self.tally = Tally()
        self.record = TrackRecord(tolerance=tolerance, horizon=horizon)
        self.probes = ProbeRecord()
        self.node: Node | None = None
        self.rebuilds = 0
        self.message = ""
        self._build = build
        self._patience = patience
        self._schema: Schema | None = None
        self._known: Known | None = None
        self._changed = False

    @property
    def names(self) -> list[str]:
        """The name, once a sample has told it."""
        return [] if self._known is None else [self._known.name]

    @property
    def members(self) -> dict[str, OneNode]:
        """Itself by its name, once it has seen something."""
        return {} if self.node is None else {(self.names or [self.fallback_name])[0]: self}

    @property
    def changed(self) -> list[str]:
        """The name, if the signal was raised or lowered at the last timestep."""
        return self.names if self._changed else []

    @property
    def features(self) -> int:
        """Metrics of the node; 0 before the first sample."""
        return 0 if self._schema is None else len(self._schema.metrics)

    @property
    def schema(self) -> Schema | None:
        """The metrics by name, None before the first sample."""
        return self._schema

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics; none before the first sample."""
        return () if self._schema is None else self._schema.metrics

    def step(self, samples: Sequence[Sample], now: float) -> None:
        """Carry the sample to a decision; one without a single number is no telemetry."""
        self._changed = False
        sample = samples[0]
        if not np.isfinite(sample.vector).any():
            return
        if self._known is None:
            self._begin(sample.metrics)
        assert self._schema is not None
        assert self.node is not None
        y = self._schema.align(sample)
        if self._schema.settled is not None:
            self._rebuild(self._schema.settled)
            y = self._schema.align(sample)
        decision = self.node.step(
            y, ready=sample.ready, utilisation=sample.utilisation, time=sample.timestamp
        )
        if self._known is None:
            self._known = Known(sample.node, now, now)
        known = self._known
        raised = bool(decision.raised)
        before = known.decision
        self._changed = before is not None and bool(before.raised) is not raised
        if before is not None and (self._changed or expects(before) is not expects(decision)):
            known.changed_at = now
        known.name, known.decision, known.seen_at = sample.node, decision, now
        known.ready, known.utilisation = sample.ready, sample.utilisation
        known.background = background(sample)
        known.timestamp, known.notes = sample.timestamp, sample.notes
        self.tally.add(raised, self._changed, sample.ready, self.tolerance)
        self.record.note(raised, sample.ready)

    def overview(self) -> Overview:
        """Return the node at a glance."""
        if self._known is None or self._known.decision is None:
            return Overview([], [], [])
        decision = self._known.decision
        return Overview([bool(decision.raised)], [expects(decision)], [self._known.ready])

    def known(self, name: str, *, words: bool = True) -> Known:
        """Return the newest that is known of the node."""
        if self._known is None or name != self._known.name:
            raise KeyError(f"no node {name!r}: this agent watches {self.names or [self.fallback_name]}")
        return self._known

    def fresh(self, name: str | None, now: float) -> bool:
        """Tell whether the node was stepped at `now`."""
        return self._known is not None and self._known.seen_at == now and name in (None, self._known.name)

    def insight(self, name: str) -> Insight | None:
        """Return what the last decision was made from."""
        self.known(name)
        if self.node is None or self._schema is None or (evidence := self.node.evidence) is None:
            return None
        metrics, by_spikes = self._schema.metrics, self.node.signal.name == "paper"
        return Insight(
            metrics, evidence.vector, evidence.subspace, evidence.projections, evidence.spikes, by_spikes
        )

    def state(self) -> dict[str, Any]:
        """Return the node's bytes, its metrics and the record so far."""
        if self.node is None or self._schema is None:
            return {}
        fields: dict[str, Any] = {f"record_{name}": value for name, value in self.record.state().items()}
        fields |= {f"probes_{name}": value for name, value in self.probes.state().items()}
        fields["form"] = "one"
        fields["metrics"] = list(self._schema.metrics)
        fields["node"] = np.frombuffer(self.node.to_bytes(), dtype=np.uint8)
        return fields

    def restore(self, fields: Mapping[str, Any]) -> str:
        """Go on from what `state` returned; return a sentence on how far that goes.

        Raises
        ------
        StateError
            The fields are not of one node, or its bytes cannot be used.
        """
        if fields.get("form") != "one" or not isinstance(fields.get("node"), np.ndarray):
            raise StateError(f"expected the state of one node, got {fields.get('form')!r}: discard it")
        metrics = tuple(str(name) for name in fields.get("metrics", ()))
        node = Node.from_bytes(fields["node"].tobytes())
        how = self._settle(node, metrics)
        self.node, self._schema = node, Schema(metrics, patience=self._patience)
        self.record.restore({key.removeprefix("record_"): value for key, value in fields.items()})
        self.probes.restore({key.removeprefix("probes_"): value for key, value in fields.items()})
        return f"warm, {len(metrics)} metrics{how}"

    def _settle(self, node: Node, metrics: tuple[str, ...]) -> str:
        """Give a restored node the signal that is asked for now, where that is another one."""
        fresh = self._build(metrics)
        if hasattr(fresh.signal, "enforcing"):
            node.signal.enforcing = fresh.signal.enforcing  # type: ignore[attr-defined]
        if (node.signal.name, node.signal.settings()) == (fresh.signal.name, fresh.signal.settings()):
            return ""
        node.signal = fresh.signal
        return ", but the signal starts anew: its settings changed"

    def _begin(self, metrics: tuple[str, ...]) -> None:
        """Take the first sample's metrics, unless saved state still fits them."""
        if self._schema is not None and self.node is not None:
            if known_share(self._schema.metrics, metrics) >= FAMILIAR_SHARE:
                return
            self.message = "starting cold: the saved state is of other metrics"
        self._schema = Schema(metrics, patience=self._patience)
        self.node = self._build(metrics)

    def _rebuild(self, metrics: tuple[str, ...]) -> None:
        old, schema = self.node, self._schema
        assert old is not None
        assert schema is not None
        lost, gained = len(schema.missing), len(schema.extra)
        try:
            self.node, how = with_metrics(old, metrics), "the node goes on with the rest"
        except StateError as error:
            self.node, how = self._build(metrics), f"the node starts cold ({error})"
        self._schema = Schema(metrics, patience=self._patience)
        self.rebuilds += 1
        self.message = f"metrics changed for good, {lost} gone and {gained} new: {how}"
        LOG.warning("%s", self.message)
