"""The Kubernetes scheduler extender: kube-scheduler asks which nodes to prefer and which may take a pod.

`ExtenderRequest`, `filter_answer` and `prioritize_answer` are the protocol. `Ledger` decides for
all nodes at once which refuse. `Extender` is the server. Whatever goes wrong in here, a pod is
placed as if Pronto were not there: the scheduler is told to ignore an extender that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler

from prontosched.errors import IntegrationError
from prontosched.gates.gate import Observed, Verdict
from prontosched.gates.kubernetes import KEY, RefusalChange, cpu_quantity
from prontosched.gates.policy import Rules, VetoPolicy, closed_nodes
from prontosched.gates.preference import CONTENDED, Candidate, Placements, best_first, crowded_chance
from prontosched.subspace import Array

log = logging.getLogger(__name__)

BEST = 10
# For a node nothing is known of: neither better nor worse than the others.
NEUTRAL = 5
MOST_NODES = 50_000
# What a pod that asks for no CPUs is taken to use, and the most that is believed.
USUAL_CPUS = 0.5
MOST_CPUS = 10_000.0
# A node whose size is not known is taken to have so many CPUs.
USUAL_NODE_CPUS = 8.0
# A pod that could go to any of more nodes makes none of them worse than the others.
MOST_BEST = 100
FORGET_SECONDS = 3600.0
NOTE_SECONDS = 60.0
BODY_LIMIT = 64 * 1024 * 1024
# As often as agents decide.
SETTLE_SECONDS = 1.0

Announce = Callable[[Iterable[RefusalChange]], None]
Background = Callable[[], Awaitable[None]]
Middleware = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ExtenderRequest:
    """Where the scheduler could put one pod: names of nodes in order, and Node objects where they came so."""

    pod: Mapping[str, Any]
    names: tuple[str, ...]
    nodes: tuple[Mapping[str, Any], ...] | None

    @property
    def job(self) -> str:
        """A name by which the pod is known again when it is asked for twice."""
        metadata = _field(self.pod, "metadata", Mapping) or {}
        return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")[:300]

    @property
    def cpus(self) -> float:
        """The CPUs that the pod's containers ask for, or a guess where they ask for none."""
        containers = _field(_field(self.pod, "spec", Mapping), "containers", list) or []
        resources = (_field(_field(one, "resources", Mapping), "requests", Mapping) for one in containers)
        asked = sum(cpu_quantity(one.get("cpu")) for one in resources if one)
        return asked if 0.0 < asked <= MOST_CPUS else USUAL_CPUS

    @property
    def tolerant(self) -> bool:
        """True when the pod tolerates our taint, which opts it out of the extender too."""
        tolerations = _field(_field(self.pod, "spec", Mapping), "tolerations", list) or []
        return any(
            isinstance(one, Mapping)
            and one.get("operator") == "Exists"
            and one.get("key") in (KEY, "", None)
            and one.get("effect") in ("NoSchedule", "", None)
            for one in tolerations
        )


def _field(found: object, key: str, kind: type) -> Any:
    """Return `found[key]` where that is of a kind; None elsewhere: a pod is anyone's text."""
    value = found.get(key) if isinstance(found, Mapping) else None
    return value if isinstance(value, kind) else None


def read_request(body: object) -> ExtenderRequest:
    """Read a request; its keys count in any case, as in Go."""
    if not isinstance(body, Mapping):
        raise IntegrationError(f"a scheduler's request must be a JSON object, got {type(body).__name__}")
    fields = {key.lower(): value for key, value in body.items()}
    pod, names, nodes = fields.get("pod"), fields.get("nodenames"), fields.get("nodes")
    if not isinstance(pod, Mapping):
        raise IntegrationError(f"Pod must be an object, got {type(pod).__name__}")
    if names is not None or nodes is None:
        return ExtenderRequest(pod, _names([] if names is None else names), None)
    items = nodes.get("items", nodes.get("Items")) if isinstance(nodes, Mapping) else nodes
    items = [] if items is None else items
    if not isinstance(items, list) or not all(isinstance(node, Mapping) for node in items):
        raise IntegrationError(f"Nodes must be a NodeList, got {str(nodes)[:80]}")
    return ExtenderRequest(pod, _names([_name_of(node) for node in items]), tuple(items))


