"""Measures that a clock or a coin cannot game.

Covers: what is counted per stretch of time. Counts add up, so a trace is scored as it streams by and a
bootstrap only weighs blocks of it.
"""

from __future__ import annotations

import numpy as np

from prontosched.evaluation.stretch import Stretch
from prontosched.evaluation.windows import any_within, mean_ahead
from prontosched.subspace import Array

CALIBRATION_BINS = 20


def count_honest(stretch: Stretch) -> dict[str, Array]:
    """Count decisions against what followed.

    Returns
    -------
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
    counted = raised & valid[:, None, :, None]
    hits = raised & label[:, None, :, None]
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
        "raised": counted.sum(axis=0, dtype=np.float64),
        "hits": hits.sum(axis=0, dtype=np.float64),
        "accepted_future": total[None, :, None] - refused,
        "latched": (latched & live[:, None, :, None]).sum(axis=0, dtype=np.float64),
        "latched_onsets": (latched & onset[:, None, :, None]).sum(axis=0, dtype=np.float64),
    }


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
    methods, nodes = stretch.score.shape[1:]
    if stretch.qos is None:
        none = np.zeros(nodes), np.zeros((methods, nodes))
        return {
            "qos_moments": none[0],
            "qos": none[0],
            "qos_refused_moments": none[1],
            "qos_refused": none[1],
        }
    part = stretch.part
    suffered = mean_ahead(stretch.qos, horizon=stretch.horizon)[part]
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
        if not before.shape[0]:
            continue
        first = before.argmax(axis=0)
        found = before.any(axis=0)
        ahead = before.shape[0] - first
        method, budget = np.nonzero(found)
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
    """Return the expected calibration error of `(bins, 3)`; NaN where no probability was given.

    Examples
    --------
    >>> round(calibration_error(np.array([[10.0, 1.0, 2.0], [0.0, 0.0, 0.0]])), 3)
    0.1
    """
    number = bins[..., 0].sum()
    if number <= 0:
        return float("nan")
    return float(np.abs(bins[..., 1] - bins[..., 2]).sum() / number)
