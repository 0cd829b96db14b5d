"""What is used of the insides of other packages is still there: a new release that changes it
fails here, by name, before it fails in production."""

import asyncio
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from psycopg import AsyncConnection, waiting
from uvicorn.protocols.http import httptools_impl

from holdfast.client.aio import pool
from holdfast.server import serve

ROOT = Path(__file__).parents[1]


def names_used(source: str, given: str) -> set[str]:
    """Return the attributes of `given` that a source reads or calls."""
    return set(re.findall(rf"\b{re.escape(given)}\.(\w+)", source))


def test_the_protocol_of_uvicorn_has_every_name_that_ours_uses() -> None:
    ours = inspect.getsource(serve._Protocol)
    theirs = inspect.getsource(httptools_impl.HttpToolsProtocol)
    own = set(re.findall(r"self\.(_\w+)", ours)) | set(vars(serve._Protocol))
    used = (names_used(ours, "self") - own) | names_used(ours, "super()")

    assert {"pipeline", "headers", "url", "scope", "cycle", "connections", "transport"} <= used
    assert [name for name in sorted(used) if not re.search(rf"\b{name}\b", theirs)] == []


def test_the_protocol_of_uvicorn_calls_what_ours_overrides() -> None:
    theirs = httptools_impl.HttpToolsProtocol
    overridden = [
        name
        for name, value in vars(serve._Protocol).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]

    assert len(overridden) == 10
    for name in overridden:
        ours, known = getattr(serve._Protocol, name), getattr(theirs, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(known).parameters)
    assert "response_complete" in inspect.getsource(httptools_impl.RequestResponseCycle)


def test_a_server_of_uvicorn_starts_and_ends_as_ours_expects() -> None:
    assert list(inspect.signature(uvicorn.Server.shutdown).parameters) == ["self", "sockets"]
    source = inspect.getsource(uvicorn.Server)
    assert all(f"self.{name}" in source for name in ("started", "should_exit"))


def test_psycopg_waits_by_the_functions_that_the_pool_uses() -> None:
    used = inspect.getsource(pool)

    assert "waiting.wait_async(" in used
    parameters = list(inspect.signature(waiting.wait_async).parameters)
    assert parameters[:3] == ["gen", "fileno", "interval"]
    assert list(inspect.signature(AsyncConnection.wait).parameters)[:2] == ["self", "gen"]


def test_every_call_of_a_connection_passes_the_wait_that_the_pool_overrides(database: str) -> None:
    waits = 0

    class Counted(AsyncConnection[tuple[object, ...]]):
        async def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
            nonlocal waits
            waits += 1
            return await super().wait(gen, *args, **more)

    async def ask() -> int:
        async with await Counted.connect(database) as connection:
            before = waits
            await connection.execute("select 1")
            return waits - before

    assert asyncio.run(ask()) > 0


@pytest.mark.parametrize("name", ["uvicorn", "psycopg"])
def test_a_package_whose_insides_are_used_has_an_upper_bound(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["server"]]

    [one] = [one for one in wanted if re.match(rf"{name}\b", one)]
    assert "<" in one
