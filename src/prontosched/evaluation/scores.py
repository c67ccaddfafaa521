"""The paper's measures: left- and right-sided raises, contained spikes, downtime.

They are reported as published, next to what the same signal scores when shifted in
time; a clock that looks at nothing reaches 100 % on some. See `honest` for the rest.
"""

from __future__ import annotations

import numpy as np

from prontosched.evaluation.stretch import Stretch
from prontosched.evaluation.windows import any_within, total_within
from prontosched.subspace import Array

NAMES = (
    "raises",
    "raises_in_windows",
    "left",
    "left_strict",
    "right",
    "preceded",
    "preceded_strict",
    "success",
    "success_strict",
)


def count_paper(stretch: Stretch) -> dict[str, Array]:
    """Count the paper's measures of each method's own decisions.

    For a CPU Ready spike at t and half a window of steps either side, *left* are the raises in
    `[t - w/2, t]` and *right* those in `(t, t + w/2]`. Left then has one slot more, which alone makes
    left-sided raises more frequent; `left_strict` leaves out t itself. A spike is *preceded* when there
    is a left-sided raise, and a *success* when there is one in `[t - w, t]`.

    Returns
    -------
    One array `(methods, nodes)` per name of `NAMES`; `spikes` and `steps` are `(nodes,)`.
    """
    half = max(1, stretch.window // 2)
    raised = stretch.raised[..., 0] & stretch.known[:, None, :]
    spike = stretch.spike[:, None, :]
    part = stretch.part

    def at_spikes(values: Array) -> Array:
        total: Array = np.where(spike[part], values[part], 0).sum(axis=0, dtype=np.float64)
        return total

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
