"""The API's description of itself, served at `/openapi.json`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from prontosched.agent.best import MAX_NODES
from prontosched.agent.openapi_values import (
    ANSWER,
    CANDIDATE,
    CHANCE,
    FEDERATION,
    FLAG,
    MAYBE,
    NUMBER,
    OBJECT,
    POINT,
    TEXT,
    WHOLE,
    an_object,
)
from prontosched.agent.requests import (
    DEFAULT_TTL_SECONDS,
    ID_PATTERN,
    MAX_CPUS,
    MAX_HORIZON,
    MAX_PID,
    MAX_POINTS,
    MAX_TTL_SECONDS,
    NODE_CHARACTERS,
)

_NODE_QUERY = {
    "name": "node",
    "in": "query",
    "required": False,
    "description": "Which node; may be left out where the agent watches one.",
    "schema": {"type": "string", "minLength": 1, "maxLength": NODE_CHARACTERS},
}

_ENFORCING_QUERY = {
    "name": "enforcing",
    "in": "query",
    "required": False,
    "description": "Who asks obeys refusals: the signal is told, for three times the validity of an answer.",
    "schema": {"type": "boolean", "default": False},
}
_HORIZON_QUERY = {
    "name": "horizon",
    "in": "query",
    "required": False,
    "description": "Timesteps ahead: the chance within the nearest horizon offered is added as `horizon`.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_HORIZON},
}


@cache
def description(cpus: float = MAX_CPUS) -> dict[str, Any]:
    """Return the OpenAPI document of an agent whose nodes have so many CPUs."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pronto agent",
            "version": version("prontosched"),
            "description": "Ask a node whether it can take another job, and tell it of those on their way.",
        },
        "paths": _paths(),
        "components": {
            "schemas": _schemas(cpus),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> dict[str, Any]:
    return {
        "/": {"get": _text("What answers here, and where to look.", "text/plain")},
        "/v1/decision": {
            "get": _get(
                "May I send a job here?",
                "Answer",
                query=[_NODE_QUERY, _HORIZON_QUERY, _ENFORCING_QUERY],
                missing=True,
            )
        },
        "/v1/status": {"get": _get("All there is to know of the agent.", "Status")},
        "/v1/nodes": {"get": _get("All nodes with their answers.", "Nodes", query=[_ENFORCING_QUERY])},
        "/v1/best": {"get": _get("Nodes to send a job to, best first.", "Best", query=_best_query())},
        "/v1/explain": {
            "get": _get("Why a node answers as it does.", "Explanation", query=[_NODE_QUERY], missing=True)
        },
        "/v1/history": {"get": _get("Decisions over time.", "History", query=_history_query(), missing=True)},
        "/v1/federation": {"get": _federation()},
        "/v1/recent": {"get": _get("The last timesteps.", "Events", query=[_limit_query()])},
        "/v1/stream": {"get": _stream()},
        "/v1/jobs": {"post": _announce()},
        "/v1/jobs/{id}": {"delete": _withdraw()},
        "/v1/ping": {
            "get": _operation("Nothing.", {"204": {"description": "Nothing."}, **_errors()}),
        },
        "/healthz": {"get": _health()},
        "/metrics": {"get": _text("Metrics for Prometheus.", "text/plain")},
        "/openapi.json": {"get": _get("This description.", "Description")},
    }


def _schemas(cpus: float) -> dict[str, Any]:
    answer = an_object(ANSWER)
    answer["properties"] = {**ANSWER, "horizon": an_object(CHANCE)}
    return {
        "Answer": answer,
        "Announcement": an_object(
            {"announced": FLAG, **ANSWER, "slowdown": MAYBE, "contention_left_seconds": MAYBE}
        ),
        "Error": an_object({"error": TEXT}),
        "Health": an_object(
            {"ok": FLAG, "reason": TEXT, "ticks": WHOLE, "overdue_seconds": NUMBER, "faults": WHOLE}
        ),
        "Status": {
            "type": "object",
            "required": ["version", "source", "loop", "faults", "tally", "nodes"],
            "properties": {
                "version": TEXT,
                "source": TEXT,
                "loop": OBJECT,
                "faults": OBJECT,
                "tally": OBJECT,
                "nodes": WHOLE,
                "decision": {"$ref": "#/components/schemas/Answer"},
            },
        },
        "Nodes": an_object({"nodes": {"type": "array", "items": OBJECT}}),
        "Best": an_object({"nodes": {"type": "array", "items": an_object(CANDIDATE)}}),
        "Explanation": {
            "type": "object",
            "required": ["node", "decision", "directions", "drivers", "last_rejection", "change"],
            "properties": {
                "decision": {"$ref": "#/components/schemas/Answer"},
                "directions": {"type": "array", "items": OBJECT},
                "drivers": {"type": "array", "items": OBJECT},
            },
        },
        "History": an_object(
            {
                "node": TEXT,
                "from": NUMBER,
                "to": NUMBER,
                "points": {"type": "array", "items": an_object(POINT)},
            }
        ),
        "Federation": FEDERATION,
        "Events": an_object({"events": {"type": "array", "items": OBJECT}}),
        "Description": {"type": "object", "required": ["openapi", "paths"]},
        "Job": {
            "type": "object",
            "required": ["id"],
            "additionalProperties": False,
            "properties": {
                "id": {"type": "string", "pattern": ID_PATTERN},
                "cpus": {"type": "number", "exclusiveMinimum": 0, "maximum": cpus, "default": 1},
                "ttl": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": MAX_TTL_SECONDS,
                    "default": DEFAULT_TTL_SECONDS,
                },
                "node": {"type": "string", "minLength": 1, "maxLength": NODE_CHARACTERS},
                "if_accepted": {"type": "boolean", "default": False},
                "if_uncontended": {"type": "boolean", "default": False},
                "pid": {"type": "integer", "minimum": 1, "maximum": MAX_PID},
            },
        },
    }


