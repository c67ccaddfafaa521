"""When Dask workers pause, and who else has a say: on a real LocalCluster."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import Any

import pytest
from distributed import Event
from distributed.core import Status

from prontosched.decision import Decision
from prontosched.errors import SettingsError
from prontosched.gates.dask import ProntoPlugin, install, uninstall
from tests.gates.answering_agent import answering_agent
from tests.gates.dask_cluster import (
    EAGER,
    HANG,
    WISHES,
    Running,
    cluster,
    plugin,
    shared,
    wished,
)
from tests.gates.verdicts import REASON, busy, quiet

__all__ = ["cluster", "shared"]  # fixtures


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
    monitor = cluster.monitor(loaded)
    cluster.on_loop(loaded, lambda worker: setattr(monitor, "_pause_fraction", 1e-6))
    WISHES[loaded] = quiet()
    cluster.wait(lambda: not monitor.held)
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


def test_where_all_workers_are_contended_none_is_paused(cluster: Running) -> None:
    for address in cluster.addresses:
        WISHES[address] = busy()
    cluster.client.register_plugin(plugin(replace(EAGER, max_refusing=1.0)))
    cluster.wait(lambda: all(shown(cluster, address).get("refuse") for address in cluster.addresses))
    # The first to count may not have heard of the others yet; it resumes once it has.
    cluster.wait(lambda: cluster.paused() == [])
    time.sleep(0.5)

    assert cluster.paused() == []


def test_without_a_veto_no_worker_is_ever_paused(cluster: Running) -> None:
    WISHES[cluster.addresses[0]] = busy(score=1.0)
    install(cluster.client, decide=wished, enforce=True, interval_seconds=0.05)
    cluster.wait(lambda: shown(cluster, cluster.addresses[0]).get("refuse"))
    time.sleep(0.3)

    assert cluster.paused() == []
    assert cluster.where(30).total() == 30
    uninstall(cluster.client)


def test_worker_is_not_paused_while_no_other_has_a_thread_to_spare(cluster: Running) -> None:
    loaded, *others = cluster.addresses
    release = Event("release", client=cluster.client)
    held = [cluster.client.submit(wait_for_event, "release", workers=[w], pure=False) for w in others]
    cluster.wait(
        lambda: all(
            w["metrics"]["task_counts"].get("executing") for a, w in cluster.listed().items() if a in others
        )
    )
    WISHES[loaded] = busy()
    cluster.client.register_plugin(
        ProntoPlugin(decide=wished, enforce=True, rules=EAGER, interval_seconds=0.05)
    )
    cluster.wait(lambda: shown(cluster, loaded).get("refuse"))
    time.sleep(0.3)
    assert cluster.paused() == []
    release.set()
    cluster.client.gather(held)

    cluster.wait(lambda: cluster.paused() == [loaded])


def wait_for_event(name: str) -> None:
    Event(name).wait(20)


def shown(cluster: Running, address: str) -> dict[str, Any]:
    """What the scheduler has heard of a worker's node."""
    return dict(cluster.listed()[address]["metrics"].get("pronto") or {})


def test_worker_that_is_worse_off_takes_the_place_of_a_calmer_one(cluster: Running) -> None:
    first, second = cluster.addresses[:2]
    WISHES[first] = busy(score=0.4)
    cluster.client.register_plugin(plugin(replace(EAGER, max_refusing=0.25)))
    cluster.wait(lambda: cluster.paused() == [first])
    WISHES[second] = busy(score=0.9)

    cluster.wait(lambda: cluster.paused() == [second], seconds=20)


def test_shadow_mode_pauses_nobody_and_says_what_it_would_do(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(ProntoPlugin(decide=wished, rules=EAGER, interval_seconds=0.05))
    expected = {
        "worker": loaded,
        "action": "pauses",
        "reason": REASON,
        "score": 0.8,
        "enforced": False,
    }

    cluster.wait(lambda: expected in [event for _, event in cluster.client.get_events("pronto")])
    assert cluster.paused() == []


def test_reason_is_shown_in_the_schedulers_own_list(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = Decision(True, 2.0, 1.0, "cpu_user spikes", probability=0.7)
    cluster.client.register_plugin(plugin())

    expected = {
        "mode": "enforce",
        "refuse": True,
        "score": 0.7,
        "reason": "cpu_user spikes",
        "paused": True,
    }
    cluster.wait(lambda: shown(cluster, loaded) == expected)


def test_taking_the_plugin_away_resumes_what_it_paused(cluster: Running) -> None:
    loaded = cluster.addresses[0]
    WISHES[loaded] = busy()
    cluster.client.register_plugin(plugin())
    cluster.wait(lambda: cluster.paused() == [loaded])
    cluster.client.unregister_worker_plugin("pronto")

    cluster.wait(lambda: cluster.paused() == [])
    assert cluster.workers[loaded].memory_manager.memory_pause_fraction == 0.8


@pytest.mark.parametrize(
    ("enforce", "veto", "knows", "paths"),
    [
        (True, True, True, {"/v1/decision?enforcing=true"}),
        (True, True, False, {"/v1/decision?enforcing=true", "/v1/decision"}),
        (True, False, True, {"/v1/decision"}),
        (False, True, True, {"/v1/decision"}),
    ],
)
def test_agent_on_the_same_machine_is_asked_and_told_whether_it_is_obeyed(
    cluster: Running, enforce: bool, veto: bool, knows: bool, paths: set[str]
) -> None:
    with answering_agent(knows_enforcing=knows) as (url, asked):
        rules = replace(EAGER, veto=veto)
        cluster.client.register_plugin(ProntoPlugin(url, enforce=enforce, rules=rules, interval_seconds=0.1))
        cluster.wait(
            lambda: all(shown(cluster, a).get("reason") == "asked by HTTP" for a in cluster.addresses)
        )
        cluster.client.unregister_worker_plugin("pronto")

    assert asked == paths


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
