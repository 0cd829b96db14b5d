"""Write what follows from the table of routes: the contract, and the dashboard's types.

The contract is src/holdfast/server/openapi.json, made of server/routes, the request bodies and
answers that it names, and the docstrings of the handlers. The types are dashboard/src/wire.ts.
`--check` writes nothing and says what is out of date.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import wire_types

from holdfast import __version__
from holdfast.server.api.produce import MOST
from holdfast.server.http import inputs
from holdfast.server.http.refusals import Problem, Refusal
from holdfast.server.http.request import JSON, MANY, NDJSON
from holdfast.server.http.route import STREAM, Entry, Told
from holdfast.server.relay.routes import PARTS as RELAY_PARTS
from holdfast.server.relay.routes import RELAY
from holdfast.server.routes import V1
from holdfast.server.routes.tags import TAGS

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT / "src" / "holdfast" / "server" / "openapi.json"
TYPES = ROOT / "dashboard" / "src" / "wire.ts"
PARTS = inputs.PARTS | RELAY_PARTS
ABOUT = """\
A job and message queue in PostgreSQL, for every language that can speak HTTP.

Times are RFC 3339 in UTC, durations are seconds, ids and cursors are strings. An error is an \
application/problem+json document (RFC 9457) whose `code` names a page of the error catalogue. Any \
POST that changes something takes an `Idempotency-Key`: sent again with the same key, it \
answers the same and does nothing twice.

Callers identify themselves by `Authorization: Bearer hf_…`; each address says which scope it \
needs. A development server needs no token from its own machine."""
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeated with the same key, a request does nothing twice and answers the same.",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": 200,
        "pattern": "^[A-Za-z0-9_.:-]+$",
    },
}
KNOWN_TAG = {
    "name": "If-None-Match",
    "in": "header",
    "description": "The ETag of an answer that the caller has.",
    "schema": {"type": "string", "pattern": '^"[0-9a-f]+"$'},
}
LAST_EVENT = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event received.",
    "schema": {"type": "string"},
}
PROBLEM = "application/problem+json"


def main() -> int:
    """Write the files, or say which are out of date."""
    made = files()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(
                f"{path} is out of date. Run:  python tools/generate_contract.py", file=sys.stderr
            )
        return bool(stale)
    for path in stale:
        path.write_text(made[path])
    return 0


def files() -> dict[Path, str]:
    """Return what is generated, by where it belongs."""
    contract = document([*V1, *RELAY])
    told = [one.kind for entry in V1 for one in entry.answers.values()]
    wanted = [kind.__name__ for kind in told if isinstance(kind, type(msgspec.Struct))]
    wanted.remove("Contract")
    return {
        CONTRACT: json.dumps(contract, indent=1, ensure_ascii=False) + "\n",
        TYPES: wire_types.written(contract["components"]["schemas"], wanted),
    }


def document(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the contract of these entries as OpenAPI has it."""
    entries = list(entries)
    schemas = _Schemas(entries)
    paths: dict[str, Any] = {}
    refusals: dict[str, Refusal] = {}
    for entry in entries:
        path = paths.setdefault(_path(entry), {})
        path[entry.method.lower()] = _operation(entry, schemas)
        refusals |= {one.name: one for one in entry.refusals}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast HTTP API", "version": __version__, "description": ABOUT},
        "tags": [{"name": name, "description": said} for name, said in TAGS.items()],
        "security": [{"bearer": []}, {"basic": []}, {"session": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
                "session": {"type": "apiKey", "in": "cookie", "name": "holdfast_session"},
            },
            "parameters": {"Key": KEY, "KnownTag": KNOWN_TAG, "LastEvent": LAST_EVENT},
            "responses": {
                "Unchanged": {"description": "The answer is the one that the caller has."},
                **{
                    name: _refusal(one)
                    for name, one in sorted(refusals.items(), key=lambda pair: pair[1].status)
                },
            },
            "schemas": schemas.components,
        },
    }


