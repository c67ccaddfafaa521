"""Dask's own scheduler with the chance of contention in its choices: real workers, real tasks."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask
import pytest

from prontosched.gates.dask import ProntoScheduler, install, uninstall
from prontosched.gates.gate import Verdict
from tests.gates.dask_cluster import WISHES, Running, cluster, place, shared, wished
from tests.gates.verdicts import quiet

__all__ = ["cluster", "shared"]  # fixtures


@pytest.fixture
def preferring(cluster: Running) -> Iterator[Running]:
    """A cluster whose first worker expects contention, as the scheduler has heard."""
    for address in cluster.addresses:
        WISHES[address] = quiet()
    WISHES[cluster.addresses[0]] = Verdict(True, 0.95, "busy", time.time() + 600)
    install(cluster.client, decide=wished, enforce=True, interval_seconds=0.05)
    # All of them: what a worker reported in the test before stays until its next heartbeat.
    cluster.wait(lambda: all(score(cluster, a) == WISHES[a].score for a in cluster.addresses))
    yield cluster
    if "pronto" in cluster.workers[cluster.addresses[0]].plugins:
        uninstall(cluster.client)


def score(cluster: Running, address: str) -> float | None:
    report: dict[str, Any] = cluster.listed()[address]["metrics"].get("pronto") or {}
    return report.get("score")


def test_few_tasks_go_to_calm_workers_only(preferring: Running) -> None:
    where = Counter(
        preferring.client.gather(
            [preferring.client.submit(place, i, 0.1, pure=False) for i in range(2)], errors="raise"
        )
    )

    assert where[preferring.addresses[0]] == 0
    assert where.total() == 2


def test_worker_whose_node_refuses_is_passed_over_whatever_its_chance(preferring: Running) -> None:
    first = preferring.addresses[0]
    WISHES[first] = Verdict(True, 0.01, "full by the jobs announced", time.time() + 600)
    preferring.wait(lambda: score(preferring, first) == 0.01)

    test_few_tasks_go_to_calm_workers_only(preferring)


def test_bag_of_tasks_uses_every_worker_and_ends_on_calm_ones(preferring: Running) -> None:
    """Nothing is refused: while much waits, the contended worker works too."""
    loaded = preferring.addresses[0]
    futures = preferring.client.map(place, range(40), [0.05] * 40, pure=False)
    where = preferring.client.gather(futures)

    assert Counter(where)[loaded] > 0
    assert loaded not in where[-2:]
    assert Counter(where)[loaded] < min(Counter(where)[other] for other in preferring.addresses[1:])


def test_contended_worker_is_given_no_task_beyond_its_threads(preferring: Running) -> None:
    loaded = preferring.addresses[0]
    futures = preferring.client.map(place, range(30), [0.1] * 30, pure=False)
    most = 0
    while not all(future.done() for future in futures):
        most = max(most, len(preferring.workers[loaded].state.ready))
        time.sleep(0.01)

    assert most == 0


def test_where_every_worker_is_contended_tasks_are_handed_out_as_by_dask(preferring: Running) -> None:
    for address in preferring.addresses:
        WISHES[address] = Verdict(True, 0.95, "busy", time.time() + 600)
    preferring.wait(lambda: all(score(preferring, a) == 0.95 for a in preferring.addresses))
    futures = preferring.client.map(place, range(30), [0.1] * 30, pure=False)
    most = 0
    while not all(future.done() for future in futures):
        most = max(most, *(len(worker.state.ready) for worker in preferring.workers.values()))
        time.sleep(0.01)

    assert most > 0, "no worker waits for the scheduler between two tasks"


def test_tasks_with_dependencies_prefer_a_calm_worker_that_has_the_data(preferring: Running) -> None:
    loaded = preferring.addresses[0]
    data = preferring.client.scatter([1, 2], broadcast=True)
    with preferring.client.as_current():
        where = [preferring.client.submit(_place_with, item, pure=False) for item in data]

    assert loaded not in preferring.client.gather(where)
    bound = preferring.client.submit(place, 1, 0.0, workers=[loaded], pure=False)
    assert bound.result(timeout=10) == loaded, "what is bound to a worker goes there all the same"


def _place_with(item: object) -> str:
    return place(0, 0.01)


def test_scheduler_chooses_by_itself_once_the_preference_is_taken_away(preferring: Running) -> None:
    uninstall(preferring.client)
    where = preferring.where(60)

    assert min(where[address] for address in preferring.addresses) > 0


def test_installing_where_nothing_was_installed_logs_no_error(cluster: Running) -> None:
    records: list[logging.LogRecord] = []
    handler, logger = logging.Handler(logging.ERROR), logging.getLogger("distributed.core")
    handler.emit = records.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        install(cluster.client, decide=wished)
        uninstall(cluster.client)
    finally:
        logger.removeHandler(handler)

    assert [record.getMessage() for record in records] == []


def test_installing_again_replaces_what_was_installed(preferring: Running) -> None:
    install(preferring.client, decide=wished, enforce=True, interval_seconds=0.05)
    futures = [preferring.client.submit(place, i, 0.05, pure=False) for i in range(2)]

    assert preferring.addresses[0] not in preferring.client.gather(futures)


def test_fault_in_a_choice_leaves_it_to_dask(preferring: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ProntoScheduler, *arguments: Any) -> Any:
        raise RuntimeError("a bug")

    for method in ("from_queue", "without_dependencies", "objective"):
        monkeypatch.setattr(ProntoScheduler, method, broken)
    install(preferring.client, decide=wished, enforce=True, interval_seconds=0.05)

    assert preferring.where(30).total() == 30


def test_shadow_mode_leaves_every_choice_to_dask(cluster: Running) -> None:
    WISHES[cluster.addresses[0]] = Verdict(True, 0.95, "busy", time.time() + 600)
    install(cluster.client, decide=wished, interval_seconds=0.05)
    cluster.wait(lambda: score(cluster, cluster.addresses[0]) == 0.95)
    where = cluster.where(60)
    uninstall(cluster.client)

    assert where[cluster.addresses[0]] > 0


def test_graph_of_many_levels_is_computed_whole(preferring: Running) -> None:
    with preferring.client.as_current():
        squares = [dask.delayed(pow, pure=False)(i, 2) for i in range(60)]
        sums = [dask.delayed(sum)(squares[i : i + 5]) for i in range(0, 60, 5)]
        total = dask.delayed(sum)(sums).compute(scheduler=preferring.client)

    assert total == sum(i * i for i in range(60))
