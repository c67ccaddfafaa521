"""What a replay leaves behind, and the results of each node that follow from it.

Steps become stretches of time, whose counts are added up in blocks; a tape holds every score in one place for the
measures that need it (ranking, shifts). Memory does not depend on the length of the trace: blocks merge pairwise
when there are too many, and a full tape drops every other stretch. The results of a node are small, so that they
travel from workers as they are.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.limits import limit_figures
from prontosched.evaluation.measures import (
    Mask,
    Stretch,
    any_within,
    at_downtime,
    average_precision,
    binned_scores,
    count_calibration,
    count_honest,
    count_leads,
    count_paper,
    exposure_of_oracle,
    histograms,
    middle_ranks,
    paper_scores,
    rank_bins,
    roc_area,
)
from prontosched.evaluation.nulls import block_weights, draw_shifts, shifted_means
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


class ReplayRecord:
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


DRAWS = 200
SHIFTS = 3000
# A node must have at least this many scored moments to take part in the comparison.
FEWEST_SCORED = 50
BINS = 128
# Of so few nodes a distribution is drawn over their blocks of time.
FEW = 8
COLD = (20, 500)
# Of a method's own decisions, whatever they cost.
OWN = ("own_downtime", "own_recall", "own_precision", "own_contended_accepted", "own_changes_per_hour")
# Moments before a spike that were refused, and how many chance would have refused at the same downtime.
HITS = ("own_hits", "own_hits_by_chance")
# What jobs suffered after moments, and after those that were refused: how many moments, and the sum.
QOS = ("own_qos_moments", "own_qos", "own_qos_refused_moments", "own_qos_refused")
COUNTED = (
    *OWN,
    *HITS,
    *QOS,
    "recall_low",
    "recall",
    "precision_low",
    "precision",
    "exposure_cut",
    "onset_recall",
)
RANKED = ("average_precision", "roc", "quiet_average_precision", "quiet_roc")
STATISTICS = (*COUNTED, *RANKED)
# Latched downtime at which onset recall is read: with w steps per raise, less cannot be reached by many.
LATCHED_AT = 0.3


@dataclass(slots=True)
class NodeSummary:
    """Results of one node; arrays have the methods first.

    Attributes
    ----------
    statistics, draws
        `(methods, len(STATISTICS))` and the same on resampled blocks, `(methods, statistics, draws)`.
    downtime, recall
        Realised at each budget, `(methods, budgets)`.
    paper
        The paper's figures by name, `(methods,)` each.
    leads
        Onsets by lead time, own decisions and at the chosen budget, `(methods, 2, w)`.
    paper_blocks
        The paper's figures of every block of time, `(blocks, methods)`, where nodes are few.
    contended_blocks
        Blocks of time with a spike in or after them.
    refusals
        How often each method began to refuse, `(methods,)`.
    nulls, seen
        Statistics of the circularly shifted signal by name, `(methods, shifts)`, and of the signal as it is.
    """

    node: str
    steps: int
    scored: int
    positive: int
    spikes: int
    onsets: int
    on_tape: int
    contended_blocks: int
    refusals: Array
    statistics: Array
    draws: NDArray[np.float32]
    downtime: Array
    recall: Array
    paper: dict[str, Array]
    leads: Array
    calibration: Array | None
    nulls: dict[str, NDArray[np.float32]]
    seen: dict[str, Array]
    cold_average_precision: Array
    limit: dict[str, Array] = field(default_factory=dict)
    paper_blocks: dict[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeTape:
    """The tape of one node, stretches joined; scores are `(steps, methods)`."""

    label: Mask
    valid: Mask
    quiet: Mask
    spike: Mask
    known: Mask
    future: Array
    score: NDArray[np.float32]
    own: Mask
    chosen: Mask
    step: NDArray[np.int64]
    block: NDArray[np.int64]


def node_tape(record: ReplayRecord, node: int) -> NodeTape:
    """Join what is on tape of one node."""
    parts = record.segments
    steps = [part.start + np.arange(part.label.shape[0]) for part in parts]
    per_block = record.segment * record.per_block
    blocks = [np.full(part.label.shape[0], part.start // per_block) for part in parts]

    def join(name: str) -> Any:
        return np.concatenate([getattr(part, name)[..., node] for part in parts])

    return NodeTape(
        **{name: join(name) for name in ("label", "valid", "quiet", "spike", "known")},
        future=join("future").astype(np.float64),
        score=join("score"),
        own=join("own"),
        chosen=join("chosen"),
        step=np.concatenate(steps),
        block=np.concatenate(blocks).astype(np.int64),
    )


def summarise_node(
    record: ReplayRecord, node: int, name: str, setting: Setting, *, steps_per_hour: int
) -> NodeSummary:
    """Work out all measures of one node; its draws depend on the seed and on its name alone."""
    targets = setting.targets
    generator = np.random.default_rng([setting.seed, zlib.crc32(name.encode())])
    shape = record.shape
    blocks = _of_node(record, node)
    total = {key: value.sum(axis=0) for key, value in blocks.items()}
    weights = block_weights(len(record.blocks), DRAWS, generator)
    drawn = {key: np.tensordot(weights, value, axes=1) for key, value in blocks.items()}
    tape = node_tape(record, node)
    statistics = np.full((shape.methods, len(STATISTICS)), np.nan)
    draws = np.full((shape.methods, len(STATISTICS), DRAWS), np.nan)
    oracle = exposure_of_oracle(tape.future[tape.valid], targets[1])
    for index, key in enumerate(COUNTED):
        if key.startswith("own_"):
            statistics[:, index] = _of_own(key, total, steps_per_hour)
            draws[:, index] = np.moveaxis(_of_own(key, drawn, steps_per_hour), 0, -1)
        else:
            statistics[:, index] = _counted(key, total, targets, oracle)
            draws[:, index] = np.moveaxis(_counted(key, drawn, targets, oracle), 0, -1)
    ranked = len(COUNTED)
    for method in range(shape.methods):
        statistics[method, ranked:], draws[method, ranked:] = _ranked(tape, tape.score[:, method], weights)
    shifts = draw_shifts(tape.label.size, SHIFTS, 5 * max(shape.horizon, shape.window), generator)
    nulls, seen = _shifted(tape, shifts, shape.window)
    downtime, recall = _curve(total)
    return NodeSummary(
        node=name,
        steps=int(total["paper_steps"]),
        scored=int(total["valid"]),
        positive=int(total["positive"]),
        spikes=int(total["paper_spikes"]),
        onsets=int(total["onsets"]),
        on_tape=int(tape.known.sum()),
        contended_blocks=int((blocks["positive"] > 0).sum()),
        refusals=total["refusals"],
        statistics=statistics,
        draws=draws.astype(np.float32),
        downtime=downtime[:, 1:],
        recall=recall[:, 1:],
        paper=_paper(total),
        paper_blocks=_paper_blocks(blocks) if shape.nodes <= FEW else {},
        leads=record.leads[:, node][:, [0, 1 + shape.chosen]],
        calibration=None if record.calibration is None else record.calibration[:, node],
        nulls=nulls,
        seen=seen,
        cold_average_precision=_cold(tape),
        limit=limit_figures(
            tape.chosen,
            tape.own,
            tape.label & tape.valid,
            steps_per_hour=steps_per_hour,
            limit=setting.hourly_limit,
        ),
    )


def _paper(counts: dict[str, Array]) -> dict[str, Array]:
    return paper_scores({key[6:]: value for key, value in counts.items() if key.startswith("paper_")})


def _paper_blocks(blocks: dict[str, Array]) -> dict[str, NDArray[np.float32]]:
    """Return the paper's figures of every block, `(blocks, methods)` each."""
    size = len(blocks["valid"])
    each = [_paper({key: value[place] for key, value in blocks.items()}) for place in range(size)]
    return {key: np.stack([found[key] for found in each]).astype(np.float32) for key in each[0]}


