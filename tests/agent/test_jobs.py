from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.agent.jobs import MAX_JOBS, AnnouncedJobs


def test_without_a_job_to_weigh_and_nothing_announced_the_signal_decides():
    announced = AnnouncedJobs(capacity=2)
    announced.saw(100.0)

    assert announced.full() is None


def test_a_job_is_counted_against_the_cpus_that_are_free_now():
    announced = AnnouncedJobs(capacity=4, factor=1.0)
    announced.saw(60.0)

    assert announced.full(cpus=1) is None
    assert announced.full(cpus=2) == "CPUs 2.4 busy and 2 asked for exceed 4 (4 CPUs x 1)"


def test_a_job_that_fills_the_node_starts_on_one_that_is_all_but_idle():
    announced = AnnouncedJobs(capacity=4, factor=1.0)
    announced.saw(5.0)

    assert announced.full(cpus=4) is None


def test_announced_cpus_beyond_capacity_times_factor_leave_no_room():
    announced = AnnouncedJobs(capacity=4, factor=1.0)
    announced.saw(25.0)
    announced.add("a", cpus=2, ttl=30, now=0)

    assert announced.full(cpus=1) is None
    assert "CPUs 1.0 busy and 2 announced by 1 job and 2 asked for exceed 4" in announced.full(cpus=2)


def test_an_announcement_ends_with_its_ttl():
    announced = AnnouncedJobs(capacity=1)
    announced.add("a", cpus=1, ttl=30, now=0)
    announced.expire(29.9)
    assert len(announced) == 1
    announced.expire(30.0)

    assert len(announced) == 0


def test_an_announcement_ends_when_telemetry_has_caught_up():
    announced = AnnouncedJobs(capacity=4)
    announced.saw(10.0)
    announced.add("a", cpus=2, ttl=1000, now=0)
    announced.saw(10.0)
    announced.saw(12.0)
    assert len(announced) == 1
    announced.saw(60.0)

    assert len(announced) == 0


def test_the_sample_under_way_when_a_job_starts_does_not_count_as_caught_up():
    announced = AnnouncedJobs(capacity=2)
    announced.add("a", cpus=1, ttl=1000, now=0)
    announced.saw(90.0)
    assert len(announced) == 1
    announced.saw(90.0)

    assert len(announced) == 0


def test_two_jobs_need_the_load_of_two_to_be_seen():
    announced = AnnouncedJobs(capacity=8)
    announced.saw(0.0)
    for name in "ab":
        announced.add(name, cpus=2, ttl=1000, now=0)
    announced.saw(20.0)
    announced.saw(20.0)
    assert announced.ids == ["b"]
    announced.saw(45.0)

    assert announced.ids == []


def test_a_job_wider_than_the_node_finds_room_on_an_empty_one():
    announced = AnnouncedJobs(capacity=2)
    assert announced.full(cpus=64) is None
    announced.add("wide", cpus=64, ttl=30, now=0)

    assert announced.full() is not None


def test_announcing_again_replaces():
    announced = AnnouncedJobs(capacity=8)
    announced.add("a", cpus=2, ttl=10, now=0)
    announced.add("a", cpus=1, ttl=99, now=5)
    announced.expire(20)

    assert announced.cpus == 1


def test_the_list_of_jobs_is_bounded():
    announced = AnnouncedJobs(capacity=1)
    for i in range(MAX_JOBS):
        announced.add(str(i), cpus=0.001, ttl=10, now=0)
    with pytest.raises(OverflowError, match="at most 1000 jobs"):
        announced.add("one more", cpus=1, ttl=10, now=0)


def test_an_announcement_ends_with_its_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        announced = AnnouncedJobs(capacity=1)
        announced.add("a", cpus=1, ttl=1000, now=0, pid=process.pid)
        announced.expire(1)
        alive = len(announced)
        process.stdin.close()
        process.wait(60)
        announced.expire(2)

    assert alive == 1
    assert len(announced) == 0


def test_forgotten_jobs_leave_no_file_open():
    before = len(os.listdir("/proc/self/fd"))
    announced = AnnouncedJobs(capacity=1)
    for _ in range(50):
        announced.add("a", cpus=1, ttl=10, now=0, pid=os.getpid())
    announced.clear()

    assert len(os.listdir("/proc/self/fd")) == before


def test_unknown_utilisation_changes_nothing():
    announced = AnnouncedJobs(capacity=2)
    announced.saw(50.0)
    announced.saw(math.nan)

    assert announced.busy == 1.0


@given(st.lists(st.tuples(st.floats(0.1, 8), st.floats(1, 100), st.floats(0, 100)), max_size=40))
def test_full_always_means_that_the_sum_exceeds_the_room(steps):
    announced = AnnouncedJobs(capacity=4, factor=1.25)
    for i, (cpus, ttl, used) in enumerate(steps):
        announced.saw(used)
        announced.add(str(i % 7), cpus=cpus, ttl=ttl, now=float(i))
        announced.expire(float(i))
        assert (announced.full() is not None) == (
            len(announced) > 0 and announced.busy + announced.cpus > 5.0
        )
