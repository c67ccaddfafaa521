"""A real Dask cluster of three workers in this process, whose decisions a test sets."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.core import Status

from prontosched.decision import Decision
from prontosched.gates.dask import ProntoPlugin, WorkerMonitor
from prontosched.gates.gate import Verdict
from prontosched.gates.policy import Rules

EAGER = Rules(
    veto=True,
    min_hold_seconds=0,
    min_accept_seconds=0,
    observe_seconds=0,
    override_seconds=0,
    max_refusing=0.67,
    valid_seconds=5,
)
# Verdicts by worker address; workers live in this process.
WISHES: dict[str, Verdict | Decision | Exception] = {}


# While not set, no question is answered.
HANG = threading.Event()
HANG.set()


def wished(address: str) -> Verdict | Decision | None:
    HANG.wait(60)
    found = WISHES.get(address)
    if isinstance(found, Exception):
        raise found
    return found


def plugin(rules: Rules = EAGER, *, enforce: bool = True) -> ProntoPlugin:
    """A plugin that pauses; tasks in these tests must not make it resume."""
    return ProntoPlugin(
        decide=wished, enforce=enforce, rules=rules, interval_seconds=0.05, keep_capacity=False
    )


class Running:
    """A cluster of three workers, and what a test asks of it."""

    def __init__(self, client: Client, cluster: LocalCluster) -> None:
        self.client = client
        self.workers = {worker.address: worker for worker in cluster.workers.values()}
        self.addresses = sorted(self.workers)

    def monitor(self, address: str) -> WorkerMonitor:
        found: WorkerMonitor = self.workers[address].plugins["pronto"]._monitor
        return found

    def listed(self) -> dict[str, Any]:
        # Not client.scheduler_info: Dask empties that every two seconds.
        found: dict[str, Any] = self.client.sync(self.client.scheduler.identity)["workers"]
        return found

    def paused(self) -> list[str]:
        """Return who is paused, by the scheduler's own list."""
        found = self.listed()
        return [address for address in self.addresses if found[address]["status"] == "paused"]

    def wait(self, condition: Callable[[], Any], *, seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"never came true: {self.paused()} paused, wishes {WISHES}"
            time.sleep(0.02)

    def where(self, tasks: int, seconds: float = 0.01) -> Counter[str]:
        """Run that many tasks and count on which workers they ran."""
        futures = self.client.map(place, range(tasks), [seconds] * tasks, pure=False)
        return Counter(self.client.gather(futures, errors="raise"))

    def on_loop(self, address: str, act: Callable[[Any], Any]) -> Any:
        worker = self.workers[address]
        done, result = threading.Event(), []

        def run() -> None:
            result.append(act(worker))
            done.set()

        worker.loop.add_callback(run)
        assert done.wait(60)
        return result[0]


def place(_: int, seconds: float) -> str:
    time.sleep(seconds)
    return str(get_worker().address)


@contextmanager
def running(**config: Any) -> Iterator[Running]:
    settings = {"distributed.worker.memory.monitor-interval": "50ms", **config}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            memory_limit="4GiB",
        ) as cluster,
        Client(cluster) as client,
    ):
        WISHES.clear()
        yield Running(client, cluster)


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture
def cluster(shared: Running) -> Iterator[Running]:
    yield shared
    WISHES.clear()
    if any("pronto" in worker.plugins for worker in shared.workers.values()):
        shared.client.unregister_worker_plugin("pronto")
    for address in shared.paused():
        shared.on_loop(address, lambda worker: setattr(worker, "status", Status.running))
    shared.wait(lambda: not shared.paused())