def _cold(tape: NodeTape) -> Array:
    """Return each method's average precision over the first steps, where little has been learned."""
    early = tape.valid & (tape.step >= COLD[0]) & (tape.step < COLD[1])
    scores = tape.score[early].astype(np.float64)
    return np.array([average_precision(scores[:, k], tape.label[early]) for k in range(scores.shape[1])])


def _of_node(record: ReplayRecord, node: int) -> dict[str, Array]:
    """Return the blocks' counts of one node, blocks first: `(blocks, …)`."""
    found: dict[str, Array] = {}
    for key, value in record.blocks[0].items():
        axis = 0 if value.ndim == 1 else 1
        found[key] = np.stack([np.take(block[key], node, axis=axis) for block in record.blocks])
    return found


def _curve(counts: dict[str, Array]) -> tuple[Array, Array]:
    """Return realised downtime and decision recall, `(…, methods, 1 + budgets)`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        downtime = counts["raised"] / counts["valid"][..., None, None]
        recall = counts["hits"] / counts["positive"][..., None, None]
    return downtime, recall


def _of_own(key: str, counts: dict[str, Array], steps_per_hour: int) -> Array:
    """Return one of the figures of the methods' own decisions, `(…, methods)`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        if key in QOS:
            found = counts[key.removeprefix("own_")]
            found = found if "refused" in key else np.broadcast_to(found[..., None], counts["changes"].shape)
        elif key == "own_hits":
            found = counts["hits"][..., 0]
        elif key == "own_hits_by_chance":
            found = counts["raised"][..., 0] * (counts["positive"] / counts["valid"])[..., None]
        elif key == "own_contended_accepted":
            found = counts["contended_accepted"] / counts["contended"][..., None]
        elif key == "own_changes_per_hour":
            found = counts["changes"] / counts["steps_running"][..., None] * steps_per_hour
        elif key == "own_precision":
            found = _precision(counts)[..., 0]
        else:
            found = _curve(counts)[key == "own_recall"][..., 0]
    return np.asarray(found, np.float64)


