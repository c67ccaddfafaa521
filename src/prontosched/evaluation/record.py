"""What a replay leaves behind, and the results of each node that follow from it.

Steps become stretches of time, whose counts are added up in blocks; a tape holds every score in one place for the
measures that need it (ranking, shifts). Memory does not depend on the length of the trace: blocks merge pairwise
when there are too many, and a full tape drops every other stretch. The results of a node are small, so that they
travel from workers as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.measures import (
    AT_ONCE,
    Mask,
    Ranks,
    Stretch,
    any_within,
    areas,
    at_downtime,
    count_calibration,
    count_honest,
    count_leads,
    count_paper,
    drawn_scores,
    exposure_of_oracle,
    histograms,
    paper_scores,
    worst_hour,
)
from prontosched.evaluation.nulls import ShiftTotals, block_weights, draw_shifts
from prontosched.subspace import Array

# A block must be much longer than what neighbouring moments share, and a short trace must have several.
SEGMENT = 64
WINDOWS_PER_SEGMENT = 8
MOST_BLOCKS = 64
TAPE_BYTES = 48_000_000
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
AT_BUDGET = ("recall_low", "recall", "precision_low", "precision", "exposure_cut", "onset_recall")
COUNTED = (*OWN, *HITS, *QOS, *AT_BUDGET)
STATISTICS = (*COUNTED, "average_precision", "roc", "quiet_average_precision", "quiet_roc")
# Latched downtime at which onset recall is read: with w steps per raise, less cannot be reached by many.
LATCHED_AT = 0.3
NULL_STATISTICS = ("own", "recall", "quiet", "success")


@dataclass(frozen=True, slots=True)
class Tape:
    """Some timesteps as they happened: first axis time, last axis nodes, unless it is of one node.

    `score`, `own` and `chosen` (raised by its own decision, and at the chosen budget) have the methods in between.
    """

    label: Mask
    valid: Mask
    quiet: Mask
    spike: Mask
    known: Mask
    future: NDArray[np.float32]
    score: NDArray[np.float32]
    own: Mask
    chosen: Mask
    step: NDArray[np.int64]


class ReplayRecord:
    """Everything counted of one part of nodes, in stretches of eight windows or horizons, at least `SEGMENT` steps."""

    def __init__(self, setting: Setting, methods: int, nodes: int) -> None:
        self.setting, self.methods, self.nodes = setting, methods, nodes
        # Which of the budgets goes on the tape.
        self.chosen = setting.budgets.index(setting.budget)
        around = max(setting.window, setting.horizon)
        self.segment = segment = max(SEGMENT, WINDOWS_PER_SEGMENT * around)
        # Counts that add up, at most `MOST_BLOCKS` of them in the order of time.
        self.blocks: list[dict[str, Array]] = []
        self.per_block = 1
        # The tape: every `thinning`-th stretch.
        self.segments: list[Tape] = []
        self.thinning = 1
        # Processor time by what it was spent on.
        self.spent: dict[str, float] = {}
        self.leads = np.zeros((methods, nodes, 1 + len(setting.budgets), setting.window))
        self.calibration: Array | None = None
        self._past, self._ahead = around + 1, around
        self._settled = self._in_block = 0
        self._most_segments = max(8, TAPE_BYTES // (segment * nodes * (9 + 6 * methods)))
        self._steps = self._past + segment + self._ahead
        of_nodes, of_methods = (self._steps, nodes), (self._steps, methods, nodes)
        self._buffers: dict[str, NDArray[Any]] = {
            "ready": np.full(of_nodes, np.nan),
            "threshold": np.full(of_nodes, np.nan),
            "known": np.zeros(of_nodes, bool),
            "gap": np.zeros(of_nodes, bool),
            "qos": np.full(of_nodes, np.nan),
            "score": np.full(of_methods, np.nan),
            "probability": np.full(of_methods, np.nan),
            "raised": np.zeros((*of_methods, 1 + len(setting.budgets)), bool),
        }
        self._filled = self._past

    def extend(self, *, own: Mask, at_budgets: Mask, **given: NDArray[Any]) -> None:
        """Take in some timesteps of everything that `Stretch` has; raises at the budgets have one axis more."""
        given["raised"] = np.concatenate([own[..., None], at_budgets], axis=-1)
        given.setdefault("qos", np.full(given["ready"].shape, np.nan))
        taken, steps = 0, len(own)
        while taken < steps:
            at = self._filled
            size = min(steps - taken, self._steps - at)
            for name, held in self._buffers.items():
                held[at : at + size] = given[name][taken : taken + size]
            self._filled, taken = at + size, taken + size
            if self._filled == self._steps:
                self._settle(self._past + self.segment)
                kept = self._past + self._ahead
                for held in self._buffers.values():
                    held[:kept] = held[self.segment : self.segment + kept]
                self._filled = kept

    def finish(self) -> None:
        """Settle what is left; nothing can be put in afterwards."""
        last = self._filled
        for name, nothing in (("known", False), ("qos", np.nan), ("raised", False), ("gap", False)):
            self._buffers[name][last:] = nothing
        if last > self._past:
            self._settle(last)
        self._close_block()
        # By kind, `(blocks, nodes)` or `(blocks, methods, nodes, …)`, and block by block the same memory.
        keys = self.blocks[0] if self.blocks else ()
        self.counts = {key: np.stack([block[key] for block in self.blocks]) for key in keys}
        self.blocks = [{key: value[k] for key, value in self.counts.items()} for k in range(len(self.blocks))]

    def _settle(self, stop: int) -> None:
        inner, setting = (self._past, stop), self.setting
        stretch = Stretch(**self._buffers, inner=inner, horizon=setting.horizon, window=setting.window)
        self._add({**count_honest(stretch), **{f"paper_{k}": v for k, v in count_paper(stretch).items()}})
        self.leads += count_leads(stretch)
        if np.isfinite(stretch.probability).any():
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
        names = ("label", "valid", "quiet", "spike", "known")
        raised = stretch.raised[part]
        self.segments.append(
            Tape(
                **{name: getattr(stretch, name)[part].copy() for name in names},
                future=stretch.future[part].astype(np.float32),
                score=stretch.score[part].astype(np.float32),
                own=raised[..., 0].copy(),
                chosen=raised[..., 1 + self.chosen].copy(),
                step=self._settled + np.arange(len(raised)),
            )
        )
        if len(self.segments) >= self._most_segments:
            self.segments = self.segments[::2]
            self.thinning *= 2

    def tape_of(self, node: int) -> tuple[Tape, NDArray[np.int64]]:
        """Join what is on tape of one node; return also in which block each step is."""

        def join(name: str) -> Any:
            parts = [getattr(part, name) for part in self.segments]
            return np.concatenate([part if name == "step" else part[..., node] for part in parts])

        starts = [np.full(len(part.step), part.step[0]) for part in self.segments]
        block = np.concatenate(starts) // (self.segment * self.per_block)
        return Tape(**{one.name: join(one.name) for one in fields(Tape)}), block


@dataclass(slots=True)
class NodeSummary:
    """Results of one node; arrays have the methods first."""

    node: str
    steps: int
    scored: int
    positive: int
    spikes: int
    onsets: int
    on_tape: int
    blocks: int  # of time in which it has rows
    contended: Array  # beginning and end of each block of time with a spike in or after it, in seconds, `(blocks, 2)`
    refusals: Array  # how often each method began to refuse
    statistics: Array  # `(methods, len(STATISTICS))`
    draws: NDArray[np.float32]  # the same on resampled blocks, `(methods, statistics, draws)`
    downtime: Array  # realised at each budget, `(methods, budgets)`
    recall: Array  # the same
    paper: dict[str, Array]  # the paper's figures by name
    leads: Array  # onsets by lead time, own decisions and at the chosen budget, `(methods, 2, w)`
    calibration: Array | None
    nulls: dict[str, NDArray[np.float32]]  # statistics of the shifted signal, `(methods, shifts)`
    seen: dict[str, Array]  # and of the signal as it is
    cold_average_precision: Array
    worst_hour: Array
    paper_blocks: dict[str, NDArray[np.float32]]  # of every block, where nodes are few, `(blocks, methods)`


def summarise_node(
    record: ReplayRecord, node: int, name: str, *, began: float, interval_seconds: float
) -> NodeSummary:
    """Work out all measures of one node, whose first row is of the time `began`.

    Nodes of one length are drawn and shifted alike: what happened on all of them at once happened once.
    """
    setting, steps_per_hour = record.setting, 3600.0 / interval_seconds
    blocks = {key: np.take(value, node, min(value.ndim - 1, 2)) for key, value in record.counts.items()}
    total = {key: value.sum(axis=0) for key, value in blocks.items()}
    # The blocks in which this node has rows; others of its part may be longer, or stand before it in their file.
    held = blocks["paper_steps"] > 0
    if not held.any():
        held[:] = True
    weights = np.zeros((DRAWS, held.size))
    weights[:, held] = block_weights(int(held.sum()), DRAWS, np.random.default_rng([setting.seed, 101]))
    long = record.segment * record.per_block * interval_seconds
    contended = began + long * np.flatnonzero(blocks["positive"][held] > 0)
    drawn = {key: np.tensordot(weights, value, axes=1) for key, value in blocks.items()}
    tape, block = record.tape_of(node)
    oracle = exposure_of_oracle(tape.future[tape.valid].astype(np.float64), setting.targets[1])
    counted = [
        np.stack(list(_counted(counts, setting.targets, oracle, steps_per_hour).values()), axis=-1)
        for counts in (total, drawn)
    ]
    ranks = [Ranks(score.astype(np.float64)) for score in tape.score.T]
    ranked, drawn_ranks = _ranked(tape, ranks, block, weights)
    nulls, seen = _shifted(tape, ranks, setting)
    with np.errstate(invalid="ignore", divide="ignore"):
        downtime, recall = total["raised"] / total["valid"], total["hits"] / total["positive"]
    return NodeSummary(
        node=name,
        steps=int(total["paper_steps"]),
        scored=int(total["valid"]),
        positive=int(total["positive"]),
        spikes=int(total["paper_spikes"]),
        onsets=int(total["onsets"]),
        on_tape=int(tape.known.sum()),
        blocks=int(held.sum()),
        contended=np.stack([contended, contended + long], axis=1),
        refusals=total["refusals"],
        statistics=np.concatenate([counted[0], ranked], axis=1),
        draws=np.concatenate([np.moveaxis(counted[1], 0, -1).astype(np.float32), drawn_ranks], axis=1),
        downtime=downtime[:, 1:],
        recall=recall[:, 1:],
        paper=_paper(total),
        paper_blocks={k: v.astype(np.float32) for k, v in _paper(blocks).items()}
        if record.nodes <= FEW
        else {},
        leads=record.leads[:, node][:, [0, 1 + record.chosen]],
        calibration=None if record.calibration is None else record.calibration[:, node],
        nulls=nulls,
        seen=seen,
        cold_average_precision=_cold(tape, ranks),
        worst_hour=worst_hour(tape.own, steps_per_hour=max(1, round(steps_per_hour))),
    )


def _paper(counts: dict[str, Array]) -> dict[str, Array]:
    """Return the paper's figures of counts, `(…, methods)` each."""
    found = {key[6:]: value for key, value in counts.items() if key.startswith("paper_")}
    return paper_scores({key: v[..., None] if key in ("spikes", "steps") else v for key, v in found.items()})


