"""`python -m tools.services`: a server at work, for recording a trace of a mostly calm machine.

PostgreSQL and nginx answer a steady trickle of requests. Beside them run jobs of two kinds: regular ones, which a
cron table would start (compressed logs every minute, a backup every five, a build every ten), and irregular
ones at random times (builds, compression, sorting, bursts of queries or requests). All of it is real work of real
programs. Needs root, PostgreSQL, nginx, wrk, g++, go and xz; listens on loopback only and ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from prontosched.cli.options import Duration

REGULAR = {"logs": 60.0, "backup": 300.0, "build": 600.0}
ROWS, SCALE = 2_600_000, 8  # of the data that jobs work on, and of the database
IRREGULAR = ("go build", "c++ build", "compress", "sort", "queries", "requests", "one thread", "checksum")
CPP = """#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
int main(int n, char **words) {
    std::map<std::string, int> seen;
    std::regex word("[a-z]+%d");
    for (int i = 0; i < n; i++) seen[std::regex_replace(words[i], word, "x")]++;
    for (auto &pair : seen) std::cout << pair.first << pair.second;
}
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One job that ran: what, when by the clock, and for how long in seconds."""

    kind: str
    regular: bool
    start: float
    seconds: float


class Server:
    """The services, a folder for what jobs read and write, and what ran so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.done: list[Job] = []
        self.stop = threading.Event()
        self.database_port, self.web_port = free_port(), free_port()
        self._threads: list[threading.Thread] = []
        self._running: set[subprocess.Popen[str]] = set()
        self._errors: list[Exception] = []
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not binaries:
            raise click.ClickException("PostgreSQL must be installed (apt-get install postgresql), got none")
        self.postgres = binaries[-1]

    def generator(self, name: str) -> random.Random:
        """Return a generator of its own for a thread, so that each draws the same whatever the others do."""
        return random.Random(f"{self.seed} {name}")

    def start(self, target: Callable[..., None], *values: object) -> None:
        """Run something beside the rest until the end; if it fails, that is the end."""

        def guarded() -> None:
            try:
                target(*values)
            except Exception as error:
                if not self.stop.is_set():
                    self._errors.append(error)
                    self.stop.set()

        self._threads.append(threading.Thread(target=guarded))
        self._threads[-1].start()

    def finish(self) -> None:
        """End what still runs, and raise what went wrong first."""
        self.stop.set()
        while living := [thread for thread in self._threads if thread.is_alive()]:
            for process in list(self._running):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            living[0].join(0.2)
        if self._errors:
            raise self._errors[0]

    def shell(self, line: str, *, seconds: float = 300.0) -> None:
        """Run one fixed command line in the folder; one that fails ends everything with its message."""
        environment = {
            **os.environ,
            "PGHOST": str(self.folder),
            "PGPORT": str(self.database_port),
            "PGUSER": "postgres",
            "PATH": f"{self.postgres}:/usr/local/go/bin:{os.environ['PATH']}",
            "GOFLAGS": "-p=4",
            "GOCACHE": str(self.folder / f"go-{threading.get_ident()}"),
        }
        process = subprocess.Popen(
            ["/bin/bash", "-c", f"set -o pipefail; {line}"],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            _, said = process.communicate()
        finally:
            self._running.discard(process)
        if process.returncode and not self.stop.is_set():
            raise click.ClickException(f"{line} must succeed: {said.strip()[-300:]}")

    def command(self, kind: str, rng: random.Random) -> str:
        """Return the command line of one kind of job; sizes are drawn anew each time."""
        size, seconds = rng.uniform(0.4, 1.0), rng.randint(6, 22)
        if kind == "logs":
            return "gzip -kf9 log"
        if kind == "backup":
            return "pg_dump bench | xz -T2 -4 > backup.xz"
        if kind in ("build", "c++ build"):
            return f"ls cpp/*.cc | head -{int(3 + 8 * size)} | xargs -P4 -n1 g++ -O1 -c -o /dev/null"
        if kind == "go build":
            package = rng.choice(["net/http", "crypto/tls", "go/types", "encoding/json"])
            return (
                f"rm -rf $GOCACHE; cd /usr/local/go/src && go build -o /dev/null {package}; rm -rf $GOCACHE"
            )
        if kind == "compress":
            return f"head -c {int(90e6 * size)} data | xz -T4 -3 > data.xz"
        if kind == "sort":
            return f"head -c {int(120e6 * size)} data | sort --parallel=4 -S 64M -T . > sorted; rm -f sorted"
        if kind == "queries":
            return f"pgbench -n -S -c 6 -j 2 -T {seconds} bench"
        if kind == "requests":
            return f"wrk -t 2 -c 16 -d {seconds} http://127.0.0.1:{self.web_port}/log"
        if kind == "one thread":
            return f"timeout {seconds} sha512sum /dev/zero || true"
        return "(find /usr -xdev -type f -size -200k -print0 || true) | head -zn 20000 | xargs -0 cat | sha256sum"

    def run(self, kind: str, rng: random.Random, *, regular: bool) -> None:
        """Run one job and keep when it ran."""
        start = time.time()
        self.shell(self.command(kind, rng))
        if self.stop.is_set():  # it was cut off
            return
        self.done.append(Job(kind, regular, round(start, 2), round(time.time() - start, 2)))

    def every(self, kind: str, period: float) -> None:
        """Run a job at each full period, until the end."""
        rng = self.generator(kind)
        while not self.stop.wait(period - time.time() % period):
            self.run(kind, rng, regular=True)

    def at_random(self, mean: float) -> None:
        """Run irregular jobs, exponentially apart, until the end."""
        rng = self.generator("irregular")
        while not self.stop.wait(rng.expovariate(1 / mean)):
            self.run(rng.choice(IRREGULAR), rng, regular=False)

    def query(self, seconds: float) -> None:
        """Send the database about forty transactions a second, until the end."""
        self.shell(f"pgbench -n -c 4 -R 40 -T {max(1, int(seconds))} bench", seconds=seconds + 60)

    def visit(self) -> None:
        """Ask the web server for a page about fifteen times a second, until the end."""
        rng = self.generator("visits")
        while not self.stop.wait(rng.expovariate(15.0)):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/page", timeout=30) as answer:
                answer.read()


def free_port() -> int:
    """Return a port of loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def services(server: Server) -> Iterator[None]:
    """Run PostgreSQL and nginx with something to serve."""
    folder = server.folder
    folder.chmod(0o755)
    shutil.chown(folder, "postgres")
    database = folder / "database"
    initdb = [str(server.postgres / "initdb"), "-A", "trust", str(database)]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, user="postgres", group="postgres")
    (folder / "page").write_text("<p>" + "busy " * 4000)
    rng = server.generator("data")
    rows = (f"{rng.random()} {rng.getrandbits(64):x} GET /page/{i % 997}\n" for i in range(ROWS))
    (folder / "data").write_text("".join(rows))
    (folder / "log").write_bytes((folder / "data").read_bytes()[:12_000_000])
    (folder / "cpp").mkdir()
    for i in range(24):
        (folder / "cpp" / f"{i}.cc").write_text(CPP % i)
    (folder / "nginx.conf").write_text(
        f"daemon off; error_log stderr; pid {folder}/nginx.pid; worker_processes 2; events {{}}\n"
        f"http {{ access_log {folder}/access; gzip on; gzip_types *; gzip_comp_level 3;\n"
        f"server {{ listen 127.0.0.1:{server.web_port}; root {folder}; }} }}\n"
    )
    serve = [str(server.postgres / "postgres"), "-D", str(database), "-k", str(folder), "-h", ""]
    serve += ["-p", str(server.database_port)]
    started = [
        subprocess.Popen(serve, stderr=subprocess.DEVNULL, user="postgres", group="postgres"),
        subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL),
    ]
    try:
        server.shell("for i in $(seq 100); do pg_isready -q && break; sleep .1; done; createdb bench")
        server.shell(f"pgbench -q -i -s {SCALE} bench")
        yield
    finally:
        server.stop.set()
        for process in started:
            process.send_signal(signal.SIGINT)  # both end at once on it
            process.wait(30)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--for", "seconds", type=Duration(above=True), default="60m", help="How long it lasts.")
@click.option("--seed", type=int, default=1, help="Same seed, same sizes and pauses.")
@click.option("--pause", type=Duration(above=True), default="100s", help="Mean pause between irregular jobs.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write what ran to this file, as JSON."
)
def command(seconds: float, seed: int, pause: float, out: Path | None) -> None:
    """Serve, build, back up and compress on this machine, and leave it calm in between."""
    with tempfile.TemporaryDirectory(prefix="services-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), seed)
        with services(server):
            click.echo(f"services are up; {seconds:.0f} s to go", err=True)
            begin = time.time()
            server.start(server.query, seconds)
            server.start(server.visit)
            server.start(server.at_random, pause)
            for kind, period in REGULAR.items():
                server.start(server.every, kind, period)
            server.stop.wait(seconds)
            server.finish()
            if out is not None:
                ran = sorted(map(asdict, server.done), key=lambda job: job["start"])
                out.write_text(
                    json.dumps({"seed": seed, "started": begin, "seconds": seconds, "jobs": ran}, indent=1)
                )
            click.echo(f"{len(server.done)} jobs ran", err=True)


if __name__ == "__main__":
    command()
