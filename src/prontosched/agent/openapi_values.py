"""The values that the API speaks of, as JSON schemas; the description is `openapi`."""

from __future__ import annotations

from typing import Any

from prontosched.agent.decision_log import BAND_FIELDS, HISTORY_FIELDS, KEPT_DIRECTIONS

NUMBER = {"type": "number"}
MAYBE = {"type": ["number", "null"]}
TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
FLAG = {"type": "boolean"}
OBJECT = {"type": "object"}

ANSWER: dict[str, Any] = {
    "node": TEXT,
    "accept": FLAG,
    "state": {"type": "string", "enum": ["accepting", "contended", "refusing"]},
    "held_by": TEXT,
    "enforced": FLAG,
    "raised": {"type": ["boolean", "null"]},
    "score": MAYBE,
    "threshold": MAYBE,
    "reason": TEXT,
    "since": NUMBER,
    "valid_until": NUMBER,
    "age_seconds": {"type": "number", "minimum": 0},
    "stale": FLAG,
    "probability": MAYBE,
    "expected_ready": MAYBE,
    "cpu_ready_percent": MAYBE,
    "utilisation_percent": MAYBE,
    "announced_cpus": {"type": "number", "minimum": 0},
    "timestep": WHOLE,
    "offenders": TEXT,
    "outlook": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["steps", "probability"],
            "properties": {"steps": WHOLE, "probability": MAYBE},
            "additionalProperties": False,
        },
    },
}
CANDIDATE: dict[str, Any] = {
    "node": TEXT,
    "chance": MAYBE,
    "state": {"type": "string", "enum": ["accepting", "contended", "refusing", "unknown"]},
    "why": TEXT,
    "placed_cpus": {"type": "number", "minimum": 0},
}
CHANCE: dict[str, Any] = {
    "asked": WHOLE,
    "steps": {"type": ["integer", "null"]},
    "probability": MAYBE,
    "offered": {"type": "array", "items": WHOLE},
}
POINT = {
    **dict.fromkeys(HISTORY_FIELDS, MAYBE),
    **dict.fromkeys(("time", "seconds", "raised_share", "rejecting_share", "contended_share"), NUMBER),
    "timesteps": WHOLE,
    "reason": {"type": ["string", "null"]},
    **{
        name: {"type": ["array", "null"], "maxItems": KEPT_DIRECTIONS, "items": MAYBE} for name in BAND_FIELDS
    },
}


def an_object(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


_GROUP = an_object(
    {
        "name": TEXT,
        "parent": {"type": ["string", "null"]},
        "children": WHOLE,
        "nodes": WHOLE,
        "samples": MAYBE,
        "age_seconds": MAYBE,
        "refusing": {"type": ["integer", "null"]},
    }
)
_MEMBER = an_object(
    {
        "name": TEXT,
        "parent": TEXT,
        "samples": MAYBE,
        "age_seconds": MAYBE,
        "distance": MAYBE,
        "accept": {"type": ["boolean", "null"]},
        "reason": TEXT,
    }
)
FEDERATION = an_object(
    {
        "joined": FLAG,
        "embedded": FLAG,
        "connected": FLAG,
        "revision": {"type": ["integer", "null"]},
        "view_age_seconds": MAYBE,
        "view_nodes": WHOLE,
        "nodes": WHOLE,
        "unreadable": WHOLE,
        "adopted": WHOLE,
        "started": WHOLE,
        "clashes": {"type": "array", "maxItems": 32, "items": TEXT},
        "saved": an_object(
            {"messages_sent": WHOLE, "messages_saved": WHOLE, "share_saved": NUMBER, "bytes_saved": WHOLE}
        ),
        "as_of": NUMBER,
        "groups": {"type": "array", "maxItems": 256, "items": _GROUP},
        "members": {"type": "array", "maxItems": 100, "items": _MEMBER},
        "more": WHOLE,
        "note": TEXT,
    }
)
