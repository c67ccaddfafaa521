from __future__ import annotations

import asyncio
import threading

import pytest

from prontosched.agent.background import Background
from prontosched.agent.loop import Reader
from tests.agent.machine import Machine, sample


def test_a_source_that_hangs_costs_a_tick_its_timeout_and_no_more():
    release = threading.Event()

    def give(i):
        if i == 0:
            release.wait(60)
        return [sample(i)]

    async def run():
        reader = Reader(Machine(give), timeout=0.05)
        first = await reader.read()
        second = await reader.read()
        hanging = reader.hanging
        release.set()
        third = await reader.read()
        await reader.close()
        return first, second, hanging, third, reader

    first, second, hanging, third, reader = asyncio.run(run())
    assert first is None
    assert second is None
    assert hanging == 2
    assert len(third) == 1
    assert reader.source.reads == 1
    assert reader.hanging == 0


def test_a_source_that_never_returns_does_not_keep_the_reader_from_closing():
    forever = threading.Event()

    def give(i):
        forever.wait(60)
        return []

    async def run():
        reader = Reader(Machine(give), timeout=0.02)
        await reader.read()
        await asyncio.wait_for(reader.close(), 5)

    asyncio.run(run())
    forever.set()


def test_what_a_source_raises_reaches_the_tick():
    def give(i):
        raise OSError("no such device")

    async def run():
        reader = Reader(Machine(give), timeout=1)
        try:
            with pytest.raises(OSError, match="no such device"):
                await reader.read()
        finally:
            await reader.close()

    asyncio.run(run())


def test_the_source_is_closed_in_its_own_thread():
    machine = Machine()

    async def run():
        reader = Reader(machine, timeout=1)
        await reader.read()
        await reader.close()

    asyncio.run(run())
    assert machine.closed


def test_background_work_is_done_in_order():
    done = []

    async def run():
        hand = Background("test")
        futures = [hand.submit(lambda i=i: done.append(i)) for i in range(50)]
        await asyncio.gather(*futures)
        return hand.stop(5)

    assert asyncio.run(run())
    assert done == list(range(50))


def test_an_end_of_iteration_in_the_background_is_an_error_like_any_other():
    def ended():
        raise StopIteration

    async def run():
        hand = Background("test")
        try:
            with pytest.raises(RuntimeError, match="unexpected end of iteration"):
                await hand.submit(ended)
        finally:
            hand.stop(5)

    asyncio.run(run())