def _names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or len(names) > MOST_NODES or not {str}.issuperset(map(type, names)):
        raise IntegrationError(
            f"NodeNames must be a list of at most {MOST_NODES} names, got {str(names)[:80]}"
        )
    return tuple(names)


def _name_of(node: Mapping[str, Any]) -> object:
    return (_field(node, "metadata", Mapping) or {}).get("name")


def filter_answer(request: ExtenderRequest, refusals: Mapping[str, str]) -> dict[str, Any]:
    """Answer which of the nodes may take the pod, and why the others may not.

    `refusals` has the reason of each node that refuses, and may have other nodes too.

    Where every node that could take the pod refuses, none does: a pod is never kept
    waiting by us alone. Refusals are said to be unresolvable, so that no pod is evicted
    from a node for a passing burst.
    """
    failed: dict[str, str] = {}
    if refusals and not request.tolerant:
        failed = {name: f"pronto: {refusals[name]}" for name in request.names if name in refusals}
    if len(failed) == len(request.names):
        failed = {}
    if request.nodes is None:
        names, nodes = [name for name in request.names if name not in failed], None
    else:
        kept = [node for node in request.nodes if _name_of(node) not in failed]
        names, nodes = None, {"metadata": {}, "items": kept}
    return {
        "NodeNames": names,
        "Nodes": nodes,
        "FailedAndUnresolvableNodes": failed,
        "Error": "",
    }


def prioritize_answer(request: ExtenderRequest, scores: Iterable[int]) -> str:
    """Answer how well each node suits, in JSON; `scores` are in the order of the nodes."""
    return f"[{', '.join(map(_row, request.names, scores))}]"


# Rows are kept, because a scheduling cycle waits for every one that is written.
@functools.lru_cache(2 * MOST_NODES)
def _row(name: str, score: int) -> str:
    return json.dumps({"Host": name, "Score": score})


def suitabilities(chances: Array) -> list[int]:
    """Return 0 for a node that is sure to be contended, up to 10 for a calm one; 5 where the chance is NaN.

    Examples
    --------
    >>> suitabilities(np.array([math.nan, 0.2]))
    [5, 8]
    """
    found = np.rint(BEST * (1.0 - np.clip(chances, 0.0, 1.0)))
    found[np.isnan(found)] = NEUTRAL
    whole: list[int] = found.astype(int).tolist()
    return whole


class DecisionSource(Protocol):
    """Where an extender learns what each node has decided."""

    def verdicts(self) -> Mapping[str, Verdict]:
        """Return the newest verdict of every node that has one, however old."""
        ...


