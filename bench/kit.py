"""How long a suite takes whose every test has a database of its own, by the test kit."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import Options, Server
from bench.report import Figure

# What a test does: it enqueues in its own transaction, looks, runs two jobs and looks again.
SUITE = """
import psycopg
import pytest
from holdfast import App, current

app = App()

@pytest.fixture(scope="session")
def holdfast_schema(holdfast_template):
    with psycopg.connect(holdfast_template) as conn:
        conn.execute("create table payment (order_id int primary key)")

@app.task
def pay(order_id: int) -> None:
    with current().transaction() as conn:
        conn.execute("insert into payment values (%s)", [order_id])
        tell.options(conn=conn).enqueue(order_id)

@app.task
async def tell(order_id: int) -> None: ...

@pytest.mark.parametrize("order_id", range({tests}))
def test_an_order_is_paid(holdfast, order_id):
    with psycopg.connect(holdfast.url) as conn:
        pay.options(conn=conn).enqueue(order_id)
    holdfast.assert_enqueued(pay, order_id=order_id)
    assert len(holdfast.drain().done) == 2
    with psycopg.connect(holdfast.url) as conn:
        assert conn.execute("select * from payment").fetchall() == [(order_id,)]
"""


def run(server: Server, options: Options) -> list[Figure]:
    """Run a suite as its user does, from the command to its end."""
    # Where it is only tried, on the server that is there; else it includes the start of its own.
    url = server.url if options.seconds == 0 else None
    spent = [_suite(options.tests, url) for _ in range(options.rounds)]
    return [Figure("kit", f"{options.tests} tests", "s", spent, at_most=15)]


def _suite(tests: int, url: str | None) -> float:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "test_suite.py").write_text(SUITE.replace("{tests}", str(tests)))
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment.pop("HOLDFAST_TEST_URL", None)
        if url:
            environment["HOLDFAST_TEST_URL"] = url
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "holdfast_pytest"],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        spent = time.monotonic() - began
    assert f"{tests} passed" in done.stdout, done.stdout + done.stderr
    return spent
