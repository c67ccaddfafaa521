"""Measures of decisions against what followed.

Stretches of replayed time are counted in two ways: by the paper's measures (left- and right-sided raises, contained
spikes, downtime), which a clock that looks at nothing can satisfy, and by measures that a clock or a coin cannot
game. Counts add up, so that a trace is scored as it streams by and a bootstrap only weighs blocks of it. Ranking
(ROC area, average precision) and curves over downtime are here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array

Mask = NDArray[np.bool_]
CALIBRATION_BINS = 20
# Numbers of several methods that are handled at once.
AT_ONCE = 1_000_000


def total_within(values: NDArray[Any], *, first: int, last: int) -> Array:
    """Return, for each t, the sum of `values[t + first … t + last]`.

    Examples
    --------
    >>> total_within(np.array([1.0, 2.0, 4.0]), first=1, last=2)
    array([6., 4., 0.])
    """
    if last < first:
        raise ValueError(f"last must be at least first ({first}), got {last}")
    steps = values.shape[0]
    dtype = np.float64 if values.dtype.kind == "f" else np.int32
    sums = np.zeros((steps + 1, *values.shape[1:]), dtype)
    np.cumsum(values, axis=0, out=sums[1:], dtype=dtype)
    index = np.arange(steps)
    upper = np.clip(index + last + 1, 0, steps)
    lower = np.clip(index + first, 0, steps)
    return np.asarray(sums[upper] - sums[lower])


def any_within(happened: Mask, *, first: int, last: int) -> Mask:
    """Return, for each t, whether anything happened in `t + first … t + last`."""
    steps, low = len(happened), max(first, 0)
    high = max(low, steps + min(last, 0))
    line = np.zeros((steps + last - first, *happened.shape[1:]), bool)
    line[low - first : high - first] = happened[low:high]
    # Two spans side by side are one of twice the length.
    length = 1
    while length <= last - first:
        shift = min(length, last - first + 1 - length)
        line = line[:-shift] | line[shift:]
        length += shift
    return line


def mean_ahead(values: Array, *, horizon: int) -> Array:
    """Return, for each t, the mean of the known values in the next `horizon` steps; NaN without any."""
    known = np.isfinite(values)
    count = total_within(known, first=1, last=horizon)
    total = total_within(np.where(known, values, 0.0), first=1, last=horizon)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(frozen=True)
class Stretch:
    """Consecutive timesteps with some context on both sides; only `inner` is counted."""

    ready: Array  # `(steps, nodes)`, as are the next three
    threshold: Array  # from which CPU Ready is a spike
    known: Mask  # the node stepped and its CPU Ready is known
    gap: Mask  # time is missing between the step before and this one
    score: Array  # `(steps, methods, nodes)`, NaN where a method says nothing
    probability: Array  # the same
    raised: Mask  # `(steps, methods, nodes, 1 + budgets)`: the method's own decision, then at each budget
    inner: tuple[int, int]  # first and last step (exclusive) to count
    horizon: int  # steps ahead in which a spike counts
    window: int  # the paper's w
    qos: Array | None = None  # what jobs suffered, `(steps, nodes)`, NaN where nobody looked

    @property
    def part(self) -> slice:
        """The steps to count."""
        return slice(*self.inner)

    @cached_property
    def spike(self) -> Mask:
        """CPU Ready at or over its threshold, `(steps, nodes)`."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.known & (self.ready >= self.threshold))

    @cached_property
    def label(self) -> Mask:
        """A spike within the next `horizon` steps."""
        return any_within(self.spike, first=1, last=self.horizon)

    @cached_property
    def valid(self) -> Mask:
        """The step can be scored: the truth is known now and for the whole horizon, without a gap."""
        judged = self.known & np.isfinite(self.threshold)
        ahead = total_within(judged, first=1, last=self.horizon) == self.horizon
        return np.asarray(judged & ahead & ~any_within(self.gap, first=1, last=self.horizon))

    @cached_property
    def quiet(self) -> Mask:
        """No contention at this very moment: what is foretold from here is truly ahead."""
        return self.known & ~self.spike

    @cached_property
    def future(self) -> Array:
        """Mean CPU Ready over the next `horizon` steps."""
        return mean_ahead(np.where(self.known, self.ready, np.nan), horizon=self.horizon)

    @cached_property
    def onset(self) -> Mask:
        """A spike after `horizon` steps without one, at least half of them known."""
        before = {"first": -self.horizon, "last": -1}
        calm = 2 * total_within(self.quiet, **before) >= self.horizon
        broken = any_within(self.spike, **before) | any_within(self.gap, first=-self.horizon, last=0)
        return np.asarray(self.spike & calm & ~broken)


