"""Slurm respects the node's word: four nodes on this machine, one made busy for real.

`make demo-slurm` starts a private Slurm cluster on loopback and four live agents. One
node is made busy by processes that Slurm knows nothing of. Jobs submitted by sbatch are
compared without Pronto and with it; then the load ends, then the agent is killed. An
administrator's drain on the fourth node stays untouched throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from examples.demo_nodes import PIN, DemoNodes
from examples.slurm_cluster import ENDS_WITH_US, SlurmCluster, missing_programs, running_cluster, wait_for

BUSY, DRAINED = "n2", "n4"
ADMIN = "disk is being replaced"
HOGS = 10
VALID_SECONDS = 6
# So many jobs at a time: one for each node that is in service.
WAVE = 3
# So much CPU time, on the node's own core.
JOB = f"""{PIN}import time
started = time.time()
while time.process_time() < float(sys.argv[2]):
    pass
print(started, time.time())
"""


@dataclass
class Round:
    """Where the jobs of one round ran, and how long they took, in seconds."""

    title: str
    where: dict[str, int] = field(default_factory=dict)
    queued: list[float] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)


@dataclass
class Story:
    """What happened, for the table and for the test."""

    rounds: list[Round] = field(default_factory=list)
    refused_after: float = 0.0
    # None where it was open before the load ended: a veto ends while jobs wait.
    accepted_after: float | None = None
    opened_after_kill: float = 0.0
    reason: str = ""
    drain_untouched: bool = False


class Demo:
    """One run of the story."""

    def __init__(self, folder: Path, *, jobs: int, work: float) -> None:
        self.folder = folder
        self.jobs = jobs
        self.work = work
        self.story = Story()
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> Story:
        everything = os.sched_getaffinity(0)
        with ExitStack() as stack:
            say("starting slurmctld and four slurmd on loopback")
            # The node that gets busy has a core to itself, so that it slows down nobody else.
            quiet = sorted(everything)[:-1] or sorted(everything)
            names = [f"n{i}" for i in range(1, 5)]
            cores = {name: [quiet[i % len(quiet)]] for i, name in enumerate(n for n in names if n != BUSY)}
            self.nodes = stack.enter_context(DemoNodes({**cores, BUSY: [max(everything)]}))
            # Daemons and agents stay off that core, as they would on real machines.
            os.sched_setaffinity(0, quiet)
            stack.callback(os.sched_setaffinity, 0, everything)
            self.slurm: SlurmCluster = stack.enter_context(running_cluster(self.folder / "slurm", cpus=2))
            self.slurm.call("scontrol", "update", f"nodename={DRAINED}", "state=drain", f"reason={ADMIN}")
            drain = self.slurm.field(DRAINED, "Reason")
            say(f"an administrator drains {DRAINED}: {ADMIN}")

            say(f"{BUSY} is made busy; {self.jobs} jobs without Pronto")
            self.nodes.load(BUSY, HOGS)
            self.round("busy, without Pronto", self.jobs)
            self.nodes.relax(BUSY)

            stack.enter_context(self.running_agents())
            say(f"{BUSY} is made busy again; agents are watching")
            self.refusal()
            self.round("busy, with Pronto", self.jobs)
            refusing = self.refusing()
            self.nodes.relax(BUSY)
            if refusing:
                self.story.accepted_after = self.wait_open("the load has ended")
            # A node that was opened takes jobs once it has answered, and says so without a star. As many at once as
            # there is room for: others take what they can, the rest comes to this node.
            wait_for(lambda: self.slurm.state(BUSY) == "IDLE", 60, f"{BUSY} to take jobs", self.logs)
            self.round(f"idle again, {2 * WAVE} at once", 2 * WAVE, wave=2 * WAVE)

            self.refusal()
            self.killed()
            self.nodes.relax(BUSY)
            self.story.drain_untouched = self.slurm.field(DRAINED, "Reason") == drain
            say(f"{DRAINED} is still drained by its administrator: {self.story.drain_untouched}")
            self.pronto("gate", "release", "--gate", "slurm", "--option", f"conf={self.slurm.conf}")
        return self.story

    def refusal(self) -> None:
        self.nodes.load(BUSY, HOGS)
        took = wait_for(self.refusing, 60, f"{BUSY} to refuse", self.logs)
        reason = self.slurm.field(BUSY, "Reason").rsplit(" [", 1)[0]
        if not self.story.reason:
            self.story.refused_after, self.story.reason = took, reason
        say(f"{BUSY} refuses after {took:.1f} s; sinfo -R says: {reason}")

    def killed(self) -> None:
        command = ["gate", "watch", "--gate", "slurm", "--option", f"conf={self.slurm.conf}", "--every", "1"]
        with self.process("watch", *command):
            self.agents[BUSY].kill()
            self.agents[BUSY].wait()
            say(f"the agent of {BUSY} is killed (kill -9) while its node refuses")
            self.story.opened_after_kill = self.wait_open("its agent was killed")

    def wait_open(self, why: str) -> float:
        took = wait_for(lambda: not self.refusing(), 60, f"{BUSY} to accept after {why}", self.logs)
        say(f"{BUSY} accepts {took:.1f} s after {why}")
        return took

    def refusing(self) -> bool:
        return "DRAIN" in self.slurm.state(BUSY)

    def round(self, title: str, count: int, *, wave: int = WAVE) -> None:
        """Submit jobs in waves, wait for all, and note where they ran."""
        script = self.folder / "job.py"
        script.write_text(JOB)
        cores = " ".join(f"{node}) core={core};;" for node, core in self.nodes.cores.items())
        line = f"case $SLURMD_NODENAME in {cores} esac; {sys.executable} -S {script} $core {self.work}"
        submitted = {}
        with ThreadPoolExecutor(wave) as together:
            for _ in range(count // wave):
                # Held until all are there, so that they come at once also where submitting takes long.
                numbers = list(together.map(lambda _: self.slurm.submit(line, "--hold"), range(wave)))
                submitted |= dict.fromkeys(numbers, time.time())
                self.slurm.call("scontrol", "release", ",".join(numbers))
                time.sleep(2 * wave * self.work)  # one core keeps up with this
        wait_for(lambda: self.finished(submitted), 60, "the jobs to finish", self.slurm.logs)
        done = Round(title, dict.fromkeys(self.slurm.nodes, 0))
        jobs = self.slurm.jobs()
        for number, at in submitted.items():
            started, ended = map(float, (self.slurm.folder / "jobs" / number).read_text().split())
            done.where[jobs[number]["node"]] += 1
            done.queued.append(started - at)
            done.finished.append(ended - at)
        self.story.rounds.append(done)
        say(f"{title}: {shown(done)}")

    def finished(self, submitted: dict[str, float]) -> bool:
        jobs = self.slurm.jobs()
        states = {jobs[number]["state"] for number in submitted}
        if bad := states - {"COMPLETED", "RUNNING", "PENDING", "COMPLETING", "CONFIGURING"}:
            raise RuntimeError(f"jobs must complete, got {', '.join(sorted(bad))}")
        return states == {"COMPLETED"}

    @contextmanager
    def running_agents(self) -> Iterator[None]:
        say("starting one agent per node, with the gate slurm, --enforce and a veto")
        rules = {"veto": "true", "valid_seconds": VALID_SECONDS, "prefer_seconds": VALID_SECONDS}
        rules |= {"min_hold_seconds": 2, "min_accept_seconds": 2}
        with ExitStack() as stack:
            for node in self.slurm.nodes:
                options = {"conf": self.slurm.conf, "node": node, "observe_seconds": 2, **rules}
                gate = [
                    part for key, value in options.items() for part in ("--gate-option", f"{key}={value}")
                ]
                arguments = ["agent", "--source", "prometheus", "--target", self.nodes.target(node)]
                arguments += ["--interval", "1s", "--no-keep", "--listen", "127.0.0.1:0"]
                # Ten processes that wait for one core are 900 %; two jobs by themselves never get to 200 %.
                arguments += ["--tolerance", "200%", "--budget", "0.9", "--gate", "slurm", "--enforce", *gate]
                self.agents[node] = stack.enter_context(self.process(f"agent-{node}", *arguments))
            wait_for(self.agents_up, 60, "the agents to watch", self.logs)
            time.sleep(3.0)
            yield

    def agents_up(self) -> bool:
        logs = [self.folder / f"agent-{node}.log" for node in self.slurm.nodes]
        return all("watching" in log.read_text() for log in logs)

    @contextmanager
    def process(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [*ENDS_WITH_US, sys.executable, "-m", "prontosched", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pronto(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "prontosched", *arguments], check=True, timeout=30, stdout=sys.stderr
        )

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def shown(done: Round) -> str:
    places = ", ".join(f"{node} {count}" for node, count in done.where.items())
    return f"{places}; finished after {statistics.mean(done.finished):.1f} s on average"


def table(story: Story) -> str:
    nodes = list(story.rounds[0].where)
    lines = [f"{'':<26}{'jobs on':<4}{'':<17}{'queued':>10}{'finished after, seconds':>27}"]
    heads = "".join(f"{node:>6}" for node in nodes)
    lines.append(f"{'':<24}{heads}{'mean':>12}{'mean':>13}{'worst':>12}")
    for done in story.rounds:
        counts = "".join(f"{done.where[node]:>6}" for node in nodes)
        queued, mean = statistics.mean(done.queued), statistics.mean(done.finished)
        lines.append(f"{done.title:<24}{counts}{queued:>12.1f}{mean:>13.1f}{max(done.finished):>12.1f}")
    lines.append("")
    lines.append(f"{BUSY} refused {story.refused_after:.1f} s after it became busy: {story.reason}")
    if story.accepted_after is None:
        lines.append(
            f"{BUSY} was open before the load ended: a node that Pronto drained opens while jobs wait"
        )
    else:
        lines.append(f"{BUSY} accepted {story.accepted_after:.1f} s after the load ended")
    lines.append(
        f"{BUSY} opened {story.opened_after_kill:.1f} s after its agent was killed (valid for {VALID_SECONDS} s)"
    )
    lines.append(f"{DRAINED} stayed drained by its administrator: {'yes' if story.drain_untouched else 'NO'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Slurm respects the node's word, on this machine.")
    parser.add_argument("--short", action="store_true", help="fewer and shorter jobs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if missing := missing_programs():
        say(f"{', '.join(missing)} must be installed: apt-get install slurm-wlm munge")
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pronto-demo-") as folder:
        os.chmod(folder, 0o711)
        demo = Demo(Path(folder), jobs=6 if arguments.short else 15, work=0.25 if arguments.short else 0.5)
        story = demo.run()
    print(json.dumps(asdict(story)) if arguments.json else table(story))
    say(f"took {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("demo: stopped before its end; what it started has ended")
