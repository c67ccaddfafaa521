"""The Kubernetes scheduler extender: kube-scheduler asks which nodes to prefer and which may take a pod.

`ExtenderRequest`, `filter_answer` and `prioritize_answer` are the protocol of old and new
schedulers. `Ledger` decides for all nodes at once which refuse. `Extender` is the server.
Whatever goes wrong in here, a pod is placed as if Pronto were not there: the scheduler is
told to ignore an extender that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from prontosched.errors import IntegrationError
from prontosched.gates.floor import NodeReport, closed_nodes
from prontosched.gates.gate import Observed, Verdict
from prontosched.gates.kubernetes import KEY, RefusalChange, cpu_quantity
from prontosched.gates.policy import Rules, VetoPolicy
from prontosched.gates.preference import CONTENDED, Candidate, Placements, best_first, crowded_chance

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
MOST_KNOWN = 50_000
FORGET_SECONDS = 3600.0
BODY_LIMIT = 64 * 1024 * 1024
SETTLE_SECONDS = 0.5

Announce = Callable[[Iterable[RefusalChange]], None]
Background = Callable[[], Awaitable[None]]
Middleware = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ExtenderRequest:
    """Where the scheduler could put one pod: names of nodes, in the order they were sent.

    `nodes` are the same as Node objects, when they came so. `lower` is True when the keys
    came in lower case, as older schedulers write them.
    """

    pod: Mapping[str, Any]
    names: tuple[str, ...]
    nodes: tuple[Mapping[str, Any], ...] | None
    lower: bool

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
    """Read a request; keys may come as `NodeNames`, `nodeNames` or `nodenames`."""
    if not isinstance(body, Mapping):
        raise IntegrationError(f"a scheduler's request must be a JSON object, got {type(body).__name__}")
    fields = {key.lower(): value for key, value in body.items()}
    lower = "pod" in body or "nodenames" in body or "nodes" in body
    pod, names, nodes = fields.get("pod"), fields.get("nodenames"), fields.get("nodes")
    if not isinstance(pod, Mapping):
        raise IntegrationError(f"Pod must be an object, got {type(pod).__name__}")
    if names is not None or nodes is None:
        return ExtenderRequest(pod, _names([] if names is None else names), None, lower)
    items = nodes.get("items", nodes.get("Items")) if isinstance(nodes, Mapping) else nodes
    items = [] if items is None else items
    if not isinstance(items, list) or not all(isinstance(node, Mapping) for node in items):
        raise IntegrationError(f"Nodes must be a NodeList, got {str(nodes)[:80]}")
    return ExtenderRequest(pod, _names([_name_of(node) for node in items]), tuple(items), lower)


def _names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or len(names) > MOST_NODES or not all(isinstance(n, str) for n in names):
        raise IntegrationError(
            f"NodeNames must be a list of at most {MOST_NODES} names, got {str(names)[:80]}"
        )
    return tuple(names)


def _name_of(node: Mapping[str, Any]) -> object:
    return (_field(node, "metadata", Mapping) or {}).get("name")


def filter_answer(request: ExtenderRequest, refusal: Callable[[str], Verdict | None]) -> dict[str, Any]:
    """Answer which of the nodes may take the pod, and why the others may not.

    `refusal` gives the verdict by which a node refuses; None where it does not.

    Where every node that could take the pod refuses, none does: a pod is never kept
    waiting by us alone. Refusals are said to be unresolvable, so that no pod is evicted
    from a node for a passing burst; schedulers before 1.21 read the other map.
    """
    failed = {}
    if not request.tolerant:
        for name in request.names:
            if (verdict := refusal(name)) is not None:
                failed[name] = f"pronto: {verdict.reason}"
    if len(failed) == len(request.names):
        failed = {}
    if request.nodes is None:
        names, nodes = [name for name in request.names if name not in failed], None
    else:
        kept = [node for node in request.nodes if _name_of(node) not in failed]
        names, nodes = None, {"metadata": {}, "items": kept}
    if request.lower:
        keys = ("nodenames", "nodes", "failedNodes", "failedAndUnresolvableNodes", "error")
    else:
        keys = ("NodeNames", "Nodes", "FailedNodes", "FailedAndUnresolvableNodes", "Error")
    return dict(zip(keys, (names, nodes, failed, failed, ""), strict=True))


def prioritize_answer(request: ExtenderRequest, chances: Iterable[float]) -> list[dict[str, Any]]:
    """Answer how well each node suits, from 0 to 10: the lower its chance of contention, the better.

    `chances` are those of contention on the nodes, in their order; NaN where nothing is known.
    """
    host, score = ("host", "score") if request.lower else ("Host", "Score")
    named = zip(request.names, chances, strict=True)
    return [{host: name, score: suitability(chance)} for name, chance in named]


def suitability(chance: float) -> int:
    """Return 0 for a node that is sure to be contended, up to 10 for a calm one.

    Examples
    --------
    >>> suitability(math.nan), suitability(0.2)
    (5, 8)
    """
    return NEUTRAL if math.isnan(chance) else round(BEST * (1.0 - min(1.0, max(0.0, chance))))


def probable_places(answer: list[dict[str, Any]], cpus: float) -> dict[str, float]:
    """Return where the pod of an answer probably goes: its CPUs, shared by the nodes that suit best.

    Examples
    --------
    >>> probable_places([{"Host": "n1", "Score": 9}, {"Host": "n2", "Score": 9}, {"Host": "n3", "Score": 2}], 2.0)
    {'n1': 1.0, 'n2': 1.0}
    """
    rows = [tuple(row.values()) for row in answer]
    top = max((score for _, score in rows), default=0)
    best = [name for name, score in rows if score == top]
    return {name: cpus / len(best) for name in best}


class DecisionSource(Protocol):
    """Where an extender learns what each node has decided."""

    def verdict(self, node: str) -> Verdict | None:
        """Return the newest verdict of `node`, however old; None when there is none."""
        ...


@dataclass(slots=True)
class _Entry:
    policy: VetoPolicy
    seen_at: float
    refusal: Verdict | None = None
    cpus: float = USUAL_NODE_CPUS


class Ledger:
    """Decide for a whole cluster which nodes to prefer, and which of those that refuse may do so.

    Pure: verdicts come from `decisions`, time as a number.

    Parameters
    ----------
    decisions
        Where verdicts come from.
    rules
        Minimum times, and the share of the nodes that may refuse at once. Nodes refuse
        only with `veto`; without, they are only preferred less.

    Notes
    -----
    Memory: one entry for each node seen within the last hour, at most 50,000.
    A node beyond that, like any node nothing is known of, accepts.
    """

    def __init__(self, decisions: DecisionSource, rules: Rules) -> None:
        self.decisions = decisions
        self.rules = rules
        self.placements = Placements()
        self._known: dict[str, _Entry] = {}

    @property
    def known(self) -> list[str]:
        """The nodes in service, as far as known."""
        return list(self._known)

    def see(self, names: Iterable[str], now: float) -> None:
        """Take note of nodes that are in service."""
        for name in names:
            entry = self._known.get(name)
            if entry is not None:
                entry.seen_at = now
            elif len(self._known) < MOST_KNOWN:
                self._known[name] = _Entry(VetoPolicy(self.rules), now)

    def size(self, node: str, cpus: float) -> None:
        """Take note of how many CPUs a node has."""
        if node in self._known and cpus > 0.0:
            self._known[node].cpus = cpus

    def refusal(self, node: str, now: float) -> Verdict | None:
        """Return the verdict by which `node` refuses now, or None: it accepts."""
        entry = self._known.get(node)
        held = None if entry is None else entry.refusal
        return None if held is None or held.expired(now) else held

    def verdict(self, node: str, now: float) -> Verdict | None:
        """Return the node's own verdict; None when nothing valid is known."""
        newest = self.decisions.verdict(node)
        return None if newest is None or newest.expired(now) else newest

    def chances(self, nodes: Iterable[str], now: float) -> list[float]:
        """Return the chance of contention on each node, jobs just placed there counted; NaN when unknown."""
        verdict, known, placed = self.decisions.verdict, self._known, self.placements.cpus
        found = []
        for node in nodes:
            newest, entry = verdict(node), known.get(node)
            if newest is None or newest.expired(now):
                found.append(math.nan)
                continue
            cpus = USUAL_NODE_CPUS if entry is None else entry.cpus
            found.append(crowded_chance(newest.score, placed(node, now), cpus))
        return found

    def best(self, now: float) -> list[Candidate]:
        """Return the nodes in service, the one to prefer first."""
        return best_first(self._candidate(name, now) for name in self._known)

    def _candidate(self, name: str, now: float) -> Candidate:
        newest, placed = self.verdict(name, now), self.placements.cpus(name, now)
        if newest is None:
            return Candidate(name, math.nan, "unknown", "nothing valid is known of the node", placed)
        state = "refusing" if newest.refuse else "contended" if newest.score >= CONTENDED else "accepting"
        (chance,) = self.chances([name], now)
        return Candidate(name, chance, state, newest.reason, placed)

    def settle(self, now: float) -> list[RefusalChange]:
        """Bring the refusals up to date with the newest verdicts, and return what changed."""
        for name in [name for name, entry in self._known.items() if now - entry.seen_at > FORGET_SECONDS]:
            del self._known[name]
        wanted = {
            name: verdict
            for name, entry in self._known.items()
            if self.rules.veto and (verdict := self._wanted(name, entry, now))
        }
        reports = {
            name: NodeReport(name in wanted, newest.score, entry.refusal is not None)
            for name, entry in self._known.items()
            if (newest := self.verdict(name, now)) is not None
        }
        granted = closed_nodes(reports, nodes=len(self._known), share=self.rules.max_refusing)
        changes = []
        for name, entry in self._known.items():
            before, entry.refusal = entry.refusal, wanted[name] if name in granted else None
            if entry.refusal is not None:
                entry.policy.done("refuse", now, entry.refusal.valid_until)
                if before is None:
                    changes.append(RefusalChange(name, True, entry.refusal.reason))
            elif before is not None:
                entry.policy.done("accept", now)
                changes.append(RefusalChange(name, False, "the node accepts again"))
        return changes

    def _wanted(self, name: str, entry: _Entry, now: float) -> Verdict | None:
        """Return the verdict by which the node would refuse if there were room."""
        newest = self.decisions.verdict(name)
        held = entry.refusal
        seen = Observed("open")
        if held is not None:
            seen = Observed("closed-by-us", held.reason, score=held.score, valid_until=held.valid_until)
        step = entry.policy.choose(newest, seen, now)
        if step.action in ("refuse", "renew"):
            return newest
        if step.action == "leave" and held is not None and newest is not None:
            # Closed for the minimum time although the node accepts: it is alive and says so.
            return newest if newest.refuse else replace(held, valid_until=newest.valid_until)
        return None