def _cold(tape: Tape, ranks: list[Ranks]) -> Array:
    """Return each method's average precision over the first steps, where little has been learned."""
    # Nodes that stand later in their file begin later on the tape.
    step = tape.step - tape.step[int(tape.known.argmax())]
    early = tape.valid & (step >= COLD[0]) & (step < COLD[1])
    return areas(ranks, tape.label, early)[:, 0]


def _counted(
    counts: dict[str, Array], targets: tuple[float, float], oracle: float, steps_per_hour: float
) -> dict[str, Array]:
    """Return the statistics that follow from counts, those of `COUNTED` in order, `(…, methods)` each."""
    low, chosen = targets
    with np.errstate(invalid="ignore", divide="ignore"):
        valid, positive = counts["valid"][..., None, None], counts["positive"][..., None, None]
        raised, hits = counts["raised"], counts["hits"]
        downtime, recall, precision = raised / valid, hits / positive, hits / raised
        overall = (counts["future"] / counts["valid"])[..., None, None]
        cut = 1.0 - counts["accepted_future"] / (valid - raised) / overall
        latched = counts["latched"] / counts["latched_steps"][..., None, None]
        onsets = counts["latched_onsets"] / counts["onsets"][..., None, None]
        changes = counts["changes"]
        own = {
            "own_downtime": downtime[..., 0],
            "own_recall": recall[..., 0],
            "own_precision": precision[..., 0],
            "own_contended_accepted": counts["contended_accepted"] / counts["contended"][..., None],
            "own_changes_per_hour": changes / counts["steps_running"][..., None] * steps_per_hour,
            "own_hits": hits[..., 0],
            "own_hits_by_chance": raised[..., 0] * (counts["positive"] / counts["valid"])[..., None],
            "own_qos_moments": np.broadcast_to(counts["qos_moments"][..., None], changes.shape),
            "own_qos": np.broadcast_to(counts["qos"][..., None], changes.shape),
            "own_qos_refused_moments": counts["qos_refused_moments"],
            "own_qos_refused": counts["qos_refused"],
        }
        costs, recalls, precisions = (curve[..., 1:] for curve in (downtime, recall, precision))
        recall_low, precision_low = at_downtime(costs, low, recalls, precisions)
        at_chosen = at_downtime(costs, chosen, recalls, precisions, cut[..., 1:])
        (onset_recall,) = at_downtime(latched[..., 1:], LATCHED_AT, onsets[..., 1:])
        read = {
            "recall_low": recall_low,
            "recall": at_chosen[0],
            "precision_low": precision_low,
            "precision": at_chosen[1],
            "exposure_cut": at_chosen[2] / oracle,
            "onset_recall": onset_recall,
        }
    return {**own, **read}


