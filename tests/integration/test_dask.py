"""The Dask plugin on a real LocalCluster: schedulers and workers in this process, real tasks."""

from __future__ import annotations

import json
import math
import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.core import Status
from hypothesis import given
from hypothesis import strategies as st

from prontosched.decision import Decision
from prontosched.errors import SettingsError
from prontosched.integration.dask import ProntoPlugin
from prontosched.integration.dask_floor import WorkerView, may_pause, read_workers
from prontosched.integration.dask_watch import Watch
from prontosched.integration.floor import places
from prontosched.integration.gate import Census, Verdict
from prontosched.integration.policy import Rules

EAGER = Rules(
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
    HANG.wait(20)
    found = WISHES.get(address)
    if isinstance(found, Exception):
        raise found
    return found


def busy(score: float = 0.8, seconds: float = 60.0) -> Verdict:
    return Verdict(True, score, "CPU Ready is rising", valid_until=time.time() + seconds)


def quiet() -> Verdict:
    return Verdict(False, 0.1, "nothing spikes", valid_until=time.time() + 60.0)


def plugin(rules: Rules = EAGER, *, enforce: bool = True) -> ProntoPlugin:
    return ProntoPlugin(decide=wished, enforce=enforce, rules=rules, interval_seconds=0.05)


class Running:
    """A cluster of three workers, and what a test asks of it."""

    def __init__(self, client: Client, cluster: LocalCluster) -> None:
        self.client = client
        self.workers = {worker.address: worker for worker in cluster.workers.values()}
        self.addresses = sorted(self.workers)

    def watch(self, address: str) -> Watch:
        found: Watch = self.workers[address].plugins["pronto"]._watch
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
        assert done.wait(5)
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
        assert cluster.watch(loaded).given_back > 5
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


def test_memory_monitor_does_not_undo_our_pause(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    time.sleep(0.5)  # ten looks of the monitor
    assert cluster.paused() == [loaded]
    WISHES[loaded] = quiet()
    cluster.wait(lambda: cluster.paused() == [])

    assert cluster.workers[loaded].memory_manager.memory_pause_fraction == 0.8


def test_memory_monitor_does_undo_a_plain_pause(cluster: Running) -> None:
    """Why the plugin holds the monitor off."""
    loaded = cluster.addresses[0]
    cluster.on_loop(loaded, lambda worker: setattr(worker, "status", Status.paused))

    cluster.wait(lambda: cluster.paused() == [], seconds=5)


def test_worker_out_of_memory_meanwhile_is_left_to_the_memory_monitor(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    watch = cluster.watch(loaded)
    cluster.on_loop(loaded, lambda worker: setattr(watch, "_pause_fraction", 1e-6))
    WISHES[loaded] = quiet()
    cluster.wait(lambda: not watch.held)
    time.sleep(0.3)
    assert cluster.paused() == [loaded]
    cluster.on_loop(loaded, lambda worker: setattr(worker.memory_manager, "memory_pause_fraction", 0.8))

    cluster.wait(lambda: cluster.paused() == [])


def test_pause_by_someone_else_is_never_undone(cluster: Running) -> None:
    theirs = cluster.addresses[0]
    manager = cluster.workers[theirs].memory_manager
    cluster.on_loop(theirs, lambda worker: setattr(manager, "memory_pause_fraction", False))
    cluster.on_loop(theirs, lambda worker: setattr(worker, "status", Status.paused))
    try:
        cluster.client.register_plugin(plugin())
        for wish in (busy(), quiet()):
            WISHES[theirs] = wish
            time.sleep(0.3)
            assert cluster.paused() == [theirs]
        cluster.client.unregister_worker_plugin("pronto")

        assert cluster.paused() == [theirs]
    finally:
        manager.memory_pause_fraction = 0.8


@pytest.mark.parametrize("answer", [None, RuntimeError("telemetry broke"), OSError("no agent")])
def test_node_of_which_nothing_is_known_accepts(cluster: Running, answer: Any) -> None:
    for address in cluster.addresses:
        WISHES[address] = answer
    cluster.client.register_plugin(plugin())
    time.sleep(0.3)

    assert cluster.paused() == []
    assert cluster.where(6).total() == 6


def test_verdict_that_is_not_renewed_ends_by_itself(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy(seconds=1.0)
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    WISHES[loaded] = OSError("the agent was killed")

    cluster.wait(lambda: cluster.paused() == [], seconds=5)


def test_verdict_ends_even_when_the_next_question_is_never_answered(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy(seconds=1.0)
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    HANG.clear()
    try:
        cluster.wait(lambda: cluster.paused() == [], seconds=6)
    finally:
        HANG.set()


def test_last_worker_is_never_paused_even_when_all_want_to(cluster: Running) -> None:
    for address in cluster.addresses:
        WISHES[address] = busy()
    cluster.client.register_plugin(plugin(replace(EAGER, max_refusing=1.0)))
    cluster.wait(lambda: len(cluster.paused()) == 2)
    for _ in range(10):
        assert len(cluster.paused()) <= 2
        time.sleep(0.05)

    assert cluster.where(10).total() == 10


def test_more_certain_worker_takes_the_place_of_a_less_certain_one(cluster: Running) -> None:
    first, second = cluster.addresses[:2]
    WISHES[first] = busy(0.5)
    cluster.client.register_plugin(plugin(replace(EAGER, max_refusing=0.25)))
    cluster.wait(lambda: cluster.paused() == [first])
    WISHES[second] = busy(0.9)

    cluster.wait(lambda: cluster.paused() == [second], seconds=20)


def test_shadow_mode_pauses_nobody_and_says_what_it_would_do(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(ProntoPlugin(decide=wished, rules=EAGER, interval_seconds=0.05))
    cluster.wait(lambda: any(event["worker"] == loaded for _, event in cluster.client.get_events("pronto")))
    told = [event for _, event in cluster.client.get_events("pronto") if event["worker"] == loaded][-1]

    assert cluster.paused() == []
    assert (told["action"], told["enforced"], told["reason"]) == ("pauses", False, "CPU Ready is rising")


def test_reason_is_shown_in_the_schedulers_own_list(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = Decision(True, 2.0, 1.0, "cpu_user spikes", probability=0.7)
    cluster.client.register_plugin(plugin())

    def shown() -> Any:
        return cluster.listed()[loaded]["metrics"].get("pronto")

    expected = {
        "mode": "enforce",
        "refuse": True,
        "score": 0.7,
        "reason": "cpu_user spikes",
        "paused": True,
    }
    cluster.wait(lambda: shown() == expected)


def test_taking_the_plugin_away_resumes_what_it_paused(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    cluster.client.unregister_worker_plugin("pronto")

    cluster.wait(lambda: cluster.paused() == [])
    assert cluster.workers[loaded].memory_manager.memory_pause_fraction == 0.8


def test_nothing_is_lost_while_decisions_flap_at_random(cluster: Running, rng: Any) -> None:
    dice = random.Random(int(rng.integers(1 << 30)))
    cluster.client.register_plugin(plugin())
    stop = threading.Event()

    def flap() -> None:
        while not stop.wait(0.03):
            address = dice.choice(cluster.addresses)
            WISHES[address] = dice.choice([busy(dice.random()), quiet(), OSError("gone")])

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


class _AgentAnswer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert self.path == "/v1/decision"
        answer = {"accept": False, "score": 3.0, "reason": "asked by HTTP", "valid_until": time.time() + 10}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_agent_on_the_same_machine_is_asked_over_http(cluster: Running) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _AgentAnswer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        cluster.client.register_plugin(ProntoPlugin(url, enforce=True, rules=EAGER, interval_seconds=0.1))
        cluster.wait(lambda: len(cluster.paused()) == 2)

        assert cluster.watch(cluster.paused()[0]).report()["reason"] == "asked by HTTP"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_plugin_survives_pickling_with_its_settings() -> None:
    copy = pickle.loads(pickle.dumps(plugin()))

    assert (copy.rules, copy.decide, copy.interval_seconds) == (plugin().rules, wished, 0.05)


def test_plugin_enforces_nothing_unless_told() -> None:
    assert ProntoPlugin().rules.enforce is False


@pytest.mark.parametrize("url", ["http://10.0.0.1:7077", "file:///etc/passwd", "127.0.0.1:7077"])
def test_agent_elsewhere_is_not_asked_in_the_clear(url: str) -> None:
    with pytest.raises(SettingsError, match=r"url must be an agent on the worker's own machine"):
        ProntoPlugin(url)


def test_interval_of_no_time_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"interval_seconds must be above 0, got 0"):
        ProntoPlugin(interval_seconds=0)


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
            assert paused <= places(Census(len(workers)), share)
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
    room = min(places(Census(len(workers)), share), len(workers) - 1)

    assert len(staying) == room
    assert all(workers[a].score >= workers[b].score for a in staying for b in workers if b not in staying)
