"""The nodes that an agent decides for: one or thousands, each a `prontosched.pipeline.node.Node`.

Covers: putting samples in the order of a node's metrics, giving a node other metrics without
losing what it knew, stepping it, and what is known of it afterwards. Files are `prontosched.agent.store.state`.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prontosched.agent.record import DecisionCounts, ProbeRecord, TrackRecord
from prontosched.codec import decode, encode
from prontosched.decision import Decision, Evidence, Signal
from prontosched.errors import StateError
from prontosched.pipeline import Embedding
from prontosched.pipeline.node import STATE_KIND, STATE_VERSION, Node
from prontosched.subspace import Array, Subspace
from prontosched.telemetry.source import Sample

LOG = logging.getLogger("prontosched.agent")
NAN = float("nan")
NICE = "cpu_nice_percent"
# From this chance of contention on, an answer is never plainly "accepting", whatever was set.
LIKELY = 0.5
MOST_NODES = 16_384
"""Nodes of one agent; samples of more are counted and left out."""
GONE_SECONDS = 86_400.0
"""A day: a node that sends nothing for longer, while others do, is forgotten."""
# Time without any telemetry at all says nothing of a single node.
LONGEST_GAP_SECONDS = 600.0
SWEEP_SECONDS = 600.0
GROUP_NODES = 16
"""Nodes that are saved in one file."""
MAX_METRICS = 20_000
PATIENCE = 60
"""Samples after which another set of metrics is there for good."""
FAMILIAR_SHARE = 0.5
"""Saved nodes are used when at least this share of their metrics is still there."""
# Steps in a row that fail, after which a node starts anew.
FAILURES = 3
# Signals whose score is always a number; those of others may be what they like.
FINITE_SCORES = ("learned", "paper")
# Arrays of a node's state whose last axis has one place per metric.
BY_METRIC = frozenset(
    {
        "adopted.rows",
        "embedding.basis",
        "embedding.slab",
        "projector.past",
        "projector.rows",
        "scaling.block",
        "scaling.mean",
        "scaling.seen",
        "scaling.unknown",
        "scaling.variance",
        "signal.sight.along",
        "signal.vectors",
        "view.rows",
    }
)
COUNTS = ("embedding.features", "signal.features")


class Schema:
    """The metrics of one node, by name and in its order.

    Metrics that a sample lacks become NaN, which a node takes as unknown; metrics it
    has beyond the schema are left out. Samples differ from the schema for `patience` times
    in a row before it is `settled` what is there for good: metrics that came with each of
    them are, and metrics of the schema are unless none of them had it. So a network card that
    flaps does not cost the node its memory, and what containers bring for a moment never enters.

    Examples
    --------
    >>> schema = Schema(("load", "heat"), patience=2)
    >>> more = Sample("n1", ("wind", "load"), np.array([3.0, 1.0]))
    >>> schema.align(more), schema.settled is None
    (array([ 1., nan]), True)
    >>> schema.align(more), schema.settled
    (array([ 1., nan]), ('wind', 'load'))
    """

    def __init__(self, metrics: tuple[str, ...], *, patience: int = PATIENCE) -> None:
        self.metrics = metrics
        self.patience = patience
        self.missing: tuple[str, ...] = ()
        self.extra: tuple[str, ...] = ()
        self.settled: tuple[str, ...] | None = None
        self._seen: tuple[str, ...] = metrics
        # Where the shared metrics of a sample go to, and come from; None while they are all and in order.
        self._places: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
        self._streak = 0
        # Metrics that each sample of the streak had, and metrics of the schema that none had.
        self._new: frozenset[str] = frozenset()
        self._gone: frozenset[str] = frozenset()
        self._nice_at = _place(NICE, metrics)

    def background(self, sample: Sample) -> float:
        """Return the share of all CPUs in percent that low priority uses, 0 where that is not measured."""
        if sample.metrics is not self._seen:
            self._look(sample.metrics)
        return 0.0 if self._nice_at is None else max(0.0, float(sample.vector[self._nice_at]))

    def align(self, sample: Sample) -> Array:
        """Return the sample's metrics in this schema's order, NaN where it has none."""
        if sample.metrics is not self._seen:
            self._look(sample.metrics)
        if self._places is None:
            return sample.vector
        if self.missing or self.extra:  # another order of the same metrics needs no other node
            self._note_change()
        target, origin = self._places
        y = np.full(len(self.metrics), np.nan)
        y[target] = sample.vector[origin]
        return y

    def _note_change(self) -> None:
        """Count a sample with other metrics; once there were enough, settle what they had in common."""
        if not self._streak:
            self._new, self._gone = frozenset(self.extra), frozenset(self.missing)
        self._streak += 1
        if self._streak >= self.patience:
            self._streak = 0
            if self._new or self._gone:
                known = self._new.union(self.metrics)
                found = [name for name in self._seen if name in known]
                flapping = [name for name in self.missing if name not in self._gone]
                self.settled = (*found, *flapping)[:MAX_METRICS]

    def _look(self, metrics: tuple[str, ...]) -> None:
        if metrics == self._seen:
            self._seen = metrics
            return
        self._seen = metrics
        self.settled = None
        self._nice_at = _place(NICE, metrics)
        position, present = {name: i for i, name in enumerate(self.metrics)}, set(metrics)
        shared = [(position[name], i) for i, name in enumerate(metrics) if name in position]
        target, origin = np.array(shared, dtype=np.intp).reshape(-1, 2).T
        self._places = None if metrics == self.metrics else (target, origin)
        self.missing = tuple(name for name in self.metrics if name not in present)
        self.extra = tuple(name for name in metrics if name not in position)
        if not self.missing and not self.extra:
            self._streak = 0
        self._new, self._gone = self._new.intersection(self.extra), self._gone.intersection(self.missing)


def _any_number(vector: Array) -> bool:
    # Nearly always the first is one: then the others need not be looked at.
    return bool(vector.size and math.isfinite(vector.item(0))) or bool(np.isfinite(vector).any())


def _place(name: str, metrics: tuple[str, ...]) -> int | None:
    return metrics.index(name) if name in metrics else None


def known_share(old: Sequence[str], new: Sequence[str]) -> float:
    """Return the share of `old` that is still in `new`; NaN where `old` is empty.

    Examples
    --------
    >>> known_share(("a", "b"), ("b", "c"))
    0.5
    """
    present = set(new)
    return sum(name in present for name in old) / len(old) if old else math.nan


def with_metrics(node: Node, metrics: Sequence[str]) -> Node:
    """Return a node like `node` for `metrics`, warm for those it had; `StateError` where it cannot be mapped."""
    if node.metrics is None:
        raise StateError("a node must know the names of its metrics to change them, got none: start cold")
    old = list(node.metrics)
    origin = {name: i for i, name in enumerate(old)}
    kept = [(to, origin[name]) for to, name in enumerate(metrics) if name in origin]
    fields = decode(node.to_bytes(), kind=STATE_KIND, version=STATE_VERSION)
    version = fields.pop("version")
    for key, value in fields.items():
        if key in BY_METRIC and value.shape[-1] == len(old):
            fields[key] = _mapped(value, len(metrics), kept)
    # In vectors that wait to enter the statistics, a metric that was not there is unknown.
    if fields.get("scaling.samples") and len(kept) < len(metrics):
        fields["scaling.block"][:, np.setdiff1d(np.arange(len(metrics)), [to for to, _ in kept])] = np.nan
        fields["scaling.gaps"] = True
    for key in COUNTS:
        if fields.get(key):
            fields[key] = len(metrics)
    fields["metrics"] = list(metrics)
    data = encode(STATE_KIND, version, fields)
    try:
        Node.from_bytes(data).step(np.zeros(len(metrics)))
    except (ValueError, IndexError, TypeError) as error:
        raise StateError(f"{node.signal.name} cannot change its metrics ({error}): start cold") from error
    return Node.from_bytes(data)


def _mapped(array: np.ndarray[Any, Any], after: int, kept: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
    mapped = np.zeros((*array.shape[:-1], after), dtype=array.dtype)
    if kept:
        mapped[..., [to for to, _ in kept]] = array[..., [i for _, i in kept]]
    return mapped


def expects(decision: Decision) -> bool:
    """Tell whether a node expects contention, by its own word or by its chance."""
    return bool(decision.contended or decision.probability >= LIKELY)


class Rejection(NamedTuple):
    """The last time a node's signal was raised, for so many `steps`; `time` is that of the last one.

    `evidence` is what the last step was decided from, `vector` the mean over all steps, in which chance evens out.
    """

    time: float
    decision: Decision
    ready: float
    offenders: str
    steps: int
    evidence: Evidence | None
    vector: Array | None


class LiveNode:
    """One node, built when its first sample tells the metrics, and the newest that is known of it.

    Memory: that of `Node`, two more subspaces and the last rejection's vector.

    Parameters
    ----------
    build
        Makes a cold node for a list of metrics.
    tolerance, horizon
        What counts as contention in the signal's own record, where the signal itself does not tell.
    patience
        Samples with another set of metrics before the node is rebuilt for it.

    Attributes
    ----------
    seen_at, changed_at
        When its last vector came, and when its state last became another one, on the agent's clock.
    turned
        Whether the signal was raised or lowered at the last vector.
    ready, utilisation, background, timestamp, notes
        Of the last sample. `background` is the part of the utilisation that gives way to a job.
    heard
        When the last vector came, in seconds of telemetry of the whole agent.
    slot
        The node's place in the files.
    obeyed_until
        Until when someone has declared to obey its refusals, on the agent's clock.
    """

    def __init__(
        self,
        build: Callable[[tuple[str, ...]], Node],
        *,
        name: str,
        now: float = 0.0,
        tolerance: float = 5.0,
        horizon: int = 10,
        patience: int = PATIENCE,
    ) -> None:
        self.name = name
        self.node: Node | None = None
        self.schema: Schema | None = None
        self.record = TrackRecord(tolerance=tolerance, horizon=horizon)
        self.probes = ProbeRecord()
        self.rebuilds = 0
        self.message = ""
        self.decision: Decision | None = None
        self.seen_at = self.changed_at = now
        self.turned = False
        self.ready = self.utilisation = self.timestamp = NAN
        self.background = 0.0
        self.notes: tuple[str, ...] = ()
        self.heard = 0.0
        self.slot = -1
        self.obeyed_until = -math.inf
        self.rejection: Rejection | None = None
        self._subspaces: tuple[Subspace | None, Subspace | None] = (None, None)
        self._build = build
        self._patience = patience
        self._failures = 0
        self._restored = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics; none before the first sample."""
        return () if self.schema is None else self.schema.metrics

    @property
    def evidence(self) -> Evidence | None:
        """What the last decision was made from; None before the first."""
        return None if self.node is None or self.decision is None else self.node.evidence

    @property
    def by_spikes(self) -> bool:
        """Whether the signal decides by spikes."""
        return self.node is not None and self.node.signal.name == "paper"

    @property
    def raised(self) -> bool:
        """Whether the signal is raised."""
        return self.decision is not None and bool(self.decision.raised)

    @property
    def last_blocks(self) -> tuple[Subspace, Subspace] | None:
        """The subspace before and after the last block; None where there was only one."""
        before, now = self._subspaces
        return None if before is None or now is None or before.features != now.features else (before, now)

    def step(self, sample: Sample, now: float, *, enforcing: bool = False) -> bool:
        """Carry a sample to a decision; one without a single number is no telemetry, and returns False.

        `enforcing` tells the signal whether its refusals are obeyed, and what follows them is their effect.
        """
        self.turned = False
        if not _any_number(sample.vector):
            return False
        if self.decision is None:
            self._begin(sample.metrics)
        assert self.schema is not None
        assert self.node is not None
        y = self.schema.align(sample)
        if self.schema.settled is not None:
            self._rebuild(self.schema.settled)
            y = self.schema.align(sample)
        if hasattr(self.node.signal, "enforcing"):
            self.node.signal.enforcing = enforcing or now < self.obeyed_until
        ready = sample.ready if sample.ready >= 0.0 else math.nan  # some sources say -1 for unknown
        try:
            decision = self.node.step(y, ready=ready, utilisation=sample.utilisation, time=sample.timestamp)
        except Exception as error:
            self._lost(repr(error))
            raise
        if math.isfinite(decision.score) or self.node.signal.name not in FINITE_SCORES:
            self._failures = 0
        else:
            self._lost(f"a score of {decision.score}")
        before, raised = self.decision, bool(decision.raised)
        if before is None:
            self.changed_at = now
        else:
            self.turned = bool(before.raised) is not raised
            if self.turned or expects(before) is not expects(decision):
                self.changed_at = now
        self.decision, self.seen_at = decision, now
        self.ready, self.utilisation = ready, sample.utilisation
        self.background = self.schema.background(sample)
        self.timestamp, self.notes = sample.timestamp, sample.notes
        self.record.tolerance = getattr(self.node.signal, "contention_level", self.record.tolerance)
        self.record.note(raised, ready)
        assert self.node.evidence is not None
        if (subspace := self.node.evidence.subspace) is not self._subspaces[1]:
            self._subspaces = (self._subspaces[1], subspace)
        return True

    def _lost(self, why: str) -> None:
        """Count a step that came to nothing; after some in a row a node out of saved state starts anew."""
        self._failures += 1
        if self._failures >= FAILURES and self._restored and self.schema is not None:
            self._failures, self._restored = 0, False
            self.node = self._build(self.schema.metrics)
            self.message = f"starting cold: what the node knew led to {why[:200]}"
            LOG.warning("%s is %s", self.name, self.message)

    def note_rejection(self, time: float, offenders: str) -> None:
        """Keep what the raised signal was decided from; the vectors of one rejection are averaged."""
        assert self.decision is not None
        last, evidence, steps, vector = self.rejection, self.evidence, 1, None
        if evidence is not None and evidence.vector is not None:
            vector = evidence.vector.copy()
            if (
                not self.turned
                and not self.by_spikes
                and last is not None
                and last.vector is not None
                and last.vector.shape == vector.shape
            ):
                steps = last.steps + 1
                vector = last.vector + (vector - last.vector) / steps
        self.rejection = Rejection(time, self.decision, self.ready, offenders, steps, evidence, vector)

    def state(self) -> dict[str, Any]:
        """Return the node's bytes, its metrics and the record so far."""
        if self.node is None or self.schema is None:
            return {}
        fields: dict[str, Any] = {f"record_{name}": value for name, value in self.record.state().items()}
        fields |= {f"probes_{name}": value for name, value in self.probes.state().items()}
        fields["form"] = "one"
        fields["name"] = self.name
        fields["metrics"] = list(self.schema.metrics)
        try:
            data = self.node.to_bytes()
        except Exception as error:  # what cannot be saved now could never be
            self._failures = FAILURES
            self._lost(repr(error))
            data = self.node.to_bytes()
        fields["node"] = np.frombuffer(data, dtype=np.uint8)
        return fields

    def restore(self, fields: Mapping[str, Any]) -> str:
        """Go on from what `state` returned; return a sentence on how far that goes, or raise `StateError`."""
        if fields.get("form") != "one" or not isinstance(fields.get("node"), np.ndarray):
            raise StateError(f"expected the state of one node, got {fields.get('form')!r}: discard it")
        node = Node.from_bytes(fields["node"].tobytes())
        try:
            metrics = tuple(str(name) for name in fields.get("metrics", ()))
            if len(set(metrics)) != len(metrics) or node.features not in (None, len(metrics)):
                raise ValueError(f"{len(metrics)} names for {node.features} metrics")
            node, how = self._settled(node, metrics)
            self.record.restore({key.removeprefix("record_"): value for key, value in fields.items()})
            self.probes.restore({key.removeprefix("probes_"): value for key, value in fields.items()})
        except (TypeError, ValueError, OverflowError) as error:
            raise StateError(
                f"the state of one node must have its own kind of values, got {error}"
            ) from error
        self.node, self.schema = node, Schema(metrics, patience=self._patience)
        self._restored = True
        return how

    def _settled(self, node: Node, metrics: tuple[str, ...]) -> tuple[Node, str]:
        """Return a restored node with the embedding and signal that are asked for now, and how far it goes on."""
        embedding, signal = _fresh_parts(self._build, metrics)
        if _part(node.embedding) != embedding:
            return self._build(
                metrics
            ), f"cold, {len(metrics)} metrics: the settings of the embedding changed"
        how = f"warm, {len(metrics)} metrics"
        if _part(node.signal) == signal:
            return node, how
        node.signal = self._build(metrics).signal
        return node, f"{how}, but the signal starts anew: its settings changed"

    def _begin(self, metrics: tuple[str, ...]) -> None:
        """Take the first sample's metrics, unless saved state still fits them."""
        if self.schema is not None and self.node is not None:
            if known_share(self.schema.metrics, metrics) >= FAMILIAR_SHARE:
                return
            self.message = "starting cold: the saved state is of other metrics"
        self.schema = Schema(metrics, patience=self._patience)
        self.node = self._build(metrics)

    def _rebuild(self, metrics: tuple[str, ...]) -> None:
        old, schema = self.node, self.schema
        assert old is not None
        assert schema is not None
        before, after = set(schema.metrics), set(metrics)
        lost, gained = len(before - after), len(after - before)
        try:
            self.node, how = with_metrics(old, metrics), "the node goes on with the rest"
        except StateError as error:
            self.node, how = self._build(metrics), f"the node starts cold ({error})"
        self.schema = Schema(metrics, patience=self._patience)
        self.rebuilds += 1
        self.message = f"metrics changed for good, {lost} gone and {gained} new: {how}"
        LOG.warning("%s: %s", self.name, self.message)


