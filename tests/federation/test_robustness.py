"""A federation under random faults, checked against a model all the while, in the manner of etcd's.

Twelve agents that close nodes of a real Slurm, three aggregators and a standby, on a real bus with signed
messages. Agents, aggregators and the bus are killed, stopped and cut off, clocks are stepped, disks fill up, scontrol
becomes slow, stores come back empty. It takes one minute in the tests and ten in `make soak`;
PRONTO_TEST_ROBUSTNESS_SECONDS sets another length there, PRONTO_TEST_ROBUSTNESS_SEED takes the faults of a former
run again.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.slurm_cluster import SlurmCluster, running_cluster
from prontosched.errors import IntegrationError
from prontosched.federation.aggregator import Aggregator
from prontosched.federation.link import LEASES, SUMMARIES, VIEWS, Entry, LinkDownError
from prontosched.federation.message import GlobalView, Summary, UnknownSchemaError
from prontosched.federation.nats import NatsLink
from prontosched.federation.schema import SchemaCache
from prontosched.federation.signing import read_identity
from prontosched.federation.tree import Tree
from prontosched.gates.gate import read_label
from prontosched.gates.slurm import SlurmCommands
from prontosched.subspace import distance
from tests.processes import free_port, wait_for
from tests.requirements import require_program, require_slurm

from .buses import Bus

SHORT_SECONDS = 60.0
LONG_SECONDS = float(os.environ.get("PRONTO_TEST_ROBUSTNESS_SECONDS", "600"))
AGENTS = 12
SITES = ("east", "west")
INTERVAL = 0.5
VALID = 6.0
SWEEP = 1.0
BLOCK = 10 * INTERVAL
CALLS = 6
# Administrators closed these, one from the beginning.
ADMIN_REASON = "disk is failing"


FAULTS = (
    "kill agent", "stop agent", "empty store", "full disk", "kill aggregator", "kill root", "stop aggregator",
    "kill bus", "empty bus", "cut", "slow scontrol", "drain", "clock step",
)  # fmt: skip
# An hour: marks of nodes' closing count for half of one at most. Ten years: a battery that is dead.
CLOCK_STEPS = (-3600.0, 3600.0, -315_360_000.0, 315_360_000.0)
# Read by every process at its start: its clock is the machine's and what a file says, looked at ten times a second.
STEPPED_CLOCK = """
import os, time

class Clock:
    def __init__(self, path, real, unit):
        self.path, self.real, self.unit, self.ahead, self.looked = path, real, unit, 0, -1.0
    def __call__(self):
        now = time.monotonic()
        if now - self.looked > 0.1:
            self.looked = now
            try:
                with open(self.path) as file:
                    self.ahead = self.unit(file.read())
            except (OSError, ValueError):
                self.ahead = 0
        return self.real() + self.ahead

