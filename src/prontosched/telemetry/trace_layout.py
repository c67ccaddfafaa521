"""Which columns of a trace mean what."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from prontosched.errors import TelemetryError
from prontosched.telemetry.trace_files import TraceFile, name_some

READY_NAMES = ("ready", "cpu_ready", "cpu_ready_percent", "cpu_ready_ms")
UTILISATION_NAMES = ("utilisation", "utilization", "cpu_utilisation")
TIMESTAMP_NAMES = ("timestamp", "time")
NODE_NAMES = ("node",)


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
            others = name_some(file.names, most=2)
            raise TelemetryError(f"{file.path}: no column '{column}' among {others}: name one that is there")


def lay_out(
    files: list[TraceFile], given: dict[str, str | None], exclude: Sequence[str]
) -> tuple[Layout, dict[str, str]]:
    """Decide what each column is; return the layout and the columns left out with the reason."""
    defaults = {
        "ready": READY_NAMES,
        "utilisation": UTILISATION_NAMES,
        "timestamp": TIMESTAMP_NAMES,
        "node": NODE_NAMES,
    }
    roles = {role: (name,) if (name := given[role]) else defaults[role] for role in defaults}
    reserved = {name for role, names in roles.items() if role != "utilisation" for name in names}
    reserved |= set(UTILISATION_NAMES)
    columns: dict[str, str] = {}
    metrics: dict[str, int] = {}
    for file in files:
        for name in file.names:
            if name in reserved:
                if name in file.text and name in roles["ready"] + roles["utilisation"]:
                    raise TelemetryError(f"{file.path}: column '{name}' must hold numbers, got text")
            elif any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
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
