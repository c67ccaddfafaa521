"""A Linux machine as a source: a frozen machine with exact numbers, and this one as it is."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from prontosched.errors import TelemetryError
from prontosched.telemetry.linux import LinuxSource
from prontosched.telemetry.linux.source import PARTS_NOTE
from prontosched.telemetry.linux.threads import ThreadScanner
from prontosched.telemetry.source import MIXED_NOTE, Sample
from tests.processes import at_normal_priority
from tests.telemetry.machines import FROZEN, value

LIVE = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc with schedstat")


class Machine:
    """A copy of the frozen machine, in its first or second state, four seconds apart."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 100.0
        shutil.copytree(FROZEN / "first", root, dirs_exist_ok=True)

    def source(self, **options: bool) -> LinuxSource:
        return LinuxSource(
            self.root, node="frozen", clock=lambda: 1e9 + self.now, monotonic=lambda: self.now, **options
        )

    def advance(self, seconds: float = 4.0) -> None:
        shutil.copytree(FROZEN / "second", self.root, dirs_exist_ok=True)
        self.now += seconds

    def remove(self, name: str) -> None:
        target = self.root / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        path = self.root / name
        path.write_text(change(path.read_text()))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def read(source: LinuxSource) -> Sample:
    (sample,) = source.read()
    return sample


def second(machine: Machine, source: LinuxSource) -> Sample:
    source.read()
    machine.advance()
    return read(source)


def with_schedstat(machine: Machine) -> Sample:
    """Read the machine after two seconds, in which /proc/schedstat counts 0.8 s of waiting on two CPUs."""
    schedstat = machine.root / "proc/schedstat"
    schedstat.write_text("version 15\ncpu0 0 0 0 0 0 0 9 1000000000 5\ncpu1 0 0 0 0 0 0 9 2000000000 5\n")
    source = machine.source()
    source.read()
    machine.now += 2.0
    schedstat.write_text("version 15\ncpu0 0 0 0 0 0 0 9 1500000000 5\ncpu1 0 0 0 0 0 0 9 2300000000 5\n")
    return read(source)


def wait_for_the_kernel_to_drop(threads: list[threading.Thread]) -> None:
    """A thread that was joined may be in /proc for a moment longer."""
    end = time.monotonic() + 10.0
    paths = [Path(f"/proc/self/task/{thread.native_id}") for thread in threads]
    while any(path.exists() for path in paths):
        assert time.monotonic() < end, "threads that were joined must leave /proc"
        time.sleep(0.01)


def test_the_frozen_machine_gives_exact_numbers(machine: Machine) -> None:
    sample = second(machine, machine.source())

    expected = {
        "cpu_user_percent": 410 / 4 / 2,
        "cpu0_user_percent": 214 / 4,
        "cpu1_idle_percent": 193 / 4,
        "context_switches_per_second": 6891 / 4,
        "processes_running": 4.0,
        "load_1": 0.66,
        "threads": 103.0,
        "memory_free_bytes": 23168284 * 1024.0,
        "vm_pgfault_per_second": 0.75,
        "vm_pgfree_per_second": 163.75,
        "pressure_cpu_some_percent": 362756 / 4 / 1e4,
        "pressure_cpu_some_10s_percent": 2.37,
        "interrupts_loc_per_second": 712.0,
        "disk_vda_reads_per_second": 0.5,
        "disk_vda_read_bytes_per_second": 2048.0,
        "network_eth0_received_bytes_per_second": 0.0,
        "tcp_curr_estab": 0.0,
        "sockets_tcp_tw": 81.0,
        "softnet_processed_per_second": 0.0,
        "files_open": 841.0,
        "cgroup_cpu_usage_percent": 4159775 / 4 / 1e4,
        "processes": 3.0,
        "threads_seen": 6.0,
    }
    assert {name: value(sample, name) for name in expected} == pytest.approx(expected)
    assert sample.utilisation == pytest.approx(100 * 417 / 793)
    # run_delay of the threads 15, 4243, 4244 and 4245, over four seconds and two CPUs
    waited = 2972715 + 210312463 + 185277218 + 194901202
    assert sample.ready == pytest.approx(100 * waited / 1e9 / 4 / 2)
    assert (sample.node, sample.timestamp) == ("frozen", 1e9 + 104)


