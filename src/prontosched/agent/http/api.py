"""HTTP: what a request may carry, routes and their answers. Who may ask is `prontosched.agent.http.auth`.

The OpenAPI description is the file `openapi.json`. Pages are mounted from outside.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from prontosched.agent import views
from prontosched.agent.http.auth import JOBS_PATH, Access, announcer, guard
from prontosched.agent.http.connections import keep_while_answering
from prontosched.agent.http.events import JSON
from prontosched.agent.http.metrics import CONTENT_TYPE, exposition
from prontosched.agent.loop import STATES, Agent
from prontosched.agent.record import plain
from prontosched.gates.gate import chance
from prontosched.gates.preference import Candidate, best_first, crowded_chance

AGENT: web.AppKey[Agent] = web.AppKey("agent", Agent)
HOUR_SECONDS = 3600.0
HEARTBEAT_SECONDS = 15.0
LOOK_SECONDS = 4.5  # less than a client waits
BREATH = 200
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_BODY_BYTES = 16 * 1024
BODY_SECONDS = 5.0
MAX_CPUS = 100_000
MAX_TTL_SECONDS = 86_400
MAX_PID = 4_194_304
MAX_POINTS = 2000
MAX_HORIZON = 100_000
DEFAULT_TTL_SECONDS = 30.0
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@=+,~-]{0,127}$"
NODE_CHARACTERS = 256
JOB_FIELDS = frozenset(("id", "cpus", "ttl", "node", "if_accepted", "if_uncontended", "pid"))
_ID = re.compile(ID_PATTERN)
MOST_CACHED = 4096
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
JSON_HEADERS = {"Content-Type": "application/json", **HEADERS}
MAX_NODES = 1000


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A checked body of `POST /v1/jobs`."""

    id: str
    cpus: float
    ttl: float
    node: str | None
    if_accepted: bool
    if_uncontended: bool
    pid: int | None


def bad(text: str) -> web.HTTPBadRequest:
    """Return the error for a request that asks wrongly."""
    return web.HTTPBadRequest(text=text)


