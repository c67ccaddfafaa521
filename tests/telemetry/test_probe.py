"""The probe: what a piece of CPU work suffers, on this machine as it is and beside a load of its own."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.probe import CALM_PROBES, Probe, ProbeResult, runs_on
from tests.processes import wait_for
from tests.telemetry.cgroups import quota, spinning
from tests.telemetry.machines import FROZEN

CPUS = os.cpu_count() or 1
pytestmark = pytest.mark.skipif(not runs_on("/"), reason="needs /proc")


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe(every_seconds=0.0)
    yield probe
    probe.close()


def run(probe: Probe, count: int) -> list[ProbeResult]:
    found: list[ProbeResult] = []
    end = time.monotonic() + 60.0
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} probes"
        if (one := probe.poll(time.monotonic(), ready=9.0, state="accepting")) is not None:
            found.append(one)
        time.sleep(0.002)
    return found


def test_it_takes_about_25_ms_of_cpu_time(probe: Probe) -> None:
    found = run(probe, 5)

    assert statistics.median(one.cpu_seconds for one in found) == pytest.approx(0.025, rel=0.6)
    assert all(one.slowdown >= 1.0 for one in found)
    assert {one.state for one in found} == {"accepting"}


def test_a_load_of_its_own_slows_it_down_as_much_as_there_are_others(probe: Probe) -> None:
    """Beside three times as many spinning processes as CPUs a probe takes several times as long."""
    before = statistics.median(one.slowdown for one in run(probe, 8))
    with spinning(3 * CPUS):
        beside = statistics.median(one.slowdown for one in run(probe, 8))

    assert beside > 1.5
    assert beside > before


def test_it_leaves_the_interpreter_to_others(probe: Probe) -> None:
    """A thread of the same process that only wants the lock gets it while a probe runs."""
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0.001)

    run(probe, 1)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        turns = 0
        run(probe, 3)
    finally:
        stop.set()
        thread.join()

    assert turns > 15


def test_polling_never_waits(probe: Probe) -> None:
    slowest = 0.0
    for _ in range(50):
        begun = time.thread_time()
        probe.poll(time.monotonic(), ready=9.0)
        slowest = max(slowest, time.thread_time() - begun)
        time.sleep(0.002)

    assert slowest < 0.01


def test_its_own_waiting_is_not_in_cpu_ready() -> None:
    """Beside a full load the probe waits, and the machine's scan leaves its thread out."""
    source = LinuxSource("/", 0.2, "n")
    probe = Probe(prepare=source.exclude_thread, every_seconds=0.0)
    try:
        run(probe, 1)
        thread = next(t for t in threading.enumerate() if t.name == "pronto-probe")
        assert thread.native_id in source.ready_reader.scanner.excluded
        source.read()
        run(probe, 2)
        source.read()
        assert all(one.thread.number != thread.native_id for one in source.ready_reader.waiting.active)
    finally:
        probe.close()
        source.close()


def test_it_is_slower_while_nothing_happens_and_back_when_something_does() -> None:
    probe = Probe(every_seconds=15.0)
    probe._calm = CALM_PROBES
    assert probe.wait_seconds == 30.0
    probe._calm = 100 * CALM_PROBES
    assert probe.wait_seconds == 60.0

    probe._running = True  # so that none is started
    probe.poll(0.0, ready=3.0)

    assert probe.wait_seconds == 15.0
    probe.close()


def test_a_change_of_state_is_something_that_happens() -> None:
    probe = Probe(every_seconds=15.0)
    probe._calm, probe._running, probe._state = 8, True, "accepting"
    probe.poll(0.0, ready=0.0, state="accepting")
    assert probe.wait_seconds == 60.0

    probe.poll(0.0, ready=0.0, state="refusing")

    assert probe.wait_seconds == 15.0
    probe.close()


def test_what_its_own_quota_held_back_does_not_count() -> None:
    """The thread of a probe whose process may use a tenth of a CPU: run in a process of its own."""
    code = (
        "import sys, time\n"
        "from prontosched.telemetry.probe import Probe\n"
        "sys.stdin.readline()\n"
        "probe = Probe(every_seconds=0.0)\n"
        "end = time.monotonic() + 30\n"
        "while probe.held_back < 2 and time.monotonic() < end:\n"
        "    probe.poll(time.monotonic())\n"
        "    time.sleep(0.01)\n"
        "print(probe.held_back, probe.last.slowdown, probe.note)\n"
    )
    with quota("v1", 10) as cgroup:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
            out, _ = process.communicate("go\n", timeout=60)
        finally:
            process.kill()
            process.wait()

    assert out.startswith("2 nan some probes do not count")


def test_files_of_another_machine_are_not_this_one() -> None:
    assert not runs_on(FROZEN / "first")
    assert runs_on("/")


def test_closing_ends_its_thread(probe: Probe) -> None:
    run(probe, 1)
    probe.close()

    wait_for(lambda: not any(t.name == "pronto-probe" for t in threading.enumerate()), what="its end")
    assert math.isfinite(probe.last.slowdown)
