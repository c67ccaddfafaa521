"""The study drawn: what every rule removes of the excess slowdown, one panel a scenario and placer."""

from __future__ import annotations

from pathlib import Path

from prontosched.simulation.study import Study

PANELS_A_ROW = 4


def colour_of(rule: str) -> str:
    """Return the colour of a rule: ours, the oracle's, and everyone else's."""
    if rule.startswith("pronto"):
        return "#e45756"
    return {"oracle": "#54a24b", "ready": "#4c78a8", "ready-score": "#4c78a8"}.get(rule, "#9aa0a6")


def draw(study: Study, path: Path) -> None:
    """Write the figure; the ending of `path` chooses PNG or SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels: dict[tuple[str, str], list[str]] = {}
    for cell in (cell for cells in study.parts.values() for cell in cells):
        rules = panels.setdefault((cell.name, cell.placer), [])
        if cell.rule != "nothing" and cell.rule not in rules:
            rules.append(cell.rule)
    across = min(PANELS_A_ROW, len(panels))
    down = -(-len(panels) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(3.6 * across, 3.4 * down), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((name, placer), rules) in zip(axes.flat, panels.items(), strict=False):
        shares = [study.removed(name, placer, rule) for rule in rules]
        for at, (rule, share) in enumerate(zip(rules, shares, strict=True)):
            low, high = share.mean - share.low, share.high - share.mean
            error = None if low != low else [[max(low, 0.0)], [max(high, 0.0)]]
            axis.barh(at, max(share.mean, -1.0), xerr=error, color=colour_of(rule), height=0.7)
        axis.set_yticks(range(len(rules)), rules, fontsize=7)
        axis.invert_yaxis()
        axis.axvline(0.0, color="black", linewidth=0.6)
        axis.set_xlim(max(-1.05, min([-0.1, *(s.mean - 0.05 for s in shares)])), 1.0)
        axis.set_title(f"{name}\n{placer}", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"share of the placer's excess slowdown removed: mean and 95 % interval over {len(study.seeds)} seeds",
        fontsize=10,
    )
    figure.savefig(path, dpi=140)
    plt.close(figure)
