"""What a request may carry: every value is checked and bounded before anything is done with it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from aiohttp import web

MAX_BODY_BYTES = 16 * 1024
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
    raw = await request.read()
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
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == math.floor(value)
    if not whole or not least <= value <= most:
        raise bad(f"{name} must be a whole number from {least} to {most}, got {value!r:.64}")
    return int(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
