"""Bitbrains GWA-T-12: 1,750 VMs of a hosting company, every five minutes for one to three months.

One file per VM, cells parted by a semicolon and a tab. The header says milliseconds, but timestamps are seconds
since 1970: they are told by their size. There is no CPU Ready in it; a column such as `CPU usage [%]` can be
forecast in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prontosched.telemetry.trace_csv import CsvFile
from prontosched.telemetry.trace_files import Batch, TraceCounts, Wanted

TIMESTAMP = "Timestamp [ms]"
SIGN = "CPU capacity provisioned [MHZ]"


class BitbrainsFile:
    """One VM of GWA-T-12.

    Attributes
    ----------
    names
        `timestamp` and the published columns under their own names.
    """

    kind = "bitbrains"
    ready_unit = "other"
    ready: str | None = None
    utilisation: str | None = "CPU usage [%]"
    exclude: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = CsvFile(path)
        self._own = {"timestamp": self._file.names[0]}
        self.names = ("timestamp", *self._file.names[1:])
        self.text = self._file.text - {self._file.names[0]}

    @staticmethod
    def recognises(path: Path, head: str) -> bool:
        """Tell from the first line whether this is a VM of GWA-T-12."""
        return path.name.endswith((".csv", ".csv.gz")) and SIGN in head and head.startswith("Timestamp")

    def batches(self, wanted: Wanted, size: int, counts: TraceCounts) -> Iterator[Batch]:
        """Yield at most `size` rows at a time."""
        clock = self._own["timestamp"] if wanted.timestamp else None
        yield from self._file.batches(wanted._replace(timestamp=clock), size, counts)
