"""Carry the rows of many nodes through stages 1 to 4 and let every method see the same evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from prontosched.decision import Decision, Evidence, FleetDecision, FleetEvidence
from prontosched.evaluation.methods import Chunked, Method
from prontosched.evaluation.references import HalfSpaceTrees
from prontosched.evaluation.scorers import Rows, Said, Scorer, Signals, SubspaceDistance
from prontosched.evaluation.windows import Mask
from prontosched.pipeline import EMBEDDINGS
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node import Node
from prontosched.pipeline.presets import PRESETS
from prontosched.pipeline.projection import Projector
from prontosched.pipeline.spikes import SpikeDetector
from prontosched.subspace import Array
from prontosched.telemetry.scaling import Scaling

ACCEPTING = Decision(False, 0.0, 0.0, "accepting: only listening")


class Track(Protocol):
    """The signals of some methods, for all nodes of a chunk, with the stages they look through."""

    def run(self, rows: Rows) -> list[Said]:
        """Let every signal decide on the next rows, and fill in what the embedding shows of them."""
        ...


class NodeListener:
    """The signal of one node: asks several signals and keeps what each said, and what there was to see."""

    name = "listener"

    def __init__(self, signals: list[Any], *, distances: bool, vectors: bool) -> None:
        self.signals = signals
        self.distances = distances
        self.vectors = vectors
        self.said: list[list[tuple[float, bool, float]]] = [[] for _ in signals]
        self.seen: list[tuple[float, float]] = []
        self.scaled: list[Array] = []

    def decide(self, evidence: Evidence) -> Decision:
        """Ask all; accept."""
        for signal, said in zip(self.signals, self.said, strict=True):
            decision = signal.decide(evidence)
            said.append((decision.score, decision.raised, decision.probability))
        if self.distances:
            self.seen.append((evidence.t_squared, evidence.spe))
        if self.vectors and evidence.vector is not None:
            self.scaled.append(evidence.vector)
        return ACCEPTING

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return no state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over no state."""

    def put(self, rows: Rows, place: int, present: Mask, said: list[tuple[Array, Mask, Array]]) -> None:
        """Hand over what was kept of one node, and begin anew."""
        for kept, (score, raised, probability) in zip(self.said, said, strict=True):
            score[present, place], raised[present, place], probability[present, place] = zip(
                *kept, strict=True
            )
            kept.clear()
        if self.distances:
            rows.t_squared[present, place], rows.spe[present, place] = zip(*self.seen, strict=True)
            self.seen.clear()
        if self.vectors:
            rows.scaled[present, place] = self.scaled
            self.scaled.clear()


class SeparateNodes:
    """Every node on its own: for few nodes, and for embeddings without a form for many."""

    def __init__(self, nodes: list[Node] | None, listeners: list[NodeListener]) -> None:
        self._nodes = nodes
        self._listeners = listeners

    def run(self, rows: Rows) -> list[Said]:
        """Carry every node through its rows, one after the other."""
        shape = rows.ready.shape
        said = [
            (np.full(shape, np.nan), np.zeros(shape, bool), np.full(shape, np.nan))
            for _ in self._listeners[0].signals
        ]
        for place, listener in enumerate(self._listeners):
            present = rows.present[:, place]
            if not present.any():
                continue
            columns = (rows.ready, rows.utilisation, rows.time)
            values = zip(*(column[present, place].tolist() for column in columns), strict=True)
            if self._nodes is None:
                steps = rows.timestep[present, place].tolist()
                for step, (ready, busy, time) in zip(steps, values, strict=True):
                    listener.decide(Evidence(step, ready, busy, time))
            else:
                step_on = self._nodes[place].step
                for y, (ready, busy, time) in zip(rows.vectors[present, place], values, strict=True):
                    step_on(y, ready=ready, utilisation=busy, time=time)
            listener.put(rows, place, present, said)
        return [Said(*columns) for columns in said]


class FleetListener:
    """The signal of a fleet: asks several signals and keeps what each said, and what there was to see."""

    def __init__(self, signals: list[Any], *, distances: bool, vectors: bool) -> None:
        self.signals = signals
        self.distances = distances
        self.vectors = vectors
        self.step = 0
        self.rows: Rows | None = None
        self.said: list[tuple[Array, Mask, Array]] = []

    def begin(self, rows: Rows) -> None:
        """Begin with the next rows."""
        shape = rows.ready.shape
        self.step, self.rows = 0, rows
        self.said = [(np.empty(shape), np.empty(shape, bool), np.empty(shape)) for _ in self.signals]

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        """Ask all; accept."""
        step, rows = self.step, self.rows
        assert rows is not None
        for signal, (score, raised, probability) in zip(self.signals, self.said, strict=True):
            decision = signal.decide(evidence)
            score[step], raised[step], probability[step] = (
                decision.score,
                decision.raised,
                decision.probability,
            )
        if self.distances:
            rows.t_squared[step], rows.spe[step] = _distances(evidence)
        if self.vectors:
            rows.scaled[step] = evidence.vectors
        self.step += 1
        nothing = np.zeros(evidence.ready.shape)
        return FleetDecision(nothing > 0, nothing, nothing, evidence.timestep, nothing, nothing, nothing > 0)

    def reason(self, node: int) -> str:
        """Say why; a listener has no reason of its own."""
        return ACCEPTING.reason