def _json(text: str, schema: str) -> dict[str, Any]:
    return {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _errors(*statuses: int) -> dict[str, Any]:
    texts = {
        400: "Asked wrongly.",
        401: "A token is needed.",
        403: "Asked from elsewhere.",
        404: "There is none.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        503: "Not now.",
    }
    return {str(status): _json(texts[status], "Error") for status in sorted({400, 401, 403, *statuses})}


def _get(
    summary: str, schema: str, *, query: list[dict[str, Any]] | None = None, missing: bool = False
) -> dict[str, Any]:
    errors = _errors(404) if missing else _errors()
    return _operation(summary, {"200": _json(summary, schema), **errors}, query)


def _operation(
    summary: str, responses: dict[str, Any], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": parameters or [],
        "responses": responses,
        "security": [{}, {"token": []}],
    }


def _text(summary: str, kind: str) -> dict[str, Any]:
    response = {"description": summary, "content": {kind: {"schema": TEXT}}}
    return _operation(summary, {"200": response, **_errors()})


def _stream() -> dict[str, Any]:
    found = _text("Every timestep as a server-sent event, without end.", "text/event-stream")
    found["parameters"] = [_ENFORCING_QUERY]
    found["responses"].update(_errors(503))
    return found


def _federation() -> dict[str, Any]:
    found = _get("The federation: its tree, and its members with the outliers first.", "Federation")
    found["responses"].update(_errors(503))
    return found


def _announce() -> dict[str, Any]:
    found = _operation(
        "Count a job before telemetry shows it; with if_accepted only if the node does not refuse, "
        "with if_uncontended only if it accepts and expects no contention.",
        {
            "200": _json("The job counts.", "Announcement"),
            "409": _json("The node is in another state; the job does not count.", "Announcement"),
            **_errors(404, 413, 415, 503),
        },
    )
    found["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}},
    }
    return found


def _withdraw() -> dict[str, Any]:
    identity = {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": ID_PATTERN},
    }
    return _operation(
        "Forget an announced job.", {"204": {"description": "It is forgotten."}, **_errors()}, [identity]
    )


def _health() -> dict[str, Any]:
    found = _get("Does the agent decide?", "Health")
    found["responses"]["503"] = _json("It does not; the reason says why.", "Health")
    found["security"] = [{}]
    return found


def _best_query() -> list[dict[str, Any]]:
    cpus = {"type": "number", "minimum": 0, "maximum": MAX_CPUS}
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_NODES}
    return [
        {"name": "cpus", "in": "query", "required": False, "description": "CPUs of the job.", "schema": cpus},
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "description": "How many nodes.",
            "schema": limit,
        },
    ]


def _limit_query() -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 1, "maximum": 600}
    return {"name": "limit", "in": "query", "required": False, "schema": schema}


def _history_query() -> list[dict[str, Any]]:
    def optional(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}

    moment = {"type": "number", "minimum": -1e12, "maximum": 1e12}
    return [
        _NODE_QUERY,
        optional("from", "Seconds since 1970; an hour ago by default.", moment),
        optional("to", "Seconds since 1970; now by default.", moment),
        optional("points", "Buckets.", {"type": "integer", "minimum": 1, "maximum": MAX_POINTS}),
    ]