class Ledger:
    """Decide for a whole cluster which nodes to prefer, and which of those that refuse may do so.

    Pure: time arrives as a number. Nodes refuse only with `rules.veto`; without, they are only
    preferred less. Holds one entry for each node seen within the last hour, at most `MOST_NODES`;
    a node beyond that, like any node nothing is known of, accepts.
    """

    def __init__(self, decisions: DecisionSource, rules: Rules) -> None:
        self.decisions = decisions
        self.rules = rules
        self.placements = Placements()
        self._known: dict[str, VetoPolicy] = {}
        self._cpus: dict[str, float] = {}
        self._seen_at: dict[str, float] = {}
        # Nodes noted since a time, which need not be noted again for a while.
        self._noted: set[str] = set()
        self._noted_at = -math.inf
        # Replaced whole, never changed: another thread reads it.
        self._refusals: Mapping[str, Verdict] = {}

    @property
    def known(self) -> list[str]:
        """The nodes in service, as far as known."""
        return list(self._known)

    def see(self, names: Sequence[str], now: float) -> None:
        """Take note of nodes that are in service."""
        if not 0.0 <= now - self._noted_at < NOTE_SECONDS:
            self._noted, self._noted_at = set(), now
        before = len(self._noted)
        self._noted.update(names)
        if len(self._noted) == before:  # as in most questions
            return
        for name in self._noted.difference(self._known):
            if len(self._known) < MOST_NODES:
                self._known[name] = VetoPolicy(self.rules)
        self._noted.intersection_update(self._known)
        self._seen_at.update(dict.fromkeys(self._noted, now))

    def size(self, node: str, cpus: float) -> None:
        """Take note of how many CPUs a node has."""
        if node in self._known and cpus > 0.0:
            self._cpus[node] = cpus

    def refusals(self, now: float) -> dict[str, Verdict]:
        """Return the nodes that refuse now, each with the verdict by which it does."""
        return {name: one for name, one in self._refusals.items() if not one.expired(now)}

    def verdicts(self, now: float) -> dict[str, Verdict]:
        """Return each node's own verdict, for those of which something valid is known."""
        newest = self.decisions.verdicts()
        return {
            name: one
            for name in self._known
            if (one := newest.get(name)) is not None and not one.expired(now)
        }

    def chances(self, nodes: Collection[str], now: float) -> Array:
        """Return the chance of contention on each node, jobs just placed there counted; NaN when unknown."""
        found = map(self.decisions.verdicts().get, nodes)
        score = np.array(
            [math.nan if one is None or not now < one.valid_until else one.expected for one in found]
        )
        cpus = np.fromiter(map(self._cpus.get, nodes, repeat(USUAL_NODE_CPUS)), float, len(nodes))
        return crowded_chance(score, self.placements.on(nodes, now), cpus)

    def best(self, now: float) -> list[Candidate]:
        """Return the nodes in service, the one to prefer first."""
        newest, names, found = self.verdicts(now), self.known, []
        chances, placed = self.chances(names, now).tolist(), self.placements.on(names, now).tolist()
        for name, chance, cpus in zip(names, chances, placed, strict=True):
            state, why = "unknown", "nothing valid is known of the node"
            if (one := newest.get(name)) is not None:
                state = "refusing" if one.refuse else "contended" if one.score >= CONTENDED else "accepting"
                why = one.reason
            found.append(Candidate(name, chance, state, why, cpus))
        return best_first(found)

    def settle(self, now: float) -> list[RefusalChange]:
        """Bring the refusals up to date with the newest verdicts, and return what changed."""
        gone = {name for name, at in self._seen_at.items() if now - at > FORGET_SECONDS}
        for name in gone:
            del self._seen_at[name]
            self._known.pop(name, None)
            self._cpus.pop(name, None)
        if not self.rules.veto:
            return []
        held = {name: one for name, one in self._refusals.items() if name not in gone}
        newest = self.verdicts(now)
        asked = held.keys() | {name for name, one in newest.items() if one.refuse}
        wanted = {
            name: one for name in asked if (one := self._wanted(name, held.get(name), newest.get(name), now))
        }
        reports = {name: (name in wanted, one.score, name in held) for name, one in newest.items() if wanted}
        granted = closed_nodes(reports, nodes=len(self._known), share=self.rules.max_refusing)
        self._refusals = {name: one for name, one in wanted.items() if name in granted}
        for name, one in self._refusals.items():
            self._known[name].done("refuse", now, one.valid_until)
        opened = sorted(held.keys() - self._refusals.keys())
        for name in opened:
            self._known[name].done("accept", now)
        closed = sorted(self._refusals.keys() - held.keys())
        return [
            *(RefusalChange(name, True, self._refusals[name].reason) for name in closed),
            *(RefusalChange(name, False, "the node accepts again") for name in opened),
        ]

    def _wanted(self, name: str, held: Verdict | None, newest: Verdict | None, now: float) -> Verdict | None:
        """Return the verdict by which the node would refuse if there were room."""
        seen = Observed("open")
        if held is not None:
            seen = Observed("closed-by-us", held.reason, score=held.score, valid_until=held.valid_until)
        step = self._known[name].choose(newest, seen, now)
        if step.action in ("refuse", "renew"):
            return newest
        if step.action == "leave" and held is not None and newest is not None:
            # Closed for the minimum time although the node accepts: it is alive and says so.
            return newest if newest.refuse else replace(held, valid_until=newest.valid_until)
        return None


