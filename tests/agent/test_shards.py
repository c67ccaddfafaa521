"""Whose turn it is to be saved, and what a disk may do meanwhile."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prontosched.agent import shards
from prontosched.agent.disk import Disk
from prontosched.agent.shards import ROUND_SECONDS, Rotation, ShardFiles
from tests.agent.machine import Clock
from tests.agent.test_crowd import crowd_with, named, sampled, stepped
from tests.processes import wait_for


@given(st.integers(1, 600), st.floats(0.1, 60.0))
def test_every_part_is_saved_once_in_a_round_whatever_the_interval(count, interval):
    clock = Clock()
    rotation = Rotation(clock=clock)
    saved: dict[int, float] = {}
    longest = 0.0
    while clock.now < 100.0 + 3 * ROUND_SECONDS:
        clock.now += interval
        for number in rotation.due(count):
            longest = max(longest, clock.now - saved.get(number, clock.now))
            saved[number] = clock.now

    possible = count * interval / shards.MOST_AT_ONCE
    assert len(saved) == count or possible > ROUND_SECONDS
    assert longest <= max(ROUND_SECONDS, possible) + 2 * interval + 1.0


def test_young_parts_are_saved_soon_and_again_before_they_are_twice_as_old():
    clock = Clock(0.0)
    rotation = Rotation(clock=clock)
    found = []
    for _ in range(64):
        clock.now += 1.0
        found += [(clock.now, number) for number in rotation.due(4)]

    times = [now for now, number in found if number == 0]
    assert times[0] <= 2.0
    assert all(after <= 2.5 * before + 4.0 for before, after in itertools.pairwise(times))
    assert len(found) < 32


def test_a_part_that_could_not_be_saved_is_the_next():
    clock = Clock()
    rotation = Rotation(clock=clock)
    clock.now += 4.0
    first = rotation.due(8)
    rotation.failed(2)
    clock.now += 2.0

    assert first == [0, 1, 2, 3]
    assert rotation.due(8) == [2, 3]


def test_parts_beyond_the_last_are_removed_and_scraps_too(tmp_path):
    crowd = crowd_with(preset="paper")
    stepped(crowd, named(100), range(3))
    files = ShardFiles(tmp_path / "crowd")
    for number in range(crowd.shards):
        files.write(number, crowd.shard(number))
    (files.folder / ".0000.state.abc").write_bytes(b"half")
    files.drop_from(2)

    saved = ShardFiles(files.folder).look()
    assert list(saved.absent) == named(64)
    assert sorted(path.name for path in files.folder.iterdir()) == ["0000.state", "0001.state"]
    assert files.size_bytes == sum(path.stat().st_size for path in files.folder.iterdir())


def test_nothing_saved_is_nobody(tmp_path):
    assert ShardFiles(tmp_path / "crowd").look() is None


def test_a_full_disk_costs_parts_and_they_are_written_when_there_is_room(tmp_path, monkeypatch):
    crowd = crowd_with(preset="paper")
    stepped(crowd, named(70), range(3))
    clock = Clock()
    written = shards.write_whole

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    async def go():
        disk = Disk(tmp_path, "a", clock=clock)

        async def tick():
            clock.now += 1.0
            disk.keep([], dict, None, crowd)
            if disk._under_way is not None:
                await disk._under_way

        monkeypatch.setattr(shards, "write_whole", full)
        for _ in range(4):
            await tick()
        failed = disk.save_errors, disk.last_error
        monkeypatch.setattr(shards, "write_whole", written)
        for _ in range(12):
            await tick()
        found = failed, disk.last_error, sorted(disk.shards.sizes)
        await disk.close({}, crowd)
        return found

    failed, error, sizes = asyncio.run(go())
    assert failed[0] >= 2
    assert "No space left on device" in failed[1]
    assert error == ""
    assert sizes == [0, 1, 2]


def test_a_clean_end_saves_everything(tmp_path):
    crowd = crowd_with(preset="paper")
    stepped(crowd, named(70), range(3))

    async def go():
        disk = Disk(tmp_path, "a")
        await disk.close(crowd.state(), crowd)

    asyncio.run(go())
    again = crowd_with(ShardFiles(tmp_path / "a.crowd").look(), preset="paper")
    again.step(sampled(named(70), 3), 3.0)

    assert np.unique(again.fleet.timestep).tolist() == [4]


def test_a_disk_that_hangs_holds_no_more_than_what_is_being_written(tmp_path, monkeypatch):
    crowd = crowd_with(preset="paper")
    stepped(crowd, named(70), range(3))
    clock = Clock()
    stuck, begun = threading.Event(), threading.Event()

    def hang(path, data):
        begun.set()
        stuck.wait(60)

    async def go():
        disk = Disk(tmp_path, "a", clock=clock)
        monkeypatch.setattr(shards, "write_whole", hang)
        asked = []
        taken = crowd.shard
        monkeypatch.setattr(crowd, "shard", lambda number: asked.append(number) or taken(number))
        for _ in range(30):
            clock.now += 1.0
            disk.keep([], dict, None, crowd)
            wait_for(begun.is_set)
        stuck.set()
        await disk.close(None)
        return asked

    assert asyncio.run(go()) == [0]