def test_there_are_at_least_120_metrics_all_known_at_the_second_reading(machine: Machine) -> None:
    sample = second(machine, machine.source())

    assert len(sample.metrics) >= 120
    assert len(set(sample.metrics)) == len(sample.metrics)
    assert np.isfinite(sample.vector).all()


def test_the_first_reading_has_no_rates(machine: Machine) -> None:
    sample = read(machine.source())

    assert math.isnan(sample.ready)
    assert math.isnan(sample.utilisation)
    assert math.isnan(value(sample, "context_switches_per_second"))
    assert value(sample, "load_1") == 0.63


def test_the_list_of_metrics_is_the_same_object_while_nothing_changes(machine: Machine) -> None:
    source = machine.source()

    first = read(source).metrics
    machine.advance()

    assert read(source).metrics is first


def test_a_file_that_disappears_leaves_its_metrics_unknown(machine: Machine) -> None:
    source = machine.source()
    source.read()
    machine.advance()
    machine.remove("proc/vmstat")

    sample = read(source)

    assert math.isnan(value(sample, "vm_pgfault_per_second"))
    assert value(sample, "load_1") == 0.66
    assert source.trouble["proc/vmstat"] == "absent"


def test_a_file_gives_metrics_from_when_it_is_first_there(machine: Machine) -> None:
    machine.remove("proc/vmstat")
    source = machine.source()

    before = read(source)
    machine.advance()
    after = read(source)

    assert "vm_pgfault_per_second" not in before.metrics
    assert math.isnan(value(after, "vm_pgfault_per_second"))
    assert value(after, "context_switches_per_second") == 6891 / 4


def test_a_file_that_was_there_once_is_read_as_soon_as_it_is_back(machine: Machine) -> None:
    source = machine.source()
    source.read()
    machine.remove("proc/vmstat")
    for _ in range(40):
        machine.now += 1.0
        source.read()
    machine.advance()

    assert math.isfinite(value(read(source), "vm_pgfault_per_second"))
    assert source.trouble.get("proc/vmstat") is None


def test_a_file_that_never_was_there_is_found_within_half_a_minute(machine: Machine) -> None:
    machine.remove("proc/vmstat")
    source = machine.source()
    for _ in range(100):
        machine.now += 1.0
        source.read()
    machine.advance()
    found = ["vm_pgfault_per_second" in read(source).metrics for _ in range(33)]

    assert found[-1]
    assert source.trouble.get("proc/vmstat") is None


