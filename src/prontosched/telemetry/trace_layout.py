"""Which columns of a trace mean what."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from prontosched.errors import TelemetryError, nearest
from prontosched.telemetry.source import PROBE_COLUMN
from prontosched.telemetry.trace_files import TraceFile, name_some

READY_NAMES = ("ready", "cpu_ready", "cpu_ready_percent", "cpu_ready_ms")
UTILISATION_NAMES = ("utilisation", "utilization", "cpu_utilisation")
TIMESTAMP_NAMES = ("timestamp", "time")
NODE_NAMES = ("node",)
# Signs of CPU Ready in the name of a column, the surest first.
_SIGNS = tuple(
    re.compile(sign, re.IGNORECASE)
    for sign in (
        r"ready|rdy",
        r"steal|stolen",
        r"cpu.*(wait|delay)|run.?queue",
        r"cpu.*(psi|pressure)|(psi|pressure).*cpu",
        r"load",
    )
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns mean what; of several names the first that a file has counts."""

    metrics: tuple[str, ...]
    ready: tuple[str, ...]
    utilisation: tuple[str, ...]
    timestamp: tuple[str, ...]
    node: tuple[str, ...]

    @staticmethod
    def pick(names: tuple[str, ...], file: TraceFile) -> str | None:
        """Return the first of the names that the file has."""
        return next((name for name in names if name in file.names), None)


def require_column(column: str, files: list[TraceFile]) -> None:
    """Refuse files that lack a column."""
    for file in files:
        if column not in file.names:
            near = nearest(column, file.names)
            what = f"did you mean {name_some(near)}?" if near else "name one that is there"
            raise TelemetryError(
                f"{file.path}: no column '{column}' among {name_some(file.names, most=2)}: {what}"
            )


def like_ready(names: Sequence[str]) -> list[str]:
    """Return the columns that may hold CPU Ready or what stands for it, the likeliest first.

    Examples
    --------
    >>> like_ready(["load_1", "memory", "cpu.ready.summation"])
    ['cpu.ready.summation', 'load_1']
    """
    found = ((next((i for i, sign in enumerate(_SIGNS) if sign.search(name)), None), name) for name in names)
    return [name for _, name in sorted((place, name) for place, name in found if place is not None)]


def ready_wanted(names: Sequence[str]) -> str:
    """Return what to do about a trace without CPU Ready: which option, and the columns that look right."""
    likely = like_ready(names)
    looks = "looks" if len(likely) == 1 else "look"
    return "name it with --ready COLUMN" + (f" ({name_some(likely, most=3)} {looks} right)" if likely else "")


def lay_out(
    files: list[TraceFile], given: dict[str, str | None], exclude: Sequence[str], keep: Sequence[str] = ()
) -> tuple[Layout, dict[str, str]]:
    """Decide what each column is; return the layout and the columns left out with the reason.

    Columns to `keep` are among the metrics, whatever they are, where a file has them.
    """
    defaults = {
        "ready": READY_NAMES,
        "utilisation": UTILISATION_NAMES,
        "timestamp": TIMESTAMP_NAMES,
        "node": NODE_NAMES,
    }
    roles = {role: (name,) if (name := given[role]) else defaults[role] for role in defaults}
    reserved = {name for role, names in roles.items() if role != "utilisation" for name in names}
    # What happened to a probe is an outcome: read it as `ready`, or `keep` it, where it is wanted.
    reserved |= {*UTILISATION_NAMES, PROBE_COLUMN}
    reserved -= set(keep)
    columns: dict[str, str] = {}
    metrics: dict[str, int] = {}
    for file in files:
        for name in file.names:
            if name in reserved:
                if name in file.text and name in roles["ready"] + roles["utilisation"]:
                    raise TelemetryError(f"{file.path}: column '{name}' must hold numbers, got text")
            elif name not in keep and any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
                continue
            elif name in file.text:
                columns[name] = "left out, not numbers"
            else:
                metrics[name] = metrics.get(name, 0) + 1
    for pattern in exclude:
        if not any(fnmatch.fnmatchcase(name, pattern) for file in files for name in file.names):
            columns[pattern] = "to be left out, but no column is called so"
    for name, n in metrics.items():
        if n < len(files):
            columns[name] = f"in only some of the {len(files)} files, unknown elsewhere"
    if not metrics:
        raise TelemetryError(
            f"{files[0].path}: a trace must have at least one column of numbers, got none left"
        )
    return Layout(metrics=tuple(metrics), **roles), columns
