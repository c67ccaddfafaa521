"""The nodes that an agent decides for: one or thousands, each a `prontosched.pipeline.node.Node`.

Covers: stepping a node, what is known of it afterwards, and what it answers when asked. Times arrive as numbers.
Files are `prontosched.agent.store.state`.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from prontosched.agent.jobs import AnnouncedJobs
from prontosched.agent.record import DecisionCounts, ProbeRecord, TrackRecord
from prontosched.agent.schema import PATIENCE, Schema, known_share, with_metrics
from prontosched.decision import Decision, Evidence, Signal, State
from prontosched.errors import StateError
from prontosched.pipeline import Embedding
from prontosched.pipeline.node import Node
from prontosched.subspace import Array, Subspace
from prontosched.telemetry.source import Sample

LOG = logging.getLogger("prontosched.agent")
NAN = float("nan")
# Stands for the decision of a node that has made none.
UNDECIDED = Decision(False, NAN, NAN, "", timestep=-1)
OPTION = "a setting of its signal"
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
FAMILIAR_SHARE = 0.5
"""Saved nodes are used when at least this share of their metrics is still there."""
# Steps in a row that fail, after which a node starts anew.
FAILURES = 3
# Signals whose score is always a number; those of others may be what they like.
FINITE_SCORES = ("learned", "paper")


def _any_number(vector: Array) -> bool:
    # Nearly always the first is one: then the others need not be looked at.
    return bool(vector.size and math.isfinite(vector.item(0))) or bool(np.isfinite(vector).any())


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


@dataclass(frozen=True, slots=True)
class Silence:
    """For how many seconds a decision counts, and what is answered once it does not.

    `accept` keeps a broken agent from closing a cluster.
    """

    valid_seconds: float = 10.0
    answer: Literal["accept", "reject"] = "accept"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to "may I send a job here?".

    In the state `contended` contention is expected, and `held_by` says what holds the node open. `enforced` tells
    whether a gate carries refusals out; where none does, it is up to who asks. `raised` is what the signal alone said,
    None before the first decision. The answer has been the same `since` a clock time, and its decision counts until
    `valid_until`. Once telemetry is too old it is `stale`, and a stated policy answers. `offenders` says who
    waits and who runs where the node does not simply accept. Names stay on the node: they are not part of `reason`,
    which schedulers and the federation are told. `ahead` works out the `outlook`, which few ask for.
    """

    node: str
    accept: bool
    state: State
    held_by: str
    enforced: bool
    raised: bool | None
    score: float
    threshold: float
    reason: str
    since: float
    valid_until: float
    age_seconds: float
    stale: bool
    probability: float
    expected_ready: float
    cpu_ready_percent: float
    utilisation_percent: float
    announced_cpus: float
    timestep: int
    offenders: str = ""
    ahead: Callable[[], tuple[tuple[int, float], ...]] = tuple

    @property
    def outlook(self) -> tuple[tuple[int, float], ...]:
        """Chances of contention within further horizons, as of now: pairs of timesteps ahead and chance."""
        return self.ahead()

    @property
    def full_reason(self) -> str:
        """The reason with who waits and who runs, for people on this node."""
        return f"{self.reason}; {self.offenders}" if self.offenders else self.reason

    def as_json(self) -> dict[str, Any]:
        """Return the answer as plain values, null where nothing is known."""
        found = {name: _known(getattr(self, name)) for name in self.__slots__ if name != "ahead"}
        found["reason"] = self.full_reason
        found["outlook"] = [{"steps": steps, "probability": _known(p)} for steps, p in self.outlook]
        return found


def _known(value: Any) -> Any:
    # Infinity less itself is no number either.
    return None if isinstance(value, float) and value - value != 0.0 else value


