"""The figures of the paper's evaluation section, drawn from these traces."""

from __future__ import annotations

from typing import Any

import numpy as np

from prontosched.evaluation.figures import ACCENT, FEW_NODES, GRID, INK, MUTED, Picture, canvas, colour
from prontosched.evaluation.illustration import Example
from prontosched.evaluation.study import Study
from prontosched.subspace import Array

TINTS = ("#1d4ed8", "#c2410c", "#047857", "#7c3aed")
CDFS = (
    ("left_sided", "Left-sided raises", "number of raises in [t − w/2, t], over all CPU Ready spikes"),
    ("right_sided", "Right-sided raises", "number of raises in (t, t + w/2], over all CPU Ready spikes"),
    ("downtime", "Downtime", "time the signal is raised (% of all)"),
    ("contained_spikes", "Contained spikes", "raises in windows (% of CPU Ready spikes)"),
)


def published(study: Study) -> list[Any]:
    """Return the methods of the paper's comparison, and the clock to hold them against."""
    chosen = [m for m in study.methods if m.family == "published" and m.name != "paper-absolute"]
    return [*chosen, *[m for m in study.methods if m.name in ("clock", "learned")]]


def distributions(study: Study) -> list[Picture]:
    """Draw the four empirical distributions: over nodes, or with few nodes over windows of their time."""
    few = len(study.nodes) < FEW_NODES and all(node.paper_blocks for node in study.nodes)
    over, of = ("windows of time", "window") if few else ("nodes", "node")
    found = []
    for figure_name, title, label in CDFS:
        figure, axes = canvas(4.8, 4.1)
        axis = axes[0, 0]
        for method in published(study):
            values = (
                study.paper_blocks(method.name, figure_name) if few else study.paper(method.name, figure_name)
            )
            values = np.sort(values[np.isfinite(values)])
            if not values.size:
                continue
            share = np.arange(1, values.size + 1) / values.size
            style = (0, (4, 3)) if method.family == "null" else "-"
            axis.step(np.concatenate([[values[0]], values]), np.concatenate([[0], share]), where="post", lw=1.7,
                      color=colour(study, method.name), ls=style, label=method.label)  # fmt: skip
        if figure_name in ("downtime", "contained_spikes"):
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if figure_name.endswith("sided"):
            axis.set_xscale("symlog", linthresh=10)
        axis.set_title(f"{title} per {of}" if figure_name.endswith("sided") else title)
        axis.set_xlabel(label)
        axis.set_ylabel(f"{over} at or below (% of all)")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.set_ylim(0, 1.03)
        figure.legend(loc="outside lower center", ncols=2, fontsize=7.5)
        number = "one node" if len(study.nodes) == 1 else f"{len(study.nodes)} nodes"
        note = (
            f" With {number} only, over {study.windows} windows of time instead of over nodes." if few else ""
        )
        caption = f"Empirical distribution over {over}: {title.lower()}.{note}"
        found.append(Picture(f"cdf-{figure_name.replace('_', '-')}", caption, figure))
    return found


def projections(example: Example) -> Picture:
    """Draw the projections with their spikes."""
    rank = example.projections.shape[1]
    figure, axes = canvas(8.6, 1.15 * rank + 0.5, rank, 1, sharex=True)
    time = example.start + np.arange(len(example.ready))
    for k in range(rank):
        axis, values = axes[k, 0], example.projections[:, k]
        axis.plot(time, values, color=TINTS[k % 4], lw=1.1)
        for sign, mark in ((1, "^"), (-1, "v")):
            at = example.spikes[:, k] == sign
            axis.plot(time[at], values[at], mark, color=INK, ms=5, ls="")
        axis.set_ylabel(f"projection {k + 1}\n(deviations)", fontsize=8)
    axes[0, 0].set_title(f"{example.node}: tracked projections, spikes up ▲ and down ▼")
    axes[-1, 0].set_xlabel("timestep (number)")
    return Picture("projections", "The tracked projections of one node with their spikes.", figure)


def rejection(example: Example) -> Picture:
    """Draw the rejection signal against CPU Ready."""
    figure, axes = canvas(8.6, 3.8, 2, 1, sharex=True, height_ratios=[1, 2])
    time = example.start + np.arange(len(example.ready))
    above, below = axes[0, 0], axes[1, 0]
    above.fill_between(time, 0, example.score, step="mid", color=TINTS[3], alpha=0.25)
    above.step(time, example.score, where="mid", color=TINTS[3], lw=1.2, label="score")
    above.plot(
        time[example.raised], example.score[example.raised], "v", color="#15803d", ms=6, label="raised"
    )
    above.set_ylabel("weighted sum\nof spikes (1)")
    above.set_title(f"{example.node}: rejection signal ▼ raised, and CPU Ready spikes ●")
    below.plot(time, example.ready, color=TINTS[0], lw=1.2, label="CPU Ready")
    below.plot(time, example.threshold, color=MUTED, lw=1, ls=(0, (4, 3)), label="threshold of a spike")
    with np.errstate(invalid="ignore"):
        spikes = example.ready >= example.threshold
    below.plot(time[spikes], example.ready[spikes], "o", color="#0d9488", ms=4, label="spike")
    for step in time[example.raised]:
        below.axvline(step, color="#15803d", lw=1, alpha=0.45)
    below.set_ylabel(f"CPU Ready ({example.unit})")
    below.set_xlabel("timestep (number)")
    for axis in (above, below):
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return Picture("rejection", "The rejection signal and CPU Ready of one node.", figure)