def _precision(counts: dict[str, Array]) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Array = counts["hits"] / counts["raised"]
    return found


def _counted(key: str, counts: dict[str, Array], targets: tuple[float, float], oracle: float) -> Array:
    """Return one of the statistics that follow from counts, `(…, methods)`."""
    downtime, recall = _curve(counts)
    target = targets[0] if key.endswith("_low") else targets[1]
    if key.startswith("recall"):
        return at_downtime(downtime[..., 1:], recall[..., 1:], target)
    if key.startswith("precision"):
        return at_downtime(downtime[..., 1:], _precision(counts)[..., 1:], target)
    with np.errstate(invalid="ignore", divide="ignore"):
        if key == "onset_recall":
            cost = counts["latched"] / counts["latched_steps"][..., None, None]
            found = counts["latched_onsets"] / counts["onsets"][..., None, None]
            return at_downtime(cost[..., 1:], found[..., 1:], LATCHED_AT)
        accepted = counts["valid"][..., None, None] - counts["raised"]
        overall = (counts["future"] / counts["valid"])[..., None, None]
        cut = 1.0 - counts["accepted_future"] / accepted / overall
        return at_downtime(downtime[..., 1:], cut[..., 1:], target) / oracle


def _ranked(tape: NodeTape, score: NDArray[np.float32], weights: Array) -> tuple[Array, Array]:
    """Return average precision and ROC area over all and over quiet moments, and their draws."""
    exact: list[float] = []
    draws: list[Array] = []
    bins = rank_bins(score.astype(np.float64), BINS)
    for used in (tape.valid, tape.valid & tape.quiet):
        point = (
            average_precision(score[used].astype(np.float64), tape.label[used]),
            roc_area(score[used].astype(np.float64), tape.label[used]),
        )
        counts = histograms(bins, BINS, tape.label, used, tape.block)
        resampled = np.tensordot(weights[:, : counts.shape[0]], counts, axes=1)
        # Bins blur a little: draws are moved so that they scatter around the exact value.
        for value, whole, drawn in zip(
            point, binned_scores(counts.sum(axis=0)), binned_scores(resampled), strict=True
        ):
            exact.append(value)
            draws.append(drawn - whole + value)
    return np.array(exact), np.stack(draws)


def _shifted(
    tape: NodeTape, shifts: Array, window: int
) -> tuple[dict[str, NDArray[np.float32]], dict[str, Array]]:
    """Return the statistics of shifted signals, and the observed ones, for each method."""
    methods = tape.score.shape[1]
    nulls = {
        key: np.full((methods, shifts.size), np.nan, np.float32)
        for key in ("own", "recall", "quiet", "success")
    }
    seen = {key: np.full(methods, np.nan) for key in nulls}
    positive = (tape.label & tape.valid).astype(np.float64)
    anticipated = (tape.label & tape.valid & tape.quiet).astype(np.float64)
    calm = (~tape.label & tape.valid & tape.quiet).astype(np.float64)
    spikes = tape.spike.astype(np.float64)

    def both(name: str, method: int, signal: Array, target: Array, less: Array | None = None) -> None:
        nulls[name][method] = shifted_means(signal, target, shifts)
        seen[name][method] = _mean_at(signal, target)
        if less is not None:
            nulls[name][method] -= shifted_means(signal, less, shifts)
            seen[name][method] -= _mean_at(signal, less)

    for method in range(methods):
        both("own", method, tape.own[:, method].astype(np.float64), positive)
        both("recall", method, tape.chosen[:, method].astype(np.float64), positive)
        both("quiet", method, middle_ranks(tape.score[:, method].astype(np.float64)), anticipated, calm)
        latched = any_within(tape.own[:, method], first=-window, last=0)
        both("success", method, latched.astype(np.float64), spikes)
    return nulls, seen


def _mean_at(signal: Array, target: Array) -> float:
    """Return the mean of `signal` over the moments that `target` marks."""
    moments = float(target.sum())
    return float(signal @ target) / moments if moments > 0 else float("nan")
