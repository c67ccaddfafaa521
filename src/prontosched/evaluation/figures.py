"""Figures of an evaluation: the honest measures, then the figures of the paper's evaluation section.

Needs matplotlib (extra `evaluation`). The paper's example figures look closely at one node.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prontosched.errors import SettingsError
from prontosched.evaluation.inputs import FirstRows, Truth
from prontosched.evaluation.measures import Mask, total_within
from prontosched.evaluation.study import Study
from prontosched.extras import missing_extra
from prontosched.pipeline.presets import make_node
from prontosched.subspace import Array

INK = "#1f2933"
MUTED = "#7b8794"
GRID = "#e4e7eb"
ACCENT = "#c2410c"
# The methods a reader looks for keep their colour in every figure.
COLOURS = {
    "learned": "#c2410c",
    "ready": "#1d4ed8",
    "ewma": "#0891b2",
    "paper": "#7c3aed",
    "paper-spirit": "#db2777",
    "paper-fd": "#65a30d",
    "paper-pm": "#475569",
    "t2+spe": "#047857",
    "utilisation": "#b45309",
    "boosting": "#111827",
    "half-space-trees": "#a16207",
    "random": "#9aa5b1",
    "clock": "#9aa5b1",
}
OTHERS = (
    *("#0f766e", "#9333ea", "#be123c", "#4d7c0f", "#0369a1", "#a21caf"),
    *("#854d0e", "#4338ca", "#166534", "#9f1239", "#155e75", "#6b21a8"),
)
# What a reader who prefers a dark page sees instead; figures take these from the page's style sheet.
DARK = {
    "#1f2933": "#e5e7eb", "#7b8794": "#9aa5b1", "#e4e7eb": "#2b323b", "#ffffff": "#161b22",
    "#c2410c": "#fb923c", "#1d4ed8": "#60a5fa", "#0891b2": "#22d3ee", "#7c3aed": "#a78bfa", "#db2777": "#f472b6",
    "#65a30d": "#a3e635", "#475569": "#94a3b8", "#047857": "#34d399", "#b45309": "#fbbf24", "#111827": "#f3f4f6",
    "#a16207": "#facc15", "#9aa5b1": "#7b8794", "#0f766e": "#2dd4bf", "#9333ea": "#c084fc", "#be123c": "#fb7185",
    "#4d7c0f": "#bef264", "#0369a1": "#38bdf8", "#a21caf": "#e879f9", "#854d0e": "#fde047", "#4338ca": "#818cf8",
    "#166534": "#4ade80", "#9f1239": "#fda4af", "#155e75": "#67e8f9", "#6b21a8": "#d8b4fe", "#15803d": "#4ade80",
    "#0d9488": "#5eead4", "#bbf7d0": "#14532d", "#fed7aa": "#7c2d12",
}  # fmt: skip
FEW_NODES = 10
# Of methods that are nearly alike one is drawn, and none without a score.
HIDDEN = (
    "accept", "clock", "learned-blind", "paper-absolute", "paper-spirit", "paper-fd", "paper-pm", "t2", "spe", "zscore",
    "n-sigma", "peak-percentile", "r15s",
)  # fmt: skip
UNITS = {"percent": "% of a CPU", "ms": "ms per interval"}
SWEPT_UNITS = {
    "rank": "rank (directions)",
    "lag": "lag (timesteps)",
    "block_size": "block size (vectors)",
    "forgetting": "forgetting (share of the past kept a block)",
}
SHOWN = 160
TINTS = ("#1d4ed8", "#c2410c", "#047857", "#7c3aed")
CDFS = (
    ("left_sided", "Left-sided raises", "number of raises in [t − w/2, t], over all CPU Ready spikes"),
    ("right_sided", "Right-sided raises", "number of raises in (t, t + w/2], over all CPU Ready spikes"),
    ("downtime", "Downtime", "time the signal is raised (% of all)"),
    ("contained_spikes", "Contained spikes", "raises in windows (% of CPU Ready spikes)"),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with its file name and what it says to someone who cannot see it."""

    name: str
    caption: str
    figure: Any

    def svg(self) -> str:
        """Return it as SVG that can stand among others on one page."""
        import matplotlib as mpl

        held = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": self.name, "svg.fonttype": "path"}):
            self.figure.savefig(held, format="svg", metadata={"Date": None, "Creator": None})
        text = held.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = text.replace("url(#", f"url(#{self.name}-").replace('href="#', f'href="#{self.name}-')
        # On a page its style sheet says what a colour looks like; alone, the colour itself does.
        text = re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var(--fig-{found[0][1:]}, {found[0]})", text)
        label = self.caption.replace("&", "and").replace('"', "'").replace("<", "below ")
        return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)

    def write(self, folder: Path) -> list[Path]:
        """Write it as SVG and PNG."""
        vector, raster = folder / f"{self.name}.svg", folder / f"{self.name}.png"
        vector.write_text('<?xml version="1.0" encoding="utf-8"?>\n' + self.svg(), encoding="utf-8")
        self.figure.savefig(raster, format="png", dpi=150, metadata={"Software": None})
        return [vector, raster]


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the report's style."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SettingsError(missing_extra("a report", "evaluation")) from error
    style = {
        "font.size": 9.5,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "text.color": INK,
        "legend.frameon": False,
        "figure.facecolor": "white",
        "lines.solid_capstyle": "round",
    }
    with mpl.rc_context(style):
        yield


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, `(rows, columns)` of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def panel(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure and its only axis."""
    figure, axes = canvas(width, height)
    return figure, axes[0, 0]


def colour(study: Study, name: str) -> str:
    """Return the colour of a method."""
    if name in COLOURS:
        return COLOURS[name]
    others = [method.name for method in study.methods if method.name not in COLOURS]
    return OTHERS[others.index(name) % len(OTHERS)]


def shown(study: Study) -> list[Any]:
    """Return the methods worth a line in a figure."""
    return [method for method in study.methods if method.family != "sweep" and method.name not in HIDDEN]


def recall_against_downtime(study: Study) -> Picture:
    """Draw what each method finds against what it costs."""
    figure, axis = panel(8.6, 4.9)
    limit = max(study.setting.budgets)
    axis.plot([0, limit], [0, limit], color=MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
    axis.annotate("chance", (limit * 0.92, limit * 0.92), color=MUTED, fontsize=8.5, ha="right", va="bottom")
    ends: list[tuple[float, float, str, str]] = []
    for method in shown(study):
        cost, gain = study.curve(method.name)
        if not np.isfinite(gain).any():
            continue
        strong = method.name in ("learned", "ready")
        tint = colour(study, method.name)
        width, size, above = (2.4, 4.0, 3) if strong else (1.4, 2.8, 2)
        axis.plot(cost, gain, color=tint, lw=width, marker="o", ms=size, zorder=above)
        ends.append((float(cost[-1]), float(gain[-1]), method.label, tint))
    _label_ends(axis, ends)
    for target in study.setting.targets:
        axis.axvline(target, color=GRID, lw=6, zorder=0)
    widest = max([limit, *[end[0] for end in ends]])
    found = f"recall (% of moments before a spike\nwithin {study.setting.horizon} steps that are refused)"
    axis.set(xlabel="realised downtime (% of moments the node refuses)", ylabel=found)
    axis.set(xlim=(0, widest * 1.36), ylim=(0, None))
    axis.set_xticks(np.arange(0.0, widest + 0.01, 0.05 if widest < 0.5 else 0.1))
    _percent(axis.xaxis, axis.yaxis)
    caption = "Recall against realised downtime for every method; the dashed line is chance."
    return Picture("recall-downtime", caption, figure)


def against_ready(study: Study) -> Picture | None:
    """Draw how many times more than current CPU Ready each method finds at equal downtime."""
    if "ready" not in study:
        return None
    pairs = [(m, study.ratio(m.name, "ready", "recall")) for m in shown(study) if m.name != "ready"]
    found = sorted([pair for pair in pairs if np.isfinite(pair[1].value)], key=lambda pair: pair[1].value)
    if not found:
        return None
    figure, axis = panel(8.6, 0.9 + 0.33 * len(found))
    top = max(2.0, min(4.0, max(r.value for _, r in found) * 1.15))
    for row, (method, ratio) in enumerate(found):
        tint = colour(study, method.name)
        if np.isfinite(ratio.low):
            axis.plot([min(ratio.low, top), min(ratio.high, top)], [row, row], color=tint, lw=2.2, alpha=0.55)
        axis.plot(min(ratio.value, top), row, "o" if ratio.value <= top else ">", color=tint, ms=6)
        axis.annotate(f"{ratio.value:.2f}", (1.0, row), xytext=(4, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", va="center", fontsize=8.5, color=tint)  # fmt: skip
    axis.axvline(1.0, color=INK, lw=1)
    _name_rows(axis, [method.label for method, _ in found])
    at = f"at {study.setting.budget:.0%} downtime (line: 95 % interval)"
    axis.set(xlim=(0, top * 1.03), xlabel=f"times the recall of current CPU Ready {at}")
    caption = "Recall relative to current CPU Ready at equal downtime, with intervals."
    return Picture("against-ready", caption, figure)


def against_null(study: Study) -> Picture:
    """Draw each method's recall next to that of itself shifted in time."""
    names = [m for m in shown(study) if np.isfinite(study.null_test(m.name, "recall").observed)]
    figure, axis = panel(8.6, 0.9 + 0.3 * len(names))
    names.sort(key=lambda m: study.null_test(m.name, "recall").observed)
    for row, method in enumerate(names):
        test = study.null_test(method.name, "recall")
        tint = colour(study, method.name)
        axis.plot([test.null, test.observed], [row, row], color=tint, lw=1.6, alpha=0.5)
        axis.plot(test.null, row, "o", mfc="white", mec=tint, ms=6)
        axis.plot(test.observed, row, "o", color=tint, ms=6)
    _name_rows(axis, [method.label for method in names])
    circles = "open circle shifted in time, full circle as it is"
    axis.set(xlim=(0, None), xlabel=f"recall at a budget of {study.setting.budget:.0%} (%): {circles}")
    _percent(axis.xaxis)
    return Picture("against-null", "Recall of each method and of the same signal shifted in time.", figure)


def lead_times(study: Study) -> Picture | None:
    """Draw how many steps of warning onsets get."""
    names = [m for m in shown(study) if study.lead_time(m.name).sum() > 0 and m.family != "null"][:6]
    if not names:
        return None
    onsets = max(1, sum(node.onsets for node in study.nodes))
    figure, axis = panel(5.2, 4.4)
    for method in [*names, *[m for m in study.methods if m.name == "random"]]:
        leads = study.lead_time(method.name)
        at_least = np.cumsum(leads[::-1])[::-1] / onsets
        dashes = (0, (4, 3)) if method.name == "random" else "-"
        axis.step(np.arange(1, leads.size + 1), at_least, where="mid", color=colour(study, method.name), lw=1.8,
                  ls=dashes, label=method.label)  # fmt: skip
    known = [result.interval_seconds for result in study.results if result.interval_seconds > 0]
    long = f" (of {known[0]:g} s)" if known else ""
    axis.set(xlabel=f"at least this many timesteps{long} before the onset", ylim=(0, 1))
    axis.set_ylabel("onsets first raised (% of all)")
    _percent(axis.yaxis)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return Picture("lead-time", "Share of onsets with at least so many steps of warning.", figure)


def reliability(study: Study) -> Picture | None:
    """Draw probabilities against what followed."""
    given = [(m, bins) for m in shown(study) if (bins := study.calibration(m.name)) is not None]
    if not given:
        return None
    figure, axis = panel(5.2, 4.4)
    axis.plot([0, 1], [0, 1], color=MUTED, lw=1, ls=(0, (4, 3)), label="well calibrated")
    for method, bins in given:
        used = bins[:, 0] >= 20
        said, followed = bins[used, 1] / bins[used, 0], bins[used, 2] / bins[used, 0]
        label = f"{method.label} (error {study.calibration_error(method.name):.3f})"
        axis.plot(said, followed, color=colour(study, method.name), lw=1.4, marker="o", ms=4.5, label=label)
    axis.set(xlabel="probability said (%)", ylabel="followed by a spike (% of moments)")
    axis.set(xlim=(0, 1), ylim=(0, 1))
    _percent(axis.xaxis, axis.yaxis)
    axis.legend(loc="upper left", fontsize=8.5)
    return Picture("reliability", "Probability said against the share that a spike followed.", figure)


def _label_ends(axis: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Write each label at the end of its line, apart from one another."""
    if not ends:
        return
    ends.sort(key=lambda end: end[1])
    gap = max(max(end[1] for end in ends), 0.1) * 0.052
    places = [end[1] for end in ends]
    # Neighbours push each other apart, half the overlap each, until none is left.
    for _ in range(200):
        for k in range(len(places) - 1):
            overlap = gap - (places[k + 1] - places[k])
            if overlap > 0:
                places[k] -= overlap / 2
                places[k + 1] += overlap / 2
    lift = max(0.0, gap / 2 - places[0])
    beyond = max(end[0] for end in ends) + 0.012
    for (x, y, label, tint), place in zip(ends, places, strict=True):
        axis.annotate(label, (x, y), xytext=(beyond, place + lift), color=tint, fontsize=8.5, va="center",
                      arrowprops={"arrowstyle": "-", "color": tint, "lw": 0.6, "shrinkA": 1, "shrinkB": 3})  # fmt: skip


def _name_rows(axis: Any, labels: list[str]) -> None:
    """Write a label before each row, in place of a grid."""
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(axis="y", colors=INK, length=0)
    axis.set_ylim(-0.6, len(labels) - 0.4)
    axis.grid(axis="y", visible=False)


def _percent(*axes: Any) -> None:
    """Write the ticks of axes as percentages."""
    for axis in axes:
        axis.set_major_formatter(lambda value, _: f"{value:.0%}")


@dataclass(frozen=True, slots=True)
class NodeExample:
    """Some consecutive timesteps of one node under the published signal."""

    node: str
    start: int
    projections: Array  # `(steps, rank)`
    spikes: Array  # the same
    score: Array  # `(steps,)`, as are all that follow
    raised: Mask
    ready: Array
    threshold: Array
    unit: str = ""

    def part(self, start: int, stop: int) -> NodeExample:
        """Return some of the steps."""
        names = ("projections", "spikes", "score", "raised", "ready", "threshold")
        some = {name: getattr(self, name)[start:stop] for name in names}
        return replace(self, start=self.start + start, **some)


def look(first: FirstRows, truth: str) -> NodeExample | None:
    """Replay the first steps of a node under the published signal; None if it has too few."""
    if len(first.ready) < 40:
        return None
    node = make_node("paper", lag=10)
    unit, interval = first.ready_unit, first.interval_seconds
    learner = Truth.parse(truth).learner(1, trace_unit=unit, interval_seconds=interval)
    threshold = learner.follow(first.ready[:, None])[:, 0]
    steps, rank = len(first.ready), 4
    projections, spikes = np.full((steps, rank), np.nan), np.zeros((steps, rank))
    score, raised = np.empty(steps), np.empty(steps, bool)
    early: list[Array] = []
    for step, (y, ready) in enumerate(zip(first.vectors, first.ready.tolist(), strict=True)):
        decision = node.step(y, ready=ready)
        score[step], raised[step] = decision.score, decision.raised
        seen = node.evidence
        assert seen is not None
        if seen.subspace is None and seen.vector is not None:
            early.append(seen.vector)
        elif early and seen.subspace is not None:
            # The vectors of the first block, on the subspace it gave.
            block = (np.stack(early) @ seen.subspace.basis)[:, :rank]
            projections[: len(block), : block.shape[1]] = block
            early = []
        projections[step, : len(seen.projections)] = seen.projections[:rank]
        spikes[step, : len(seen.spikes or ())] = (seen.spikes or ())[:rank]
    words = UNITS.get(unit, "the trace’s own unit")
    return NodeExample(first.node, 0, projections, spikes, score, raised, first.ready, threshold, words)


def busiest(example: NodeExample) -> NodeExample:
    """Return the stretch in which most happens: raises and spikes, both if there is such a place."""
    with np.errstate(invalid="ignore"):
        spikes = example.ready >= example.threshold
    events = np.column_stack([np.concatenate([[False], ~spikes[:-1]]) & spikes, example.raised])
    happened = np.minimum(total_within(events, first=0, last=SHOWN - 1), 6).sum(axis=1)
    happened[:20] = -1
    start = int(np.argmax(happened))
    return example.part(start, start + SHOWN)


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
        figure, axis = panel(4.8, 4.1)
        for method in published(study):
            values = (study.paper_blocks if few else study.paper)(method.name, figure_name)
            values = values[np.isfinite(values)]
            if values.size:
                style = (0, (4, 3)) if method.family == "null" else "-"
                axis.ecdf(values, lw=1.7, color=colour(study, method.name), ls=style, label=method.label)
        if figure_name in ("downtime", "contained_spikes"):
            _percent(axis.xaxis)
        if figure_name.endswith("sided"):
            axis.set_xscale("symlog", linthresh=10)
        axis.set_title(f"{title} per {of}" if figure_name.endswith("sided") else title)
        axis.set(xlabel=label, ylabel=f"{over} at or below (% of all)", ylim=(0, 1.03))
        _percent(axis.yaxis)
        figure.legend(loc="outside lower center", ncols=2, fontsize=7.5)
        number = "one node" if len(study.nodes) == 1 else f"{len(study.nodes)} nodes"
        note = f" With {number} only, over {study.windows} windows of time instead of over nodes."
        caption = f"Empirical distribution over {over}: {title.lower()}.{note if few else ''}"
        found.append(Picture(f"cdf-{figure_name.replace('_', '-')}", caption, figure))
    return found


def projections(example: NodeExample) -> Picture:
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


def rejection(example: NodeExample) -> Picture:
    """Draw the rejection signal against CPU Ready."""
    figure, axes = canvas(8.6, 3.8, 2, 1, sharex=True, height_ratios=[1, 2])
    time = example.start + np.arange(len(example.ready))
    above, below = axes[0, 0], axes[1, 0]
    above.fill_between(time, 0, example.score, step="mid", color=TINTS[3], alpha=0.25)
    above.step(time, example.score, where="mid", color=TINTS[3], lw=1.2, label="score")
    raised = example.raised
    above.plot(time[raised], example.score[raised], "v", color="#15803d", ms=6, label="raised")
    above.set_ylabel("weighted sum\nof spikes (1)")
    above.set_title(f"{example.node}: rejection signal ▼ raised, and CPU Ready spikes ●")
    below.plot(time, example.ready, color=TINTS[0], lw=1.2, label="CPU Ready")
    below.plot(time, example.threshold, color=MUTED, lw=1, ls=(0, (4, 3)), label="threshold of a spike")
    with np.errstate(invalid="ignore"):
        spikes = example.ready >= example.threshold
    below.plot(time[spikes], example.ready[spikes], "o", color="#0d9488", ms=4, label="spike")
    for step in time[raised]:
        below.axvline(step, color="#15803d", lw=1, alpha=0.45)
    below.set(xlabel="timestep (number)", ylabel=f"CPU Ready ({example.unit})")
    for axis in (above, below):
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return Picture("rejection", "The rejection signal and CPU Ready of one node.", figure)


def window_steps(example: NodeExample, window: int) -> Picture | None:
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
            place = {"transform": axis.get_xaxis_transform(), "fontsize": 8.5}
            axis.text(start + 0.7, 0.04, "left", color="#15803d", **place)
            axis.text(now + 0.3, 0.04, "right", ha="right", color=ACCENT, **place)
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
    caption = "The sliding window at w/2, w and 2w, with left- and right-sided regions."
    return Picture("window", caption, figure)


def sweep(study: Study, option: str, values: tuple[float, ...]) -> Picture:
    """Draw what changing one option of the published signal changes."""
    figure, axes = canvas(8.6, 2.9, 1, 3)
    names = [f"paper[{option}={int(v) if float(v).is_integer() else v}]" for v in values]
    budget = study.setting.budget
    recall, own = (
        np.array([study.interval(name, statistic).value for name in names])
        for statistic in ("recall", "own_downtime")
    )
    preceded = np.array([np.nanmean(study.paper(name, "preceded")) for name in names])
    for axis, title, points, chance in (
        (axes[0, 0], f"recall at {budget:.0%} downtime\n(% of moments before a spike)", recall, budget),
        (axes[0, 1], "spikes preceded\n(% of spikes)", preceded, None),
        (axes[0, 2], "own downtime\n(% of time)", own, None),
    ):
        axis.plot(values, points, color=TINTS[3], marker="o", lw=1.6, label="Reject-Job")
        if chance is not None:
            axis.axhline(chance, color=MUTED, lw=1, ls=(0, (4, 3)), label="chance")
        top = 1.4 * max(chance or 0.0, points[np.isfinite(points)].max(initial=1e-3))
        axis.set(xlabel=SWEPT_UNITS[option], ylabel=title, xticks=values, ylim=(0, top))
        axis.legend(loc="upper right", fontsize=7.5)
        _percent(axis.yaxis)
    caption = f"The published signal with other values of {option}."
    return Picture(f"sweep-{option.replace('_', '-')}", caption, figure)
