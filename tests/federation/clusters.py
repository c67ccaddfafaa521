"""A federation of real processes, with a mirror in this process that suffers no faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from prontosched.pipeline.node import Node
from prontosched.subspace import Subspace, distance

from .buses import Bus
from .simulated import Simulated, Stream

ROOT = Path(__file__).parents[2]
FAST = ["--epsilon", "0", "--max-age", "1", "--takeover", "0.6", "--expiry", "600"]


class Process:
    """A child process that answers each line with a line of JSON."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.log = log

    def tell(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def hear(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the process ended: {self.log.read_text()[-1500:]}")
        return json.loads(line)

    def ask(self, line: str) -> dict:
        self.tell(line)
        return self.hear()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(5)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._log.close()

    @property
    def memory(self) -> int:
        """Resident memory in kB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        return 0


class Cluster:
    """A bus, two aggregators (one stands by) and workers; `step` moves all and the mirror."""

    def __init__(
        self,
        folder: Path,
        workers: dict[str, list[str]],
        *,
        near: tuple[str, ...] = (),
        far: tuple[str, ...] = (),
        host: str = "127.0.0.1",
        clock_ahead: float = 0.0,
    ) -> None:
        self.folder = folder
        self.near, self.far = near, far
        self.bus = Bus(folder, prefix=near, host=host).start()
        self.names = [name for names in workers.values() for name in names]
        self.mirror = Simulated(self.names)
        self.aggregators = [self.aggregate(), self.aggregate()]
        self.workers = {
            place: self.work(place, names, clock_ahead=clock_ahead if place == "west" else 0.0)
            for place, names in workers.items()
        }
        self.steps = 0
        for worker in self.workers.values():
            worker.hear()

    def aggregate(self) -> Process:
        sites = [part for name in self.mirror.tree.aggregators(self.names) for part in ("--name", name)]
        command = [
            *self.near,
            sys.executable,
            "-m",
            "prontosched",
            "aggregate",
            "--nats",
            f"{self.bus.url}/faults",
        ]
        return Process([*command, *sites, *FAST], self.folder / "aggregate.log")

    def work(
        self,
        place: str,
        names: list[str],
        *,
        load: Path | None = None,
        skip: int = 0,
        clock_ahead: float = 0.0,
    ) -> Process:
        seeds = [str(self.names.index(name)) for name in names]
        command = [sys.executable, "-m", "tests.federation.worker", "--nats", self.bus.url, "--names", *names]
        command += ["--seeds", *seeds, "--clock-ahead", str(clock_ahead)]
        command += ["--load", str(load), "--skip", str(skip)] if load else []
        prefix = self.far if place == "west" else self.near
        return Process([*prefix, *command], self.folder / f"{place}.log")

    def step(self, count: int) -> dict[str, dict]:
        """Let every node take `count` timesteps; all must answer, whatever else is broken."""
        for worker in self.workers.values():
            worker.tell(f"step {count}")
        self.steps += count
        self.mirror.step(count)
        answers = {place: worker.hear() for place, worker in self.workers.items()}
        assert {answer["decided"] for answer in answers.values()} == {count}
        return answers

    def restart_with_old_state(self, place: str, state: Path) -> None:
        """Kill a worker of one node and start it again with a saved state."""
        self.workers[place].kill()
        names = [name for name in self.names if name.startswith(place)]
        self.workers[place] = self.work(place, names, load=state, skip=self.steps)
        self.workers[place].hear()
        stream = Stream(self.names.index(names[0]))
        for _ in range(self.steps):
            stream.read()
        self.mirror.join(names[0], stream, Node.from_bytes(state.read_bytes()))

    def expect_equal(self, *, place: str = "east", seconds: float = 40.0) -> dict:
        """Wait until the global view is the mirror's: same samples, same nodes, same subspace."""
        self.mirror.step(0)
        self.mirror.services[-1].rule.epsilon = 0.0
        for service in self.mirror.services:
            service.turn()
        truth = self.mirror.view
        limit = time.monotonic() + seconds
        found: dict = {}
        while time.monotonic() < limit:
            found = self.workers[place].ask("view")
            if found["revision"] and found["samples"] == truth.samples and found["nodes"] == truth.nodes:
                subspace = Subspace(np.array(found["basis"]), np.array(found["strengths"]))
                if distance(subspace.cut(4), truth.subspace.cut(4)) < 1e-3:
                    return found
            time.sleep(0.1)
        pytest.fail(
            f"the view must become that of {truth.nodes} nodes and {truth.samples} samples, "
            f"got {found.get('nodes')} and {found.get('samples')} at revision {found.get('revision')}: "
            f"{[worker.ask('status') for worker in self.workers.values()]}, aggregators alive: "
            f"{[process.process.poll() is None for process in self.aggregators]}"
        )

    def close(self) -> None:
        for process in [*self.workers.values(), *self.aggregators]:
            process.kill()
        self.bus.kill()
