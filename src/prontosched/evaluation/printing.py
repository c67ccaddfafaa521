"""The results for a terminal: the verdict, one table, the goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST_NODES = 32


def print_outcome(found: dict[str, Any]) -> str:
    """Return what a person at a terminal wants to see."""
    setting, data = found["setting"], found["data"]
    low, chosen = setting["downtimes_compared"]
    lines = [
        "Is it worth obeying here? " + found["answer"]["sentence"],
        "",
        f"{data['nodes']} {'node' if data['nodes'] == 1 else 'nodes'}, {data['steps']:,} steps, "
        f"{data['spike_share'] or 0:.1%} of them spikes "
        f"({setting['truth_in_words']}); a spike within {setting['horizon']} steps follows "
        f"{data['positive_share'] or 0:.1%} of moments.",
        "",
    ]
    lines += _own(found)
    lines += _qos(found)
    lines += ["", f"At equal downtime. {found['comparison']} {found['anticipation']}".rstrip()]
    headings = ["method", f"recall {low:.0%}", f"recall {chosen:.0%}", "95 % interval", "null p",
                f"prec. {chosen:.0%}", "quiet ROC", "quiet AP", "exposure", "ECE"]  # fmt: skip
    rows = []
    for method in found["methods"]:
        honest = method["honest"]
        rows.append([
            method["label"], _short(honest["recall_low"]["value"]),
            _short(honest["recall"]["value"]), _span(honest["recall"]), _short(method["null"]["recall"]["p"], 4),
            _short(honest["precision"]["value"]), _short(honest["quiet_roc"]["value"]),
            _short(honest["quiet_average_precision"]["value"]), _short(honest["exposure_cut"]["value"]),
            _short(method["calibration_error"], 3),
        ])  # fmt: skip
    lines += table(headings, rows)
    if found["goals"]:
        lines += [
            "",
            "Goals of the default signal and policy"
            + (" (development results)" if found["development"] else "")
            + ":",
        ]
        lines += table(
            ["what", "value", "95 %", "goal", "met"],
            [[row["what"], _short(row["value"], 3), _span(row), row["goal_in_words"], _met(row["met"])]
             for row in found["goals"]],
        )  # fmt: skip
        lines += _each(found)
    dropped = data["dropped"]
    if dropped:
        lines += ["", "Rows dropped: " + ", ".join(f"{n} ({cause})" for cause, n in dropped.items())]
    if "timing" in found["performance"]:
        lines += _timing(found["performance"]["timing"])
    return "\n".join(lines)


def _own(found: dict[str, Any]) -> list[str]:
    """Return what every method decides by its own default, whatever that costs."""
    headings = [
        "by default",
        "refused",
        "recall",
        "95 % interval",
        "precision",
        "contended accepted",
        "changes/h",
    ]
    rows = []
    for method in found["methods"]:
        own = method["own"]
        if own["downtime"]["value"] is not None:
            rows.append([
                method["label"], _percent(own["downtime"]["value"]), _short(own["recall"]["value"]),
                _span(own["recall"]), _short(own["precision"]["value"]), _percent(own["contended_accepted"]["value"]),
                _short(own["changes_per_hour"]["value"], 1),
            ])  # fmt: skip
    return table(headings, rows)


def _qos(found: dict[str, Any]) -> list[str]:
    """Return what jobs suffered after accepted and refused moments, where the traces say."""
    column = found["data"]["qos_column"]
    rows = [
        [
            method["label"],
            *(_with_span(method["qos"][key]) for key in ("accepted", "refused", "all", "saved")),
        ]
        for method in found["methods"]
        if method["qos"] is not None and method["qos"]["refused"]["value"] is not None
    ]
    if not rows:
        return []
    headings = [f"mean {column} after moments", "accepted", "refused", "all", "saved by refusing"]
    return ["", *table(headings, rows)]


def _each(found: dict[str, Any]) -> list[str]:
    """Return the values of the goals node by node, where there are a few nodes."""
    names = found["data"]["names"]
    rows = [row for row in found["goals"] if row["each"]]
    if not rows or not 1 < len(names) <= MOST_NODES:
        return []
    lines = [f"  {letter}  {row['what']}" for letter, row in zip("abcdefghijklmnop", rows, strict=False)]
    cells = [[name, *(_short(row["each"][k], 3) for row in rows)] for k, name in enumerate(names)]
    return ["", "Node by node:", *lines, *table(["node", *"abcdefghijklmnop"[: len(rows)]], cells)]


def _timing(found: dict[str, Any]) -> list[str]:
    """Return what a node-step took, and on what."""
    lines = [
        "",
        f"Timing: {found['microseconds_per_node_step']:.0f} µs of processor time a node-step, "
        f"{found['times_a_bare_step']:.1f} times a bare step of a default node "
        f"({found['microseconds_of_a_bare_step']:.0f} µs):",
    ]
    return [*lines, *(f"  {us:7.1f} µs  {name}" for name, us in found["microseconds_by_part"].items())]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns: the first to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in [headings, *rows]) for k in range(len(headings))]
    lines = []
    for row in [headings, ["-" * width for width in widths], *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _short(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _span(found: dict[str, Any]) -> str:
    if found.get("low") is None or found.get("high") is None:
        return "–"
    return f"{found['low']:.2f}–{found['high']:.2f}"


def _with_span(found: dict[str, Any]) -> str:
    span = _span(found)
    return _short(found["value"], 3) + ("" if span == "–" else f" ({span})")


def _met(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "no"
