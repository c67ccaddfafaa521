"""Several nodes out of one machine, for the demos: each has its own cores and its own telemetry.

Covers: making a node busy with real processes, and a page of metrics per node in
node_exporter's words, measured from that node's threads alone. Nothing here needs root: a
process belongs to the node named in its environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# slurmd sets this for every job; the demos set it for what else they run on a node.
BELONGS = "SLURMD_NODENAME"
# Stays on the cores of its node, as everything must that runs there.
PIN = "import os, sys\nos.sched_setaffinity(0, set(map(int, sys.argv[1].split(','))))\n"
HOG = PIN + "while os.getppid() == int(sys.argv[2]): pass"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class DemoNodes:
    """The nodes, by name with the cores of each: their load beside jobs, and their metrics pages."""

    def __init__(self, cores: Mapping[str, list[int]]) -> None:
        self.cores = {name: ",".join(map(str, own)) for name, own in cores.items()}
        self._meters = {name: _Meter(len(own)) for name, own in cores.items()}
        self._pages = {name: meter.page() for name, meter in self._meters.items()}
        self._hogs: dict[str, list[subprocess.Popen[bytes]]] = {name: [] for name in cores}
        self._stop = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._threads = [
            threading.Thread(target=self._server.serve_forever, daemon=True),
            threading.Thread(target=self._measure, daemon=True),
        ]

    def __enter__(self) -> DemoNodes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.cores:
            self.relax(name)
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(5)

    def target(self, node: str) -> str:
        """Return the address of a node's metrics page."""
        return f"http://127.0.0.1:{self._server.server_port}/{node}/metrics"

    def environment(self, node: str) -> dict[str, str]:
        """Return the environment by which a process belongs to a node."""
        return {**os.environ, BELONGS: node}

    def load(self, node: str, processes: int) -> None:
        """Make `node` busy: so many processes that never rest, on its cores."""
        command = [sys.executable, "-S", "-c", HOG, self.cores[node], str(os.getpid())]
        for _ in range(processes):
            # A session each: many kernels share the CPU between sessions, not processes.
            hog = subprocess.Popen(command, env=self.environment(node), start_new_session=True)
            self._hogs[node].append(hog)

    def relax(self, node: str) -> None:
        """End what `load` started."""
        hogs, self._hogs[node] = self._hogs[node], []
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait()

    def _measure(self) -> None:
        while not self._stop.wait(0.4):
            found = _processes(list(self.cores))
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

    def __init__(self, cores: int) -> None:
        self._cores = cores
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
        idle = max(0.0, self._cores * (_uptime() - self._started) - total["ran"])
        modes = {"user": total["user"], "system": total["system"], "idle": idle}
        counts = {"running_seconds": "ran", "waiting_seconds": "waited", "timeslices": "slices"}
        each = range(self._cores)  # which of them it was is not known
        lines = [
            *(
                f'node_cpu_seconds_total{{cpu="{core}",mode="{mode}"}} {value / self._cores}'
                for mode, value in modes.items()
                for core in each
            ),
            *(
                f'node_schedstat_{name}_total{{cpu="{core}"}} {total[key] / self._cores}'
                for name, key in counts.items()
                for core in each
            ),
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