class _Schemas:
    """The schemas of all types that entries name, each under one name."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        kinds: dict[Any, None] = {Problem: None}
        for entry in entries:
            named = [entry.body, entry.items, *(told.kind for told in entry.answers.values())]
            kinds |= {kind: None for kind in named if isinstance(kind, type(msgspec.Struct))}
        _, found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        self.components = {name: _portable(found[name]) for name in sorted(found)}
        for kind in kinds:
            if least := getattr(kind, "at_least", 0):
                self.components[kind.__name__]["minProperties"] = least

    def of(self, kind: Any) -> dict[str, Any]:
        """Return where the schema of a type is; of one that is no object, the schema."""
        if isinstance(kind, type(msgspec.Struct)):
            return {"$ref": f"#/components/schemas/{kind.__name__}"}
        return dict(_portable(msgspec.json.schema(kind)))

    def body(self, entry: Entry) -> dict[str, Any]:
        """Return the schema of a body; where its handler reads items, they are of their type."""
        if entry.items is None:
            return self.of(entry.body)
        item = self.of(entry.items)
        if entry.body is MANY:
            return {"type": "array", "maxItems": MOST, "items": item}
        if not isinstance(entry.body, type(msgspec.Struct)):
            return item
        whole = json.loads(json.dumps(self.components[entry.body.__name__]))
        for field in whole["properties"].values():
            if field.get("type") == "array":
                field["items"] = item
        return dict(whole)


def _path(entry: Entry) -> str:
    return entry.path.replace(":path}", "}")


def _operation(entry: Entry, schemas: _Schemas) -> dict[str, Any]:
    summary, _, more = (inspect.getdoc(entry.handler) or "").partition("\n\n")
    made: dict[str, Any] = {
        "operationId": entry.id,
        "tags": [entry.tag],
        "summary": " ".join(summary.split()),
    }
    if more:
        made["description"] = "\n\n".join(" ".join(one.split()) for one in more.split("\n\n"))
    if entry.scope is None:
        made["security"] = []
    else:
        made["x-scope"] = entry.scope
    if parameters := [*_parts(entry), *_query(entry), *_headers(entry)]:
        made["parameters"] = parameters
    if entry.body is not None:
        made["requestBody"] = _body(entry, schemas)
    answers = {str(status): _answer(told, schemas) for status, told in entry.answers.items()}
    if entry.tagged:
        answers["304"] = {"$ref": "#/components/responses/Unchanged"}
    for one in entry.refusals:
        answers[str(one.status)] = {"$ref": f"#/components/responses/{one.name}"}
    made["responses"] = answers
    return made


def _parts(entry: Entry) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)", entry.path)
    return [_parameter(name, "path", msgspec.json.schema(PARTS[name])) for name in names]


def _query(entry: Entry) -> list[dict[str, Any]]:
    if entry.query is None:
        return []
    _, found = msgspec.json.schema_components([entry.query])
    return [
        _parameter(name, "query", _never_null(schema))
        for name, schema in found[entry.query.__name__]["properties"].items()
    ]


def _headers(entry: Entry) -> list[dict[str, Any]]:
    names = []
    if entry.once or entry.takes_key:
        names.append("Key")
    if entry.tagged:
        names.append("KnownTag")
    if any(STREAM in told.media for told in entry.answers.values()):
        names.append("LastEvent")
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def _parameter(name: str, place: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in schema.items() if key != "description"}
    made = {"name": name, "in": place, "description": schema.get("description", "")}
    if place == "path":
        made["required"] = True
    return {**made, "schema": _portable(rest)}


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: one that is not there is left out, never null."""
    made = {key: value for key, value in schema.items() if (key, value) != ("default", None)}
    if "anyOf" in made:
        rest = [one for one in made.pop("anyOf") if one != {"type": "null"}]
        made |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    if None in made.get("enum", []):
        made["enum"] = [one for one in made["enum"] if one is not None]
    return made


def _body(entry: Entry, schemas: _Schemas) -> dict[str, Any]:
    schema = schemas.body(entry)
    content: dict[str, Any] = {"schema": schema}
    if entry.example is not None:
        content["example"] = entry.example
    kinds = {JSON: content}
    if entry.body is MANY:
        kinds[NDJSON] = {"schema": {"type": "string", "description": "One JSON object a line."}}
    found = schemas.components.get(schema.get("$ref", "").rpartition("/")[2], schema)
    needed = bool(found.get("required") or found.get("minProperties") or entry.body is MANY)
    return {**({"required": True} if needed else {}), "content": kinds}


def _answer(told: Told, schemas: _Schemas) -> dict[str, Any]:
    made: dict[str, Any] = {"description": told.says or _first_line(told.kind)}
    if told.headers:
        made["headers"] = {
            name: {"description": said, "schema": {"type": "string"}}
            for name, said in told.headers.items()
        }
    if told.kind is not None:
        made["content"] = {media: {"schema": schemas.of(told.kind)} for media in told.media}
    if told.links:
        made["links"] = dict(told.links)
    return made


def _first_line(kind: Any) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")


def _refusal(one: Refusal) -> dict[str, Any]:
    made: dict[str, Any] = {"description": one.says}
    if one.later:
        about = {
            "description": "Seconds until it is worth trying again.",
            "schema": {"type": "string"},
        }
        made["headers"] = {"Retry-After": about}
    if not one.empty:
        made["content"] = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return made


def _portable(schema: Any) -> Any:
    """Return a schema with patterns as ECMAScript has them, and without what repeats its name."""
    if isinstance(schema, list):
        return [_portable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: _portable(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }
    if isinstance(pattern := made.get("pattern"), str):
        made["pattern"] = pattern.replace(r"\Z", "$")
    return made


if __name__ == "__main__":
    sys.exit(main())