def window_steps(example: Example, window: int) -> Picture | None:
    """Draw how the window fills: at w/2, w and 2w."""
    seen = example.part(0, 2 * window)
    if len(seen.ready) < 2 * window or not np.isfinite(seen.projections[:, :2]).all():
        return None
    figure, axes = canvas(8.6, 5.0, 3, 1, sharex=True)
    time = np.arange(1, 2 * window + 1)
    notes = (
        (window // 2, "t = w/2: too few observations to decide; the reference point is set"),
        (window, "t = w: the window is full, spikes can be found from here on"),
        (2 * window, "t = 2w: left of the reference point counts as foretold, right of it as already past"),
    )
    for row, (now, note) in enumerate(notes):
        axis = axes[row, 0]
        start = max(0, now - window)
        axis.axvspan(start + 0.5, now + 0.5, color=GRID, alpha=0.6, lw=0)
        if now == 2 * window:
            middle = start + window / 2 + 0.5
            axis.axvspan(start + 0.5, middle, color="#bbf7d0", alpha=0.6, lw=0)
            axis.axvspan(middle, now + 0.5, color="#fed7aa", alpha=0.6, lw=0)
            axis.text(
                start + 0.7, 0.04, "left", transform=axis.get_xaxis_transform(), fontsize=8.5, color="#15803d"
            )
            axis.text(
                now + 0.3,
                0.04,
                "right",
                transform=axis.get_xaxis_transform(),
                fontsize=8.5,
                ha="right",
                color=ACCENT,
            )
        for k in range(2):
            axis.plot(time[:now], seen.projections[:now, k], color=TINTS[k], lw=1.3, marker="o", ms=3,
                      label=f"projection {k + 1}")  # fmt: skip
            spiked = np.flatnonzero(seen.spikes[:now, k])
            axis.plot(time[spiked], seen.projections[spiked, k], "o", mfc="none", mec=INK, ms=9)
        axis.axvline(max(window / 2, now - window / 2) + 0.5, color=INK, lw=1, ls=(0, (2, 2)))
        axis.set_title(note, fontsize=9, fontweight="normal")
        axis.set_ylabel("deviations", fontsize=8)
        axis.set_xlim(0.5, 2 * window + 0.5)
        axis.set_xticks(range(0, 2 * window + 1, max(1, window // 5)))
    axes[0, 0].legend(loc="upper right", fontsize=8)
    axes[-1, 0].set_xlabel("timestep (number); the dotted line is the reference point, circles are spikes")
    return Picture(
        "window", "The sliding window at w/2, w and 2w, with left- and right-sided regions.", figure
    )


def sweep(study: Study, option: str, values: tuple[float, ...]) -> Picture:
    """Draw what changing one option of the published signal changes."""
    figure, axes = canvas(8.6, 2.7, 1, 3)
    names = [f"paper[{option}={int(v) if float(v).is_integer() else v}]" for v in values]
    chance = study.setting.budget

    def line(axis: Any, title: str, points: Array, dashed: float | None) -> None:
        axis.plot(values, points, color=TINTS[3], marker="o", lw=1.6)
        if dashed is not None:
            axis.axhline(dashed, color=MUTED, lw=1, ls=(0, (4, 3)))
        axis.set_title(title)
        axis.set_xlabel(option.replace("_", " "))
        axis.set_xticks(values)
        known = points[np.isfinite(points)]
        axis.set_ylim(0, 1.2 * max(dashed or 0.0, known.max(initial=1e-3)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")

    recall = np.array([study.interval(name, "recall").value for name in names])
    line(axes[0, 0], f"recall at {chance:.0%} downtime", recall, chance)
    line(
        axes[0, 1],
        "spikes preceded",
        np.array([np.nanmean(study.paper(n, "preceded")) for n in names]),
        None,
    )
    line(
        axes[0, 2],
        "own downtime",
        np.array([study.interval(name, "own_downtime").value for name in names]),
        None,
    )
    return Picture(
        f"sweep-{option.replace('_', '-')}", f"The published signal with other values of {option}.", figure
    )
