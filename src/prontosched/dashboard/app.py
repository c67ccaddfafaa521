"""The routes of the pages, to be mounted beside the agent's API.

Covers: serving the shipped files under a strict content security policy. The pages
fetch everything they show from `/v1/…` of the same origin, under the same token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# What is served, and nothing else: a name that is not here does not exist.
PAGES = {"/": "index.html", "/fleet": "fleet.html"}
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
ASSETS = (
    "style.css",
    "shared.js",
    "chart.js",
    "reasons.js",
    "projections.js",
    "node.js",
    "federation.js",
    "fleet.js",
    "icon.svg",
    "icon-accepting.svg",
    "icon-contended.svg",
    "icon-refusing.svg",
)


def routes() -> list[web.RouteDef]:
    """Return the routes of all pages and their files."""
    named = {**PAGES, **{f"/static/{name}": name for name in ASSETS}, "/favicon.ico": "icon.svg"}
    return [web.get(path, _serve(name)) for path, name in named.items()]


def _serve(name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    body = files("prontosched.dashboard").joinpath("static", name).read_bytes()
    kind = TYPES[name[name.rindex(".") :]]

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {
            "Content-Security-Policy": POLICY,
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return answer