class LiveNode:
    """One node, built when its first sample tells the metrics, and the newest that is known of it.

    `build` makes a cold node for a list of metrics. `tolerance` and `horizon` say what counts as contention in the
    record, where the signal itself does not tell. After `patience` samples with another set of metrics the node is
    rebuilt for it. Memory: that of `Node`, two more subspaces and the last rejection's vector.

    `seen_at` is when the last vector came and `changed_at` when the state last changed, both on the agent's clock;
    `heard` is the former in seconds of telemetry of the whole agent. `turned` tells whether the last vector raised or
    lowered the signal. `background` is the part of the utilisation that gives way to a job. `slot` is the node's place
    in the files. Until `obeyed_until` a client has declared to obey its refusals.
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

    def answer(
        self,
        announced: AnnouncedJobs,
        silence: Silence,
        *,
        now: float,
        clock: float,
        cpus: float = 0.0,
        among_users: bool = False,
        held_by: str = "",
        trouble: str = "",
        enforced: bool = False,
        offenders: str = "",
    ) -> Answer:
        """Weigh the decision with its age and the jobs on their way into an answer.

        `now` is on the agent's clock, as the node's times are; `clock` is seconds since 1970, only shown: it may jump.
        `cpus` are those of the job asked for, 0 for a general answer. With `among_users`, jobs that ordinary users
        announced are weighed. `held_by` says why the scheduler takes jobs for the node even while it refuses, `trouble`
        why there is no newer decision.
        """
        age = max(0.0, now - self.seen_at)
        decision = self.decision or UNDECIDED
        signal = None if self.node is None or self.decision is None else self.node.signal
        stale = self.decision is None or age > silence.valid_seconds
        # What was busy long ago says nothing of now; announced jobs do.
        full = announced.full(cpus, among_users=among_users) if len(announced) or not stale else None
        accept, reason, changed_at = not decision.raised, decision.reason, self.changed_at
        if stale:
            accept = silence.answer == "accept"
            changed_at = self.seen_at + (0.0 if self.decision is None else silence.valid_seconds)
            lack = f"no telemetry for {age:.0f} s"
            if self.decision is None:
                lack = "no decision yet" if trouble else "no telemetry yet"
            reason = f"{lack}{f' ({trouble})' if trouble else ''}: {silence.answer}ing, as set"
        likely = not stale and expects(decision)
        if not accept and held_by:
            accept = likely = True
        elif accept and likely:
            # The reason names the option that holds a node open.
            held_by = reason.partition("; held open")[2].removeprefix(",").strip() or OPTION
        if accept and full is not None:
            # Full for a job of this size only: then it is so since it was asked.
            accept, reason = False, full
            changed_at = now if announced.full() is None else max(announced.full_since, self.changed_at)
        elif accept:
            changed_at = max(changed_at, announced.freed_at)
        state: State = "refusing" if not accept else "contended" if likely else "accepting"
        return Answer(
            node=self.name,
            accept=accept,
            state=state,
            held_by=held_by if state == "contended" else "",
            enforced=enforced,
            raised=None if self.decision is None else bool(decision.raised),
            score=float(decision.score),
            threshold=float(decision.threshold),
            reason=reason,
            since=clock - max(0.0, now - changed_at),
            valid_until=clock + silence.valid_seconds - age,
            age_seconds=age,
            stale=stale,
            probability=float(decision.probability),
            expected_ready=float(decision.expected_ready),
            cpu_ready_percent=float(self.ready),
            utilisation_percent=float(self.utilisation),
            announced_cpus=announced.cpus,
            timestep=int(decision.timestep),
            ahead=getattr(signal, "outlook", tuple),
            offenders=offenders if likely else "",
        )

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
            node, how, same = self._settled(node, metrics)
            if same:  # what another signal's refusals were worth says nothing of this one's
                self.record.restore({key.removeprefix("record_"): value for key, value in fields.items()})
                self.probes.restore({key.removeprefix("probes_"): value for key, value in fields.items()})
        except (TypeError, ValueError, OverflowError) as error:
            raise StateError(
                f"the state of one node must have its own kind of values, got {error}"
            ) from error
        self.node, self.schema = node, Schema(metrics, patience=self._patience)
        self._restored = True
        return how

    def _settled(self, node: Node, metrics: tuple[str, ...]) -> tuple[Node, str, bool]:
        """Return a restored node with the parts that are asked for now, how far it goes on, and if its signal does."""
        embedding, signal = _fresh_parts(self._build, metrics)
        how = f"warm, {len(metrics)} metrics"
        if _part(node.embedding) != embedding:
            how = f"cold, {len(metrics)} metrics: the settings of the embedding changed"
            return self._build(metrics), how, False
        if _part(node.signal) == signal:
            return node, how, True
        node.signal = self._build(metrics).signal
        return node, f"{how}, but the signal starts anew: its settings changed", False

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

    The agent is called `fallback_name` while it knows no node. `changed` has the nodes whose signal was raised or
    lowered at the last timestep, `left_out` counts samples of nodes beyond `most`, `message` says what was found in
    saved state, and `enforcing` whether the agent's own gate closes nodes that refuse.
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
