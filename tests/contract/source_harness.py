"""Each source with the troubles that can befall it: metrics lost, gained, unknown, counters reset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.prometheus import PrometheusSource
from prontosched.telemetry.source import Source
from prontosched.telemetry.trace import open_trace
from prontosched.telemetry.vsphere import VSphereSource
from tests.telemetry.exporters import Exporter, exporters
from tests.telemetry.machines import FROZEN
from tests.telemetry.vcenter import VCenter, find_vcsim


class Harness(Protocol):
    """A source, and what can happen to it between two readings. False: cannot happen to this one."""

    source: Source

    def tick(self) -> None: ...

    def gain(self) -> bool: ...

    def lose(self) -> bool: ...

    def blank(self) -> bool: ...

    def reset(self) -> bool: ...


class LinuxHarness:
    """The frozen machine."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "machine"
        shutil.copytree(FROZEN / "first", self._root)
        self._now = 0.0
        self._stat = (self._root / "proc/stat").read_text()
        self._switches = 2472085
        self.source: Source = LinuxSource(self._root, node="n", monotonic=lambda: self._now)

    def tick(self) -> None:
        self._now += 1.0
        self._switches += 500
        (self._root / "proc/stat").write_text(self._stat.replace("ctxt 2472085", f"ctxt {self._switches}"))

    def gain(self) -> bool:
        with (self._root / "proc/diskstats").open("a") as file:
            file.write(" 8 0 sda 5 0 40 1 0 0 0 0 0 1 1 0 0 0 0 0 0\n")
        return True

    def lose(self) -> bool:
        shutil.copy(FROZEN / "first/proc/diskstats", self._root / "proc/diskstats")
        path = self._root / "proc/net/dev"
        path.write_text("".join(line for line in path.read_text().splitlines(True) if "eth0" not in line))
        return True

    def blank(self) -> bool:
        (self._root / "proc/vmstat").write_text("")
        return True

    def reset(self) -> bool:
        self._switches = 1
        return True


class PrometheusHarness:
    """An exporter of our own."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._count, self._extra, self._gauge = 1000, "", "level 5\n"
        self.source: Source = PrometheusSource([exporter.address], interval_seconds=5.0)
        self.tick()

    def tick(self) -> None:
        self._count += 10
        self._exporter.page = f"# TYPE work counter\nwork_total {self._count}\n{self._gauge}{self._extra}"

    def gain(self) -> bool:
        self._extra = "extra 1\n"
        return True

    def lose(self) -> bool:
        self._extra = self._gauge = ""
        return True

    def blank(self) -> bool:
        self._gauge = "level NaN\n"
        return True

    def reset(self) -> bool:
        self._count = 0
        return True


class TraceHarness:
    """A folder of part files whose columns change, with an empty cell."""

    def __init__(self, folder: Path) -> None:
        parts = folder / "trace.csv.parts"
        parts.mkdir()
        rows = "".join(f"{t},{t % 7},{t},{t % 3}\n" for t in range(20))
        (parts / "part-000000.csv").write_text("timestamp,ready,a,b\n" + rows)
        rows = "".join(f"{t},{t % 7},{t if t % 2 else ''},{t}\n" for t in range(20, 60))
        (parts / "part-000001.csv").write_text("timestamp,ready,a,c\n" + rows)
        self.source: Source = open_trace(parts)

    def tick(self) -> None:
        return

    def gain(self) -> bool:
        return False

    def lose(self) -> bool:
        return False

    def blank(self) -> bool:
        for _ in range(25):
            self.source.read()
        return True

    def reset(self) -> bool:
        return False


class VSphereHarness:
    """The vCenter simulator, whose inventory stays as it is."""

    def __init__(self, vcenter: VCenter) -> None:
        self.source: Source = VSphereSource(vcenter.address, insecure=True)

    def tick(self) -> None:
        return

    def gain(self) -> bool:
        return False

    def lose(self) -> bool:
        return False

    def blank(self) -> bool:
        # The simulator leaves zeros out of its answers.
        return True

    def reset(self) -> bool:
        return False


NAMES = ("linux", "prometheus", "vsphere", "trace")


@contextmanager
def harness(name: str, folder: Path) -> Iterator[Harness]:
    if name == "linux":
        yield LinuxHarness(folder)
    elif name == "trace":
        yield TraceHarness(folder)
    elif name == "prometheus":
        with exporters(1) as (exporter,):
            yield PrometheusHarness(exporter)
    else:
        program = find_vcsim()
        assert program is not None
        vcenter = VCenter(program)
        try:
            os.environ |= {"PRONTO_VSPHERE_USER": "tester", "PRONTO_VSPHERE_PASSWORD": "secret"}
            yield VSphereHarness(vcenter)
        finally:
            for variable in ("PRONTO_VSPHERE_USER", "PRONTO_VSPHERE_PASSWORD"):
                os.environ.pop(variable, None)
            vcenter.close()