NamedSettings = tuple[str, Mapping[str, Any]]


def _part(part: Embedding | Signal) -> NamedSettings:
    return part.name, part.settings()


@lru_cache(maxsize=16)
def _fresh_parts(
    build: Callable[[tuple[str, ...]], Node], metrics: tuple[str, ...]
) -> tuple[NamedSettings, NamedSettings]:
    """Return name and settings of a cold node's embedding and signal; thousands are restored with the same."""
    node = build(metrics)
    return _part(node.embedding), _part(node.signal)


class NodeTable:
    """The nodes behind one agent, by name, made when their first samples come.

    A node that sends nothing for a day, while others do, is forgotten. Restored nodes that
    have not been seen again are waited for as long, and not listed meanwhile.

    Attributes
    ----------
    fallback_name
        What the agent is called while it knows no node.
    changed
        Nodes whose signal was raised or lowered at the last timestep.
    left_out
        Samples of nodes beyond `most`.
    message
        What was found in saved state, for people.
    enforcing
        Whether the agent's own gate closes nodes that refuse.
    """

    def __init__(
        self,
        make: Callable[[str, float], LiveNode],
        *,
        name: str,
        gone_seconds: float = GONE_SECONDS,
        most: int = MOST_NODES,
    ) -> None:
        self.fallback_name = name
        self.tally = DecisionCounts()
        self.changed: list[LiveNode] = []
        self.left_out = 0
        self.message = ""
        self.enforcing = False
        self._make = make
        self._gone_seconds, self._most = gone_seconds, most
        self._nodes: dict[str, LiveNode] = {}
        self._unseen: dict[str, LiveNode] = {}  # restored, or without a single number so far
        self._slots: dict[int, LiveNode] = {}
        self._free: list[int] = []
        self._time = 0.0  # seconds in which there was telemetry
        self._stepped_at = math.inf
        self._swept_at = 0.0

    @property
    def names(self) -> list[str]:
        """Names of the nodes seen so far, in the order they came."""
        return list(self._nodes)

    @property
    def only(self) -> LiveNode | None:
        """The node, where there is only one."""
        return next(iter(self._nodes.values())) if len(self._nodes) == 1 else None

    @property
    def features(self) -> int:
        """Metrics of the node that has most."""
        return max((len(one.metrics) for one in self._nodes.values()), default=0)

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[LiveNode]:
        return iter(self._nodes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def get(self, name: str) -> LiveNode | None:
        """Return a node by its name; None where there is none."""
        return self._nodes.get(name)

    def __getitem__(self, name: str) -> LiveNode:
        if name not in self._nodes:
            raise KeyError(f"no node {name!r} among {len(self._nodes)}: GET /v1/nodes lists them")
        return self._nodes[name]

    def begin(self, samples: Sequence[Sample], now: float) -> None:
        """Begin a timestep; `step` is called with each of its samples then."""
        self.changed = []
        if not samples:
            return
        self._time += min(max(0.0, now - self._stepped_at), LONGEST_GAP_SECONDS)
        self._stepped_at = now
        if not self._nodes and len(samples) == len(self._unseen) == 1:
            # The only node that was saved goes on as the only node there is, whatever its name.
            (one,) = self._unseen.values()
            one.name = samples[0].node
            self._unseen = {one.name: one}
        if self._time - self._swept_at >= SWEEP_SECONDS:
            self._forget_gone({sample.node for sample in samples})

    def step(self, sample: Sample, now: float) -> LiveNode | None:
        """Carry a sample to its node's decision; return the node, None while it has none."""
        name = sample.node
        one = self._nodes.get(name) or self._unseen.get(name) or self._new(name, now)
        if one is None:
            self.left_out += 1
            return None
        if not one.step(sample, now, enforcing=self.enforcing):
            return self._nodes.get(name)
        if name not in self._nodes:
            self._nodes[name] = self._unseen.pop(name)
        one.heard = self._time
        if one.turned:
            self.changed.append(one)
        self.tally.add(one.raised, one.turned, one.ready, one.record.tolerance)
        return one

    @property
    def groups(self) -> int:
        """Files that the nodes are saved in."""
        return max(self._slots, default=-1) // GROUP_NODES + 1

    def group(self, number: int) -> list[LiveNode]:
        """Return the nodes of one file."""
        first = number * GROUP_NODES
        return [self._slots[slot] for slot in range(first, first + GROUP_NODES) if slot in self._slots]

    def absent(self, one: LiveNode) -> float:
        """Return for how many seconds of telemetry a node has sent nothing."""
        return self._time - one.heard

    def restore(self, name: str, fields: Mapping[str, Any], absent: float = 0.0) -> str:
        """Go on with a saved node from what `LiveNode.state` returned; say how far that goes."""
        one = self._make(name, self._stepped_at)
        found = one.restore(fields)
        if name in self._unseen:
            self._drop(self._unseen[name])
        if absent <= self._gone_seconds and len(self._slots) < self._most:
            one.heard = self._time - absent
            self._add(one)
        return found

    def _new(self, name: str, now: float) -> LiveNode | None:
        if len(self._slots) >= self._most:
            if not self.left_out:
                LOG.warning("one agent has at most %d nodes: the others are left out", self._most)
            return None
        one = self._make(name, now)
        one.heard = self._time
        self._add(one)
        return one

    def _add(self, one: LiveNode) -> None:
        one.slot = heapq.heappop(self._free) if self._free else len(self._slots)
        self._slots[one.slot] = self._unseen[one.name] = one

    def _drop(self, one: LiveNode) -> None:
        self._nodes.pop(one.name, None)
        self._unseen.pop(one.name, None)
        del self._slots[one.slot]
        heapq.heappush(self._free, one.slot)

    def _forget_gone(self, here: set[str]) -> None:
        self._swept_at = self._time
        for one in list(self._slots.values()):
            if self.absent(one) > self._gone_seconds and one.name not in here:
                self._drop(one)
