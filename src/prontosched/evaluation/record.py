"""What a replay leaves behind: counts of everything, and a tape of as much as memory allows.

Covers: turning steps into stretches of time, adding up their counts in blocks, and
keeping a tape for measures that need every score in one place (ranking, shifts).
Memory does not depend on the length of the trace: blocks merge pairwise when there
are too many, and a full tape drops every other stretch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.honest import count_calibration, count_honest, count_leads
from prontosched.evaluation.scores import count_paper
from prontosched.evaluation.stretch import Stretch
from prontosched.evaluation.windows import Mask
from prontosched.subspace import Array

# A block must be much longer than what neighbouring moments share, and a short trace must have several.
SEGMENT = 64
WINDOWS_PER_SEGMENT = 8
MOST_BLOCKS = 64
TAPE_BYTES = 48_000_000


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch on the tape; first axis time, last axis nodes."""

    start: int
    label: Mask
    valid: Mask
    quiet: Mask
    spike: Mask
    known: Mask
    future: NDArray[np.float32]
    score: NDArray[np.float32]
    own: Mask
    chosen: Mask


@dataclass(frozen=True, slots=True)
class Shape:
    """How a replay is recorded.

    Attributes
    ----------
    methods, nodes
        How many of each.
    budgets
        Downtimes at which every method is also raised.
    chosen
        Which of the budgets goes on the tape.
    horizon, window
        As in `Stretch`.
    """

    methods: int
    nodes: int
    budgets: tuple[float, ...]
    chosen: int
    horizon: int
    window: int


class Record:
    """Everything counted of one chunk of nodes.

    Parameters
    ----------
    shape
        What is recorded.
    segment
        Timesteps per stretch; by default eight windows or horizons, at least `SEGMENT`.
    tape_bytes
        Memory for the tape; `TAPE_BYTES` if not given.

    Attributes
    ----------
    segment
        Timesteps per stretch.
    blocks
        Counts that add up, at most `MOST_BLOCKS` of them in the order of time.
    segments
        The tape: every `thinning`-th stretch.
    thinning
        1 while everything is on tape.
    leads, calibration
        As counted by `honest`.
    spent
        Processor time by what it was spent on.
    """

    def __init__(self, shape: Shape, *, segment: int | None = None, tape_bytes: int | None = None) -> None:
        if segment is None:
            segment = max(SEGMENT, WINDOWS_PER_SEGMENT * max(shape.window, shape.horizon))
        self.shape = shape
        self.blocks: list[dict[str, Array]] = []
        self.per_block = 1
        self.segments: list[Segment] = []
        self.thinning = 1
        self.spent: dict[str, float] = {}
        self.leads = np.zeros((shape.methods, shape.nodes, 1 + len(shape.budgets), shape.window))
        self.calibration: Array | None = None
        self._past = max(shape.window, shape.horizon) + 1
        self._ahead = max(shape.horizon, shape.window)
        self.segment = segment
        self._settled = 0
        self._in_block = 0
        per_segment = segment * shape.nodes * (9 + 6 * shape.methods)
        self._most_segments = max(8, (TAPE_BYTES if tape_bytes is None else tape_bytes) // per_segment)
        steps, nodes, methods = self._past + segment + self._ahead, shape.nodes, shape.methods
        self._ready = np.full((steps, nodes), np.nan)
        self._threshold = np.full((steps, nodes), np.nan)
        self._known = np.zeros((steps, nodes), bool)
        self._gap = np.zeros((steps, nodes), bool)
        self._qos = np.full((steps, nodes), np.nan)
        self._score = np.full((steps, methods, nodes), np.nan)
        self._probability = np.full((steps, methods, nodes), np.nan)
        self._raised = np.zeros((steps, methods, nodes, 1 + len(shape.budgets)), bool)
        self._filled = self._past

    def extend(
        self, *, ready: Array, threshold: Array, known: Mask, gap: Mask, score: Array, probability: Array,
        own: Mask, at_budgets: Mask, qos: Array | None = None,
    ) -> None:  # fmt: skip
        """Take in some timesteps: `(steps, nodes)`, `(steps, methods, nodes)` and with budgets as last axis."""
        qos = np.full(ready.shape, np.nan) if qos is None else qos
        raised = np.concatenate([own[..., None], at_budgets], axis=-1)
        given = (ready, threshold, known, gap, qos, score, probability, raised)
        taken, steps = 0, ready.shape[0]
        while taken < steps:
            at = self._filled
            size = min(steps - taken, self._ready.shape[0] - at)
            for held, new in zip(self._held(), given, strict=True):
                held[at : at + size] = new[taken : taken + size]
            self._filled, taken = at + size, taken + size
            if self._filled == self._ready.shape[0]:
                self._settle(self._past + self.segment)
                kept = self._past + self._ahead
                for held in self._held():
                    held[:kept] = held[self.segment : self.segment + kept]
                self._filled = kept

    def finish(self) -> None:
        """Settle what is left; nothing can be put in afterwards."""
        last = self._filled
        self._known[last:] = False
        self._qos[last:] = np.nan
        self._raised[last:] = False
        self._gap[last:] = False
        if last > self._past:
            self._settle(last)
        self._close_block()

    def _held(self) -> tuple[NDArray[np.generic], ...]:
        return (
            self._ready, self._threshold, self._known, self._gap, self._qos, self._score, self._probability,
            self._raised,
        )  # fmt: skip

    def _settle(self, stop: int) -> None:
        stretch = Stretch(
            self._ready, self._threshold, self._known, self._gap, self._score, self._probability,
            self._raised, (self._past, stop), self.shape.horizon, self.shape.window, self._qos,
        )  # fmt: skip
        self._add({**count_honest(stretch), **{f"paper_{k}": v for k, v in count_paper(stretch).items()}})
        self.leads += count_leads(stretch)
        if np.isfinite(self._probability).any():
            found = count_calibration(stretch)
            self.calibration = found if self.calibration is None else self.calibration + found
        if (self._settled // self.segment) % self.thinning == 0:
            self._keep(stretch)
        self._settled += stop - self._past

    def _add(self, counts: dict[str, Array]) -> None:
        if self._in_block == 0:
            self.blocks.append(counts)
        else:
            newest = self.blocks[-1]
            self.blocks[-1] = {name: newest[name] + counts[name] for name in counts}
        self._in_block += 1
        if self._in_block == self.per_block:
            self._close_block()

    def _close_block(self) -> None:
        self._in_block = 0
        if len(self.blocks) >= MOST_BLOCKS:
            pairs = zip(self.blocks[::2], self.blocks[1::2], strict=True)
            self.blocks = [{name: one[name] + two[name] for name in one} for one, two in pairs]
            self.per_block *= 2

    def _keep(self, stretch: Stretch) -> None:
        part = stretch.part
        self.segments.append(
            Segment(
                start=self._settled,
                label=stretch.label[part].copy(),
                valid=stretch.valid[part].copy(),
                quiet=stretch.quiet[part].copy(),
                spike=stretch.spike[part].copy(),
                known=stretch.known[part].copy(),
                future=stretch.future[part].astype(np.float32),
                score=stretch.score[part].astype(np.float32),
                own=stretch.raised[part][..., 0].copy(),
                chosen=stretch.raised[part][..., 1 + self.shape.chosen].copy(),
            )
        )
        if len(self.segments) >= self._most_segments:
            self.segments = self.segments[::2]
            self.thinning *= 2
