"""The extender as a server: asked by kube-scheduler, fed by agents, heard by waiting pods.

Covers: the routes, and the loop that settles who refuses and tells the API server. Does
not cover: who may ask, which whoever starts the server adds; the answers themselves,
`extender`; who refuses, `extender_ledger`; hearing the agents, `extender_decisions`.

Whatever goes wrong in here, a pod is placed as if Pronto were not there: the scheduler
is told to ignore an extender that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from prontosched.errors import IntegrationError
from prontosched.gates.extender import (
    filter_answer,
    prioritize_answer,
    probable_places,
    read_question,
)
from prontosched.gates.extender_ledger import Change, Ledger

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler

log = logging.getLogger(__name__)

BODY_LIMIT = 64 * 1024 * 1024
SETTLE_SECONDS = 0.5

Announce = Callable[[Iterable[Change]], None]
Background = Callable[[], Awaitable[None]]
Middleware = Callable[..., Awaitable[Any]]


class Extender:
    """Answer a scheduler from a ledger of refusals.

    Parameters
    ----------
    ledger
        Who refuses, and which nodes to prefer. In shadow mode (`rules.enforce` False) its
        refusals are logged and counted, and every node is answered to be fit.
    announce
        Told of every change while enforcing; wakes pods that wait. Runs in a thread.
    background
        Runs beside the server and is stopped with it, such as the polling of agents.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        announce: Announce | None = None,
        background: Iterable[Background] = (),
    ) -> None:
        self.ledger = ledger
        self.counts = {"filter": 0, "prioritize": 0, "malformed": 0, "refused": 0, "wake_errors": 0}
        self._announce = announce
        self._background = tuple(background)

    def application(self, middlewares: Iterable[Middleware] = ()) -> web.Application:
        """Return the server's routes behind `middlewares`, with the loops that run beside them."""
        from aiohttp import web

        @web.middleware
        async def excuse(request: web.Request, handler: Handler) -> web.StreamResponse:
            """Turn what cannot be read into a plain refusal, which the scheduler then ignores."""
            try:
                return await handler(request)
            except IntegrationError as error:
                self.counts["malformed"] += 1
                return web.json_response({"Error": str(error)}, status=400)

        layers: list[Any] = [*middlewares, excuse]
        application = web.Application(client_max_size=BODY_LIMIT, middlewares=layers)
        application.router.add_post("/filter", self._filter)
        application.router.add_post("/prioritize", self._prioritize)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/v1/nodes", self._nodes)
        application.router.add_get("/v1/best", self._best)
        application.router.add_post("/v1/jobs", self._jobs)
        application.cleanup_ctx.append(self._loops)
        return application

    async def settle(self) -> None:
        """Bring the refusals up to date and announce what changed."""
        changes = self.ledger.settle(time.time())
        enforce = self.ledger.rules.enforce
        for change in changes:
            would = "" if enforce else "shadow mode, enforcing nothing: "
            log.info(
                "%snode %s %s: %s", would, change.node, "refuses" if change.refuse else "opens", change.reason
            )
        if changes and enforce and self._announce is not None:
            try:
                await asyncio.to_thread(self._announce, changes)
            except IntegrationError as error:
                self.counts["wake_errors"] += 1
                log.warning("pods that wait may wait on for a while: %s", error)

    async def _filter(self, request: web.Request) -> web.Response:
        from aiohttp import web

        question = read_question(await _body(request))
        now = time.time()
        self.ledger.see(question.names, now)
        enforce = self.ledger.rules.enforce
        answer = filter_answer(question, lambda node: self.ledger.refusal(node, now) if enforce else None)
        self.counts["filter"] += 1
        self.counts["refused"] += len(answer["failedNodes" if question.lower else "FailedNodes"])
        return web.json_response(answer)

    async def _prioritize(self, request: web.Request) -> web.Response:
        from aiohttp import web

        question = read_question(await _body(request))
        now = time.time()
        self.ledger.see(question.names, now)
        enforce = self.ledger.rules.enforce
        self.counts["prioritize"] += 1
        answer = prioritize_answer(
            question, lambda node: self.ledger.chance(node, now) if enforce else math.nan
        )
        if enforce:
            # Where it goes is not told to an extender: most likely to one of the best.
            self.ledger.placements.add(question.job, probable_places(answer, question.cpus), now)
        return web.json_response(answer)

    async def _best(self, request: web.Request) -> web.Response:
        """Answer which nodes to prefer, best first."""
        from aiohttp import web

        limit = _number(request.query.get("limit", "10"), "limit", 1, 10_000)
        best = self.ledger.best(time.time())[: int(limit)]
        return web.json_response({"nodes": [one.as_json() for one in best]})

    async def _jobs(self, request: web.Request) -> web.Response:
        """Count a job that someone has just sent to a node."""
        from aiohttp import web

        body = await _body(request)
        if not isinstance(body, dict) or not all(isinstance(body.get(key), str) for key in ("id", "node")):
            raise IntegrationError('a placed job must be {"id": …, "node": …, "cpus": …}')
        cpus = _number(body.get("cpus", 1.0), "cpus", 0.0, 10_000)
        self.ledger.placements.add(body["id"][:300], {body["node"][:300]: cpus}, time.time())
        return web.json_response({"counted": True})

    async def _health(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response({"ok": True})

    async def _nodes(self, request: web.Request) -> web.Response:
        from aiohttp import web

        now = time.time()
        nodes = {
            name: None
            if (verdict := self.ledger.verdict(name, now)) is None
            else {**_shown(verdict), "closed": self.ledger.refusal(name, now) is not None}
            for name in self.ledger.known
        }
        mode = "enforce" if self.ledger.rules.enforce else "shadow"
        return web.json_response({"mode": mode, "counts": self.counts, "nodes": nodes})

    async def _loops(self, application: web.Application) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(_lasting(job)) for job in (self._settling, *self._background)]
        yield
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _settling(self) -> None:
        while True:
            await self.settle()
            await asyncio.sleep(SETTLE_SECONDS)


async def _lasting(job: Background) -> None:
    """Run `job` again when it breaks: an extender that stopped listening would answer from memory."""
    while True:
        try:
            await job()
            return
        except Exception:
            log.exception("a background loop of the extender broke: starting it again in 5 s")
            await asyncio.sleep(5.0)


async def _body(request: web.Request) -> Any:
    from aiohttp import web

    try:
        return json.loads(await request.read())
    except web.HTTPRequestEntityTooLarge:
        raise
    except (ValueError, RecursionError) as error:
        raise IntegrationError(f"a scheduler's request must be JSON, got {error}") from error


def _number(value: object, name: str, least: float, most: float) -> float:
    try:
        found = float(str(value))
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise IntegrationError(f"{name} must be a number from {least:g} to {most:g}, got {str(value)[:40]!r}")
    return found


def _shown(verdict: Any) -> dict[str, Any]:
    score = verdict.score if verdict.score == verdict.score else None
    return {
        "refuse": verdict.refuse,
        "score": score,
        "reason": verdict.reason,
        "valid_until": verdict.valid_until,
    }
