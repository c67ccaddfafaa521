"""One node, looked at closely: what the paper's example figures are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prontosched.evaluation.inputs import Part
from prontosched.evaluation.truth import Truth
from prontosched.evaluation.windows import Mask
from prontosched.pipeline.presets import make_node
from prontosched.subspace import Array

UNITS = {"percent": "% of a CPU", "ms": "ms per interval"}
LOOKED_AT = 6000
SHOWN = 160


@dataclass(frozen=True, slots=True)
class Example:
    """Some consecutive timesteps of one node under the published signal.

    Attributes
    ----------
    node
        Its name.
    start
        Timestep of the first.
    projections, spikes
        `(steps, rank)`.
    score, raised, ready, threshold
        `(steps,)`.
    unit
        Of CPU Ready, in words.
    """

    node: str
    start: int
    projections: Array
    spikes: Array
    score: Array
    raised: Mask
    ready: Array
    threshold: Array
    unit: str = ""

    def part(self, start: int, stop: int) -> Example:
        """Return some of the steps."""
        cut = slice(start, stop)
        return Example(self.node, self.start + start, self.projections[cut], self.spikes[cut], self.score[cut],
                       self.raised[cut], self.ready[cut], self.threshold[cut], self.unit)  # fmt: skip


def look(part: Part, truth: str, *, lag: int = 10, steps: int = LOOKED_AT) -> Example | None:
    """Replay the first steps of the first node; None if it has too few."""
    feed, unit = part.open()
    node = make_node("paper", lag=lag)
    learner = Truth.parse(truth).learner(1, trace_unit=unit, interval_seconds=feed.interval_seconds)
    rows: list[tuple[list[float], list[int], float, bool, float, float]] = []
    early: list[Array] = []
    name, rank = "", 4
    try:
        for chunks in feed.aligned(256):
            chunk = chunks[0]
            if name and chunk.node != name:
                break
            name = chunk.node
            for y, ready in zip(chunk.vectors, chunk.ready, strict=True):
                threshold = float(learner.threshold()[0])
                learner.learn(np.array([ready]))
                decision = node.step(y, ready=float(ready))
                seen = node.evidence
                assert seen is not None
                if seen.subspace is None and seen.vector is not None:
                    early.append(seen.vector)
                elif early and seen.subspace is not None:
                    # The vectors of the first block, on the subspace it gave.
                    for at, projected in enumerate(np.stack(early) @ seen.subspace.basis):
                        rows[at] = ([*projected.tolist(), *[np.nan] * rank][:rank], *rows[at][1:])
                    early = []
                projections = [*seen.projections, *[np.nan] * rank][:rank]
                spikes = [*(seen.spikes or []), *[0] * rank][:rank]
                rows.append((projections, spikes, decision.score, decision.raised, float(ready), threshold))
            if len(rows) >= steps:
                break
    finally:
        feed.close()
    if len(rows) < 4 * lag:
        return None
    columns = list(zip(*rows, strict=True))
    return Example(name, 0, np.array(columns[0]), np.array(columns[1]), np.array(columns[2]),
                   np.array(columns[3], bool), np.array(columns[4]), np.array(columns[5]),
                   UNITS.get(unit, "the trace’s own unit"))  # fmt: skip


def busiest(example: Example, steps: int = SHOWN) -> Example:
    """Return the stretch in which most happens: raises and spikes, both if there is such a place."""
    with np.errstate(invalid="ignore"):
        spikes = example.ready >= example.threshold
    starts = np.concatenate([[False], ~spikes[:-1]]) & spikes
    happened = np.minimum(_moving(starts, steps), 6) + np.minimum(_moving(example.raised, steps), 6)
    happened[: 2 * 10] = -1
    start = int(np.argmax(happened))
    return example.part(start, start + steps)


def _moving(events: Mask, steps: int) -> Array:
    sums = np.concatenate([[0], np.cumsum(events)])
    stop = np.minimum(np.arange(events.size) + steps, events.size)
    found: Array = (sums[stop] - sums[:-1]).astype(np.float64)
    return found
