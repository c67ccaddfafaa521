"""Whose waiting counts: real processes held back by quotas or of low priority, and frozen machines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prontosched.pipeline.presets import make_node
from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.linux.cgroup import cgroup_name, plain_name
from prontosched.telemetry.linux.source import CpuReady
from prontosched.telemetry.linux.threads import Consumer
from prontosched.telemetry.source import Sample
from tests.processes import wait_for
from tests.telemetry.cgroups import quota, spinning, view_of
from tests.telemetry.machines import value

LIVE = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc with schedstat")
INTERVAL = 0.5
CPUS = os.cpu_count() or 1


def watch(
    root: Path, steps: int, *, between: Callable[[], None] = lambda: None
) -> tuple[list[Sample], list[CpuReady]]:
    """Read a machine a few times; return all readings but the first two."""
    source = LinuxSource(root, INTERVAL, "n")
    samples, parts = [], []
    try:
        for step in range(steps + 2):
            (sample,) = source.read()
            if step >= 2:
                samples.append(sample)
                parts.append(source.ready)
            if step == 1:
                between()
            time.sleep(INTERVAL)
    finally:
        source.close()
    return samples, parts


def mean(parts: list[CpuReady], name: str) -> float:
    return float(np.mean([getattr(part, name) for part in parts]))


def refusals(samples: list[Sample]) -> int:
    node = make_node(metrics=samples[0].metrics)
    decisions = [node.step(s.vector, ready=s.ready, utilisation=50.0, time=s.timestamp) for s in samples]
    return sum(bool(decision.raised) for decision in decisions)


def refusals_for_nothing(samples: list[Sample], parts: list[CpuReady]) -> int:
    """Return the refusals; none where the machine was truly short of CPU, by tests that run beside this one."""
    short = max(part.normal + part.steal for part in parts) >= 5.0
    return 0 if short else refusals(samples)


@LIVE
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_process_that_its_quota_holds_back_leads_to_no_refusal(tmp_path: Path, version: str) -> None:
    with quota(version, 20) as cgroup, spinning(1, cgroup=cgroup) as processes:
        samples, parts = watch(view_of(tmp_path, *processes), 10)

    # It ran a fifth of the time and was held back for the rest.
    assert mean(parts, "throttled") * CPUS > 60.0
    assert mean(parts, "normal") < 0.15 * mean(parts, "throttled")
    assert value(samples[-1], "waiting_throttled_percent") > 0.0
    assert refusals_for_nothing(samples, parts) == 0


@LIVE
def test_more_threads_than_cpus_are_held_back_as_well(tmp_path: Path) -> None:
    """The kernel counts the time once per CPU; each of the threads waiting there was held back for it."""
    with quota("v1", 20) as cgroup, spinning(2 * CPUS, cgroup=cgroup) as processes:
        _, parts = watch(view_of(tmp_path, *processes), 8)

    assert mean(parts, "throttled") > 2 * 75.0
    assert mean(parts, "normal") < 0.2 * mean(parts, "throttled")


@LIVE
@pytest.mark.parametrize("how", [{"nice": 19}, {"idle": True}], ids=["nice 19", "SCHED_IDLE"])
def test_what_soaks_up_idle_time_leads_to_no_refusal(tmp_path: Path, how: dict[str, int]) -> None:
    with spinning(2 * CPUS, **how) as processes:
        samples, parts = watch(view_of(tmp_path, *processes), 10)

    assert mean(parts, "background") > 30.0
    assert mean(parts, "normal") == 0.0
    assert value(samples[-1], "waiting_background_percent") > 0.0
    assert refusals_for_nothing(samples, parts) == 0


@LIVE
def test_real_contention_beside_both_is_seen_in_full(tmp_path: Path) -> None:
    with (
        quota("v1", 20) as cgroup,
        spinning(1, cgroup=cgroup) as held,
        spinning(CPUS, nice=19) as soaking,
        spinning(2 * CPUS) as normal,
    ):
        before: list[float] = []
        root = view_of(tmp_path, *held, *soaking, *normal)
        samples, parts = watch(root, 6, between=lambda: before.extend([waited(normal), time.monotonic()]))
        # The last reading was one interval before its end.
        true = (waited(normal) - before[0]) / (time.monotonic() - before[1]) / CPUS

    assert mean(parts, "normal") == pytest.approx(100 * true, rel=0.15)
    assert mean(parts, "percent") == pytest.approx(mean(parts, "normal"))
    assert refusals(samples) > 0


def waited(processes: list[int]) -> float:
    return sum(int(Path(f"/proc/{n}/schedstat").read_text().split()[1]) for n in processes) / 1e9


@LIVE
def test_a_process_that_is_made_low_is_noticed_within_seconds(tmp_path: Path) -> None:
    with spinning(2 * CPUS) as processes:
        source = LinuxSource(view_of(tmp_path, *processes), INTERVAL, "n")
        try:
            source.read()
            time.sleep(INTERVAL)
            source.read()
            assert source.ready.normal > 0.0
            for number in processes:
                os.setpriority(os.PRIO_PROCESS, number, 19)
            end = time.monotonic() + 20.0
            while not (source.ready.normal == 0.0 and source.ready.background > 0.0):
                assert time.monotonic() < end, source.ready
                time.sleep(INTERVAL)
                source.read()
        finally:
            source.close()


@LIVE
@pytest.mark.parametrize(
    ("how", "low"),
    [({"nice": 19}, True), ({"idle": True}, True), ({}, False)],
    ids=["nice 19", "SCHED_IDLE", "normal"],
)
def test_the_kernel_tells_the_priority_of_threads_of_this_machine(how: dict[str, int], low: bool) -> None:
    source = LinuxSource()

    def waiting() -> list[bool]:
        source.read()
        active = source.ready_reader.waiting.active
        return [one.thread.background for one in active if one.thread.number in processes and one.waited]

    try:
        with spinning(2 * CPUS, **how) as processes:
            source.read()
            found = wait_for(waiting, what="a process that waits for a CPU")
    finally:
        source.close()

    assert set(found) == {low}


class Box:
    """A frozen machine of two CPUs with one process of some threads in a cgroup, one second at a time."""

    def __init__(
        self, root: Path, threads: int = 1, cgroup: str = "0::/box", quota: str = "20000 100000"
    ) -> None:
        self.root = root
        self.threads = range(500, 500 + threads)
        self.now = 0.0
        files = {
            "proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0\ncpu1 0\nctxt 0\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu\n",
            "sys/fs/cgroup/box/cpu.max": f"{quota}\n",
            "proc/500/cgroup": f"{cgroup}\n",
            "proc/500/comm": "worker\n",
        }
        for name, text in files.items():
            self.write(name, text)
        self.set([0.0] * threads, 0.0)
        self.source = LinuxSource(root, 1.0, "n", monotonic=lambda: self.now)
        self.source.read()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def set(self, waits: list[float], throttled: float, local: bool = True, used: float = 0.0) -> None:
        for number, wait in zip(self.threads, waits, strict=True):
            self.write(f"proc/500/task/{number}/schedstat", f"{int(used * 1e9)} {int(wait * 1e9)} 1\n")
        for name in ("cpu.stat", "cpu.stat.local") if local else ("cpu.stat",):
            self.write(
                f"sys/fs/cgroup/box/{name}", f"nr_throttled 1\nthrottled_usec {int(throttled * 1e6)}\n"
            )

    def read(self, seconds: float = 1.0) -> CpuReady:
        self.now += seconds
        self.source.read()
        return self.source.ready


def test_time_held_back_is_taken_off_and_no_more_than_that(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.set([0.7], 0.5)

    ready = box.read()

    assert (ready.throttled, ready.normal) == (pytest.approx(25.0), pytest.approx(10.0))


def test_no_more_is_taken_off_than_a_thread_waited(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.set([0.3], 0.9)

    assert box.read().normal == pytest.approx(0.0)


def test_two_threads_on_two_cpus_share_what_both_were_held_back(tmp_path: Path) -> None:
    box = Box(tmp_path, 2)
    box.set([0.75, 0.75], 1.0)

    ready = box.read()

    assert (ready.throttled, ready.normal) == (pytest.approx(50.0), pytest.approx(25.0))


def test_a_kernel_without_local_figures_is_asked_for_those_of_the_quota(tmp_path: Path) -> None:
    box = Box(tmp_path, cgroup="0::/box/inner")
    box.set([0.0], 0.0)
    (tmp_path / "sys/fs/cgroup/box/inner").mkdir()
    (tmp_path / "sys/fs/cgroup/box/cpu.stat.local").unlink()
    box.set([0.7], 0.7, local=False)

    assert box.read().normal == pytest.approx(0.0)


def test_a_cgroup_namespace_hides_no_quota(tmp_path: Path) -> None:
    """A path that leads above what the namespace shows is found by its end."""
    box = Box(tmp_path, cgroup="0::/../../box")
    box.set([0.7], 0.7)

    assert box.read().throttled == pytest.approx(35.0)


def test_of_more_threads_than_are_looked_up_at_a_time_each_has_its_turn(tmp_path: Path) -> None:
    """200 processes at low priority that all matter: none of them counts as normal for ever."""
    box = Box(tmp_path, quota="max 100000")
    numbers = range(600, 800)
    words = ["0"] * 41
    words[16] = "19"
    for number in numbers:
        box.write(f"proc/{number}/cgroup", "0::/box\n")
        box.write(f"proc/{number}/task/{number}/stat", f"{number} (soak) {' '.join(words)}\n")
    found = []
    for second in range(1, 15):
        for number in numbers:
            box.write(f"proc/{number}/task/{number}/schedstat", f"1 {60_000_000 * second} 1\n")
        found.append(box.read())

    assert found[0].normal > 0.0
    assert found[-1].normal == 0.0
    assert found[-1].background == pytest.approx(100 * 200 * 0.06 / 2)


def test_cgroups_are_looked_through_for_one_that_is_not_known_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for an agent in a pod, to which other pods lie above what its namespace shows."""
    box = Box(tmp_path, cgroup="0::/../../inner")
    box.write("sys/fs/cgroup/box/inner/cpu.max", "20000 100000\n")
    walks = []
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda root: walks.append(root) or walk(root))
    found = []
    for second in range(1, 100):
        box.set([0.35 * second], 0.0)
        stat = f"nr_throttled 1\nthrottled_usec {350_000 * second}\n"
        box.write("sys/fs/cgroup/box/inner/cpu.stat.local", stat)
        found.append(box.read().throttled)

    assert found[-1] == pytest.approx(17.5)
    assert len(walks) == 1


