"""Two streams of the same jobs on this machine, one started by `pronto run`, one not, beside real load in bursts.

    make demo

Starts an agent on a free port of the loopback, lets processes take all CPUs in bursts at
random, and starts a job every few seconds, in turn by itself and by `pronto run`. In each
pair of moments a coin says who goes first, so that neither stream meets better ones. Prints
what each job took, what a probe saw, and whether the difference can be told from chance.
Takes two minutes and a half, half of the CPUs, and nothing but Python.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from prontosched.agent.http.client import Client, UnreachableError
from prontosched.telemetry.probe import Probe

JOB_SECONDS = 1.5
BURST_SECONDS = (7.0, 12.0)
PAUSE_SECONDS = (7.0, 12.0)
JOB_EVERY_SECONDS = 2.5
PROBE_EVERY_SECONDS = 3.0
PATIENCE_SECONDS = 30.0
SETTLE_SECONDS = 8.0
# Jobs that have not ended by then are stopped, and counted as such.
LIMIT_SECONDS = 165.0
# Share of the CPUs taken by others before the demo, from which it says that it may show nothing.
BUSY_BEFORE = 0.3
# Fixed work in equal rounds; prints when it began and ended, and the CPU time it took.
JOB = """
import hashlib, json, sys, time
data, began, used = bytes(1 << 16), time.time(), time.process_time()
for _ in range(int(sys.argv[1])):
    hashlib.sha256(data).digest()
print(json.dumps([began, time.time(), time.process_time() - used]))
"""
HOG = "import os, sys, time\nend = time.time() + float(sys.argv[1])\nwhile time.time() < end and os.getppid() > 1: pass"


@dataclass
class Ran:
    """One job: when it was asked for, began and ended, in seconds of the demo, and its CPU time."""

    asked: float
    began: float
    ended: float
    cpu: float

    @property
    def running(self) -> float:
        """Seconds from its begin to its end."""
        return self.ended - self.began

    @property
    def whole(self) -> float:
        """Seconds from asking for it to its end."""
        return self.ended - self.asked


@dataclass
class Story:
    """All that happened."""

    start: float = field(default_factory=time.time)
    bursts: list[tuple[float, float]] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)
    probes: list[tuple[str, float]] = field(default_factory=list)
    plain: list[Ran] = field(default_factory=list)
    through: list[Ran] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.time() - self.start


def calibrate() -> int:
    """Return how many rounds make a job of `JOB_SECONDS` of CPU time here."""
    rounds = 200
    out = subprocess.run([sys.executable, "-c", JOB, str(rounds)], capture_output=True, text=True, check=True)
    cpu = max(json.loads(out.stdout)[2], 1e-3)
    return max(1, round(rounds * JOB_SECONDS / cpu))


def busy_share(seconds: float = 2.0) -> float:
    """Return the share of the CPUs that others use right now."""

    def read() -> tuple[float, float]:
        values = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(values), values[3] + values[4]

    before = read()
    time.sleep(seconds)
    total, idle = (after - start for after, start in zip(read(), before, strict=True))
    return 1.0 - idle / total if total > 0 else 0.0


def start_agent(folder: Path) -> tuple[subprocess.Popen[bytes], Client, str]:
    """Start an agent on a free port; return once it decides."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "prontosched",
        "agent",
        "--listen",
        f"127.0.0.1:{port}",
        "--state",
        str(folder),
    ]
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    client = Client(url)
    for _ in range(150):
        try:
            client.decision()
            return agent, client, url
        except UnreachableError:
            if agent.poll() is not None:
                break
            time.sleep(0.2)
    agent.kill()
    agent.wait()
    raise SystemExit(
        f"the agent must answer within 30 s, got nothing: {(folder / 'agent.log').read_text()[-500:]}"
    )


def burst(story: Story, seconds: float, stop: threading.Event, draw: random.Random) -> None:
    """Take all CPUs in bursts, with twice as many processes as there are."""
    hogs = 2 * len(os.sched_getaffinity(0))
    while not stop.wait(draw.uniform(*PAUSE_SECONDS)) and story.now() < seconds:
        lasts = min(draw.uniform(*BURST_SECONDS), seconds - story.now() + 1.0)
        story.bursts.append((story.now(), story.now() + lasts))
        running = [subprocess.Popen([sys.executable, "-c", HOG, str(lasts)]) for _ in range(hogs)]
        stop.wait(lasts)
        for hog in running:
            if stop.is_set():
                hog.kill()
            hog.wait()


