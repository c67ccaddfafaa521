"""Which Dask workers may pause at once."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from prontosched.integration.dask_floor import WorkerView, may_pause, read_workers
from prontosched.integration.preference import places


def test_workers_that_are_closing_do_not_count() -> None:
    identity = {
        "workers": {
            "a": {"status": "running", "metrics": {"pronto": {"refuse": True, "score": 0.5}}},
            "b": {"status": "closing_gracefully", "metrics": {}},
            "c": {"status": "paused"},
        }
    }

    assert read_workers(identity) == {"a": WorkerView(False, True, 0.5), "c": WorkerView(True)}


views = st.builds(
    WorkerView, paused=st.booleans(), wants=st.booleans(), score=st.floats(0, 1) | st.just(-math.inf)
)


@given(st.lists(views, min_size=1, max_size=10), st.floats(0.01, 1.0), st.randoms(use_true_random=False))
def test_asking_in_any_order_never_pauses_too_many_or_the_last(
    standing: list[WorkerView], share: float, dice: random.Random
) -> None:
    workers = {f"w{i}": view._replace(paused=False) for i, view in enumerate(standing)}
    for _ in range(3):
        order = list(workers)
        dice.shuffle(order)
        for me in order:
            view = workers[me]
            workers[me] = view._replace(paused=view.wants and may_pause(me, view.score, workers, share))
            paused = sum(view.paused for view in workers.values())
            assert paused <= places(len(workers), share)
            assert paused < len(workers)


def test_worker_gives_way_only_after_the_minimum_time() -> None:
    workers = {"a": WorkerView(True, True, 0.5), "b": WorkerView(False, True, 0.9)}

    assert may_pause("a", 0.5, workers, 0.5, rested=False)
    assert not may_pause("a", 0.5, workers, 0.5, rested=True)


@given(st.lists(views, min_size=2, max_size=10), st.floats(0.01, 1.0))
def test_too_many_paused_workers_thin_out_to_the_most_certain(
    standing: list[WorkerView], share: float
) -> None:
    workers = {f"w{i}": view._replace(paused=True) for i, view in enumerate(standing)}
    staying = [name for name, view in workers.items() if may_pause(name, view.score, workers, share)]
    room = min(places(len(workers), share), len(workers) - 1)

    assert len(staying) == room
    assert all(workers[a].score >= workers[b].score for a in staying for b in workers if b not in staying)