def count_paper(stretch: Stretch) -> dict[str, Array]:
    """Count the paper's measures of each method's own decisions.

    For a CPU Ready spike at t and half a window of steps either side, *left* are the raises in
    `[t - w/2, t]` and *right* those in `(t, t + w/2]`. Left then has one slot more, which alone makes
    left-sided raises more frequent; `left_strict` leaves out t itself. A spike is *preceded* when there
    is a left-sided raise, and a *success* when there is one in `[t - w, t]`. Returns arrays `(methods, nodes)`
    by name; `spikes` and `steps` are `(nodes,)`.
    """
    half = max(1, stretch.window // 2)
    raised = stretch.raised[..., 0] & stretch.known[:, None, :]
    spike = stretch.spike[:, None, :]
    part = stretch.part

    def at_spikes(values: Array) -> Array:
        return np.asarray(np.where(spike[part], values[part], 0).sum(axis=0, dtype=np.float64))

    before = total_within(raised, first=-half, last=-1)
    here = before + raised
    near = any_within(stretch.spike, first=-half, last=half)[:, None, :]
    long_before = any_within(raised, first=-stretch.window, last=-1)
    return {
        "raises": raised[part].sum(axis=0, dtype=np.float64),
        "raises_in_windows": (raised & near)[part].sum(axis=0, dtype=np.float64),
        "left": at_spikes(here),
        "left_strict": at_spikes(before),
        "right": at_spikes(total_within(raised, first=1, last=half)),
        "preceded": at_spikes((here > 0).astype(np.float64)),
        "preceded_strict": at_spikes((before > 0).astype(np.float64)),
        "success": at_spikes((long_before | raised).astype(np.float64)),
        "success_strict": at_spikes(long_before.astype(np.float64)),
        "spikes": stretch.spike[part].sum(axis=0, dtype=np.float64),
        "steps": stretch.known[part].sum(axis=0, dtype=np.float64),
    }


def paper_scores(counts: dict[str, Array]) -> dict[str, Array]:
    """Turn counts into the paper's figures, `(methods, nodes)`; NaN for nodes without a spike.

    `preceded` never exceeds 1; `contained_spikes` (raises in windows over spikes) and `raise_ratio` (all
    raises over spikes) may: over 1 only says that a signal is raised more often than there are spikes.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        spikes = np.where(counts["spikes"] > 0, counts["spikes"], np.nan)
        return {
            "downtime": counts["raises"] / np.where(counts["steps"] > 0, counts["steps"], np.nan),
            "left_sided": counts["left"],
            "left_sided_strict": counts["left_strict"],
            "right_sided": counts["right"],
            "preceded": counts["preceded"] / spikes,
            "preceded_strict": counts["preceded_strict"] / spikes,
            "contained_spikes": counts["raises_in_windows"] / spikes,
            "raise_ratio": counts["raises"] / spikes,
            "success": counts["success"] / spikes,
            "success_strict": counts["success_strict"] / spikes,
        }


def count_honest(stretch: Stretch) -> dict[str, Array]:
    """Count decisions against what followed.

    Per node `(nodes,)`: `valid`, `positive`, `future`, `onsets`, `latched_steps`. Per method, node and
    budget `(methods, nodes, 1 + budgets)`: `raised` and `hits` over valid steps; `accepted_future`, the
    contention that followed accepted moments; `latched` and `latched_onsets`, where every raise closes the
    node for the next w steps, so that raising at random finds just the share of onsets it costs. Of the
    method's own decisions `(methods, nodes)`: `contended_accepted` of the `contended` steps, and `changes`
    between accepting and refusing, `refusals` of them towards refusing, over `steps_running` steps that follow another.
    """
    part = stretch.part
    valid = stretch.valid[part]
    label = stretch.label[part] & valid
    future = np.where(valid, np.nan_to_num(stretch.future[part]), 0.0)
    raised = stretch.raised[part]
    refused = np.einsum("tkmb,tm->kmb", raised, future, optimize=True)

    latched = any_within(stretch.raised, first=-stretch.window, last=-1)[part]
    live = stretch.known[part] & np.isfinite(stretch.threshold[part])
    onset = stretch.onset[part]
    total = future.sum(axis=0)
    return {
        **_count_own(stretch),
        **_count_qos(stretch),
        "valid": valid.sum(axis=0, dtype=np.float64),
        "positive": label.sum(axis=0, dtype=np.float64),
        "future": total,
        "onsets": onset.sum(axis=0, dtype=np.float64),
        "latched_steps": live.sum(axis=0, dtype=np.float64),
        "raised": _count_raises(raised, valid),
        "hits": _count_raises(raised, label),
        "accepted_future": total[None, :, None] - refused,
        "latched": _count_raises(latched, live),
        "latched_onsets": _count_raises(latched, onset),
    }


def _count_raises(raised: Mask, moments: Mask) -> Array:
    """Count raises, `(steps, methods, nodes, n)`, at moments of each node, `(steps, nodes)`."""
    steps, methods, *last = raised.shape
    counted = raised.reshape(steps, methods, -1) & np.repeat(moments, last[-1], axis=1)[:, None]
    # Short whole numbers add up several times as fast, and reach as far as a stretch is long.
    total = counted.view(np.uint8).sum(axis=0, dtype=np.uint16 if steps < 1 << 16 else np.int64)
    return np.asarray(total.reshape(methods, *last), np.float64)


def _count_own(stretch: Stretch) -> dict[str, Array]:
    """Count, of each method's own decisions, contention that was accepted and changes of mind."""
    part, own = stretch.part, stretch.raised[..., 0]
    contended = stretch.spike[part]
    running = np.zeros_like(stretch.known)
    running[1:] = stretch.known[1:] & stretch.known[:-1] & ~stretch.gap[1:]
    changed = np.zeros_like(own)
    changed[1:] = (own[1:] != own[:-1]) & running[1:, None, :]
    closed = changed & own
    return {
        "contended": contended.sum(axis=0, dtype=np.float64),
        "contended_accepted": (contended[:, None, :] & ~own[part]).sum(axis=0, dtype=np.float64),
        "steps_running": running[part].sum(axis=0, dtype=np.float64),
        "changes": changed[part].sum(axis=0, dtype=np.float64),
        "refusals": closed[part].sum(axis=0, dtype=np.float64),
    }


def _count_qos(stretch: Stretch) -> dict[str, Array]:
    """Count what jobs suffered within the horizon of a moment: in all, and of those each method refused."""
    part = stretch.part
    qos = np.full(stretch.ready.shape, np.nan) if stretch.qos is None else stretch.qos
    suffered = mean_ahead(qos, horizon=stretch.horizon)[part]
    looked = stretch.known[part] & np.isfinite(suffered)
    suffered = np.where(looked, suffered, 0.0)
    refused = stretch.raised[part][..., 0]
    return {
        "qos_moments": looked.sum(axis=0, dtype=np.float64),
        "qos": suffered.sum(axis=0),
        "qos_refused_moments": (refused & looked[:, None, :]).sum(axis=0, dtype=np.float64),
        "qos_refused": np.einsum("tkm,tm->km", refused, suffered, optimize=True),
    }


def count_leads(stretch: Stretch) -> Array:
    """Count onsets by how many steps before them the first raise of the last w came.

    Returns `(methods, nodes, 1 + budgets, w)`; position k stands for k + 1 steps ahead.
    """
    start, stop = stretch.inner
    window = stretch.window
    leads = np.zeros((*stretch.raised.shape[1:], window))
    steps, nodes = np.nonzero(stretch.onset[start:stop])
    for step, node in zip(steps.tolist(), nodes.tolist(), strict=True):
        at = start + step
        before = stretch.raised[max(0, at - window) : at, :, node, :]
        method, budget = np.nonzero(before.any(axis=0))
        if method.size:
            ahead = len(before) - before.argmax(axis=0)
            leads[method, node, budget, ahead[method, budget] - 1] += 1
    return leads


def count_calibration(stretch: Stretch) -> Array:
    """Count probabilities against what followed: `(methods, nodes, 2, bins, 3)` of number, sum, spikes.

    The third axis tells quiet moments from those that are contended already.
    """
    part = stretch.part
    methods, nodes = stretch.score.shape[1:]
    bins = np.zeros((methods, nodes, 2, CALIBRATION_BINS, 3))
    label, valid, contended = stretch.label[part], stretch.valid[part], stretch.spike[part]
    for method in range(methods):
        probability = stretch.probability[part, method]
        used = valid & np.isfinite(probability)
        if not used.any():
            continue
        chance = np.clip(probability[used], 0.0, 1.0)
        place = np.minimum((chance * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        node = np.broadcast_to(np.arange(nodes), used.shape)[used]
        key = (node * 2 + contended[used]) * CALIBRATION_BINS + place
        for column, weight in enumerate((np.ones_like(chance), chance, label[used].astype(np.float64))):
            total = np.bincount(key, weights=weight, minlength=nodes * 2 * CALIBRATION_BINS)
            bins[method, ..., column] = total.reshape(nodes, 2, CALIBRATION_BINS)
    return bins


def calibration_error(bins: Array) -> float:
    """Return the expected calibration error of `(bins, 3)`; NaN where no probability was given."""
    number = bins[..., 0].sum()
    if number <= 0:
        return float("nan")
    return float(np.abs(bins[..., 1] - bins[..., 2]).sum() / number)


class Ranks:
    """Scores put in order once, ties together; NaN (nothing said yet) counts as the lowest.

    Examples
    --------
    >>> Ranks(np.array([5.0, 1.0, 1.0, 9.0])).middle()
    array([0.625, 0.25 , 0.25 , 0.875])
    """

    def __init__(self, scores: Array) -> None:
        filled = np.where(np.isfinite(scores), scores, -np.inf)
        _, self.places, self._counts = np.unique(filled, return_inverse=True, return_counts=True)
        self._size = max(filled.size, 1)

    def bins(self, bins: int) -> NDArray[np.int64]:
        """Return the bin of each score, higher for higher scores, about equally filled."""
        below = np.cumsum(self._counts) - self._counts
        return np.asarray((below * bins // self._size)[self.places])

    def middle(self) -> Array:
        """Return the rank of each score between 0 and 1, ties at the middle of theirs."""
        return np.asarray(((np.cumsum(self._counts) - self._counts / 2.0) / self._size)[self.places])


def areas(ranks: Sequence[Ranks], labels: Mask, used: Mask) -> Array:
    """Return average precision and area under the ROC curve of each over the scores `used`, exactly, `(n, 2)`.

    NaN without positives; the area also without negatives.
    """
    if not labels[used].any():
        return np.full((len(ranks), 2), np.nan)
    size, found = len(labels), []
    at_once = max(1, AT_ONCE // size)
    for start in range(0, len(ranks), at_once):
        some = ranks[start : start + at_once]
        places = np.stack([rank.places + size * k for k, rank in enumerate(some)])[:, used]
        every, positive = (
            np.bincount(chosen.ravel(), minlength=len(some) * size).reshape(-1, size)
            for chosen in (places, places[:, labels[used]])
        )
        found.append(np.stack(binned_scores(np.stack([every - positive, positive], axis=-1)), axis=-1))
    return np.concatenate(found)


def histograms(
    bins: NDArray[np.int64], size: int, labels: Mask, used: Mask, block: NDArray[np.int64]
) -> Array:
    """Count moments by bin, label and block: `(size, 2, blocks)`."""
    blocks = int(block.max(initial=-1)) + 1
    key = (bins[used] * 2 + labels[used]) * blocks + block[used]
    return np.bincount(key, minlength=size * 2 * blocks).reshape(size, 2, blocks).astype(np.float64)


def binned_scores(counts: Array) -> tuple[Array, Array]:
    """Return average precision and ROC area of histograms `(…, bins, 2)`; NaN with one class only."""
    negative, positive = np.moveaxis(counts[..., ::-1, :], -1, 0)
    alarms, found = np.cumsum(negative, axis=-1), np.cumsum(positive, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        precise = np.sum(positive * found / np.maximum(found + alarms, 1.0), axis=-1)
        earlier = np.sum(positive * (alarms - negative / 2.0), axis=-1)
        return precise / found[..., -1], 1.0 - earlier / (found[..., -1] * alarms[..., -1])


def drawn_scores(counts: Array, weights: Array) -> tuple[Array, Array]:
    """Return both scores of histograms `(bins, 2, n, blocks)` for every weighing of blocks, `(n, draws)` each."""
    shape = (counts.shape[2], len(weights))
    found, alarms, precise, earlier, here = np.zeros((5, *shape))
    # Bin by bin, in arrays that stay in the processor's cache. Of whole numbers single precision is exact.
    given, weighing = counts.astype(np.float32), weights.T.astype(np.float32)
    held, both = np.empty((2, *shape), np.float32), np.empty((2, *shape))
    negative, positive = both
    alarms += 1e-300  # where nothing was counted yet, nothing is divided by more than nothing
    for part in given[::-1]:
        both[:] = np.matmul(part, weighing, out=held)
        np.multiply(negative, 0.5, out=here)
        here += alarms
        here *= positive
        earlier += here
        alarms += negative
        found += positive
        np.add(found, alarms, out=here)
        np.divide(found, here, out=here)
        here *= positive
        precise += here
    with np.errstate(invalid="ignore", divide="ignore"):
        return precise / found, 1.0 - earlier / (found * np.where(alarms < 1.0, 0.0, alarms))


def average_precision(scores: Array, labels: Mask) -> float:
    """Return the exact average precision, ties together; NaN without positives."""
    return float(areas([Ranks(scores)], labels, np.ones(len(scores), bool))[0, 0])


def roc_area(scores: Array, labels: Mask) -> float:
    """Return the exact area under the ROC curve, ties counting half; NaN with one class only."""
    return float(areas([Ranks(scores)], labels, np.ones(len(scores), bool))[0, 1])


def at_downtime(downtime: Array, target: float, *curves: Array) -> list[Array]:
    """Read curves `(…, points)` over the same downtimes at one of them; NaN where no two points enclose it.

    Examples
    --------
    >>> at_downtime(np.array([0.05, 0.15]), 0.10, np.array([0.2, 0.4]))[0].round(3)
    np.float64(0.3)
    >>> at_downtime(np.array([0.05, 0.15]), 0.20, np.array([0.2, 0.4]))[0]
    array(nan)
    """
    order = np.argsort(downtime, axis=-1, kind="stable")
    cost = np.take_along_axis(downtime, order, -1)
    points = cost.shape[-1]
    with np.errstate(invalid="ignore"):
        above = np.sum(cost < target, axis=-1)[..., None]  # the first point at or beyond the target
    right = np.minimum(above, points - 1)
    left = np.maximum(right - 1, 0)
    cost_left, cost_right = np.take_along_axis(cost, left, -1), np.take_along_axis(cost, right, -1)
    span = cost_right - cost_left
    share = np.where(span > 0, (target - cost_left) / np.where(span > 0, span, 1.0), 1.0)
    exact = cost_right == target
    inside = (above < points) & ((above > 0) | exact) & np.isfinite(cost_right)
    left, right = np.take_along_axis(order, left, -1), np.take_along_axis(order, right, -1)
    found = []
    for curve in curves:
        gain_left, gain_right = np.take_along_axis(curve, left, -1), np.take_along_axis(curve, right, -1)
        read = np.where(exact, gain_right, gain_left + share * (gain_right - gain_left))
        found.append(np.where(inside, read, np.nan)[..., 0])
    return found


def exposure_of_oracle(future: Array, downtime: float) -> float:
    """Return how much lower the mean contention that follows is when the worst `downtime` of moments is refused."""
    known = np.sort(future[np.isfinite(future)])
    accepted = known[: max(1, round(known.size * (1.0 - downtime)))]
    if not known.size or known.mean() <= 0:
        return float("nan")
    return float(1.0 - accepted.mean() / known.mean())


def worst_hour(raised: Mask, *, steps_per_hour: int) -> Array:
    """Return the largest share of any one hour in which each signal, `(steps, methods)`, was raised; NaN before one."""
    if len(raised) < steps_per_hour:
        return np.full(raised.shape[1], np.nan)
    return np.asarray(total_within(raised, first=0, last=steps_per_hour - 1).max(axis=0) / steps_per_hour)
