"""The API's description of itself, served at `/openapi.json` from the file of that name."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any


@cache
def description(cpus: float | None = None) -> dict[str, Any]:
    """Return the OpenAPI document, of an agent whose nodes have so many CPUs where that is known."""
    found: dict[str, Any] = json.loads(files("prontosched.agent").joinpath("openapi.json").read_bytes())
    found["info"]["version"] = version("prontosched")
    if cpus is not None:
        found["components"]["schemas"]["Job"]["properties"]["cpus"]["maximum"] = cpus
    return found
