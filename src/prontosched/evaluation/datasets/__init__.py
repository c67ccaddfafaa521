"""Published data sets, read as traces: those of `public`, and CSV exports of vSphere.

`open_dataset` tells what a file is and opens it with the interface of `telemetry.trace`, so that whatever reads
a trace reads these too. Where each is published, and under which licence, is in `catalogue`.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from prontosched.errors import TelemetryError
from prontosched.evaluation.datasets.public import (
    CSV_LAYOUTS,
    DatasetFile,
    DbsherlockFile,
    KthFile,
    RezolusFile,
    SmdFile,
)
from prontosched.evaluation.datasets.vsphere import VsphereCsvFile, first_lines
from prontosched.telemetry.trace import TraceSource, open_files, open_trace

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".txt", ".mat")
READERS = (SmdFile, *CSV_LAYOUTS, KthFile, DbsherlockFile, RezolusFile, VsphereCsvFile)


# Traces that come with Pronto: a saturated machine, and a calmer server at work.
SHIPPED = ("host", "server")


def recognise(path: Path) -> Callable[[Path], DatasetFile] | None:
    """Return the reader of a file's data set, None for a plain trace."""
    head = first_lines(path, 1)[0]
    return next((reader for reader in READERS if reader.recognises(path, head)), None)


def shipped_trace(name: str = "host") -> str:
    """Return the path of a trace that comes with Pronto: `host` (the hard case) or `server`."""
    path = importlib.resources.files("prontosched") / "data" / f"{name}.parquet"
    if name not in SHIPPED or not path.is_file():
        raise TelemetryError(f"a shipped trace must be one of {', '.join(SHIPPED)}, got {name!r}")
    return str(path)


def resolve(path: str | PathLike[str]) -> Path:
    """Return the path of a trace; `host` and `server` are Pronto's own where there is no such file."""
    shipped = str(path) in SHIPPED and not Path(path).exists()
    return Path(shipped_trace(str(path)) if shipped else path)


def files_of(paths: Sequence[str | PathLike[str]]) -> list[Path]:
    """Return the files, and the files of the folders among them, in order."""
    found: list[Path] = []
    for path in map(resolve, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
            if not inside:
                raise TelemetryError(
                    f"{path}: the folder must hold .parquet, .csv, .txt or .mat files, got none"
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise TelemetryError(f"{path}: no such file")
    return found


def open_dataset(
    paths: Sequence[str | PathLike[str]],
    *,
    ready: str | None = None,
    exclude: Sequence[str] = (),
    utilisation: str | None = None,
    keep: Sequence[str] = (),
) -> tuple[TraceSource, str]:
    """Open traces of any kind: Pronto's own, published data sets, or exports of vSphere.

    Parameters
    ----------
    ready
        Column that holds CPU Ready; without it the data set's own choice.
    exclude
        Columns to leave out, with wildcards; without it and without `ready` the data set's own choice.
    keep
        Columns to have among the metrics although they say what came of it.

    Returns
    -------
    The trace, and the unit of its CPU Ready: "percent" (per CPU), "ms" (per interval) or "other".
    """
    files = files_of(paths)
    readers = [recognise(path) for path in files]
    if not any(readers):
        own = [resolve(path) for path in paths]
        source = open_trace(own, ready=ready, exclude=exclude, utilisation=utilisation, keep=keep)
        return source, "percent" if ready is None else _unit_of(source.ready_column)
    for path, reader in zip(files, readers, strict=True):
        if reader is None:
            raise TelemetryError(f"{path}: all files must be of one kind, got a plain trace among data sets")
    opened = [reader(path) for path, reader in zip(files, readers, strict=True) if reader]
    kinds = sorted({file.kind for file in opened})
    if len(kinds) > 1:
        raise TelemetryError(f"all files must be of one data set, got {' and '.join(kinds)}")
    first = opened[0]
    own_choice = ready is None or (kinds == ["vsphere"] and ready.lower().startswith("cpu.read"))
    chosen = first.ready if own_choice else ready
    busy = utilisation or first.utilisation
    # What is to be foretold must not be among what foretells it.
    if busy == chosen or any(busy not in file.names for file in opened):
        busy = None
    patterns = tuple(exclude) or (first.exclude if own_choice else ())
    source = open_files(opened, ready=chosen, exclude=patterns, utilisation=busy, keep=keep)
    measured = own_choice and first.ready_unit != "other"
    return source, first.ready_unit if measured else _unit_of(source.ready_column)


def _unit_of(column: str | None) -> str:
    """Tell from the name of its column what CPU Ready is measured in."""
    name = (column or "").lower()
    if name.endswith(("_ms", ".ms", "summation", "milliseconds")) or "[ms]" in name:
        return "ms"
    return "percent" if "ready" in name or "percent" in name else "other"
