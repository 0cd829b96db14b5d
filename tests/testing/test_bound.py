"""Tasks that are called as functions, jobs that run at once, and the kit in other test runners."""

import asyncio
import os
import subprocess
import sys
import textwrap
import unittest
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from holdfast import App, current
from holdfast.errors import Misuse
from holdfast.testing import Kit, WithHoldfast, databases, job
from tests.conftest import Postgres

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "holdfast_pytest")


@pytest.fixture
def app(holdfast: Kit) -> Iterator[App]:
    with App() as app:
        yield app


def test_a_task_that_uses_current_is_called_with_a_stored_job(holdfast: Kit, app: App) -> None:
    @app.task
    def pay(order_id: int) -> int:
        with current().transaction() as conn:
            conn.execute("insert into payment values (%s)", [order_id])
        return current().attempt

    pay.enqueue(1)  # one that came before is left alone
    with holdfast.job(pay, 7) as bound:
        assert bound.payload == {"order_id": 7}
        assert pay(7) == 1
        assert bound.held() is False  # it has ended with its transaction

    assert [one.payload for one in holdfast.enqueued(pay)] == [{"order_id": 1}]
    with psycopg.connect(holdfast.url) as conn:
        assert conn.execute("select order_id from payment").fetchall() == [(7,)]


def test_a_block_ends_its_job_as_a_worker_would(holdfast: Kit, app: App) -> None:
    @app.task
    def work() -> None:
        current().progress(1, note="half")

    with holdfast.job(work) as done:
        work()
        stored = holdfast.client.jobs.get(done.id)
    assert stored is not None
    assert stored.progress["note"] == "half"
    with pytest.raises(ValueError, match="no"), holdfast.job(work.options(queue="q")) as failed:
        raise ValueError("no")

    [queued] = holdfast.enqueued()
    assert (queued.id, queued.state, queued.error) == (failed.id, "queued", "ValueError: no")
    with pytest.raises(Misuse, match="outside of a handler"):
        current()


def test_a_job_that_cannot_run_now_is_told_why(holdfast: Kit, app: App) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(Misuse, match="cannot run now"), holdfast.job(work.options(delay=60)):
        pass


def test_without_a_database_current_is_a_job_that_is_not_stored() -> None:
    app = App("postgresql://nowhere.invalid/x")

    @app.task
    def work(name: str) -> tuple[str, int, str | None, str]:
        mine = current()
        mine.assert_held()
        mine.progress(1, 2)
        return mine.payload["name"], mine.attempt, mine.last_error, mine.resources

    with job(work, name="Ada", attempt=2, last_error="no", resources="r") as bound:
        assert work("Ada") == ("Ada", 2, "no", "r")
        assert bound.noted == {"done": 1, "total": 2}
        with pytest.raises(Misuse, match="needs a job that is stored"):
            current().transaction()


def test_inline_a_job_has_run_when_enqueue_returns(holdfast: Kit, app: App) -> None:
    ran = []

    @app.task
    def outer() -> None:
        inner.enqueue()
        ran.append("outer")

    @app.task
    async def inner() -> None:
        ran.append("inner")

    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    with holdfast.inline():
        outer.enqueue()
        assert ran == ["outer", "inner"]
        with pytest.raises(ValueError, match="no"):
            fails.enqueue()
        inner.options(delay=60).enqueue()
        with psycopg.connect(holdfast.url) as conn:
            inner.options(conn=conn).enqueue()
        assert ran == ["outer", "inner"]  # not committed when it was enqueued

        async def test() -> None:
            outer.enqueue()  # on a loop, too
            await outer.aenqueue()

        asyncio.run(test())
    assert ran.count("outer") == 3
    assert ran.count("inner") == 4
    outer.enqueue()
    assert ran.count("outer") == 3


def test_unittest_gets_a_database_for_each_test(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Named otherwise: what other tests use on this server is not to be closed here.
    url = make_conninfo(postgres.url, application_name="unittest")
    monkeypatch.setenv(databases.VARIABLE, url)
    app = App()
    seen = []

    @app.task
    def work() -> None:
        seen.append(app.url)

    class Base(WithHoldfast):
        @classmethod
        def holdfast_schema(cls, template: str) -> None:
            with psycopg.connect(template) as conn:
                conn.execute("create table shop_order (id int)")

    class Case(Base, unittest.TestCase):
        def test_one(self) -> None:
            with psycopg.connect(self.holdfast.url) as conn:
                conn.execute("insert into shop_order values (1)")
            work.enqueue()
            self.holdfast.drain()

        test_two = test_one

    class AsyncCase(Base, unittest.IsolatedAsyncioTestCase):
        async def test_three(self) -> None:
            await work.aenqueue()
            await self.holdfast.adrain()

    loader = unittest.TestLoader()
    suite = unittest.TestSuite(map(loader.loadTestsFromTestCase, (Case, AsyncCase)))
    result = unittest.TestResult()
    suite.run(result)
    databases.shared().close()

    assert (result.testsRun, result.errors, result.failures) == (3, [], [])
    assert len(set(seen)) == 3


def test_async_tests_of_pytest_asyncio_have_a_database_each_and_leave_none(
    postgres: Postgres, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import asyncio
            import pytest
            from holdfast import App

            app = App()
            seen = []

            @app.task
            async def work(n: int) -> None:
                seen.append((n, asyncio.get_running_loop()))

            @pytest.mark.parametrize("n", range(10))
            async def test_it(holdfast, n):
                await work.aenqueue(n)
                assert (await holdfast.adrain()).done
                assert seen[-1] == (n, asyncio.get_running_loop())
                holdfast.assert_not_enqueued()
            """
        )
    )
    owner = f"holdfast_reader_{uuid4().hex}"  # by which its databases are told from others
    postgres.connection.execute(sql.SQL("create role {} superuser").format(sql.Identifier(owner)))
    url = make_conninfo(postgres.url, options=f"-c role={owner}")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nasyncio_mode = auto\nholdfast_test_url = {url}\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "holdfast_pytest",
            "-p",
            "pytest_asyncio.plugin",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout
    assert postgres.connection.execute(_OWNED, [owner]).fetchall() == []
    postgres.connection.execute(sql.SQL("drop role {}").format(sql.Identifier(owner)))


_OWNED = "select datname from pg_database where datdba = %s::regrole"
