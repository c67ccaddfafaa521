"""What becomes of tasks when Dask workers pause: real tasks on a real LocalCluster."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import dask
from distributed.core import Status

from tests.gates.dask_cluster import (
    WISHES,
    Running,
    cluster,
    place,
    plugin,
    running,
    shared,
)
from tests.gates.verdicts import busy, quiet

__all__ = ["cluster", "shared"]  # fixtures


def test_tasks_avoid_the_paused_worker_and_come_back_when_it_resumes(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    during = cluster.where(60)
    WISHES[loaded] = quiet()
    cluster.wait(lambda: cluster.paused() == [])
    after = cluster.where(60)

    assert during[loaded] == 0
    assert during.total() == after.total() == 60
    assert min(after[address] for address in cluster.addresses) > 0


def test_tasks_already_assigned_are_given_back_and_run_elsewhere() -> None:
    with running(
        **{"distributed.scheduler.worker-saturation": "inf", "distributed.scheduler.work-stealing": False}
    ) as cluster:
        loaded = cluster.addresses[0]
        cluster.client.register_plugin(plugin())
        futures = cluster.client.map(place, range(60), [0.05] * 60, pure=False)
        cluster.wait(lambda: len(cluster.workers[loaded].state.ready) > 5)
        WISHES[loaded] = busy()
        cluster.wait(lambda: cluster.paused() == [loaded])
        ran_before = cluster.workers[loaded].state.executed_count + 1
        results = Counter(cluster.client.gather(futures))

        assert results.total() == 60
        assert cluster.monitor(loaded).given_back > 5
        assert results[loaded] <= ran_before + 1
        assert not cluster.workers[loaded].state.ready


def test_without_giving_back_assigned_tasks_would_be_stuck() -> None:
    """Why `_give_back` exists: a paused worker sits on what it was assigned."""
    with running(
        **{"distributed.scheduler.worker-saturation": "inf", "distributed.scheduler.work-stealing": False}
    ) as cluster:
        loaded = cluster.addresses[0]
        futures = cluster.client.map(place, range(30), [0.02] * 30, pure=False)
        cluster.wait(lambda: len(cluster.workers[loaded].state.ready) > 2)
        cluster.on_loop(loaded, lambda worker: setattr(worker.memory_manager, "memory_pause_fraction", False))
        cluster.on_loop(loaded, lambda worker: setattr(worker, "status", Status.paused))
        time.sleep(1.0)

        assert any(future.status == "pending" for future in futures)


def test_task_bound_to_the_paused_worker_waits_and_then_runs(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    bound = cluster.client.submit(place, 1, 0.0, workers=[loaded], pure=False)
    time.sleep(0.3)
    assert not bound.done()
    WISHES[loaded] = quiet()

    assert bound.result(timeout=10) == loaded


def test_results_held_by_the_paused_worker_stay_within_reach(cluster: Running) -> None:
    loaded, other = cluster.addresses[:2]
    data = cluster.client.submit(list, range(1000), workers=[loaded], pure=False)
    data.result()
    cluster.client.register_plugin(plugin())
    WISHES[loaded] = busy()
    cluster.wait(lambda: cluster.paused() == [loaded])

    assert cluster.client.submit(sum, data, workers=[other], pure=False).result(timeout=10) == 499500


def test_nothing_is_lost_while_decisions_flap_at_random(cluster: Running, rng: Any) -> None:
    dice = random.Random(int(rng.integers(1 << 30)))
    cluster.client.register_plugin(plugin())
    stop = threading.Event()

    def flap() -> None:
        while not stop.wait(0.03):
            address = dice.choice(cluster.addresses)
            WISHES[address] = dice.choice([busy(score=dice.random()), quiet(), OSError("gone")])

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        with cluster.client.as_current():
            squares = [dask.delayed(square, pure=False)(i) for i in range(150)]
            sums = [dask.delayed(sum)(squares[i : i + 5]) for i in range(0, 150, 5)]
            total = dask.delayed(sum)(sums).compute(scheduler=cluster.client)
    finally:
        stop.set()
        thread.join()

    assert total == sum(i * i for i in range(150))


def square(number: int) -> int:
    time.sleep(0.005)
    return number * number
