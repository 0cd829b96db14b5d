"""The contract: `openapi.json` for programs, and an HTML page."""

from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.server.http import render
from holdfast.server.http.request import Request

_METHODS = ("get", "post", "put", "patch", "delete")


async def openapi(request: Request) -> Response:
    """Return this contract."""
    root = request.http.scope.get("root_path", "") or "/"
    document = document_of() | {"servers": [{"url": root}]}
    return Response(render.encode(document), media_type="application/json")


async def page(request: Request) -> Response:
    """Show this contract as a page."""
    return Response(_page(), media_type="text/html; charset=utf-8")


async def style(request: Request) -> Response:
    """Return the style sheet of that page."""
    return Response(_file("docs.css"), media_type="text/css; charset=utf-8")


@cache
def document_of() -> dict[str, Any]:
    """Return the contract as it was generated."""
    return msgspec.json.decode(_file("openapi.json"), type=dict[str, Any])


@cache
def _file(name: str) -> str:
    return files("holdfast.server").joinpath(name).read_text("utf-8")


@cache
def _page() -> str:
    document = document_of()
    groups: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                groups[item[method]["tags"][0]].append(_operation(path, method, item[method]))
    about = {tag["name"]: tag["description"] for tag in document["tags"]}
    sections = "".join(
        f'<section id="{escape(name)}"><h2>{escape(name)}</h2><p>{escape(about[name])}</p>'
        f"{''.join(shown)}</section>"
        for name, shown in groups.items()
    )
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in groups)
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title>"
        '<link rel="stylesheet" href="docs.css"></head><body>'
        f"<header><h1>{escape(info['title'])}</h1>{_paragraphs(info['description'])}"
        f'<nav>{links}<a href="openapi.json">openapi.json</a></nav></header>'
        f"<main>{sections}</main></body></html>"
    )


def _operation(path: str, method: str, about: dict[str, Any]) -> str:
    scope = about.get("x-scope")
    marks = f'<span class="scope">{escape(scope)}</span>' if scope else ""
    parts = [_paragraphs(about.get("description", "")), _parameters(about), _body(about)]
    parts.append(_answers(about))
    return (
        f'<details id="{escape(about["operationId"])}"><summary>'
        f'<span class="method {method}">{method.upper()}</span> <code>{escape(path)}</code> {marks}'
        f"<span>{escape(about['summary'])}</span></summary>{''.join(parts)}</details>"
    )


def _parameters(about: dict[str, Any]) -> str:
    parameters = [_resolved(one) for one in about.get("parameters", [])]
    shown = [one for one in parameters if one["in"] in ("query", "path", "header")]
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td>"
        f"<td>{escape(_sort(one['schema']))}</td><td>{escape(one.get('description', ''))}</td></tr>"
        for one in shown
    )
    return f"<table>{rows}</table>" if rows else ""


def _body(about: dict[str, Any]) -> str:
    if "requestBody" not in about:
        return ""
    content = next(iter(about["requestBody"]["content"].values()))
    schema = _resolved(content["schema"])
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' *' if name in required else ''}</td>"
        f"<td>{escape(_sort(_resolved(field)))}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    example = content.get("example")
    shown = f"<pre>{escape(render.pretty(example))}</pre>" if example is not None else ""
    return f"<h3>Body</h3><table>{rows}</table>{shown}"


def _answers(about: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(str(status))}</td>"
        f"<td>{escape(_resolved(answer).get('description', ''))}</td></tr>"
        for status, answer in about["responses"].items()
    )
    return f"<h3>Answers</h3><table>{rows}</table>"


def _resolved(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    found: Any = document_of()
    for name in node["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    resolved: dict[str, Any] = found
    return resolved


def _sort(schema: dict[str, Any]) -> str:
    schema = _resolved(schema)
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    sort = schema.get("type", "anything")
    return " | ".join(sort) if isinstance(sort, list) else str(sort)


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in text.strip().split("\n\n") if part)
