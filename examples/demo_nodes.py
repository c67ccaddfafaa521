"""Four nodes out of one machine, for the Slurm demo: each has one core and its own telemetry.

Covers: which core a node's jobs run on, making a node busy with real processes, and a
page of metrics per node in node_exporter's words, measured from that node's threads
alone. Nothing here needs root: a job belongs to the node named in its environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# slurmd sets this for every job; the demo sets it for what it runs on a node beside Slurm.
BELONGS = "SLURMD_NODENAME"
HOG = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile os.getppid() == int(sys.argv[2]): pass"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class DemoNodes:
    """The nodes: their cores, their load beside Slurm, and their metrics pages."""

    def __init__(self, names: list[str], *, busy: str) -> None:
        self.names = names
        others = self.quiet_cores()
        # The node that gets busy has a core to itself, so that it slows down nobody else.
        self.cores = {n: others[i % len(others)] for i, n in enumerate(n for n in names if n != busy)}
        self.cores[busy] = max(os.sched_getaffinity(0))
        self._meters = {name: _Meter() for name in names}
        self._pages = {name: meter.page() for name, meter in self._meters.items()}
        self._hogs: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._threads = [
            threading.Thread(target=self._server.serve_forever, daemon=True),
            threading.Thread(target=self._measure, daemon=True),
        ]

    @staticmethod
    def quiet_cores() -> list[int]:
        """Return the cores that nobody makes busy, for everything but the busy node's jobs."""
        cores = sorted(os.sched_getaffinity(0))
        return cores[:-1] or cores

    def __enter__(self) -> DemoNodes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.relax()
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(5)

    @property
    def busy(self) -> bool:
        """True between `load` and `relax`."""
        return bool(self._hogs)

    def target(self, node: str) -> str:
        """Return the address of a node's metrics page."""
        return f"http://127.0.0.1:{self._server.server_port}/{node}/metrics"

    def load(self, node: str, processes: int) -> None:
        """Make `node` busy: so many processes that never rest, on its core."""
        environment = {**os.environ, BELONGS: node}
        command = [sys.executable, "-S", "-c", HOG, str(self.cores[node]), str(os.getpid())]
        for _ in range(processes):
            # A session each: many kernels share the CPU between sessions, not processes.
            self._hogs.append(subprocess.Popen(command, env=environment, start_new_session=True))

    def relax(self) -> None:
        """End what `load` started."""
        for hog in self._hogs:
            hog.kill()
        for hog in self._hogs:
            hog.wait()
        self._hogs.clear()

    def _measure(self) -> None:
        while not self._stop.wait(0.4):
            found = _processes(self.names)
            for name, meter in self._meters.items():
                meter.read(found[name])
                self._pages[name] = meter.page()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        nodes = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/").split("/")[0]
                page = nodes._pages.get(name)
                body = (page or "").encode()
                self.send_response(404 if page is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: a page is read every second."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a reader that was killed in the middle is part of the story."""


class _Meter:
    """Counters of one node that only grow, although its threads come and go."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, ...]] = {}
        self._total: dict[str, float] = defaultdict(float)
        self._now: dict[str, float] = {}
        self._started = _uptime()

    def read(self, processes: list[Path]) -> None:
        seen: dict[str, tuple[float, ...]] = {}
        now: dict[str, float] = defaultdict(float)
        for process in processes:
            for thread in process.glob("task/*"):
                try:
                    ran, waited, slices = map(float, (thread / "schedstat").read_text().split())
                    fields = (thread / "stat").read_text().rsplit(")", 1)[1].split()
                except (OSError, ValueError):
                    continue  # it has ended
                user, system, faults = float(fields[11]), float(fields[12]), float(fields[7])
                counters = (ran / 1e9, waited / 1e9, slices, user / TICKS, system / TICKS, faults)
                before = self._last.get(str(thread), (0.0,) * 6)
                for key, new, old in zip(KEYS, counters, before, strict=True):
                    self._total[key] += max(0.0, new - old)
                seen[str(thread)] = counters
                now["threads"] += 1
                now["running"] += fields[0] == "R"
                now["resident"] += float(fields[21]) * PAGE
        self._last, self._now = seen, now

    def page(self) -> str:
        total, now = self._total, self._now
        idle = max(0.0, _uptime() - self._started - total["ran"])
        lines = [
            f'node_cpu_seconds_total{{cpu="0",mode="user"}} {total["user"]}',
            f'node_cpu_seconds_total{{cpu="0",mode="system"}} {total["system"]}',
            f'node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}',
            f'node_schedstat_running_seconds_total{{cpu="0"}} {total["ran"]}',
            f'node_schedstat_waiting_seconds_total{{cpu="0"}} {total["waited"]}',
            f'node_schedstat_timeslices_total{{cpu="0"}} {total["slices"]}',
            f"node_vmstat_pgfault {total['faults']}",
            f"node_procs_running {now.get('running', 0.0)}",
            f"node_processes_threads {now.get('threads', 0.0)}",
            f"node_memory_resident_bytes {now.get('resident', 0.0)}",
        ]
        types = {
            line.split("{")[0].split(" ")[0]: "counter" if "total" in line or "vmstat" in line else "gauge"
            for line in lines
        }
        heads = [f"# TYPE {name} {kind}" for name, kind in types.items()]
        return "\n".join([*heads, *lines, ""])


KEYS = ("ran", "waited", "slices", "user", "system", "faults")


def _processes(nodes: list[str]) -> dict[str, list[Path]]:
    """Return the processes that belong to each node, by their environment."""
    marks = {name: f"\0{BELONGS}={name}\0".encode() for name in nodes}
    found: dict[str, list[Path]] = {name: [] for name in nodes}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            environment = b"\0" + (process / "environ").read_bytes() + b"\0"
        except OSError:
            continue  # another user's, or it has ended
        for name, mark in marks.items():
            if mark in environment:
                found[name].append(process)
    return found


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
