"""Reference pages name exactly what there is: functions, columns, settings, methods, commands."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import get_type_hints

import click
import psycopg
import pytest

import holdfast
from holdfast import App, AsyncClient, Client
from holdfast.app import Handle, Task
from holdfast.cli import main
from holdfast.task import Options, TaskSettings
from holdfast.worker import Worker
from tests.docs import pages

REFERENCE = pages.ROOT / "docs" / "reference"

Connect = Callable[..., psycopg.Connection]


def test_every_function_anyone_may_call_is_shown_with_its_signature(connect: Connect) -> None:
    public = connect().execute(_PUBLIC).fetchall()
    blocks = pages.blocks(REFERENCE / "sql.md")
    shown = {_signature(block.text) for block in blocks if block.language == "pgsql"}

    assert sorted(shown) == sorted({_signature(signature) for (signature,) in public})


@pytest.mark.parametrize(
    "view",
    [
        *("jobs", "queues", "depth", "dead_groups", "dead_ages", "schedules", "schedule_slots"),
        *("workers", "kinds", "lanes", "operations", "events", "strikes", "api_tokens"),
        *("anomalies", "detectors", "mutes", "webhooks"),
    ],
)
def test_columns_of_a_view_are_named(view: str, connect: Connect) -> None:
    cursor = connect().execute(f"select * from holdfast.{view} limit 0")
    columns = {column.name for column in cursor.description or ()}
    row = re.search(rf"^\| `holdfast\.{view}` \| (.*)$", _text("sql.md"), re.MULTILINE)
    settings = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", _text("settings.md"), re.MULTILINE))

    assert row
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", row[1]))))
    if view == "queues":
        named |= {name for pair in settings for name in pair} | {"queue", "part"}
        columns = {column for column in columns if not column.startswith("paused_")}
    assert sorted(columns - named) == []


def test_every_setting_of_a_queue_is_explained(connect: Connect) -> None:
    hint = _hint(connect(), "select holdfast.queue_set('q', '{\"nonsense\": 1}')")

    assert _settings("Queue settings") == _words(hint)


def test_every_setting_of_a_lane_is_explained(connect: Connect) -> None:
    hint = _hint(connect(), "select holdfast.lane_set('q', 'l', '{\"nonsense\": 1}')")

    assert _settings("Lane settings") == _words(hint)


def test_every_field_of_a_job_is_explained(connect: Connect) -> None:
    hint = _hint(connect(), 'select holdfast.enqueue(\'[{"kind": "a", "nonsense": 1}]\')')
    table = _text("sql.md").split("<!-- table: NewJob -->")[1].split("\n\n")[0]
    named = {
        name for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in _quoted(cell)
    }

    assert named == _words(hint)


def test_every_field_of_a_filter_is_explained_by_a_term_that_works(connect: Connect) -> None:
    connection = connect()
    hint = _hint(connection, "select holdfast.find('nonsense:1')")
    table = _text("filter.md").split("| term | matches |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    terms = [term for cell in cells for term in re.findall(r"`([^`]+)`", cell)]
    for term in terms:
        connection.execute("select holdfast.find(%s)", [term])

    fields = {term.partition(":")[0] for term in terms if ":" in term}
    listed = re.findall(r"[a-z]+(?:\.path)?", hint.removeprefix("Fields are").replace(" and ", " "))
    assert fields == {field.replace(".path", ".user.id") for field in listed}


def test_every_detector_is_shown_as_it_is(connect: Connect) -> None:
    catalogue = connect().execute(
        "select code, enabled, severity, thresholds, about from holdfast.detector_catalogue"
    )
    table = _text("sql.md").split("| code | severity | thresholds | looks for |")[1]
    rows = re.findall(
        r"^\| `(\w+)`( \(off\))? \| (\w+) \| (.*?) \| (.*) \|$",
        table.partition("\n\n")[0],
        re.MULTILINE,
    )
    shown = {
        code: (not off, severity, set(filter(None, thresholds.strip().split(", "))), about)
        for code, off, severity, thresholds, about in rows
    }

    assert shown == {
        code: (enabled, severity, {f"{name}: {value}" for name, value in usual.items()}, about)
        for code, enabled, severity, usual, about in catalogue
    }


def test_every_variable_of_the_environment_is_explained() -> None:
    source = "".join(
        file.read_text("utf-8") for file in (pages.ROOT / "src" / "holdfast").rglob("*.py")
    )
    read = set(re.findall(r"\"(HOLDFAST_[A-Z_]+|NO_COLOR)\"", source))
    table = _section("settings.md", "Environment")

    assert set(re.findall(r"^\| `([A-Z_]+)`", table, re.MULTILINE)) == read


def test_every_argument_of_the_client_is_explained() -> None:
    arguments = set(inspect.signature(Client).parameters)

    assert _settings("Client arguments") == arguments
    assert set(inspect.signature(AsyncClient).parameters) == arguments


def test_every_method_of_the_client_is_shown_with_its_arguments() -> None:
    text, _, functions = _text("client.md").partition("\n## Schema and embedded server\n")

    assert _shown_calls(text) == dict(_calls(Client))
    assert [name for name in _shown_calls(functions) if not callable(_member(name))] == []


def test_every_call_that_a_page_names_exists() -> None:
    known = {*dict(_calls(Client)), *dict(inspect.getmembers_static(Client))}
    named = {
        (pages.name_of(page), name)
        for page in pages.pages()
        for name in re.findall(r"`a?client\.([a-z_.]+)", page.read_text("utf-8"))
    }

    assert len(named) > 5
    assert {(page, name) for page, name in named if name not in known} == set()


def _shown_calls(text: str) -> dict[str, list[str]]:
    """Return what stands in the first cells of tables as `name(arguments)`."""
    cells = " ".join(re.findall(r"^\| (`[a-z].*?`) \|", text, re.MULTILINE))
    calls = re.findall(r"`([\w.]+)\((.*?)\)`", cells)
    return {name: re.findall(r"(?:^|[ *])(\w+)(?==|,|$)", said) for name, said in calls}


def _calls(kind: type, noun: str = "") -> Iterator[tuple[str, list[str]]]:
    for name, member in inspect.getmembers_static(kind):
        if name.startswith("_"):
            continue
        if isinstance(member, cached_property):
            yield from _calls(get_type_hints(member.func)["return"], f"{name}.")
        elif inspect.isfunction(member):
            yield noun + name, list(inspect.signature(member).parameters)[1:]


def _member(name: str) -> object:
    module, function = name.split(".")
    return getattr(import_module(f"holdfast.{module}"), function, None)


def test_every_setting_and_option_of_a_task_is_explained() -> None:
    table = _section("app.md", "Settings of a task")
    options = _section("app.md", "Enqueue")

    shown = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(shown) == sorted(TaskSettings.__annotations__)
    assert "the fields of [a job](sql.md#enqueue)" in options
    job = _text("sql.md").split("<!-- table: NewJob -->")[1].split("\n\n")[0]
    named = set(re.findall(r"\w+", options + job))
    assert sorted(Options.__annotations__.keys() - named) == []


def test_every_option_of_a_worker_is_explained() -> None:
    shown = re.findall(r"^\| `(\w+)` \|", _section("app.md", "Worker"), re.MULTILINE)

    assert shown == [*inspect.signature(Worker).parameters][1:]


@pytest.mark.parametrize("kind", [App, Task, Handle])
def test_every_member_of_the_door_is_named(kind: type) -> None:
    tables = " ".join(re.findall(r"^\|(.*)\|$", _text("app.md"), re.MULTILINE))
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", tables))))
    members = {name for name in vars(kind) if not name.startswith("_")}

    assert sorted(members - named - {"encode_result", "decode_result"}) == []


def test_every_public_name_is_somewhere_in_the_reference() -> None:
    text = _text("app.md") + _text("client.md") + _text("errors.md")

    assert [name for name in holdfast.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_command_has_a_section_that_names_its_options() -> None:
    commands = dict(_commands(main, "holdfast"))

    assert {h for h in pages.headings(REFERENCE / "cli.md") if h.startswith("holdfast ")} == set(
        commands
    )
    missing = [
        f"{path} {option}"
        for path, options in commands.items()
        for option in options
        if option not in _section("cli.md", path)
    ]
    assert missing == []


def test_exit_codes_are_explained() -> None:
    assert re.findall(r"^\| (\d) \|", _text("cli.md"), re.MULTILINE) == list("012345")


_PUBLIC = """
select format('holdfast.%s(%s) returns %s', p.proname,
  pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
from pg_proc p
where p.pronamespace = 'holdfast'::regnamespace and exists (
  select from unnest('{reader,producer,worker,operator}'::text[]) role
  where has_function_privilege('holdfast_' || role, p.oid, 'execute'))
"""


def _signature(text: str) -> str:
    text = re.sub(r"\s+", " ", text.lower().strip())
    text = re.sub(r"::[a-z ]+(\[\])?(?=[,)])", "", text)
    return text.replace("timestamp with time zone", "timestamptz").replace("table (", "table(")


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, list[str]]]:
    own = [
        max(param.opts, key=len)
        for param in command.params
        if isinstance(param, click.Option) and param.name not in ("url", "json", "quiet")
    ]
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            yield from _commands(part, f"{path} {name}")
    if path != "holdfast" and (own or not isinstance(command, click.Group)):
        yield path, own


def _hint(connection: psycopg.Connection, statement: str) -> str:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    return caught.value.diag.message_hint or ""


def _words(hint: str) -> set[str]:
    return set(re.findall(r"[a-z_]+", hint.partition(": ")[2]))


def _settings(heading: str) -> set[str]:
    cells = re.findall(r"^\| (`.*?) \|", _section("settings.md", heading), re.MULTILINE)
    return {name for cell in cells for name in _quoted(cell)}


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def _section(page: str, heading: str) -> str:
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", _text(page), re.MULTILINE | re.DOTALL
    )
    assert found, f"{page} has no section {heading}"
    return found[1]


def _text(page: str) -> str:
    return (REFERENCE / page).read_text("utf-8")


def test_every_event_of_a_stream_is_explained() -> None:
    rooms = (pages.ROOT / "src" / "holdfast" / "server" / "live").glob("*.py")
    source = "".join(file.read_text("utf-8") for file in rooms)
    sent = set(re.findall(r"_publish\(\s*\"(\w+)\"", source))
    table = _section("http.md", "Events").partition("| event | data |")[2].partition("\n\n")[0]

    shown = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))

    assert sent - shown == set()
    assert {"hello", "activity", "gap", "resync"} <= shown
