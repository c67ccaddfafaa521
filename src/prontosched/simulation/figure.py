"""The study drawn: slowdown of every rule, one panel a placer."""

from __future__ import annotations

from pathlib import Path

from prontosched.simulation.study import Study

COLOURS = {
    "nothing": "#9aa0a6",
    "coin": "#c5a880",
    "ready": "#4c78a8",
    "paper": "#b279a2",
    "learned": "#e45756",
    "oracle": "#54a24b",
}


def draw(study: Study, path: Path) -> None:
    """Write the figure; the ending of `path` chooses PNG or SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = (("slowdown_mean", "mean slowdown"), ("slowdown_p99", "99th percentile of slowdown"))
    figure, axes = plt.subplots(
        len(rows),
        len(study.placers),
        figsize=(3.4 * len(study.placers) + 0.6, 5.6),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for line, (measure, label) in zip(axes, rows, strict=True):
        for axis, placer in zip(line, study.placers, strict=True):
            for place, rule in enumerate(study.rules):
                cell = study.interval(placer, rule, measure)
                axis.errorbar(
                    place,
                    cell.mean,
                    yerr=[[max(cell.mean - cell.low, 0.0)], [max(cell.high - cell.mean, 0.0)]],
                    fmt="o",
                    color=COLOURS.get(rule, "#72b7b2"),
                    capsize=3,
                )
            axis.set_xticks(range(len(study.rules)), study.rules, rotation=40, ha="right")
            axis.set_title(placer, fontsize=10)
            axis.grid(axis="y", alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(label)
    figure.suptitle(
        f"{study.scenario.nodes} nodes, {len(study.seeds)} seeds, budget {study.scenario.budget:.0%}: "
        "mean and 95 % interval over seeds",
        fontsize=10,
    )
    figure.savefig(path, dpi=140)
    plt.close(figure)