def job_id(value: Any) -> str:
    """Return a job's name, or raise if it cannot be one."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise bad("id must be 1 to 128 letters, digits or any of ._:@=+,~- and begin with a letter or digit")
    return value


async def read_job(request: web.Request) -> JobRequest:
    """Read and check the body of `POST /v1/jobs`."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(
            text=f"the body must be application/json, got {request.content_type[:64]}"
        )
    try:
        raw = await asyncio.wait_for(request.read(), BODY_SECONDS)
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text=f"the body must come within {BODY_SECONDS:g} s") from error
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise bad(f"the body must be readable, got {type(error).__name__}") from error
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise bad(f"the body must be a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise bad(f"the body must be a JSON object, got {type(body).__name__}")
    if unknown := sorted(set(body) - JOB_FIELDS):
        raise bad(f"the body may have {', '.join(sorted(JOB_FIELDS))}, got {unknown[0][:64]!r}")
    name = job_id(body.get("id"))
    for flag in ("if_accepted", "if_uncontended"):
        if not isinstance(body.get(flag, False), bool):
            raise bad(f"{flag} must be true or false, got {body[flag]!r:.64}")
    node = body.get("node")
    if "node" in body and (not isinstance(node, str) or not 0 < len(node) <= NODE_CHARACTERS):
        raise bad(f"node must be 1 to {NODE_CHARACTERS} characters")
    return JobRequest(
        id=name,
        cpus=_number("cpus", body.get("cpus", 1), above=0, most=MAX_CPUS),
        ttl=_number("ttl", body.get("ttl", DEFAULT_TTL_SECONDS), above=0, most=MAX_TTL_SECONDS),
        node=node,
        if_accepted=body.get("if_accepted", False),
        if_uncontended=body.get("if_uncontended", False),
        pid=_whole("pid", body["pid"], least=1, most=MAX_PID) if "pid" in body else None,
    )


def query(request: web.Request, allowed: Collection[str]) -> dict[str, str]:
    """Return the query, each name once and known."""
    for name in request.query:
        if name not in allowed:
            raise bad(f"the query may have {', '.join(sorted(allowed)) or 'nothing'}, got {name[:64]!r}")
        if len(request.query.getall(name)) > 1:
            raise bad(f"{name} must be given once, got {len(request.query.getall(name))}")
    return dict(request.query)


def query_node(request: web.Request, allowed: Collection[str] = ("node",)) -> str | None:
    """Return the node asked for, or None for the only one."""
    node = query(request, allowed).get("node")
    if node is not None and not 0 < len(node) <= NODE_CHARACTERS:
        raise bad(f"node must be 1 to {NODE_CHARACTERS} characters")
    return node


def query_flag(values: dict[str, str], name: str) -> bool:
    """Return a truth value of the query, False where it is not there."""
    if values.get(name, "false") not in ("true", "false"):
        raise bad(f"{name} must be true or false, got {values[name][:64]!r}")
    return values.get(name) == "true"


def query_number(values: dict[str, str], name: str, default: float) -> float:
    """Return a number of the query, or its default."""
    if name not in values:
        return default
    try:
        number = float(values[name])
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or not re.fullmatch(r"[-+0-9.eE]+", values[name]):
        raise bad(f"{name} must be a number, got {values[name][:64]!r}")
    return number


def query_whole(values: dict[str, str], name: str, default: int, *, least: int, most: int) -> int:
    """Return a whole number of the query within bounds, or its default."""
    number = query_number(values, name, float(default))
    return _whole(name, number, least=least, most=most)


def _number(name: str, value: Any, *, above: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
        raise bad(f"{name} must be a number above {above:g} and at most {most:g}, got {value!r:.64}")
    return float(value)


def _whole(name: str, value: Any, *, least: int, most: int) -> int:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or value != math.floor(value):
        raise bad(f"{name} must be a whole number from {least} to {most}, got {value!r:.64}")
    return int(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _Encoded(NamedTuple):
    version: int
    seen_at: float
    until: float
    head: bytes


class AnswerCache:
    """The last answer of each of at most `MOST_CACHED` nodes, encoded.

    Between two timesteps an answer changes in nothing but its age, until it is too old to count.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._held: dict[str | None, _Encoded] = {}

    def decision(self, node: str | None) -> bytes:
        """Return the answer for one node as JSON; `KeyError` as from `Agent.answer`."""
        now = self._agent.pace.clock()
        held = self._held.get(node)
        if held is None or held.version != self._agent.version or now > held.until:
            held = self._encode(node, now)
        return b"%s%.6f}" % (held.head, now - held.seen_at)

    def _encode(self, node: str | None, now: float) -> _Encoded:
        version, found = self._agent.version, self._agent.answer(node)
        fields = found.as_json()
        del fields["age_seconds"]
        # Once it is stale its reason counts the seconds, so that it is made anew each time.
        left = 0.0 if found.stale else self._agent.silence.valid_seconds - found.age_seconds
        head = _encode(fields)[:-1] + b',"age_seconds":'
        if len(self._held) >= MOST_CACHED:
            self._held.clear()
        held = self._held[node] = _Encoded(version, now - found.age_seconds, now + left, head)
        return held


ANSWERS: web.AppKey[AnswerCache] = web.AppKey("answers", AnswerCache)


def build_app(agent: Agent, access: Access, extra: Iterable[web.AbstractRouteDef] = ()) -> web.Application:
    """Return the application; `extra` routes stand under the same rules as the API's own."""
    app = web.Application(
        middlewares=[keep_while_answering, errors_as_json, guard(access)], client_max_size=MAX_BODY_BYTES
    )
    app[AGENT] = agent
    app[ANSWERS] = AnswerCache(agent)
    app.on_response_prepare.append(_add_headers)
    pages = list(extra)
    if not any(isinstance(route, web.RouteDef) and route.path == "/" for route in pages):
        pages.append(web.get("/", home))
    app.add_routes(
        [
            web.get("/v1/decision", decision),
            web.get("/v1/status", status),
            web.get("/v1/nodes", nodes),
            web.get("/v1/best", best),
            web.get("/v1/explain", explain),
            web.get("/v1/history", history),
            web.get("/v1/federation", federation),
            web.get("/v1/recent", recent),
            web.get("/v1/stream", stream, allow_head=False),
            *_jobs_routes(),
            web.get("/v1/ping", ping),
            web.get("/healthz", health),
            web.get("/metrics", metrics),
            web.get("/openapi.json", openapi),
            *pages,
        ]
    )
    return app


def jobs_app(agent: Agent) -> web.Application:
    """Return what is served on the socket for jobs: announcing them, for users of this machine."""
    app = web.Application(middlewares=[keep_while_answering, errors_as_json], client_max_size=MAX_BODY_BYTES)
    app[AGENT] = agent
    app.add_routes(_jobs_routes())
    return app


def _jobs_routes() -> list[web.RouteDef]:
    return [web.post(JOBS_PATH, announce), web.delete(f"{JOBS_PATH}/{{id}}", withdraw)]


async def home(request: web.Request) -> web.Response:
    """Say what answers here and where to look, where no page does."""
    query(request, ())
    return web.Response(text=views.home(request.app[AGENT]), content_type="text/plain")


async def decision(request: web.Request) -> web.Response:
    """Answer "may I send a job here?"; the plain question is asked more than any other, and parsed least."""
    app, node = request.app, None
    if request.query_string:
        agent, names = app[AGENT], ("node", "horizon", "enforcing")
        node, values = query_node(request, names), query(request, names)
        if query_flag(values, "enforcing"):
            _of_node(lambda: agent.note_enforcing(agent.known(node).name))
        if "horizon" in values:
            steps = query_whole(values, "horizon", 1, least=1, most=MAX_HORIZON)
            return answer_json(_of_node(lambda: views.decision_within(agent, node, steps)))
    return web.Response(body=_of_node(lambda: app[ANSWERS].decision(node)), headers=JSON_HEADERS)


async def status(request: web.Request) -> web.Response:
    """Tell all there is to know of the agent."""
    query(request, ())
    return answer_json(views.status(request.app[AGENT]))


async def nodes(request: web.Request) -> web.Response:
    """List all nodes with their answers."""
    agent = request.app[AGENT]
    if query_flag(query(request, ("enforcing",)), "enforcing"):
        agent.note_enforcing()
    found = []
    for row in views.node_rows(agent):
        found.append(row)
        if len(found) % BREATH == 0:
            await asyncio.sleep(0)  # thousands of nodes must not make a tick late
    return answer_json({"nodes": found})


async def best(request: web.Request) -> web.Response:
    """Tell which nodes to send a job to, best first."""
    values = query(request, ("cpus", "limit"))
    cpus = query_number(values, "cpus", 0.0)
    if not 0.0 <= cpus <= MAX_CPUS:
        raise bad(f"cpus must be from 0 to {MAX_CPUS}, got {cpus:.10g}")
    limit = query_whole(values, "limit", 10, least=1, most=MAX_NODES)
    return answer_json({"nodes": best_nodes(request.app[AGENT], cpus=cpus, limit=limit)})


async def explain(request: web.Request) -> web.Response:
    """Tell what a node's directions are made of and what drove its last rejection."""
    node = query_node(request)
    agent = request.app[AGENT]
    return answer_json(_of_node(lambda: views.explanation(agent, node)))


async def federation(request: web.Request) -> web.Response:
    """Tell who is in the federation, how its tree stands, and who lies far from the global view."""
    query(request, ())
    agent = request.app[AGENT]
    end = agent.pace.clock() + LOOK_SECONDS
    while (found := views.federation(agent)) is None and agent.pace.clock() < end:
        await asyncio.sleep(0.02)
    if found is None:
        raise web.HTTPServiceUnavailable(
            text="the federation is still being read", headers={"Retry-After": "2"}
        )
    return answer_json(found)


async def history(request: web.Request) -> web.Response:
    """Return a stretch of the decision log in buckets."""
    agent = request.app[AGENT]
    names = ("node", "from", "to", "points")
    node, values = query_node(request, names), query(request, names)
    now = agent.wall()
    begin = query_number(values, "from", now - HOUR_SECONDS)
    end = query_number(values, "to", now + 1.0)
    points = query_whole(values, "points", 600, least=1, most=MAX_POINTS)
    if not (-1e12 <= begin <= 1e12 and -1e12 <= end <= 1e12):
        raise bad(f"from and to must be within 1e12 seconds of 1970, got {begin:.10g} and {end:.10g}")
    name = _of_node(lambda: agent.known(node)).name
    found: list[dict[str, Any]] = []
    if agent.disk is not None and begin < end:
        every = agent.logs_every_decision
        try:
            found = await agent.disk.read(
                lambda log: log.history(name, begin, end, points, every_decision=every)
            )
        except OverflowError as error:
            raise web.HTTPServiceUnavailable(text=str(error), headers={"Retry-After": "1"}) from error
    return answer_json({"node": name, "from": begin, "to": end, "points": found})


async def recent(request: web.Request) -> web.Response:
    """Return the last events, oldest first."""
    values = query(request, ("limit",))
    limit = query_whole(values, "limit", 600, least=1, most=600)
    events = request.app[AGENT].events.recent(limit)
    return web.Response(body=b'{"events":[%s]}' % b",".join(events), headers=JSON_HEADERS)


async def stream(request: web.Request) -> web.StreamResponse:
    """Send every timestep as a server-sent event until the agent stops or the other side goes."""
    enforcing = query_flag(query(request, ("enforcing",)), "enforcing")
    agent = request.app[AGENT]
    try:
        watcher = agent.events.watch()
    except OverflowError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    try:
        await response.prepare(request)
        await response.write(b"retry: 2000\n\n")
        while True:
            try:
                event = await asyncio.wait_for(watcher.get(), HEARTBEAT_SECONDS)
            except TimeoutError:
                await response.write(b": still here\n\n")
                continue
            if event is None:
                break
            if enforcing:
                agent.note_enforcing()
            await response.write(b"data: %s\n\n" % event)
    except ConnectionResetError:
        return response
    finally:
        agent.events.leave(watcher)
    return response


async def announce(request: web.Request) -> web.Response:
    """Count a job before telemetry shows it; on conditions, only if the node's state meets them."""
    query(request, ())
    job = await read_job(request)
    agent = request.app[AGENT]
    if agent.cpus_known and job.cpus > agent.capacity:
        raise bad(
            f"cpus must be at most {agent.capacity:g}, as many as the node has, got {job.cpus:g}: "
            "a wider job can never run there at full speed"
        )
    uid, peer = announcer(request)
    unless = STATES[1:] if job.if_uncontended else STATES[2:] if job.if_accepted else ()
    try:
        counted, met = _of_node(
            lambda: agent.announce(
                job.id,
                cpus=job.cpus,
                ttl=job.ttl,
                node=job.node,
                unless=unless,
                # A user's job ends with the process that announced it, not with just any.
                pid=job.pid if uid is None or job.pid is None else peer,
                uid=uid,
            )
        )
    except OverflowError as error:
        raise web.HTTPServiceUnavailable(text=str(error), headers={"Retry-After": "5"}) from error
    waiting = views.waiting(agent, met, job.cpus)
    return answer_json({"announced": counted, **met.as_json(), **waiting}, status=200 if counted else 409)


async def withdraw(request: web.Request) -> web.Response:
    """Forget an announced job: it has ended, or never began.

    One that is not there is forgotten already: telemetry may just have shown it.
    """
    query(request, ())
    request.app[AGENT].withdraw(job_id(request.match_info["id"]), announcer(request)[0])
    return web.Response(status=204)


async def ping(request: web.Request) -> web.Response:
    """Answer with nothing: what every other answer's time is measured against."""
    return web.Response(status=204)


async def health(request: web.Request) -> web.Response:
    """Tell whether the agent decides, and if not why; the only answer that needs no token."""
    query(request, ())
    agent = request.app[AGENT]
    reason, pace = agent.health.trouble, agent.pace
    found = {
        "ok": not reason,
        "reason": reason,
        "ticks": pace.ticks,
        "overdue_seconds": round(pace.overdue_seconds, 3),
        "faults": sum(agent.faults.values()),
    }
    return answer_json(found, status=503 if reason else 200)


async def metrics(request: web.Request) -> web.Response:
    """Serve what Prometheus collects."""
    query(request, ())
    return web.Response(body=exposition(request.app[AGENT]), headers={"Content-Type": CONTENT_TYPE})


async def openapi(request: web.Request) -> web.Response:
    """Serve the description of this API."""
    query(request, ())
    agent = request.app[AGENT]
    return answer_json(description(agent.capacity) if agent.cpus_known else description())


def answer_json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    """Return one JSON object."""
    return web.Response(body=_encode(value), status=status, headers=JSON_HEADERS)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every refusal into `{"error": …}` with its status."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        kept = {k: v for k, v in error.headers.items() if k in ("Allow", "WWW-Authenticate", "Retry-After")}
        response = answer_json({"error": error.text or error.reason}, status=error.status)
        response.headers.update(kept)
        return response
    except (ConnectionError, TimeoutError):
        raise
    except Exception as error:
        request.app[AGENT].fault("http", error)
        return answer_json({"error": f"internal error: {type(error).__name__}"}, status=500)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def _encode(value: Mapping[str, Any]) -> bytes:
    return JSON.encode(value).encode()


def _of_node(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except KeyError as error:
        text = str(error.args[0])
        raise (bad(text) if text.startswith("name one") else web.HTTPNotFound(text=text)) from error


def best_nodes(agent: Agent, *, cpus: float, limit: int) -> list[dict[str, Any]]:
    """Return the nodes for a job of `cpus`, best first: with chance, state and why.

    Announced jobs count at once, and until telemetry shows them.
    """
    ordered = best_first(_candidate(agent, name, cpus) for name in agent.nodes.names)[:limit]
    found = []
    for one in ordered:
        # Sentences only for those that are shown: a fleet may have thousands of nodes.
        why = agent.answer(one.node, cpus=cpus).reason
        found.append(plain(one._replace(why=why).as_json()))
    return found


def _candidate(agent: Agent, name: str, cpus: float) -> Candidate:
    answer = agent.answer(name, cpus=cpus)
    if answer.stale:
        return Candidate(name, math.nan, "unknown", "", answer.announced_cpus)
    known = chance(answer.probability, refuse=not answer.accept)
    crowded = crowded_chance(known, answer.announced_cpus, agent.capacity)
    return Candidate(name, crowded, answer.state, "", answer.announced_cpus)


@cache
def description(cpus: float | None = None) -> dict[str, Any]:
    """Return the OpenAPI document, of an agent whose nodes have so many CPUs where that is known."""
    found: dict[str, Any] = json.loads(files("prontosched.agent.http").joinpath("openapi.json").read_bytes())
    found["info"]["version"] = views.package_version()
    if cpus is not None:
        found["components"]["schemas"]["Job"]["properties"]["cpus"]["maximum"] = cpus
    return found