def _ranked(
    tape: Tape, ranks: list[Ranks], block: NDArray[np.int64], weights: Array
) -> tuple[Array, NDArray[np.float32]]:
    """Return average precision and ROC area over all and over quiet moments, and their draws, for each method."""
    moments = (tape.valid, tape.valid & tape.quiet)
    bins = [rank.bins(BINS) for rank in ranks]
    each = [histograms(place, BINS, tape.label, used, block) for place in bins for used in moments]
    counts = np.stack(each, axis=2)
    exact = np.stack([areas(ranks, tape.label, used) for used in moments], axis=1).reshape(-1, 2)
    # The first draw takes every block once.
    drawn = np.stack(drawn_scores(counts, np.insert(weights, 0, 1.0, axis=0)[:, : counts.shape[3]]), axis=1)
    # Bins blur a little: draws are moved so that they scatter around the exact value.
    drawn = drawn[..., 1:] + (exact - drawn[..., 0])[..., None]
    return exact.reshape(len(ranks), -1), drawn.reshape(len(ranks), 4, -1).astype(np.float32)


def _shifted(
    tape: Tape, ranks: list[Ranks], setting: Setting
) -> tuple[dict[str, NDArray[np.float32]], dict[str, Array]]:
    """Return the statistics of shifted signals, and the observed ones, for each method.

    Signals are shifted over the moments that are judged and no others: elsewhere a shifted signal could meet nothing,
    and the signal as it is would beat it by that alone.
    """
    methods = len(ranks)
    label, valid = tape.label & tape.valid, tape.valid
    ahead = mean_over(label & tape.quiet) - mean_over(~tape.label & valid & tape.quiet)
    statistics: dict[str, tuple[Mask, Array, Callable[[slice], NDArray[Any]]]] = {
        "own": (valid, mean_over(label), lambda some: tape.own[:, some]),
        "recall": (valid, mean_over(label), lambda some: tape.chosen[:, some]),
        "quiet": (valid, ahead, lambda some: np.stack([rank.middle() for rank in ranks[some]], axis=1)),
        "success": (
            tape.known,
            mean_over(tape.spike),
            lambda some: any_within(tape.own[:, some], first=-setting.window, last=0),
        ),
    }
    nulls: dict[str, NDArray[np.float32]] = {}
    seen = {key: np.full(methods, np.nan) for key in NULL_STATISTICS}
    guard = 5 * max(setting.horizon, setting.window)
    # As many methods at once as a bounded memory holds.
    size = max(1, AT_ONCE // max(1, len(label)))
    for key, (judged, target, signals) in statistics.items():
        shifts = draw_shifts(int(judged.sum()), SHIFTS, guard, np.random.default_rng([setting.seed, 103]))
        nulls[key] = np.full((methods, shifts.size), np.nan, np.float32)
        if np.isfinite(target).all():
            totals = ShiftTotals(target[judged])
            for some in (slice(start, start + size) for start in range(0, methods, size)):
                given = signals(some)[judged].T.astype(np.float64)
                nulls[key][some] = totals.of(given)[:, shifts]
                seen[key][some] = given @ target[judged]
    return nulls, seen


def mean_over(moments: Mask) -> Array:
    """Return what gives the mean of a signal over some moments when multiplied with it; NaN without any."""
    number = int(moments.sum())
    return moments / number if number else np.full(moments.shape, np.nan)
