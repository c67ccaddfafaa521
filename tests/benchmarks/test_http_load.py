"""The load that the benchmark makes, on a server of the test's own."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from benchmarks.http_load import Connections, closed_loop, open_loop
from prontosched.errors import ProntoError


def loading(work, *, handler):
    async def go():
        app = web.Application()
        app.router.add_get("/", handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with Connections(runner.addresses[0][1], 8) as connections:
                return await work(connections)
        finally:
            await runner.cleanup()

    return asyncio.run(go())


async def fine(request):
    return web.Response(text="x" * 500)


def test_every_request_that_was_due_is_answered_and_timed():
    found = loading(lambda c: open_loop(c, "/", rate=200, seconds=0.5), handler=fine)

    assert len(found) == 100
    assert min(found) > 0.0


def test_a_server_that_stalls_is_charged_from_when_requests_were_due():
    """Waiting for an answer before asking again would hide the stall in all but one request."""
    first = []

    async def stalls(request):
        if not first:
            first.append(True)
            await asyncio.sleep(0)
            import time

            time.sleep(0.3)
        return web.Response()

    found = loading(lambda c: open_loop(c, "/", rate=100, seconds=0.5), handler=stalls)

    assert sum(latency > 0.1 for latency in found) >= 15


def test_the_closed_loop_counts_answers():
    assert loading(lambda c: closed_loop(c, "/", 0.3), handler=fine) > 50


def test_a_refusal_is_no_answer():
    async def refuses(request):
        raise web.HTTPForbidden

    with pytest.raises(ProntoError, match=r"expected an answer, got b'HTTP/1\.1 403"):
        loading(lambda c: open_loop(c, "/", rate=50, seconds=0.1), handler=refuses)
