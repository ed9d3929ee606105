"""The page's files."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}
_HEADERS = {
    "cache-control": "no-cache",
    # Nothing but the page's own files, and streams of its own host; nobody may frame it.
    "content-security-policy": "default-src 'self'; img-src data:;"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_FILES = {name: (Path(__file__).parent / name).read_bytes() for name in _TYPES}


async def page(_request: Request) -> Response:
    return _file("index.html")


async def page_file(request: Request) -> Response:
    return _file(request.url.path.rpartition("/")[2])


def _file(name: str) -> Response:
    return Response(_FILES[name], media_type=_TYPES[name], headers=_HEADERS)


routes: list[BaseRoute] = [
    Route("/", page),
    *(Route(f"/page/{name}", page_file) for name in _TYPES if name != "index.html"),
]
