"""Two nodes out of this machine: the same jobs sent by turn, and sent to the node that Pronto names.

    make demo

Each half of the CPUs is a node, and one agent watches both. Processes take all CPUs of one
node or of the other, in bursts at random. A job comes every second or so. Those of one
stream go to both nodes by turn, as a scheduler sends them that sees only its own
allocations. Those of the other ask the agent first (`GET /v1/best`). Jobs come in pairs, one
of each stream, and a coin says which goes first, so that neither meets better moments. Prints
what jobs took, and whether the difference can be told from chance. Takes two minutes, most of the CPUs,
and nothing but Python.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from examples.demo_nodes import PIN, DemoNodes
from prontosched.agent.http.client import Client, UnreachableError
from prontosched.errors import ProntoError

Place = Callable[[], AbstractContextManager[str]]
NODES = ("left", "right")
JOB_SECONDS = 0.4
JOB_EVERY_SECONDS = 0.8
BURST_SECONDS = (5.0, 10.0)
PAUSE_SECONDS = (9.0, 18.0)
# Processes for each CPU of a node in a burst.
HOGS = 3
# How long a job is announced at most: by then telemetry shows it.
ANNOUNCED_SECONDS = 2.0
SETTLE_SECONDS = 5.0
# Jobs that have not ended by then are stopped, and counted as such.
LIMIT_SECONDS = 165.0
# Share of the CPUs taken by others before the demo, from which it says that it may show nothing.
BUSY_BEFORE = 0.3
# Fixed work in equal rounds, on the cores of its node; prints when it ended, and the CPU time it took.
JOB = f"""{PIN}import hashlib, json, time
data, used = bytes(1 << 16), time.process_time()
for _ in range(int(sys.argv[2])):
    hashlib.sha256(data).digest()
print(json.dumps([time.time(), time.process_time() - used]))
"""


class Ran(NamedTuple):
    """One job: its pair and node, when it was asked for and ended, in seconds of the demo, and its CPU time."""

    pair: int
    node: str
    asked: float
    ended: float
    cpu: float

    @property
    def took(self) -> float:
        """Seconds from asking for it to its end."""
        return self.ended - self.asked


@dataclass
class Story:
    """All that happened; what concerns one node is by its name."""

    start: float = field(default_factory=time.time)
    bursts: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {name: [] for name in NODES})
    states: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: {name: [] for name in NODES})
    by_turn: list[Ran] = field(default_factory=list)
    by_pronto: list[Ran] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.time() - self.start

    def busy(self, node: str, moment: float) -> bool:
        """Tell whether a burst is on a node."""
        return any(begin <= moment < end for begin, end in self.bursts[node])

    @property
    def streams(self) -> tuple[tuple[str, list[Ran]], tuple[str, list[Ran]]]:
        """Both streams, by what is said of them."""
        return ("by turn", self.by_turn), ("by Pronto", self.by_pronto)


def halves() -> dict[str, list[int]]:
    """Return the cores of each node: every other one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("the demo needs two CPUs or more, one for each node, and may use one here")
    return {name: cores[i::2] for i, name in enumerate(NODES)}


def calibrate(cores: str) -> int:
    """Return how many rounds make a job of `JOB_SECONDS` of CPU time here."""
    rounds = 200
    words = [sys.executable, "-c", JOB, cores, str(rounds)]
    out = subprocess.run(words, capture_output=True, text=True, check=True)
    return max(1, round(rounds * JOB_SECONDS / max(json.loads(out.stdout)[1], 1e-3)))


def busy_share(seconds: float = 2.0) -> float:
    """Return the share of the CPUs that others use right now."""

    def read() -> tuple[float, float]:
        values = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(values), values[3] + values[4]

    before = read()
    time.sleep(seconds)
    total, idle = (after - start for after, start in zip(read(), before, strict=True))
    return 1.0 - idle / total if total > 0 else 0.0