path = os.environ["PRONTO_TEST_CLOCK"]
time.time = Clock(path, time.time, float)
time.time_ns = Clock(path, time.time_ns, lambda text: int(1e9 * float(text)))
"""


def kept_ports(rng: random.Random) -> Iterator[int]:
    """Ports that stay free while an agent is down: none that the system gives to others on its own."""
    for port in rng.sample(range(20_000, 32_000), 200):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            yield port


class Wire:
    """A way to the bus that can be cut: everything on it is dropped, and new connections are refused."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = free_port()
        self.up = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self.up = False
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self._writers])

    def heal(self) -> None:
        self.up = True

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._join, "127.0.0.1", self.port))
        self._loop.run_forever()
        self._server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.up:
            writer.transport.abort()
            return
        try:
            there, out = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, out}
        await asyncio.gather(self._pump(reader, out), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        self._writers.discard(writer)


@dataclass
class Life:
    """One process of an agent: what it has said of itself."""

    process: subprocess.Popen[bytes]
    begun: float
    stopped: bool = False
    first: tuple[int, int] | None = None
    last: tuple[int, int] = (0, 0)


@dataclass
class Model:
    """What must hold, whatever happens; `broken` lists what did not."""

    broken: list[str] = field(default_factory=list)
    looks: Counter[str] = field(default_factory=Counter)
    takeovers: list[float] = field(default_factory=list)
    closed: int = 0

    def check(self, true: bool, words: str) -> None:
        if not true and len(self.broken) < 50:
            self.broken.append(f"{datetime.now(UTC):%H:%M:%S} {words}")


class Federation:
    """All processes of the run, and what is done to them."""

    def __init__(self, folder: Path, cluster: SlurmCluster, rng: random.Random) -> None:
        self.folder, self.cluster, self.rng = folder, cluster, rng
        self.model = Model()
        self.slurm = SlurmCommands(conf=cluster.conf)
        self.bus = Bus(folder).start()
        self.wire = Wire(self.bus.port)
        self.keys = folder / "keys"
        self.agents = dict(
            zip([f"{SITES[n % 2]}/n{n + 1}" for n in range(AGENTS)], kept_ports(rng), strict=False)
        )
        self.names = {name.partition("/")[2]: name for name in self.agents}
        self.parts = {"east": ["east"], "west": ["west"], "root": [""], "standby": ["east", "west", ""]}
        rows = [("node", name, name) for name in self.agents]
        rows += [("aggregator", part, place) for part, places in self.parts.items() for place in places]
        self.keys.write_text(
            "\n".join(
                f"{role} {place or 'root'} {read_identity(self._key(who)).public}"
                for role, who, place in rows
            )
        )
        self.slow = folder / "slow"
        tools = folder / "tools"
        tools.mkdir()
        real = shutil.which("scontrol", path=cluster.env["PATH"])
        (tools / "scontrol").write_text(
            f'#!/bin/sh\n[ ! -e "{self.slow}" ] || sleep 1.5\nexec "{real}" "$@"\n'
        )
        (tools / "scontrol").chmod(0o755)
        (tools / "sitecustomize.py").write_text(STEPPED_CLOCK)
        self.environment = {
            **cluster.env,
            "PATH": f"{tools}:{cluster.env['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(tools), cluster.env.get("PYTHONPATH")))),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.lives: dict[str, Life] = {}
        self.right_since = dict.fromkeys(self.agents, -math.inf)
        self.marks: dict[str, tuple[float, float]] = {}
        self.answers: deque[tuple[float, float]] = deque(maxlen=1000)
        self.aggregators: dict[str, subprocess.Popen[bytes]] = {}
        self.watch = self._run("watch", "gate", "watch", "--gate", "slurm", "--every", f"{SWEEP}s",
                               "--option", f"conf={cluster.conf}")  # fmt: skip
        for part in self.parts:
            self.start_aggregator(part)
        for name in self.agents:
            self.start_agent(name)
        self.link = NatsLink(self.address("reader", sign=False), name="model", timeout=1.0, quiet=True)
        self.schemas = SchemaCache(self.link)
        self.views = self.link.subscribe(VIEWS, "global")
        self.summaries = self.link.subscribe(SUMMARIES, ">")
        self.leaves: dict[str, Summary] = {}
        self.sites: dict[str, Summary] = {}
        self.view: GlobalView | None = None
        self.pending: dict[str, Entry] = {}
        self.killed: tuple[bytes, float] | None = None
        self.ahead: list[str] = []

    def _clock(self, who: str) -> Path:
        return self.folder / f"{who.replace('/', '-')}.clock"

    def _key(self, who: str) -> Path:
        return self.folder / f"{who.replace('/', '-')}.key"

    def address(self, who: str, *, sign: bool = True) -> str:
        own = f"&sign={self._key(who)}" if sign else ""
        return f"nats://127.0.0.1:{self.wire.port}/robust?keys={self.keys}{own}&max_age=2&epsilon=0.01"

    def _run(self, log: str, *arguments: str, limit: int | None = None) -> subprocess.Popen[bytes]:
        def full_disk() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit or 0, limit or 0))

        with (self.folder / f"{log.replace('/', '-')}.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "prontosched", *arguments],
                env={**self.environment, "PRONTO_TEST_CLOCK": str(self._clock(log))},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                preexec_fn=full_disk if limit is not None else None,
            )  # fmt: skip

    def start_agent(self, name: str, *, empty: bool = False, limit: int | None = None) -> None:
        state = self.folder / "state" / name.replace("/", "-")
        if empty:
            shutil.rmtree(state, ignore_errors=True)
        state.mkdir(parents=True, exist_ok=True)
        process = self._run(
            name, "agent", "--synthetic", "1", "--name", name, "--interval", f"{INTERVAL}s", "--valid", f"{VALID}s",
            "--state", str(state), "--listen", f"127.0.0.1:{self.agents[name]}", "--nats", self.address(name),
            "--gate", "slurm", "--gate-option", f"conf={self.cluster.conf}", "--gate-option", "veto=true",
            # How long marks count is the gate's, not the agent's --valid.
            "--gate-option", f"valid_seconds={VALID}",
            "--enforce", "--max-refusing", "0.5", "--no-probe", limit=limit,
        )  # fmt: skip
        self.lives[name] = Life(process, time.monotonic())

    def start_aggregator(self, part: str) -> None:
        names = [word for place in self.parts[part] for word in ("--name", place)]
        self.aggregators[part] = self._run(
            f"aggregate-{part}", "aggregate", "--nats", self.address(part), *names,
            "--epsilon", "0", "--max-age", "1s", "--takeover", "2s", "--expiry", "10m",
        )  # fmt: skip

    # Faults: each begins at once, and returns what ends it.

    def fault(self) -> None:
        # Each once, then again in another order.
        self.ahead = self.ahead or self.rng.sample(FAULTS, len(FAULTS))
        kind = self.ahead.pop()
        self.model.looks[kind] += 1
        pause = self.rng.uniform(0.5, 4.0)
        if "agent" in kind or kind in ("empty store", "full disk"):
            self._fault_of_agent(kind, self.rng.choice(list(self.lives)), pause)
        elif "aggregator" in kind:
            self._fault_of_aggregator(kind, self.rng.choice(list(self.parts)), pause)
        elif kind == "kill root":
            self._fault_of_aggregator(kind, self._root(), pause)
        elif "bus" in kind:
            self.bus.kill()
            self.look(pause)
            if kind == "empty bus":
                shutil.rmtree(self.folder / "jetstream", ignore_errors=True)
            self.bus.start()
        elif kind == "cut":
            self.wire.cut()
            self.look(pause)
            self.wire.heal()
        elif kind == "slow scontrol":
            self.slow.touch()
            self.look(pause)
            self.slow.unlink()
        elif kind == "clock step":
            self._step_clock(pause)
        else:
            self._drain(pause)

    def _fault_of_agent(self, kind: str, name: str, pause: float) -> None:
        life = self.lives[name]
        if kind == "stop agent":
            life.stopped = True
            life.process.send_signal(signal.SIGSTOP)
            self.look(pause)
            life.process.send_signal(signal.SIGCONT)
            # What it was asked while it stood still is answered first.
            life.first, life.stopped = None, False
            return
        self.end_life(name)
        self.look(pause)
        self.start_agent(name, empty=kind == "empty store", limit=4096 if kind == "full disk" else None)

    def _fault_of_aggregator(self, kind: str, part: str, pause: float) -> None:
        process = self.aggregators[part]
        with suppress(LinkDownError):
            seat = self.link.get(LEASES, "seats.=root")
            if seat is not None and f"-{process.pid} ".encode() in seat.value and kind.startswith("kill"):
                self.killed = (seat.value, time.monotonic())
        process.send_signal(signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)
        if kind.startswith("stop"):
            self.look(pause)
            process.send_signal(signal.SIGCONT)
            return
        process.wait(5)
        self.look(max(pause, 3.0))
        self.start_aggregator(part)

    def _step_clock(self, pause: float) -> None:
        """Set the clock of an agent and of an aggregator wrong for a while; each may start anew meanwhile."""
        name, part = self.rng.choice(list(self.agents)), self.rng.choice(list(self.parts))
        stepped = (name, f"aggregate-{part}")
        self.right_since[name] = math.inf
        for who in stepped:
            self._clock(who).write_text(str(self.rng.choice(CLOCK_STEPS)))
        if self.rng.random() < 0.5:
            self._fault_of_agent("kill agent", name, pause)
        if self.rng.random() < 0.5:
            self._fault_of_aggregator("kill aggregator", part, pause)
        self.look(pause)
        for who in stepped:
            self._clock(who).unlink()
        self.right_since[name] = time.monotonic()

    def _root(self) -> str:
        """Who sits at the root now."""
        with suppress(LinkDownError):
            seat = self.link.get(LEASES, "seats.=root")
            for part, process in self.aggregators.items():
                if seat is not None and f"-{process.pid} ".encode() in seat.value:
                    return part
        return "root"

    def _drain(self, pause: float) -> None:
        """An administrator closes a node and opens it again."""
        node = self.rng.choice(self.cluster.nodes[1:])
        if self.cluster.field(node, "Reason"):
            return
        self.cluster.call("scontrol", "update", f"nodename={node}", "state=drain", f"reason={ADMIN_REASON}")
        # In the moment between a gate's look and its word an administrator can lose; then they drain again.
        if not self.cluster.field(node, "Reason").startswith(ADMIN_REASON):
            return
        self.look(pause)
        reason = self.cluster.field(node, "Reason")
        self.model.check(
            reason.startswith(ADMIN_REASON), f"an administrator's drain of {node} became {reason!r}"
        )
        self.cluster.call("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def end_life(self, name: str) -> None:
        life = self.lives[name]
        life.stopped = True
        life.process.kill()
        life.process.wait(5)

    # The model.

    def look(self, seconds: float) -> None:
        """Check everything again and again for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name in self.lives:
                self._look_at_agent(name)
            self._look_at_slurm()
            self._look_at_bus()
            time.sleep(0.1)

    def _look_at_agent(self, name: str) -> None:
        life = self.lives[name]
        if life.stopped:
            return
        if life.process.poll() is not None:
            life.stopped = True
            last = (self.folder / f"{name.replace('/', '-')}.log").read_text(errors="replace")[-400:]
            self.model.check(False, f"{name} ended with {life.process.returncode}: {last}")
            return
        try:
            url = f"http://127.0.0.1:{self.agents[name]}/v1/status"
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)
        except OSError:
            late = time.monotonic() - life.begun > 60.0
            self.model.check(not late, f"{name} does not answer")
            return
        life.last = (found["loop"]["ticks"], found["tally"]["decisions"])
        life.first = life.first or life.last
        ticks, decisions = (last - first for last, first in zip(life.last, life.first, strict=True))
        self.model.looks["ticks"] += 1
        self.model.check(decisions >= ticks - 2, f"{name} decided {decisions} times in {ticks} ticks")

    def _look_at_slurm(self) -> None:
        # Its own scontrol, which is not made slow; a machine that has no time for it is no fault of theirs.
        begun = time.monotonic()
        try:
            nodes = list(self.slurm.nodes())
        except IntegrationError:
            self.model.looks["Slurm did not answer"] += 1
            return
        finally:
            self.answers.append((begun, time.monotonic() - begun))
        now = time.time()
        # To open nodes a watch needs three calls, after two for a rank that it may be taking off, each as slow as
        # the machine is now for us.
        slowest = max(took for when, took in self.answers if when > begun - 30.0)
        most = SWEEP + 10.0 + CALLS * slowest
        self.model.looks["Slurm"] += 1
        for node in nodes:
            if node.name == "n1":
                kept = node.drained and node.reason.startswith(ADMIN_REASON)
                self.model.check(kept, f"n1 was closed by an administrator, and is now {node.reason!r}")
            mark = read_label(node.reason) if node.drained else None
            if mark is None:
                self.marks.pop(node.name, None)
                continue
            self.model.closed += 1
            moment = time.monotonic()
            if self.marks.get(node.name, (0.0, 0.0))[0] != mark.valid_until:
                self.marks[node.name] = (mark.valid_until, moment)
            # However wrong the clock that made it was: a mark is renewed or goes. What sweeps needs a look, and
            # scontrol may be slow.
            late = moment - self.marks[node.name][1] - VALID
            if moment - self.right_since[self.names[node.name]] > 2 * VALID:
                late = max(late, now - mark.valid_until)
            self.model.check(
                late < most, f"{node.name} is closed {late:.1f} s past its verdict, of {most:.1f} s"
            )

    def _look_at_bus(self) -> None:
        for entry in self.views.drain():
            with suppress(UnknownSchemaError):
                self.view = GlobalView.from_bytes(entry.value, self.schemas)
                self.model.check(self.view.nodes <= AGENTS, f"the view counts {self.view.nodes} of {AGENTS}")
                self.model.looks["views"] += 1
        for entry in [*self.pending.values(), *self.summaries.drain()]:
            self.pending.pop(entry.key, None)
            try:
                found = Summary.from_bytes(entry.value, self.schemas) if entry.value else None
            except UnknownSchemaError:
                self.pending[entry.key] = entry
                continue
            if found is not None:
                (self.sites if found.merged else self.leaves)[found.node] = found
        if self.killed is not None:
            with suppress(LinkDownError):
                seat = self.link.get(LEASES, "seats.=root")
                if seat is not None and seat.value not in (b"", self.killed[0]):
                    self.model.takeovers.append(time.monotonic() - self.killed[1])
                    self.killed = None

    def undisturbed(self) -> Summary | None:
        """What aggregators that saw no fault make of what the agents said last."""
        root = Aggregator("")
        for site in SITES:
            aggregator = Aggregator(site)
            for name, summary in self.leaves.items():
                if Tree().parent(name) == site:
                    aggregator.receive(summary, now=0.0)
            merged = aggregator.merged()
            if merged is not None:
                data = merged.to_bytes()
                root.receive(Summary.from_bytes(data, lambda _, m=merged: m.metrics), now=0.0)
        return root.merged()

    def agrees(self) -> bool:
        self._look_at_bus()
        truth, view = self.undisturbed(), self.view
        if truth is None or view is None or truth.subspace is None or view.subspace is None:
            return False
        same = (view.nodes, round(view.samples)) == (AGENTS, round(truth.samples))
        return same and distance(view.subspace.cut(4), truth.subspace.cut(4)) < 1e-3

    def difference(self) -> str:
        """Say how the view and the undisturbed one differ, where on the way, and who is not there."""
        merged = {"view": self.view, "undisturbed": self.undisturbed(), **self.sites}
        found = {name: (one.nodes, round(one.samples)) if one else None for name, one in merged.items()}
        seats: dict[str, str] = {}
        for place in (*SITES, "=root"):
            with suppress(LinkDownError):
                seat = self.link.get(LEASES, f"seats.{place}")
                seats[place] = f"{seat.value.decode()} at {seat.revision}" if seat else "nobody"
        pids = {part: (one.pid, one.poll()) for part, one in self.aggregators.items()}
        return (
            f"(nodes, samples): {found}; silent: {sorted(set(self.agents) - set(self.leaves))}; "
            f"connected: {self.link.connected}; dropped: {self.link.seals and self.link.seals.last_dropped!r}; "
            f"seats: {seats}; aggregators and how they ended: {pids}"
        )

    def close(self) -> None:
        self.link.close()
        everyone = [*(life.process for life in self.lives.values()), *self.aggregators.values(), self.watch]
        for process in everyone:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)
        self.wire.close()
        self.bus.kill()


@contextmanager
def federation(folder: Path, seed: int) -> Iterator[Federation]:
    with running_cluster(folder / "slurm", nodes=AGENTS) as cluster:
        cluster.call("scontrol", "update", "nodename=n1", "state=drain", f"reason={ADMIN_REASON}")
        made = Federation(folder, cluster, random.Random(seed))
        try:
            yield made
        finally:
            made.close()


@pytest.mark.timeout(900)
def test_whatever_fails_nodes_decide_and_the_view_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endure(tmp_path, capsys, SHORT_SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_whatever_fails_for_long_nodes_decide_and_the_view_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endure(tmp_path, capsys, LONG_SECONDS)


def endure(folder: Path, capsys: pytest.CaptureFixture[str], seconds: float) -> None:
    """Let faults happen for a while, and compare what is left with the model."""
    require_program("nats-server")
    require_slurm()
    seed = int(os.environ.get("PRONTO_TEST_ROBUSTNESS_SEED", random.SystemRandom().randrange(10**6)))
    with federation(folder, seed) as run:
        wait_for(run.agrees, seconds=240, what=f"a first view: {run.view and run.view.nodes} nodes")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run.fault()
            run.look(run.rng.uniform(0.0, 3.0))
        healed = time.monotonic()
        # Everyone is up again: three blocks later the view is what it would have been.
        run.look(3 * BLOCK)
        for life in run.lives.values():
            life.stopped = True
            life.process.send_signal(signal.SIGSTOP)
        with suppress(AssertionError):
            wait_for(run.agrees, seconds=30)
        run.model.check(run.agrees(), run.difference())
        took = time.monotonic() - healed
        model = run.model
    with capsys.disabled():
        times = ", ".join(f"{one:.1f} s" for one in model.takeovers) or "none"
        print(f"\nseed {seed}: {dict(model.looks)}; {model.closed} looks at closed nodes; the view was back "
              f"{took:.1f} s after the last heal; takeovers of the root: {times}")  # fmt: skip

    assert not model.broken, "\n".join([f"seed {seed}", *model.broken])
    assert min(model.looks["ticks"], model.looks["Slurm"], model.looks["views"]) > 0
    assert model.takeovers or model.looks["kill root"] < 3