def watch(story: Story, client: Client, stop: threading.Event) -> None:
    """Note what the agent says every second, and what probes find meanwhile."""
    with closing(Probe(every_seconds=PROBE_EVERY_SECONDS)) as probe:
        while not stop.wait(1.0):
            try:
                said = client.decision()
            except UnreachableError:
                continue
            state = str(said.get("state", "accepting" if said.get("accept") else "refusing"))
            story.states.append((story.now(), state))
            found = probe.poll(time.monotonic(), ready=100.0, state=state)
            if found is not None and found.slowdown == found.slowdown:
                story.probes.append((found.state, found.slowdown))


def run_job(story: Story, into: list[Ran], words: Sequence[str]) -> None:
    """Run one job to its end, and note it."""
    asked = story.now()
    try:
        left = max(1.0, LIMIT_SECONDS - asked)
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        story.failed.append(f"not done after {left:.0f} s, stopped")
        return
    try:
        began, end, cpu = json.loads(ended.stdout)
    except ValueError:
        story.failed.append((ended.stderr or "no output").strip().splitlines()[-1])
        return
    into.append(Ran(asked, began - story.start, end - story.start, cpu))


def start_jobs(story: Story, url: str, rounds: int, seconds: float, draw: random.Random) -> None:
    """Start the jobs, both streams in turn, and wait for the last."""
    job = [sys.executable, "-c", JOB, str(rounds)]
    waits = ["run", "--agent", url, "--quiet", "--patience", f"{PATIENCE_SECONDS:g}s", "--"]
    through = [sys.executable, "-m", "prontosched", *waits, *job]
    threads = []
    due = story.now()
    while due < seconds:
        pair = [(story.plain, job), (story.through, through)]
        draw.shuffle(pair)
        for into, words in pair:
            time.sleep(max(0.0, due - story.now()))
            thread = threading.Thread(target=run_job, args=(story, into, words))
            thread.start()
            threads.append(thread)
            due += JOB_EVERY_SECONDS * draw.uniform(0.7, 1.3)
    for thread in threads:
        thread.join()


def difference(one: Sequence[float], two: Sequence[float], draw: random.Random) -> tuple[float, float, float]:
    """Return how much less the mean of `two` is than that of `one`, with a 95 % bootstrap interval."""
    apart = sorted(
        statistics.fmean(draw.choices(one, k=len(one))) - statistics.fmean(draw.choices(two, k=len(two)))
        for _ in range(4000)
    )
    return statistics.fmean(one) - statistics.fmean(two), apart[100], apart[-101]


def timeline(story: Story, seconds: float, width: int = 100) -> list[str]:
    """Return rows of characters: load, state, and how many jobs of each stream run, over time."""
    each = seconds / width

    def cells(of: Callable[[float], str]) -> str:
        return "".join(of((i + 0.5) * each) for i in range(width))

    def state_at(at: float) -> str:
        before = [state for moment, state in story.states if moment <= at]
        return {"accepting": "·", "contended": "▒", "refusing": "█"}.get(before[-1] if before else "", " ")

    def jobs_at(jobs: list[Ran]) -> Callable[[float], str]:
        def at(moment: float) -> str:
            running = sum(job.began <= moment < job.ended for job in jobs)
            waiting = sum(job.asked <= moment < job.began for job in jobs)
            return str(min(running, 9)) if running else "w" if waiting else "·"

        return at

    return [
        "  other load       " + cells(lambda at: "█" if any(a <= at < b for a, b in story.bursts) else "·"),
        "  the node says    " + cells(state_at) + "   · accepting  ▒ contended, held open  █ refusing",
        "  jobs, plain      " + cells(jobs_at(story.plain)) + "   how many run",
        "  jobs, pronto run " + cells(jobs_at(story.through)) + "   how many run, w: waiting only",
        f"  seconds          0{seconds:>{width - 1}.0f}",
    ]


def bars(story: Story, width: int = 50) -> list[str]:
    """Return a bar for the running time of every job, the streams side by side."""
    most = max(job.running for job in story.plain + story.through)
    lines = []
    for name, jobs in (("plain", story.plain), ("pronto run", story.through)):
        lines.append(f"  {name}: seconds from begin to end of each job, shortest first")
        for job in sorted(jobs, key=lambda job: job.running):
            lines.append(f"    {'█' * max(1, round(width * job.running / most))} {job.running:.1f}")
    return lines