class Extender:
    """Answer a scheduler from a ledger of refusals; in shadow mode all nodes are answered to be fit.

    `announce` is called in a thread with every change while enforcing; it wakes pods that wait.
    `background` runs beside the server and is stopped with it, such as the polling of agents.
    """

    def __init__(
        self, ledger: Ledger, *, announce: Announce | None = None, background: Iterable[Background] = ()
    ) -> None:
        self.ledger = ledger
        self.counts = {"filter": 0, "prioritize": 0, "malformed": 0, "refused": 0, "wake_errors": 0}
        self._enforce = ledger.rules.enforce
        self._announce = announce
        self._background = tuple(background)

    def application(self, middlewares: Iterable[Middleware] = ()) -> web.Application:
        """Return the server's routes behind `middlewares`, with the loops that run beside them."""

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
        would = "" if self._enforce else "shadow mode, enforcing nothing: "
        for change in changes:
            does = "refuses" if change.refuse else "opens"
            log.info("%snode %s %s: %s", would, change.node, does, change.reason)
        if changes and self._enforce and self._announce is not None:
            try:
                await asyncio.to_thread(self._announce, changes)
            except IntegrationError as error:
                self.counts["wake_errors"] += 1
                log.warning("pods that wait may wait on for a while: %s", error)

    async def _filter(self, request: web.Request) -> web.Response:
        asked, now = await self._asked(request, "filter")
        refusals = self.ledger.refusals(now) if self._enforce else {}
        answer = filter_answer(asked, {name: one.reason for name, one in refusals.items()})
        self.counts["refused"] += len(answer["FailedAndUnresolvableNodes"])
        return web.json_response(answer)

    async def _prioritize(self, request: web.Request) -> web.Response:
        asked, now = await self._asked(request, "prioritize")
        names, scores = asked.names, [NEUTRAL] * len(asked.names)
        if self._enforce and names:
            scores = suitabilities(self.ledger.chances(names, now))
            # An extender is not told where the pod goes: most likely to one of the best.
            top = max(scores)
            if scores.count(top) <= MOST_BEST:
                best = [name for name, score in zip(names, scores, strict=True) if score == top]
                self.ledger.placements.add(asked.job, best, asked.cpus, now)
        return web.Response(text=prioritize_answer(asked, scores), content_type="application/json")

    async def _asked(self, request: web.Request, what: str) -> tuple[ExtenderRequest, float]:
        asked, now = read_request(await _body(request)), time.time()
        self.ledger.see(asked.names, now)
        self.counts[what] += 1
        return asked, now

    async def _best(self, request: web.Request) -> web.Response:
        """Answer which nodes to prefer, best first."""
        limit = _number(request.query.get("limit", "10"), "limit", 1, 10_000)
        best = self.ledger.best(time.time())[: int(limit)]
        return web.json_response({"nodes": [one.as_json() for one in best]})

    async def _jobs(self, request: web.Request) -> web.Response:
        """Count a job that someone has just sent to a node."""
        body = await _body(request)
        if not isinstance(body, dict) or not all(isinstance(body.get(key), str) for key in ("id", "node")):
            raise IntegrationError('a placed job must be {"id": …, "node": …, "cpus": …}')
        cpus = _number(body.get("cpus", 1.0), "cpus", 0.0, 10_000)
        self.ledger.placements.add(body["id"][:300], [body["node"][:300]], cpus, time.time())
        return web.json_response({"counted": True})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _nodes(self, request: web.Request) -> web.Response:
        now = time.time()
        newest, closed = self.ledger.verdicts(now), self.ledger.refusals(now)
        nodes: dict[str, dict[str, Any] | None] = dict.fromkeys(self.ledger.known)
        for name, one in newest.items():
            nodes[name] = {
                "refuse": one.refuse,
                "score": None if math.isnan(one.score) else one.score,
                "reason": one.reason,
                "valid_until": one.valid_until,
                "closed": name in closed,
            }
        mode = "enforce" if self._enforce else "shadow"
        return web.json_response({"mode": mode, "counts": self.counts, "nodes": nodes})

    async def _loops(self, application: web.Application) -> AsyncIterator[None]:
        # A collection that looks at all that was imported takes 10 ms, for which a scheduler would wait.
        gc.freeze()
        tasks = [asyncio.ensure_future(_restarted(job)) for job in (self._settling, *self._background)]
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


async def _restarted(job: Background) -> None:
    """Run `job` again when it breaks: an extender that stopped polling would answer from memory."""
    while True:
        try:
            await job()
            return
        except Exception:
            log.exception("a background loop of the extender broke: starting it again in 5 s")
            await asyncio.sleep(5.0)


async def _body(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
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