def test_a_wait_counted_one_reading_after_its_cause_is_no_contention(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.set([0.1], 0.8)
    first = box.read()
    box.set([0.8], 0.8)

    assert first.normal == pytest.approx(0.0)
    assert box.read().normal == pytest.approx(0.0)


def test_of_more_quotas_than_are_read_those_are_whose_threads_wait(tmp_path: Path) -> None:
    """200 containers with a limit each; the last that was met is held back."""
    box = Box(tmp_path)
    numbers = range(600, 800)

    def wait(number: int, seconds: float, throttled: float = 0.0) -> None:
        box.write(f"proc/{number}/task/{number}/schedstat", f"1 {int(seconds * 1e9)} 1\n")
        stat = f"nr_throttled 1\nthrottled_usec {int(throttled * 1e6)}\n"
        box.write(f"sys/fs/cgroup/many{number}/cpu.stat.local", stat)

    for number in numbers:
        box.write(f"proc/{number}/cgroup", f"0::/many{number}\n")
        box.write(f"sys/fs/cgroup/many{number}/cpu.max", "20000 100000\n")
    for second in range(1, 12):
        for number in numbers:
            wait(number, 0.001 * second)
        box.read()
    last = list(box.source.ready_reader.sorter.cgroups._known.values())[-1]
    wait(int(last.name.removeprefix("many")), 0.7, throttled=0.7)

    ready = box.read()

    assert ready.throttled == pytest.approx(35.0, rel=0.05)
    assert ready.normal == pytest.approx(0.0, abs=0.1)


def test_an_idle_cgroup_is_background(tmp_path: Path) -> None:
    box = Box(tmp_path, quota="max 100000")
    box.write("sys/fs/cgroup/box/cpu.idle", "1\n")
    box.set([0.6], 0.0)

    ready = box.read()

    assert (ready.background, ready.normal) == (pytest.approx(30.0), 0.0)


def test_pressure_does_not_bring_back_what_quotas_held_back(tmp_path: Path) -> None:
    """Pressure of 80 % over a second in which both CPUs worked, all of it for threads already gone."""
    box = Box(tmp_path)
    box.write("proc/pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=0\n")
    box.set([0.01], 0.01)
    box.read()
    box.write("proc/pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=800000\n")
    box.write("proc/stat", "cpu  200 0 0 0 0 0 0 0 0 0\ncpu0 0\ncpu1 0\nctxt 0\n")
    box.set([0.01], 1.61)

    assert box.read().percent == pytest.approx(0.0)


@pytest.mark.parametrize(("nice_ticks", "counts"), [(0, 80.0), (200, 0.0), (50, 60.0)])
def test_of_pressure_counts_what_was_worked_at_normal_priority(
    tmp_path: Path, nice_ticks: int, counts: float
) -> None:
    box = Box(tmp_path, quota="max 100000")
    box.write("proc/pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=0\n")
    box.read()
    box.write("proc/pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=800000\n")
    box.write("proc/stat", f"cpu  {200 - nice_ticks} {nice_ticks} 0 0 0 0 0 0 0 0\ncpu0 0\ncpu1 0\nctxt 0\n")

    ready = box.read()

    assert ready.percent == pytest.approx(counts)
    assert ready.background == pytest.approx(80.0 - counts)


def test_who_waits_and_who_runs_is_known_by_the_cgroup(tmp_path: Path) -> None:
    box = Box(tmp_path, quota="max 100000")
    for second in range(1, 30):
        box.set([0.5 * second], 0.0, used=0.25 * second)
        box.read()

    assert box.source.consumers == (
        Consumer("box", pytest.approx(0.25, rel=0.01), pytest.approx(0.5, rel=0.01)),
    )


def test_a_process_outside_of_cgroups_is_called_by_its_own_name(tmp_path: Path) -> None:
    box = Box(tmp_path, cgroup="0::/user.slice/user-0.slice/session-2.scope")
    box.set([0.5], 0.0)
    box.read()

    assert [one.name for one in box.source.consumers] == ["worker"]


def test_one_that_left_is_forgotten(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.set([0.5], 0.0)
    box.read()
    for _ in range(60):
        box.read()

    assert box.source.consumers == ()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", ""),
        ("/system.slice", ""),
        ("/system.slice/cron.service", "cron.service"),
        ("/system.slice/docker-" + 64 * "a" + ".scope", "docker-" + 12 * "a"),
        ("/docker/" + 64 * "b", 12 * "b"),
        ("/kubepods/burstable/pod01234567-89ab-cdef-0123-456789abcdef/" + 64 * "c", "pod 01234567"),
        ("/slurm/uid_1000/job_77/step_0/task_0", "job 77"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope", "run-r1"),
        ("/build-7", "build-7"),
    ],
)
def test_a_cgroup_is_called_what_people_call_it(path: str, name: str) -> None:
    assert cgroup_name(path) == name


def test_names_are_printable_and_bounded() -> None:
    name = plain_name("\x1b[31mred\n" + 500 * "x")

    assert len(name) == 40
    assert name.isprintable()


def test_a_thread_that_is_left_out_does_not_count(tmp_path: Path) -> None:
    box = Box(tmp_path, 2, quota="max 100000")
    (tmp_path / "proc/thread-self").symlink_to("500/task/501")
    box.source.exclude_thread()
    box.set([0.2, 0.6], 0.0)

    assert box.read().normal == pytest.approx(10.0)
