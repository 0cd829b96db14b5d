"""What a handler logs can be read while it runs."""

import logging
import threading
from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest

from holdfast import App
from holdfast.worker import Worker
from holdfast.worker.logs import LINE, MOST_WAITING, Log
from tests.worker.conftest import PATIENCE, Running

log = logging.getLogger("shop")


class Reader:
    """Reads the lines of a job; waits by the database, which says that more were stored."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(
            "create function public.tell() returns trigger language plpgsql as $$"
            " begin notify stored; return null; end $$;"
            "create trigger tell after insert on holdfast.line"
            " for each statement execute function public.tell();"
            "listen stored"
        )

    def until(self, app: App, id: UUID, enough: Callable[[list[str]], bool]) -> list[str]:
        """Return the lines of a job as soon as there are enough."""
        while not enough(found := texts(app, id)):
            told = list(self._connection.notifies(timeout=PATIENCE, stop_after=1))
            assert told, f"no more lines than {found}"
        return found

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def reader(direct: str) -> Iterator[Reader]:
    reader = Reader(direct)
    yield reader
    reader.close()


@pytest.fixture
def run(app: App) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(**options: object) -> Running:
        started.append(Running(Worker(app, **options)))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.stop()


def texts(app: App, id: UUID) -> list[str]:
    return [line.text.rpartition("shop: ")[2] for line in app.client.jobs.lines(id)]


def test_lines_are_there_while_the_handler_runs_and_the_last_when_it_has_ended(
    app: App, reader: Reader, run: Callable[..., Running]
) -> None:
    seen = threading.Event()

    @app.task
    def work() -> None:
        log.warning("begun")
        assert seen.wait(PATIENCE)
        log.warning("nearly")
        log.warning("over")

    id = work.enqueue().id
    running = run(max_jobs=1)

    assert reader.until(app, id, bool) == ["begun"]
    assert app.client.jobs.get(id) is not None
    seen.set()
    running.join()

    job = app.client.jobs.get(id)
    assert job is not None
    assert job.state == "done"
    assert texts(app, id) == ["begun", "nearly", "over"]


def test_a_short_job_costs_the_database_no_lines(app: App, drain: Callable[..., Worker]) -> None:
    @app.task
    def work() -> None:
        log.warning("as usual")

    ids = [work.enqueue().id for _ in range(20)]
    drain()

    assert app.client.jobs.last_lines(ids) == {}


def test_a_handler_that_logs_without_end_is_shown_by_its_newest_lines(
    app: App, reader: Reader, run: Callable[..., Running]
) -> None:
    seen = threading.Event()

    @app.task
    def work() -> None:
        for n in range(100_000):
            log.warning("line %s", n)
        assert seen.wait(PATIENCE)

    id = work.enqueue().id
    running = run(max_jobs=1)

    found = reader.until(app, id, lambda lines: lines[-1:] == ["line 99999"])
    seen.set()
    running.join()

    assert len(found) <= 1000
    assert any("lines left out" in line for line in found)


def test_odd_lines_are_stored_as_far_as_they_can_be(
    app: App, reader: Reader, run: Callable[..., Running]
) -> None:
    seen = threading.Event()

    @app.task
    def work() -> None:
        log.warning("nul \0 bell \x1b[31m")
        log.warning("x" * 1_000_000)
        assert seen.wait(PATIENCE)

    id = work.enqueue().id
    run(max_jobs=1)

    odd, long = reader.until(app, id, lambda lines: len(lines) == 2)
    seen.set()

    assert odd == "nul \\0 bell \x1b[31m"
    assert len(long) <= LINE


def test_lines_that_cannot_be_stored_do_not_disturb_the_job(
    app: App, run: Callable[..., Running]
) -> None:
    told = threading.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "lines of jobs cannot be stored":
                told.set()

    ear = Ear()
    logging.getLogger("holdfast.worker").addHandler(ear)
    with psycopg.connect(app.url, autocommit=True) as connection:
        connection.execute("alter table holdfast.line rename to elsewhere")

    @app.task
    def work() -> None:
        log.warning("line")
        assert told.wait(PATIENCE)

    app.client.queues.set("default", keep_done=60)
    id = work.enqueue().id
    run(max_jobs=1).join()
    logging.getLogger("holdfast.worker").removeHandler(ear)

    job = app.client.jobs.get(id)
    assert job is not None
    assert job.state == "done"


def test_what_is_not_shown_yet_is_counted_and_the_newest_are_left() -> None:
    log = Log()
    for n in range(1, 251):
        log.add(f"line {n}")

    first, lines = log.unshown()
    assert (first, len(lines)) == (150, MOST_WAITING + 1)
    assert lines[:2] == ["… 150 lines left out …", "line 151"]
    log.shown(first + len(lines) - 1)
    assert log.unshown() == (251, [])
    log.add("a\nb")
    assert log.unshown() == (251, ["a", "b"])
    assert log.unshown(1) == (251, ["… 1 line left out …", "b"])
