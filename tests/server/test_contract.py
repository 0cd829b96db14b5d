"""The contract and the server say the same: addresses, scopes, fields, statuses."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast import Client
from holdfast.server import Server, Settings
from holdfast.server.api.contract import document_of
from holdfast.server.http.route import Entry
from holdfast.server.relay.routes import RELAY
from holdfast.server.routes import ROUTES, V1
from tests.server.conftest import Api
from tests.server.negative import STREAMS, refuse
from tests.server.serving import Serving, serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SPECIFIED = [*V1, *RELAY]

# Answers that may have fields which the contract does not name: facts of a problem, and whatever
# workers declared about a kind.
OPEN = ("Problem", "Kind", "Contract")


def closed() -> dict[str, Any]:
    """Return the contract without room for fields that it does not name."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document_of()))
    for name, one in document["components"]["schemas"].items():
        if "properties" in one and name not in OPEN:
            one.setdefault("additionalProperties", False)
    return document


schema = schemathesis.openapi.from_dict(closed())


def operation_of(entry: Entry) -> dict[str, Any]:
    path = document_of()["paths"][entry.path.replace(":path}", "}")]
    found: dict[str, Any] = path[entry.method.lower()]
    return found


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    found: Any = node
    while "$ref" in found:
        names = found["$ref"].removeprefix("#/").split("/")
        found = document_of()
        for name in names:
            found = found[name]
    return dict(found)


def name_of(entry: Entry) -> str:
    return f"{entry.method} {entry.path}"


@pytest.mark.proves("S4x.1")
def test_every_address_is_in_the_contract_and_no_other() -> None:
    served = {(entry.method, entry.path.replace(":path}", "}")) for entry in SPECIFIED}
    specified = {
        (method.upper(), path)
        for path, item in document_of()["paths"].items()
        for method in item
        if method != "parameters"
    }

    assert served == specified


def test_no_address_is_hidden_by_one_above_it() -> None:
    server = Server("postgresql://nowhere/x")
    hidden = [
        (name_of(entry), name_of(found))
        for entry in ROUTES
        if (found := reached(server, entry)) is not entry
    ]

    assert hidden == []


def reached(server: Server, entry: Entry) -> Entry:
    """Return what answers a request whose names are as short as names can be."""
    path = re.sub(r"\{[^}]+\}", "a", entry.path)
    return next(
        entries[entry.method]
        for entries, _ in server.table.fits(path)
        if entry.method in entries and entries[entry.method].programs == entry.programs
    )


@pytest.mark.parametrize("entry", SPECIFIED, ids=name_of)
def test_the_contract_names_the_scope_and_the_key(entry: Entry) -> None:
    operation = operation_of(entry)
    names = [resolved(one)["name"] for one in operation.get("parameters", [])]

    assert operation.get("x-scope") == entry.scope
    assert (operation.get("security") == []) == (entry.scope is None)
    assert ("Idempotency-Key" in names) == (entry.once or entry.takes_key)


@pytest.mark.parametrize(
    "entry", [one for one in SPECIFIED if isinstance(one.body, type(msgspec.Struct))], ids=name_of
)
def test_the_contract_has_the_fields_of_a_body(entry: Entry) -> None:
    content = operation_of(entry)["requestBody"]["content"]["application/json"]
    specified = resolved(content["schema"])
    fields = msgspec.structs.fields(entry.body)

    assert set(specified.get("properties", {})) == {field.encode_name for field in fields}
    assert set(specified.get("required", [])) == {
        field.encode_name for field in fields if field.required
    }
    assert specified["additionalProperties"] is False


@pytest.mark.parametrize("entry", [one for one in SPECIFIED if one.query], ids=name_of)
def test_the_contract_has_the_parameters_of_a_query(entry: Entry) -> None:
    parameters = [resolved(one) for one in operation_of(entry).get("parameters", [])]

    assert {one["name"] for one in parameters if one["in"] == "query"} == {
        field.encode_name for field in msgspec.structs.fields(entry.query)
    }


def test_the_contract_and_its_page_are_served_without_anything_from_elsewhere(api: Api) -> None:
    served = api.get("/openapi.json").json()
    page = api.get("/docs")

    assert served["paths"].keys() == document_of()["paths"].keys()
    assert served["servers"] == [{"url": "/"}]
    assert "<script" not in page.text
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page.text)
    assert all(entry.path.replace(":path}", "}") in page.text for entry in SPECIFIED)
    assert api.get("/docs.css").headers["content-type"].startswith("text/css")


@pytest.fixture(scope="module")
def fuzzed(shared: str) -> Iterator[Serving]:
    """A server on a database with something of everything in it."""
    with Client(shared) as client:
        for n in range(20):
            client.enqueue("a", {"n": n}, max_attempts=1)
            client.enqueue("a", queue="axiom", lane="l")
        client.nack(client.claim(worker="w", limit=5), message="boom")
        client.schedules.set("nightly", kind="a", cron="0 3 * * *")
        client.workers.beat("ada", kinds=["a"])
    with serving(Server(shared, settings=Settings(hosts=("*",)))) as started:
        yield started


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    # Nobody waits for a job that will not come.
    if case.operation.path == "/v1/claims" and isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0.01
    if case.query and "timeout" in case.query:
        case.query["timeout"] = 0.01


@pytest.mark.proves("S4x.1", "S4x.2")
@schema.exclude(operation_id=list(STREAMS)).parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_server_fail_or_answer_what_is_not_in_the_contract(
    case: Any, fuzzed: Serving
) -> None:
    case.call_and_validate(base_url=fuzzed.url, checks=CHECKS)


def test_an_address_that_is_too_long_is_refused_as_the_contract_says(fuzzed: Serving) -> None:
    case = schema["/oidc/callback"]["GET"].Case(query={"error_description": "x" * 40_000})

    answer = case.call_and_validate(base_url=fuzzed.url, checks=CHECKS)

    assert answer.status_code == 431


def test_no_data_that_does_not_fit_makes_the_server_fail(fuzzed: Serving) -> None:
    statuses, wrong = refuse(fuzzed.url, examples=3)

    assert wrong == []
    # Of both dialects; what is negative by its form only, such as a header, may succeed.
    assert statuses.total() > 200
    assert sum(statuses[code] for code in (400, 404, 405, 415, 422)) > statuses.total() / 2


def test_no_sequence_of_requests_does(fuzzed: Serving) -> None:
    machine = schema.exclude(operation_id=list(STREAMS)).as_state_machine()
    failures: list[str] = []
    seen: set[tuple[str, int]] = set()

    class Walk(machine):  # type: ignore[valid-type, misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": fuzzed.url}

        def validate_response(self, response: Any, case: Any, *rest: Any, **more: Any) -> None:
            seen.add((case.operation.label, response.status_code))
            try:
                case.validate_response(response, checks=CHECKS)
            except Exception as failure:
                failures.append(str(failure))

    once = settings(
        max_examples=6,
        stateful_step_count=15,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    # Several short walks: the same steps do not find the same database twice, and Hypothesis ends
    # a walk when it notices.
    for _ in range(5):
        with suppress(FlakyStrategyDefinition):
            Walk.run(settings=once)

    assert failures == []
    assert len(seen) > 40
