"""Carry many nodes through stages 1 to 4 and let every method see the same evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from prontosched.decision import Decision, Evidence, FleetDecision, FleetEvidence
from prontosched.embedding import EMBEDDINGS
from prontosched.evaluation.methods import Chunked, Method
from prontosched.evaluation.scorers import Prepared, Said, Scorer, SeparateSignals
from prontosched.evaluation.windows import Mask
from prontosched.fleet import Fleet
from prontosched.node import Node
from prontosched.presets import PRESETS
from prontosched.projection import Projector
from prontosched.spikes import SpikeDetector
from prontosched.subspace import Array
from prontosched.telemetry.scaling import Scaling


class Panel:
    """A signal that asks several methods and keeps what each said."""

    name = "panel"

    def __init__(self, asked: list[Scorer]) -> None:
        self.asked = asked
        self.threshold: Array = np.zeros(0)
        self.heard: list[Said] = []

    def decide(self, evidence: FleetEvidence, seen: list[Evidence | None] | None = None) -> FleetDecision:
        """Ask all; answer with what the first said. `seen` is the evidence node by node, where there is such."""
        self.heard = [
            scorer.say(evidence, self.threshold)
            if seen is None or not isinstance(scorer, SeparateSignals)
            else scorer.say_each(seen, evidence.present)
            for scorer in self.asked
        ]
        first = self.heard[0]
        nothing = np.full(first.score.shape, np.nan)
        return FleetDecision(
            first.raised,
            first.score,
            nothing,
            evidence.timestep,
            first.probability,
            nothing,
            first.raised,
        )

    def reason(self, node: int) -> str:
        """Say why; a panel has no reason of its own."""
        return "several methods were asked"


class Track(Protocol):
    """Stages 1 to 4 for many nodes; the panel is asked at every step."""

    def step(self, Y: Array, *, ready: Array, utilisation: Array, time: Array, present: Mask) -> Any:
        """Take one vector per node."""
        ...


class Plain:
    """No embedding: methods that look at CPU Ready, utilisation or nothing need none."""

    def __init__(self, nodes: int, panel: Panel) -> None:
        self._panel = panel
        self._timestep = np.zeros(nodes, np.int64)

    def step(self, Y: Array, *, ready: Array, utilisation: Array, time: Array, present: Mask) -> None:
        """Show the panel what needs no embedding."""
        nodes = present.shape[0]
        none, never = np.zeros((nodes, 0)), np.zeros(nodes, bool)
        self._panel.decide(
            FleetEvidence(
                present=present, timestep=self._timestep, ready=ready, utilisation=utilisation, time=time,
                vectors=none, projections=none, spikes=none.astype(np.int8), singular_values=none,
                basis=np.zeros((nodes, 0, 0)), embedded=never, warm=never, samples=np.zeros(nodes),
                metrics=None,
            )
        )  # fmt: skip
        self._timestep += present


class Nodes:
    """Separate nodes, their evidence put side by side: for few nodes, and embeddings without arrays."""

    def __init__(self, nodes: list[Node], panel: Panel, rank: int) -> None:
        self._nodes = nodes
        self._panel = panel
        self._rank = rank

    def step(self, Y: Array, *, ready: Array, utilisation: Array, time: Array, present: Mask) -> None:
        """Let every present node step, then show the panel what they saw."""
        for place in np.flatnonzero(present):
            self._nodes[place].step(
                Y[place], ready=float(ready[place]), utilisation=float(utilisation[place]), time=float(time[place])
            )  # fmt: skip
        seen = [node.evidence for node in self._nodes]
        self._panel.decide(self._evidence(seen, Y, ready, utilisation, time, present), seen)

    def _evidence(
        self,
        seen: list[Evidence | None],
        Y: Array,
        ready: Array,
        utilisation: Array,
        time: Array,
        present: Mask,
    ) -> FleetEvidence:
        nodes, features, rank = *Y.shape, self._rank
        projections, strengths = np.zeros((nodes, rank)), np.zeros((nodes, rank))
        spikes = np.zeros((nodes, rank), np.int8)
        basis, vectors = np.zeros((nodes, features, rank)), np.zeros((nodes, features))
        embedded, warm = np.zeros(nodes, bool), np.zeros(nodes, bool)
        samples, timestep = np.zeros(nodes), np.zeros(nodes, np.int64)
        for place, evidence in enumerate(seen):
            if evidence is None:
                continue
            timestep[place], samples[place] = evidence.timestep, evidence.samples
            vectors[place] = evidence.vector
            if evidence.subspace is None:
                continue
            held = min(rank, len(evidence.projections))
            embedded[place] = True
            projections[place, :held] = evidence.projections[:held]
            strengths[place, :held] = evidence.subspace.singular_values[:held]
            basis[place, :, :held] = evidence.subspace.basis[:, :held]
            if evidence.spikes is not None:
                warm[place] = True
                spikes[place, :held] = evidence.spikes[:held]
        return FleetEvidence(
            present=present, timestep=timestep, ready=ready, utilisation=utilisation, time=time, vectors=vectors,
            projections=projections, spikes=spikes, singular_values=strengths, basis=basis, embedded=embedded,
            warm=warm, samples=samples, metrics=None,
        )  # fmt: skip


class Listener:
    """A node's signal that decides nothing: the panel decides from the evidence."""

    name = "listener"

    def decide(self, evidence: Evidence) -> Decision:
        """Accept."""
        return Decision(False, 0.0, 0.0, "accepting: only listening", evidence.timestep)

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return no state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over no state."""


def make_track(method: Method, chunk: Chunked, metrics: tuple[str, ...], panel: Panel) -> Track:
    """Return the stages a method looks through, for all nodes of a chunk."""
    nodes = len(chunk.nodes)
    if not method.embedding:
        return Plain(nodes, panel)
    preset = PRESETS[method.preset]
    options = dict(method.options)
    lag = int(options.pop("lag", preset.lag))
    settings = {**preset.embedding[method.embedding], **options}
    settings["rank"] = min(int(settings["rank"]), chunk.features)
    if "block_size" in settings:
        settings["block_size"] = max(int(settings["block_size"]), settings["rank"])
    kind = EMBEDDINGS[method.embedding]
    if method.embedding == "fpca" and not chunk.few:
        every = kind(**settings).settings()
        return Fleet(nodes, chunk.features, panel, lag=lag, scaling=Scaling(), metrics=metrics, **every)
    made = [
        Node(kind(**settings), Listener(), scaling=Scaling(), projector=Projector(lag), detector=SpikeDetector(lag))
        for _ in range(nodes)
    ]  # fmt: skip
    return Nodes(made, panel, settings["rank"])


class Runner:
    """Runs the methods that look through the same embedding."""

    def __init__(self, methods: list[Method], chunk: Chunked, metrics: tuple[str, ...]) -> None:
        self.methods = methods
        self.panel = Panel([method.make(chunk) for method in methods])
        self._track = make_track(methods[0], chunk, metrics, self.panel)

    def prepare(self, ready: Array, utilisation: Array, threshold: Array, time: Array) -> None:
        """Show the next steps, `(steps, nodes)`, to methods that would rather score several at a time."""
        for scorer in self.panel.asked:
            if isinstance(scorer, Prepared):
                scorer.prepare(ready, utilisation, threshold, time)

    def step(
        self, Y: Array, *, ready: Array, utilisation: Array, time: Array, present: Mask, threshold: Array
    ) -> list[Said]:
        """Carry one vector per node through, and return what each method says."""
        self.panel.threshold = threshold
        self._track.step(Y, ready=ready, utilisation=utilisation, time=time, present=present)
        return self.panel.heard


def make_runners(methods: list[Method], chunk: Chunked, metrics: tuple[str, ...]) -> list[Runner]:
    """Group methods by what they look through, so that it is computed once."""
    groups: dict[tuple[Any, ...], list[Method]] = {}
    for method in methods:
        seen_through = (method.preset, method.embedding, method.options) if method.embedding else ()
        groups.setdefault(seen_through, []).append(method)
    return [Runner(group, chunk, metrics) for group in groups.values()]
