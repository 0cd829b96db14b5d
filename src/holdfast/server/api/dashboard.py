"""The dashboard: files built from `dashboard/`, which use `/v1` like any other client."""

import mimetypes
from functools import cache
from html import escape
from pathlib import Path

from starlette.responses import Response

from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Request

STATIC = Path(__file__).parents[1] / "static"

# Addresses of pages. All are the same document, which reads its own address.
PAGES = (
    "queues", "jobs", "workflows", "dead", "schedules", "workers", "lanes", "anomalies", "activity",
    "settings",
)  # fmt: skip
_UNCHANGING = {"Cache-Control": "public, max-age=31536000, immutable"}


async def page(request: Request) -> Response:
    """Return the document, with the path that the server is mounted at written into it."""
    root = escape(request.http.scope.get("root_path", "").rstrip("/"), quote=True)
    text = _document()
    text = text.replace('name="holdfast-root" content=""', f'name="holdfast-root" content="{root}"')
    text = text.replace('="./assets/', f'="{root}/assets/')
    return Response(text, media_type="text/html", headers={"Cache-Control": "no-cache"})


async def asset(request: Request) -> Response:
    """Return a file of the dashboard; its name has a hash of its contents, so it never changes."""
    name = request.part("file")
    path = STATIC / "assets" / name
    odd = len(name) > 200 or not name.isascii() or not name.isprintable()
    if odd or "/" in name or "\\" in name or name.startswith(".") or not path.is_file():
        raise Problem(404, "HF404", f"there is no file {name[:200]}")
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
    return Response(_content(path), media_type=kind, headers=_UNCHANGING)


def _document() -> str:
    path = STATIC / "index.html"
    if not path.is_file():
        raise Problem(
            404,
            "HF404",
            "the dashboard is not built",
            fix="In a checkout:  make dashboard     The API is at /v1.",
        )
    return path.read_text(encoding="utf-8")


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()
