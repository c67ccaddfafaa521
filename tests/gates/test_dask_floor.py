"""Which Dask workers may pause at once."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.gates.dask import WorkerView, may_pause, read_workers
from prontosched.gates.policy import HELD_MARGIN, places


def test_workers_that_are_closing_do_not_count() -> None:
    identity = {
        "workers": {
            "a": {"status": "running", "metrics": {"pronto": {"refuse": True, "score": 0.5}}},
            "b": {"status": "closing_gracefully", "metrics": {}},
            "c": {"status": "paused"},
        }
    }

    found = read_workers(identity)

    assert set(found) == {"a", "c"}
    assert found["a"] == WorkerView(False, True, 0.5)
    assert (found["c"].paused, math.isnan(found["c"].score)) == (True, True)


@pytest.mark.parametrize(
    ("executing", "ready", "spare"), [(0, 0, True), (1, 0, True), (1, 1, False), (2, 0, False)]
)
def test_worker_has_a_thread_to_spare_while_it_has_fewer_tasks_than_threads(
    executing: int, ready: int, spare: bool
) -> None:
    metrics = {"task_counts": {"executing": executing, "ready": ready}}
    identity = {"workers": {"a": {"status": "running", "nthreads": 2, "metrics": metrics}}}

    assert read_workers(identity)["a"].spare is spare


views = st.builds(WorkerView, paused=st.booleans(), wants=st.booleans(), score=st.floats(0, 1))


@given(st.lists(views, min_size=1, max_size=10), st.floats(0.01, 1.0), st.randoms(use_true_random=False))
def test_asking_in_any_order_pauses_no_more_than_its_share_and_none_calmer_than_one_left_open(
    standing: list[WorkerView], share: float, dice: random.Random
) -> None:
    workers = {f"w{i}": view._replace(paused=False) for i, view in enumerate(standing)}
    for _ in range(4):
        order = list(workers)
        dice.shuffle(order)
        for me in order:
            view = workers[me]
            workers[me] = view._replace(paused=view.wants and may_pause(me, view.score, workers, share))
            paused = [view for view in workers.values() if view.paused]
            assert len(paused) <= places(len(workers), share)
            assert len(workers) > 1 or not paused
    running = [view.score for view in workers.values() if not view.paused]
    calmest = min((view.score for view in paused), default=1.0)
    assert max(running, default=0.0) <= calmest + HELD_MARGIN


def test_near_equals_do_not_take_turns() -> None:
    calm = {f"c{i}": WorkerView(False, False, 0.05) for i in range(3)}
    workers = {"a": WorkerView(True, True, 0.85), "b": WorkerView(False, True, 0.9), **calm}

    assert may_pause("a", 0.85, workers, 0.2)
    assert not may_pause("b", 0.9, workers, 0.2)


def test_worker_paused_by_others_is_not_in_service() -> None:
    workers = {"a": WorkerView(False, True, 0.9), "b": WorkerView(True)}

    assert not may_pause("a", 0.9, workers, 0.5), "it is the last one left"