class Extender:
    """Answer a scheduler from a ledger of refusals.

    Parameters
    ----------
    ledger
        Who refuses, and which nodes to prefer. In shadow mode (`rules.enforce` False) its
        refusals are logged and counted, and every node is answered to be fit.
    announce
        Called with every change while enforcing; wakes pods that wait. Runs in a thread.
    background
        Runs beside the server and is stopped with it, such as the polling of agents.
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
        answer = filter_answer(asked, lambda node: self.ledger.refusal(node, now) if self._enforce else None)
        self.counts["refused"] += len(answer["failedNodes" if asked.lower else "FailedNodes"])
        return web.json_response(answer)

    async def _prioritize(self, request: web.Request) -> web.Response:
        asked, now = await self._asked(request, "prioritize")
        names = asked.names
        answer = prioritize_answer(
            asked, self.ledger.chances(names, now) if self._enforce else [math.nan] * len(names)
        )
        if self._enforce:
            # An extender is not told where the pod goes: most likely to one of the best.
            self.ledger.placements.add(asked.job, probable_places(answer, asked.cpus), now)
        return web.json_response(answer)

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
        self.ledger.placements.add(body["id"][:300], {body["node"][:300]: cpus}, time.time())
        return web.json_response({"counted": True})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _nodes(self, request: web.Request) -> web.Response:
        now = time.time()
        nodes = {name: self._shown(name, now) for name in self.ledger.known}
        mode = "enforce" if self._enforce else "shadow"
        return web.json_response({"mode": mode, "counts": self.counts, "nodes": nodes})

    def _shown(self, name: str, now: float) -> dict[str, Any] | None:
        if (verdict := self.ledger.verdict(name, now)) is None:
            return None
        return {
            "refuse": verdict.refuse,
            "score": None if math.isnan(verdict.score) else verdict.score,
            "reason": verdict.reason,
            "valid_until": verdict.valid_until,
            "closed": self.ledger.refusal(name, now) is not None,
        }

    async def _loops(self, application: web.Application) -> AsyncIterator[None]:
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