def report(story: Story, seconds: float) -> list[str]:
    """Say what came of it, and how sure that is."""
    draw = random.Random(0)
    lines = ["", *timeline(story, seconds), "", *bars(story), ""]
    lines.append(
        f"  {'':<12}{'jobs':>6}{'running':>10}{'longest':>10}{'waited':>10}{'asked to end':>14}{'slowdown':>10}"
    )
    for name, jobs in (("plain", story.plain), ("pronto run", story.through)):
        running = [job.running for job in jobs]
        lines.append(
            f"  {name:<12}{len(jobs):>10}{statistics.fmean(running):>8.2f} s{max(running):>8.2f} s"
            f"{statistics.fmean(job.began - job.asked for job in jobs):>8.2f} s"
            f"{statistics.fmean(job.whole for job in jobs):>12.2f} s"
            f"{statistics.fmean(job.running / max(job.cpu, 1e-3) for job in jobs):>10.2f}"
        )
    lines.append("")
    for what, of in (
        ("running", lambda job: job.running),
        ("from asking to the end", lambda job: job.whole),
    ):
        less, low, high = difference([of(j) for j in story.plain], [of(j) for j in story.through], draw)
        word = "shorter" if low > 0 else "longer" if high < 0 else "no different that can be told from chance"
        lines.append(
            f"  {what}: with `pronto run` {word} (difference {less:+.2f} s of the mean, 95 % interval "
            f"{low:+.2f} to {high:+.2f} s)"
        )
    lines.append(
        "  waiting takes time: it spares the job and those already running, and delays its own begin"
    )
    lines += ["", *_probe_lines(story)]
    if story.failed:
        lines.append(f"  {len(story.failed)} jobs failed: {story.failed[0]}")
    return lines


def _probe_lines(story: Story) -> list[str]:
    lines = []
    for state in ("accepting", "contended", "refusing"):
        found = [slowdown for said, slowdown in story.probes if said == state]
        if found:
            lines.append(
                f"  probes started while {state}: {len(found)}, slowdown {statistics.fmean(found):.2f} on average, "
                f"{min(found):.2f} to {max(found):.2f}"
            )
    return lines or ["  no probe ended"]


def draw_figure(story: Story, path: Path) -> bool:
    """Draw both streams over time; False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 3.2), layout="constrained")
    for begin, end in story.bursts:
        axis.axvspan(begin, end, color="#eeeeee")
    for row, (jobs, colour) in enumerate(((story.through, "#e45756"), (story.plain, "#4c78a8"))):
        for place, job in enumerate(sorted(jobs, key=lambda job: job.asked)):
            height = row + 0.1 + 0.75 * (place % 6) / 6
            axis.plot([job.asked, job.began], [height, height], color=colour, linewidth=1, linestyle=":")
            axis.plot([job.began, job.ended], [height, height], color=colour, linewidth=3)
    axis.set_yticks([0.45, 1.45], ["pronto run", "plain"])
    axis.set_xlabel("seconds; grey: other load takes all CPUs; dotted: waiting")
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
    if given.seconds < 20:
        parser.error(f"--seconds must be at least 20, got {given.seconds:g}")
    folder = Path(tempfile.mkdtemp(prefix="pronto-demo-"))
    if (busy := busy_share()) > BUSY_BEFORE:
        print(
            f"others use {busy:.0%} of the CPUs already: both streams will suffer from that, and may not differ"
        )
    rounds = calibrate()
    agent, client, url = start_agent(folder)
    stop = threading.Event()
    story = Story()
    chance = random.Random(given.seed)
    draws = [random.Random(chance.random()) for _ in range(2)]
    helpers = [
        threading.Thread(target=burst, args=(story, given.seconds, stop, draws[0])),
        threading.Thread(target=watch, args=(story, client, stop)),
    ]
    print(
        f"{len(os.sched_getaffinity(0))} CPUs, jobs of {JOB_SECONDS:g} s of CPU time, "
        f"{given.seconds:g} s; the agent is at {url}",
        flush=True,
    )
    try:
        for helper in helpers:
            helper.start()
        time.sleep(SETTLE_SECONDS)
        start_jobs(story, url, rounds, given.seconds, draws[1])
    finally:
        stop.set()
        for helper in helpers:
            helper.join()
        agent.send_signal(signal.SIGTERM)
        try:
            agent.wait(10)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
    if not story.plain or not story.through:
        raise SystemExit(
            f"both streams must have run jobs, got none: {'; '.join(story.failed[:1]) or 'no reason known'}"
        )
    print("\n".join(report(story, max(given.seconds, max(j.ended for j in story.plain + story.through)))))
    figure = given.figure or folder / "demo.svg"
    print(f"  drawn: {figure}" if draw_figure(story, figure) else "  no figure: matplotlib is not installed")


if __name__ == "__main__":
    main()
