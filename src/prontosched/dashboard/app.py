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
PAGES = {"/": "index.html", "/fleet": "fleet.html"}
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
ASSETS = (".css", ".js", ".svg")
STATIC = files("prontosched.dashboard").joinpath("static")


def routes() -> list[web.RouteDef]:
    """Return the routes of all pages and their files: a name that was not shipped does not exist."""
    shipped = {f"/static/{one.name}": one.name for one in STATIC.iterdir() if one.name.endswith(ASSETS)}
    named = {**PAGES, **shipped, "/favicon.ico": "icon.svg"}
    return [web.get(path, _serve(name)) for path, name in named.items()]


def _serve(name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    body = STATIC.joinpath(name).read_bytes()
    kind = TYPES[name[name.rindex(".") :]]

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {
            "Content-Security-Policy": POLICY,
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return answer