class ManyNodes:
    """All nodes as arrays, step by step."""

    def __init__(self, fleet: Fleet | None, listener: FleetListener) -> None:
        self._fleet = fleet
        self._listener = listener

    def run(self, rows: Rows) -> list[Said]:
        """Carry all nodes through the next rows."""
        self._listener.begin(rows)
        columns = (rows.vectors, rows.ready, rows.utilisation, rows.time, rows.present, rows.timestep)
        for Y, ready, utilisation, time, present, timestep in zip(*columns, strict=True):
            if self._fleet is not None:
                self._fleet.step(Y, ready=ready, utilisation=utilisation, time=time, present=present)
            else:
                self._listener.decide(_unseen(ready, utilisation, time, present, timestep))
        present = rows.present
        return [
            Said(np.where(present, score, np.nan), raised & present, np.where(present, probability, np.nan))
            for score, raised, probability in self._listener.said
        ]


def _unseen(ready: Array, utilisation: Array, time: Array, present: Mask, timestep: Any) -> FleetEvidence:
    """Return the evidence of a step that no embedding has looked at."""
    nodes = present.shape[0]
    none, never = np.zeros((nodes, 0)), np.zeros(nodes, bool)
    return FleetEvidence(
        present=present, timestep=timestep, ready=ready, utilisation=utilisation, time=time, vectors=none,
        projections=none, spikes=none.astype(np.int8), singular_values=none, basis=np.zeros((nodes, 0, 0)),
        embedded=never, warm=never, samples=np.zeros(nodes), metrics=None,
    )  # fmt: skip


def _distances(evidence: FleetEvidence) -> tuple[Array, Array]:
    """Return T² and SPE of every node, as `Evidence` does."""
    strengths, squares = evidence.singular_values, evidence.projections**2
    usable = evidence.embedded & (evidence.samples > 0)
    per_sample = np.maximum(evidence.samples, 1.0)[:, None]
    inside = np.where(strengths > 0, squares * per_sample / np.maximum(strengths, 1e-150) ** 2, 0.0).sum(1)
    outside = np.maximum(0.0, (evidence.vectors**2).sum(1) - squares.sum(1))
    return np.where(usable, inside, np.nan), np.where(evidence.embedded, outside, np.nan)


def make_track(
    method: Method, chunk: Chunked, metrics: tuple[str, ...], signals: list[Signals], **seen: bool
) -> Track:
    """Return the stages a method looks through, with signals at their end, for all nodes of a chunk."""
    nodes = len(chunk.nodes)
    arrays = not chunk.few and (not method.embedding or method.embedding == "fpca")
    if arrays:
        listener = FleetListener([signal.fleet(nodes) for signal in signals], **seen)
    else:
        listeners = [NodeListener([signal.one() for signal in signals], **seen) for _ in range(nodes)]
    if not method.embedding:
        return ManyNodes(None, listener) if arrays else SeparateNodes(None, listeners)
    preset = PRESETS[method.preset]
    options = dict(method.options)
    lag = int(options.pop("lag", preset.lag))
    settings = {**preset.embedding[method.embedding], **options}
    settings["rank"] = min(int(settings["rank"]), chunk.features)
    if "block_size" in settings:
        settings["block_size"] = max(int(settings["block_size"]), settings["rank"])
    kind = EMBEDDINGS[method.embedding]
    if arrays:
        every = kind(**settings).settings()
        fleet = Fleet(nodes, chunk.features, listener, lag=lag, scaling=Scaling(), metrics=metrics, **every)
        return ManyNodes(fleet, listener)
    made = [
        Node(kind(**settings), listener, scaling=Scaling(), projector=Projector(lag), detector=SpikeDetector(lag))
        for listener in listeners
    ]  # fmt: skip
    return SeparateNodes(made, listeners)


class Runner:
    """Runs the methods that look through the same embedding."""

    def __init__(self, methods: list[Method], chunk: Chunked, metrics: tuple[str, ...]) -> None:
        self.methods = methods
        self.name = _name(methods)
        made: list[Scorer | Signals] = [method.make(chunk) for method in methods]
        self._scorers = [scorer if not isinstance(scorer, Signals) else None for scorer in made]
        signals = [scorer for scorer in made if isinstance(scorer, Signals)]
        self._track: Track | None = None
        self._distances = any(isinstance(scorer, SubspaceDistance) for scorer in made)
        self._vectors = any(isinstance(scorer, HalfSpaceTrees) for scorer in made)
        if signals or methods[0].embedding:
            self._track = make_track(
                methods[0], chunk, metrics, signals, distances=self._distances, vectors=self._vectors
            )

    def run(self, rows: Rows) -> list[Said]:
        """Return what each method says of the next rows."""
        # What is seen through this embedding belongs to the methods that look through it alone.
        if self._distances:
            rows = replace(
                rows, t_squared=np.full(rows.ready.shape, np.nan), spe=np.full(rows.ready.shape, np.nan)
            )
        if self._vectors:
            rows = replace(rows, scaled=np.zeros(rows.vectors.shape))
        signals = iter([] if self._track is None else self._track.run(rows))
        with np.errstate(invalid="ignore", divide="ignore"):
            return [next(signals) if scorer is None else scorer.score(rows) for scorer in self._scorers]


def _name(methods: list[Method]) -> str:
    """Say what the methods look through, and how many they are."""
    first = methods[0]
    seen = f"{first.embedding}, {first.preset} settings" if first.embedding else "no embedding"
    options = "".join(f", {name} {value}" for name, value in first.options)
    return f"{seen}{options}: {', '.join(method.name for method in methods)}"


def make_runners(methods: list[Method], chunk: Chunked, metrics: tuple[str, ...]) -> list[Runner]:
    """Group methods by what they look through, so that it is computed once."""
    groups: dict[tuple[Any, ...], list[Method]] = {}
    for method in methods:
        seen_through = (method.preset, method.embedding, method.options) if method.embedding else ()
        groups.setdefault(seen_through, []).append(method)
    return [Runner(group, chunk, metrics) for group in groups.values()]