def test_forbidden_is_told_from_absent(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    true_open = os.open

    def refuse(path: str, *arguments: int) -> int:
        if str(path).endswith("proc/meminfo"):
            raise PermissionError(13, "Permission denied", path)
        return true_open(path, *arguments)

    machine.remove("proc/diskstats")
    monkeypatch.setattr(os, "open", refuse)
    source = machine.source()
    source.read()

    assert source.trouble["proc/meminfo"] == "forbidden"
    assert source.trouble["proc/diskstats"] == "absent"


@pytest.mark.parametrize(
    "name", ["stat", "meminfo", "vmstat", "net/snmp", "pressure/cpu", "loadavg", "diskstats"]
)
@pytest.mark.parametrize("garbage", ["", "\x00\xff garbage = \n cpu x y z\n 1 2 vda x\n", "some\nTcp: x\n"])
def test_garbage_in_a_file_is_never_an_error(machine: Machine, name: str, garbage: str) -> None:
    source = machine.source()
    source.read()
    machine.advance()
    (machine.root / "proc" / name).write_text(garbage)

    sample = read(source)

    assert len(sample.metrics) == len(sample.vector)
    assert value(sample, "files_open") == 841.0


def test_a_clock_that_jumps_moves_no_rate(machine: Machine) -> None:
    times = iter([5e9, 1.0])
    source = LinuxSource(machine.root, clock=lambda: next(times), monotonic=lambda: machine.now)

    sample = second(machine, source)

    assert sample.timestamp == 1.0
    assert value(sample, "context_switches_per_second") == 6891 / 4
    assert sample.ready > 0


def test_a_counter_reset_gives_one_unknown_rate(machine: Machine) -> None:
    source = machine.source()
    source.read()
    machine.advance()
    machine.edit("proc/stat", lambda text: text.replace("ctxt 2478976", "ctxt 12"))

    reset = read(source)
    machine.now += 1.0
    machine.edit("proc/stat", lambda text: text.replace("ctxt 12", "ctxt 112"))

    assert math.isnan(value(reset, "context_switches_per_second"))
    assert value(read(source), "context_switches_per_second") == 100.0


def test_a_disk_that_appears_and_goes_changes_the_list_and_no_other_rate(machine: Machine) -> None:
    source = machine.source()
    before = read(source).metrics
    line = " 8 0 sda 5 0 40 1 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
    machine.advance()
    machine.edit("proc/diskstats", lambda text: text + line)

    grown = read(source)
    machine.now += 1
    machine.edit("proc/diskstats", lambda text: text.replace(line, ""))
    shrunk = read(source)

    assert set(grown.metrics) - set(before) == {n for n in grown.metrics if n.startswith("disk_sda_")}
    assert value(grown, "disk_vda_reads_per_second") == 0.5
    assert math.isnan(value(grown, "disk_sda_reads_per_second"))
    assert shrunk.metrics == before
    assert value(shrunk, "context_switches_per_second") == 0.0


def test_partitions_and_loop_devices_are_left_out(machine: Machine) -> None:
    machine.edit(
        "proc/diskstats",
        lambda text: (
            text
            + "".join(f" 8 1 {n} 5 0 40 1 0 0 0 0 0 1 1\n" for n in ("sda1", "loop0", "nvme0n1p2", "nvme0n1"))
        ),
    )

    disks = {name.split("_")[1] for name in read(machine.source()).metrics if name.startswith("disk_")}

    assert disks == {"vda", "nvme0n1"}


def test_cores_beyond_a_limit_are_only_in_the_totals(machine: Machine) -> None:
    def grow(text: str) -> str:
        return text.replace("intr ", "".join(f"cpu{n} 1 1 1 1 1 1 1 1 0 0\n" for n in range(2, 96)) + "intr ")

    machine.edit("proc/stat", grow)

    names = read(machine.source()).metrics

    assert "cpu31_user_percent" in names
    assert "cpu32_user_percent" not in names


def test_interrupts_of_a_large_machine_are_not_even_read(machine: Machine) -> None:
    """The kernel takes milliseconds to render them, whatever is made of them."""
    source = machine.source()
    small = read(source).metrics

    def grow(text: str) -> str:
        return text.replace("intr ", "".join(f"cpu{n} 1 1 1 1 1 1 1 1 0 0\n" for n in range(2, 96)) + "intr ")

    machine.edit("proc/stat", grow)
    machine.remove("proc/interrupts")
    large = read(source).metrics

    assert "interrupts_loc_per_second" in small
    assert "interrupts_loc_per_second" not in large
    assert source.trouble["proc/interrupts"] == "left out above 16 CPUs"


def test_interfaces_of_containers_and_guests_are_no_metrics(machine: Machine) -> None:
    """They come and go with what they belong to, and each would be another list of metrics."""
    gone = ["veth0a1b2c3", "cali0123abc", "lxc0123456789ab", "lxc_health", "eni0123456789a", "azv0123456789a"]
    gone += ["gke0123456789a", "vnet3", "tap12", "fwbr100i0", "fwln100i0", "fwpr100p0"]
    kept = ["lxcbr0", "docker0", "eno1", "enp3s0", "ens5", "bond0"]
    numbers = " ".join(["7"] * 16)

    def add(text: str) -> str:
        return text + "".join(f"{name}: {numbers}\n" for name in (*gone, *kept))

    machine.edit("proc/net/dev", add)
    names = read(machine.source()).metrics

    assert [one for one in gone if f"network_{one}_received_bytes_per_second" in names] == []
    assert [one for one in kept if f"network_{one}_received_bytes_per_second" not in names] == []


def test_the_cgroup_of_a_container_shows_its_throttling_and_its_memory(machine: Machine) -> None:
    cgroup = machine.root / "sys/fs/cgroup"
    cpu = "usage_usec {0}\nnr_periods {1}\nnr_throttled {1}\nthrottled_usec {0}\n"
    (cgroup / "cpu.stat").write_text(cpu.format(0, 0))
    (cgroup / "memory.current").write_text("4096\n")
    (cgroup / "memory.events").write_text("low 0\nhigh 2\nmax 0\noom 0\noom_kill 0\n")
    (cgroup / "pids.current").write_text("17\n")
    source = machine.source()
    source.read()
    machine.now += 2.0
    (cgroup / "cpu.stat").write_text(cpu.format(500_000, 20))

    sample = read(source)

    assert value(sample, "cgroup_cpu_throttled_percent") == pytest.approx(25.0)
    assert value(sample, "cgroup_cpu_nr_throttled_per_second") == 10.0
    assert value(sample, "cgroup_memory_bytes") == 4096.0
    assert value(sample, "cgroup_memory_high_events_per_second") == 0.0
    assert value(sample, "cgroup_threads") == 17.0


class TestReady:
    def test_steal_is_part_of_it(self, machine: Machine) -> None:
        """Of 793 + 80 ticks of all CPUs, 80 were given to another guest."""
        source = machine.source()
        source.read()
        machine.advance()
        machine.edit("proc/stat", lambda text: text.replace("0 506 881 0 0", "0 506 961 0 0", 1))

        sample = read(source)

        waited = 2972715 + 210312463 + 185277218 + 194901202
        assert source.ready.steal == pytest.approx(100 * 80 / 873)
        assert source.ready.normal == pytest.approx(100 * waited / 1e9 / 4 / 2)
        assert sample.ready == pytest.approx(source.ready.normal + source.ready.steal)

    def test_a_thread_that_exits_gives_no_negative_waiting(self, machine: Machine) -> None:
        source = machine.source()
        source.read()
        machine.advance()
        machine.remove("proc/4242")

        assert read(source).ready == pytest.approx(max(100 * 2972715e-9 / 8, 100 * 0.362756 / 4 * 417 / 793))

    def test_a_thread_born_since_the_last_reading_counts_in_full(self, machine: Machine) -> None:
        source = machine.source()
        source.read()
        machine.now += 1.0
        thread = machine.root / "proc/4242/task/4299"
        thread.mkdir()
        (thread / "schedstat").write_text("1 300000000 1\n")
        # The thread that started it ran.
        parent = machine.root / "proc/4242/task/4242/schedstat"
        used, waited, times = map(int, parent.read_text().split())
        parent.write_text(f"{used + 1} {waited} {times + 1}\n")

        assert read(source).ready == pytest.approx(100 * 0.3 / 2)

    def test_the_pressure_total_counts_where_it_is_larger(self, machine: Machine) -> None:
        source = machine.source()
        source.read()
        machine.advance()
        machine.edit("proc/pressure/cpu", lambda text: text.replace("total=244109660", "total=246746904"))
        machine.edit("proc/loadavg", lambda text: text.replace("/103 ", "/6 "))

        sample = read(source)

        assert sample.ready == pytest.approx(100 * 3.0 / 4 * 417 / 793)
        assert sample.notes[0] == (
            "ready from run_delay and PSI: threads too short-lived to be seen waited as well"
        )

    def test_schedstat_is_the_second_choice(self, machine: Machine) -> None:
        for name in ("1", "15", "4242"):
            shutil.rmtree(machine.root / "proc" / name)
        sample = with_schedstat(machine)

        assert sample.ready == pytest.approx(100 * 0.8 / 2 / 2)
        assert sample.notes == ("ready from /proc/schedstat: threads absent", MIXED_NOTE)

    def test_pressure_is_the_third_choice(self, machine: Machine) -> None:
        sample = second(machine, machine.source(threads=False))

        assert sample.ready == pytest.approx(100 * 0.362756 / 4 * 417 / 793)
        where = "ready from PSI, a lower bound: threads not wanted, /proc/schedstat absent"
        assert sample.notes == (where, MIXED_NOTE)

    def test_without_any_of_them_ready_is_unknown_and_says_why(self, machine: Machine) -> None:
        source = machine.source(threads=False)
        source.read()
        machine.now += 1.0
        machine.remove("proc/pressure/cpu")

        sample = read(source)

        assert math.isnan(sample.ready)
        assert sample.notes == ("ready unknown: threads not wanted, /proc/schedstat absent, PSI absent",)

    def test_hidden_threads_are_said_to_be_hidden(self, machine: Machine) -> None:
        """The kernel of the frozen machine counts 103 threads, of which six were frozen."""
        sample = second(machine, machine.source())

        assert sample.notes == (
            "ready from run_delay of the threads that we may see, and PSI: others are hidden",
            PARTS_NOTE,
        )

    def test_hidden_threads_and_no_pressure_leave_the_figure_of_the_whole_machine(
        self, machine: Machine
    ) -> None:
        """As in a container on a kernel that has pressure turned off."""
        machine.remove("proc/pressure/cpu")
        sample = with_schedstat(machine)

        assert sample.ready == pytest.approx(100 * 0.8 / 2 / 2)
        assert sample.notes == ("ready from /proc/schedstat: threads hidden", MIXED_NOTE)

    def test_hidden_threads_and_nothing_else_make_it_too_low_and_it_says_so(self, machine: Machine) -> None:
        machine.remove("proc/pressure/cpu")
        source = machine.source()
        source.read()
        machine.now += 2.0

        assert read(source).notes[0] == (
            "ready too low: others' threads are hidden, /proc/schedstat absent, PSI absent"
        )

    def test_a_kernel_that_counts_no_thread_is_not_taken_for_a_calm_one(self, machine: Machine) -> None:
        """CONFIG_SCHEDSTATS off and delay accounting off: the files are there and have zeros."""
        for path in machine.root.glob("proc/*/task/*/schedstat"):
            path.write_text("0 0 0\n")
        source = machine.source()
        source.read()
        machine.now += 4.0
        machine.edit("proc/pressure/cpu", lambda text: text.replace("total=243746904", "total=244109660"))

        sample = read(source)

        assert sample.ready > 0.0
        assert sample.notes[0] == (
            "ready from PSI, a lower bound: threads not counted by this kernel, /proc/schedstat absent"
        )

    def test_all_cpus_of_a_large_machine_are_read(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel hands out whole records, as many as fit into a page: here two CPUs at a time."""
        for name in ("1", "15", "4242"):
            shutil.rmtree(machine.root / "proc" / name)
        schedstat = machine.root / "proc/schedstat"
        true_pread = os.pread

        def by_records(descriptor: int, size: int, offset: int) -> bytes:
            if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("/schedstat"):
                return true_pread(descriptor, size, offset)
            piece = true_pread(descriptor, 4096, offset)
            return piece if offset + len(piece) == schedstat.stat().st_size else piece[: piece.rindex(b"cpu")]

        monkeypatch.setattr(os, "pread", by_records)
        record = "cpu{0} 0 0 0 0 0 0 9 {1} 5\n" + 4 * f"domain0 {'f' * 60}{' 0' * 140}\n"
        source = machine.source()
        ready = []
        for waited in (0, 10**9):
            schedstat.write_text("".join(record.format(cpu, waited) for cpu in range(8)))
            ready.append(read(source).ready)
            machine.now += 1.0

        assert ready[1] == pytest.approx(100 * 8 / 2)

    def test_a_cpu_that_comes_back_brings_no_waiting_of_the_past(self, machine: Machine) -> None:
        for name in ("1", "15", "4242"):
            shutil.rmtree(machine.root / "proc" / name)
        schedstat = machine.root / "proc/schedstat"
        line = "cpu{0} 0 0 0 0 0 0 9 {1} 5\n"
        source = machine.source()
        ready = []
        for cpus in ({0: 0, 1: 900e9}, {0: 1e9}, {0: 2e9, 1: 900e9}, {0: 3e9, 1: 901e9}):
            schedstat.write_text("".join(line.format(cpu, int(waited)) for cpu, waited in cpus.items()))
            ready.append(read(source).ready)
            machine.now += 1.0

        assert ready[1:] == pytest.approx([50.0, 50.0, 100.0])


def test_a_folder_without_a_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="must have proc/stat under its root"):
        LinuxSource(tmp_path)


def test_reading_a_closed_source_is_an_error(machine: Machine) -> None:
    source = machine.source()
    source.close()

    with pytest.raises(ValueError, match="closed source"):
        source.read()


@pytest.fixture
def live() -> Iterator[LinuxSource]:
    source = LinuxSource()
    source.read()
    yield source
    source.close()


@LIVE
def test_this_machine_says_where_ready_comes_from(live: LinuxSource) -> None:
    assert len(read(live).notes) == 2
    assert read(live).notes[0].startswith("ready from")


@LIVE
def test_closing_leaves_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    source = LinuxSource()
    for _ in range(3):
        source.read()
    source.close()

    assert len(os.listdir("/proc/self/fd")) == before


@LIVE
def test_waiting_threads_show_up_as_ready_beyond_one_cpu(live: LinuxSource) -> None:
    """With three times as many spinning processes as CPUs, each CPU has two waiting for it."""
    cpus = len(os.sched_getaffinity(0))
    spin = "import time\nend = time.monotonic() + 2.5\nwhile time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-S", "-c", spin]) for _ in range(3 * cpus)]
    try:
        for process in processes:
            at_normal_priority(process.pid)
        time.sleep(0.7)
        live.read()
        time.sleep(1.0)
        busy = read(live)
    finally:
        for process in processes:
            process.wait()

    assert busy.ready > 100.0
    assert busy.utilisation > 80.0


@LIVE
@pytest.mark.skipif(not Path("/proc/pressure/cpu").exists(), reason="needs PSI")
def test_a_storm_of_processes_of_50_ms_is_seen_as_ready(live: LinuxSource) -> None:
    cpus = len(os.sched_getaffinity(0))
    worker = "import os, sys, time\nsys.stdin.readline()\nprint(flush=True)\n"
    worker += "end = time.monotonic() + 2.5\nchildren = set()\n"
    worker += "while time.monotonic() < end:\n"
    worker += f"    while len(children) < {4 * cpus}:\n"
    worker += "        child = os.fork()\n"
    worker += "        if child == 0:\n"
    worker += "            stop = time.thread_time() + 0.05\n"
    worker += "            while time.thread_time() < stop: pass\n"
    worker += "            os._exit(0)\n"
    worker += "        children.add(child)\n"
    worker += "    children.discard(os.wait()[0])\n"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as storm:
        assert storm.stdout is not None
        assert storm.stdin is not None
        at_normal_priority(storm.pid)
        storm.stdin.write(b"go\n")
        storm.stdin.flush()
        storm.stdout.readline()
        live.read()
        time.sleep(1.5)
        stormy = read(live)

    assert stormy.ready > 50.0


@LIVE
def test_a_thousand_threads_that_appear_and_die_are_survived(live: LinuxSource, tmp_path: Path) -> None:
    # Other processes come and go while this runs, so what is counted is this process alone.
    (tmp_path / str(os.getpid())).symlink_to("/proc/self")
    scanner = ThreadScanner(str(tmp_path), interval_seconds=1.0)
    for _ in range(4):
        gate = threading.Event()
        threads = [threading.Thread(target=gate.wait) for _ in range(250)]
        for thread in threads:
            thread.start()
        alive, counted = read(live), scanner.scan().threads
        gate.set()
        for thread in threads:
            thread.join()
        wait_for_the_kernel_to_drop(threads)

        assert alive.ready >= 0.0
        assert value(alive, "threads_seen") >= 250
        assert counted >= 250
        assert read(live).ready >= 0.0
        assert scanner.scan().threads < 50
    scanner.close()


@LIVE
def test_reading_200_threads_costs_at_most_one_percent_of_a_core(live: LinuxSource) -> None:
    """Given as a ratio in one run: CPU time of readings a second apart to that second."""
    gate = threading.Event()
    threads = [threading.Thread(target=gate.wait) for _ in range(150)]
    for thread in threads:
        thread.start()
    try:
        costs = []
        for _ in range(8):
            live.read()
            costs.append(live.cost_seconds)
    finally:
        gate.set()
        for thread in threads:
            thread.join()

    seen = live.ready_reader.waiting.threads
    assert sorted(costs)[2] / live.interval_seconds <= 0.01 * max(1.0, seen / 200)


@LIVE
def test_threads_are_sampled_and_said_so_when_reading_them_costs_too_much() -> None:
    source = LinuxSource(interval_seconds=0.002)
    try:
        notes = {read(source).notes for _ in range(12)}
    finally:
        source.close()

    assert any("ready from one in" in line and "2 % of a core" in line for note in notes for line in note)