def start_agent(folder: Path, nodes: DemoNodes, cpus: int) -> tuple[subprocess.Popen[bytes], Client]:
    """Start an agent for both nodes on a free port; return once it knows them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "prontosched", "agent", "--source", "prometheus", "--interval", "1s"]
    for name in NODES:
        command += ["--target", nodes.target(name)]
    command += ["--cpus", str(cpus), "--listen", f"127.0.0.1:{port}", "--state", str(folder)]
    command += ["--for", f"{LIMIT_SECONDS + 60:g}s"]  # also where the demo is killed
    environment = {**os.environ, "RUNTIME_DIRECTORY": str(folder)}
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    client = Client(f"http://127.0.0.1:{port}", folders=[folder])
    for _ in range(150):
        try:
            if len(client.get("/v1/best")["nodes"]) == len(NODES):
                return agent, client
        except UnreachableError:
            if agent.poll() is not None:
                break
        time.sleep(0.2)
    agent.kill()
    agent.wait()
    raise SystemExit(
        f"the agent must answer within 30 s, got nothing: {(folder / 'agent.log').read_text()[-500:]}"
    )


class Demo:
    """One run: the load, the jobs and what the agent says, each on threads of its own."""

    def __init__(self, nodes: DemoNodes, cpus: int, client: Client, seconds: float) -> None:
        self.nodes = nodes
        self.cpus = cpus
        self.client = client
        self.seconds = seconds
        self.story = Story()
        self.stop = threading.Event()
        # The agent knows a node by the address of its metrics.
        self.address = {name: nodes.target(name).removeprefix("http://") for name in NODES}
        self._numbers = itertools.count()
        self._turn = itertools.cycle(NODES)

    def burst(self, node: str, draw: random.Random) -> None:
        """Take all CPUs of a node in bursts."""
        while not self.stop.wait(draw.uniform(*PAUSE_SECONDS)) and self.story.now() < self.seconds:
            begin = self.story.now()
            lasts = min(draw.uniform(*BURST_SECONDS), max(0.0, self.seconds - begin) + 1.0)
            self.story.bursts[node].append((begin, begin + lasts))
            self.nodes.load(node, HOGS * self.cpus)
            self.stop.wait(lasts)
            self.nodes.relax(node)

    def watch(self) -> None:
        """Note what the agent says of the nodes every second."""
        names = {address: name for name, address in self.address.items()}
        while not self.stop.wait(1.0):
            try:
                for one in self.client.get("/v1/best")["nodes"]:
                    self.story.states[names[one["node"]]].append((self.story.now(), one["state"]))
            except UnreachableError:
                continue
            if sys.stdout.isatty():
                print(f"\r{progress(self.story, self.story.now(), self.seconds):<78}", end="", flush=True)

    @contextmanager
    def by_turn(self) -> Iterator[str]:
        """Take the other node than last time."""
        yield next(self._turn)

    @contextmanager
    def by_pronto(self) -> Iterator[str]:
        """Ask which node to take, and announce the job there until it has ended."""
        found = self.client.get("/v1/best?cpus=1&limit=1")["nodes"][0]["node"]
        job = f"job-{next(self._numbers)}"
        self.client.announce(job, cpus=1.0, ttl=ANNOUNCED_SECONDS, if_uncontended=False, node=found)
        yield next(name for name, address in self.address.items() if address == found)
        self.client.withdraw(job)

    def run_job(self, pair: int, into: list[Ran], place: Place, rounds: int) -> None:
        """Run one job to its end, and note it."""
        asked = self.story.now()
        try:
            with place() as node:
                end, cpu = self.work(node, rounds, max(1.0, LIMIT_SECONDS - asked))
        except (ProntoError, subprocess.SubprocessError, ValueError) as error:
            self.story.failed.append(str(error))
            return
        into.append(Ran(pair, node, asked, end - self.story.start, cpu))

    def work(self, node: str, rounds: int, longest: float) -> tuple[float, float]:
        """Run the work of a job on a node; return when it ended, and the CPU time it took."""
        words = [sys.executable, "-c", JOB, self.nodes.cores[node], str(rounds)]
        ended = subprocess.run(
            words,
            env=self.nodes.environment(node),
            capture_output=True,
            text=True,
            timeout=longest,
            start_new_session=True,
            check=True,
        )
        end, cpu = json.loads(ended.stdout)
        return end, cpu

    def start_jobs(self, rounds: int, draw: random.Random) -> None:
        """Start the jobs, both streams in turn, and wait for the last."""
        threads = []
        due = self.story.now()
        for pair in itertools.count():
            if due >= self.seconds:
                break
            streams = [(self.story.by_turn, self.by_turn), (self.story.by_pronto, self.by_pronto)]
            draw.shuffle(streams)
            for into, place in streams:
                time.sleep(max(0.0, due - self.story.now()))
                thread = threading.Thread(target=self.run_job, args=(pair, into, place, rounds))
                thread.start()
                threads.append(thread)
                due += JOB_EVERY_SECONDS * draw.uniform(0.7, 1.3)
        for thread in threads:
            thread.join()

    def run(self, rounds: int, seed: int) -> Story:
        """Run all of it, and return what happened."""
        chance = random.Random(seed)
        draws = [random.Random(chance.random()) for _ in range(3)]
        beside = [threading.Thread(target=self.watch)]
        for name, draw in zip(NODES, draws, strict=False):
            beside.append(threading.Thread(target=self.burst, args=(name, draw)))
        try:
            for thread in beside:
                thread.start()
            time.sleep(SETTLE_SECONDS)
            self.start_jobs(rounds, draws[2])
        finally:
            self.stop.set()
            for thread in beside:
                if thread.ident is not None:  # one that Ctrl-C kept from starting cannot be joined
                    thread.join()
        return self.story


def progress(story: Story, now: float, seconds: float) -> str:
    """Say how far the demo is, and what the nodes say."""
    said = ", ".join(f"{name} {story.states[name][-1][1]}" for name in NODES if story.states[name])
    ended = sum(len(ran) for _, ran in story.streams)
    return f"{min(now, seconds):.0f} of {seconds:.0f} s, {ended} jobs have ended; {said}"


def difference(one: Sequence[float], two: Sequence[float], draw: random.Random) -> tuple[float, float, float]:
    """Return how much less `two` took than `one`, pair by pair, with a 95 % bootstrap interval."""
    less = [a - b for a, b in zip(one, two, strict=True)]
    means = sorted(statistics.fmean(draw.choices(less, k=len(less))) for _ in range(4000))
    return statistics.fmean(less), means[100], means[-101]


def timeline(story: Story, seconds: float, width: int = 100) -> list[str]:
    """Return rows of characters: of each node its load, what it says, and how many jobs of each stream run."""
    each = seconds / width

    def cells(of: Callable[[float], str]) -> str:
        return "".join(of((i + 0.5) * each) for i in range(width))

    def said(node: str) -> Callable[[float], str]:
        def at(moment: float) -> str:
            before = [state for when, state in story.states[node] if when <= moment]
            return {"accepting": "·", "contended": "▒", "refusing": "█"}.get(
                before[-1] if before else "", " "
            )

        return at

    def jobs(node: str, ran: list[Ran]) -> Callable[[float], str]:
        def at(moment: float) -> str:
            running = sum(job.node == node and job.asked <= moment < job.ended for job in ran)
            return str(min(running, 9)) if running else "·"

        return at

    def busy(node: str) -> Callable[[float], str]:
        return lambda moment: "█" if story.busy(node, moment) else "·"

    lines = []
    for node in NODES:
        lines += [
            f"  {node:<6} other load     " + cells(busy(node)),
            f"  {'':<6} it says        " + cells(said(node)) + "   · accepting  ▒ contended  █ refusing",
            f"  {'':<6} jobs by turn   " + cells(jobs(node, story.by_turn)) + "   how many run",
            f"  {'':<6} jobs by Pronto " + cells(jobs(node, story.by_pronto)),
        ]
    return [*lines, f"  {'':<6} seconds        0{seconds:>{width - 1}.0f}"]


def report(story: Story, seconds: float) -> list[str]:
    """Say what came of it, and how sure that is."""
    lines = ["", *timeline(story, seconds), ""]
    lines.append(
        f"  {'jobs sent':<12}{'jobs':>6}{'into a burst':>14}{'mean':>10}{'median':>10}{'longest':>10}{'slowdown':>10}"
    )
    for name, ran in story.streams:
        took = [job.took for job in ran]
        met = statistics.fmean(story.busy(job.node, job.asked) for job in ran)
        slower = statistics.fmean(job.took / max(job.cpu, 1e-3) for job in ran)
        lines.append(
            f"  {name:<12}{len(ran):>6}{met:>14.0%}{statistics.fmean(took):>8.2f} s"
            f"{statistics.median(took):>8.2f} s{max(took):>8.2f} s{slower:>10.2f}"
        )
    took_by = [{job.pair: job.took for job in ran} for _, ran in story.streams]
    pairs = sorted(took_by[0].keys() & took_by[1].keys())
    by_turn, by_pronto = ([took[pair] for pair in pairs] for took in took_by)
    less, low, high = difference(by_turn, by_pronto, random.Random(0))
    share = less / statistics.fmean(by_turn)
    if low > 0:
        told = f"sent by Pronto, jobs finished sooner: {share:.0%} less time from asking to the end"
    elif high < 0:
        told = f"sent by Pronto, jobs finished later: {-share:.0%} more time from asking to the end"
    else:
        told = "the streams do not differ by more than chance"
    lines += ["", f"  {told} ({less:+.2f} s of the mean, 95 % interval {low:+.2f} to {high:+.2f} s)"]
    lines.append("  slowdown: time from asking to the end over CPU time; a job's start is part of it")
    if story.failed:
        lines.append(f"  {len(story.failed)} jobs failed: {story.failed[0]}")
    return lines


def draw_figure(story: Story, path: Path) -> bool:
    """Draw both streams on both nodes over time; False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(NODES), figsize=(9, 4), sharex=True, layout="constrained")
    for axis, node in zip(axes, NODES, strict=True):
        for begin, end in story.bursts[node]:
            axis.axvspan(begin, end, color="#dddddd")
        for row, ((_, ran), colour) in enumerate(zip(story.streams, ("#4c78a8", "#e45756"), strict=True)):
            for place, job in enumerate(
                one for one in sorted(ran, key=lambda one: one.asked) if one.node == node
            ):
                height = 1 - row + 0.1 + 0.75 * (place % 5) / 5
                axis.plot([job.asked, job.ended], [height, height], color=colour, linewidth=2)
        axis.set_yticks([0.45, 1.45], ["by Pronto", "by turn"])
        axis.set_ylabel(f"jobs on {node}")
    axes[-1].set_xlabel(
        "seconds; a line is a job from asking to its end; grey: other load takes all CPUs of the node"
    )
    figure.savefig(path)
    plt.close(figure)
    return True


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--seconds", type=float, default=110.0, help="how long jobs are started (default: 110)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of bursts and moments (default: 1)")
    parser.add_argument("--figure", type=Path, help="where to draw (default: demo.svg in a temporary folder)")
    given = parser.parse_args()
    if not 20 <= given.seconds <= LIMIT_SECONDS - 15:
        parser.error(f"--seconds must be from 20 to {LIMIT_SECONDS - 15:g}, got {given.seconds:g}")
    cores = halves()
    cpus = min(map(len, cores.values()))
    folder = Path(tempfile.mkdtemp(prefix="pronto-demo-"))
    if (busy := busy_share()) > BUSY_BEFORE:
        print(
            f"others use {busy:.0%} of the CPUs already: both streams will suffer from that, and may not differ"
        )
    with DemoNodes(cores) as nodes:
        rounds = calibrate(nodes.cores[NODES[0]])
        agent, client = start_agent(folder, nodes, cpus)
        print(
            f"two nodes of {cpus} CPU{'s' if cpus > 1 else ''} each, jobs of {JOB_SECONDS:g} s of CPU time, "
            f"{given.seconds:g} s; the agent is at {client.url}",
            flush=True,
        )
        try:
            story = Demo(nodes, cpus, client, given.seconds).run(rounds, given.seed)
        finally:
            agent.send_signal(signal.SIGTERM)
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
    if not story.by_turn or not story.by_pronto:
        raise SystemExit(
            f"both streams must have run jobs, got none: {'; '.join(story.failed[:1]) or 'no reason known'}"
        )
    ended = max(job.ended for _, ran in story.streams for job in ran)
    if sys.stdout.isatty():
        print("\r" + 78 * " ", end="\r")
    print("\n".join(report(story, max(given.seconds, ended))))
    figure = given.figure or folder / "demo.svg"
    print(f"  drawn: {figure}" if draw_figure(story, figure) else "  no figure: matplotlib is not installed")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()
        sys.exit("demo: stopped before its end; what it started has ended")
