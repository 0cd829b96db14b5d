"""Run the tests that Django has for backends of its Tasks against Holdfast's, in this interpreter.

    python conformance_run.py TESTS EXPECTED.toml

TESTS is the directory `tests` of Django's source. `DummyBackend`, which stores calls and runs none,
is replaced by Holdfast's backend, and `ImmediateBackend` by Holdfast's with a worker that runs at
once. EXPECTED names the tests that cannot hold, with the reason: one of them that passes, or
another one that fails, is a failure. tools/conformance.py prepares all that.
"""

import os
import sys
import tomllib
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import django
import psycopg
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from holdfast import embedded

MODULES = ("test_dummy_backend", "test_immediate_backend", "test_tasks")
EXTRA = ["django_tasks"] if django.VERSION < (6, 0) else []


def main(tests: Path, expected: Path) -> int:
    """Run all of them; returns 1 if one ended otherwise than expected."""
    known: dict[str, str] = tomllib.loads(expected.read_text("utf-8"))["cannot_hold"]
    with (
        TemporaryDirectory(prefix="holdfast-conformance-") as place,
        embedded.start(Path(place) / "pg") as server,
    ):
        ended = run(tests, server.url)
    for line in (lines := judged(ended, known)):
        print(line)
    failed = [name for name, problem in ended.items() if problem]
    print(
        f"Django {django.__version__}: {len(ended)} tests run, {len(ended) - len(failed)} passed, "
        f"{len(failed)} failed, {len(known)} of them expected to; {len(lines)} surprises"
    )
    return 1 if lines else 0


def judged(ended: dict[str, str], known: dict[str, str]) -> list[str]:
    """Return what is not as expected; `ended` has the error of each test, or nothing."""
    return [
        *(
            f"FAILED, and is not in the list: {name}\n{problem}"
            for name, problem in ended.items()
            if problem and name not in known
        ),
        *(
            f"PASSED, but the list says that it cannot hold: {name}"
            for name, problem in ended.items()
            if not problem and name in known
        ),
        *(f"is in the list, but there is no such test: {name}" for name in known.keys() - ended),
    ]


def run(tests: Path, url: str) -> dict[str, str]:
    """Set up a project on a database and run the tests; returns how each of them ended."""
    set_up(url)
    replace_backends()
    sys.path.insert(0, str(tests))
    # As Django's own runner: what its tests import of themselves is `tasks.tasks`.
    loaded = unittest.defaultTestLoader.loadTestsFromNames([f"tasks.{one}" for one in MODULES])
    result = Result()
    for case in flat(loaded):
        type(case).databases = "__all__"  # those in memory need none
    loaded.run(result)
    return result.ended


def flat(suite: unittest.TestSuite) -> list[Any]:
    """Return the cases of a suite."""
    return [
        case
        for one in suite
        for case in (flat(one) if isinstance(one, unittest.TestSuite) else [one])
    ]


class Result(unittest.TestResult):
    """How each test ended: its error, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[str, str] = {}

    def startTest(self, test: Any) -> None:  # noqa: N802
        super().startTest(test)
        self.ended[named(test)] = ""

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self._note(test, err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._note(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self._note(test, err)

    def _note(self, test: Any, err: Any) -> None:
        self.ended[named(test)] = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]


def named(test: Any) -> str:
    """Return the name of a test without the package: `test_tasks.TaskTestCase.test_name`."""
    return str(test.id()).partition("tasks.")[2]


def set_up(url: str) -> None:
    """Configure Django on a fresh database that has the schema."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create database conformance")
    address = {**conninfo_to_dict(url), "dbname": "conformance"}
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": address.pop("dbname"),
                "OPTIONS": address,
            }
        },
        INSTALLED_APPS=["holdfast.django", *EXTRA],
        USE_TZ=True,
    )
    warnings.simplefilter("ignore")
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    # Django's own backends do not try again; options of the backend would be in its `options`.
    from holdfast.django import app_of

    app_of().client.queues.set("default", max_attempts=1)


def replace_backends() -> None:
    """Let what the tests know as Django's backends be Holdfast's."""
    from django.tasks.backends import dummy, immediate

    from holdfast.django import HoldfastBackend, app_of
    from holdfast.worker import Worker

    class Stored(HoldfastBackend):
        """Also what DummyBackend has beside the interface: its results, and `clear`."""

        @property
        def results(self) -> list[Any]:
            # Looked at by coroutines too, as one looks at a list in memory.
            with patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="1"):
                jobs = sorted(self.client.jobs.list(), key=lambda job: job.id)
                return [self.get_result(str(job.id)) for job in jobs]

        def clear(self) -> None:
            from django.db import connections

            with connections[self.database].cursor() as cursor:
                for table in ("job", "ended", "attempt"):
                    cursor.execute(f"delete from holdfast.{table}")

    class Immediate(HoldfastBackend):
        """Runs a call before `enqueue` returns, by a worker."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            worker = Worker(app_of(self.database), until_idle=True, queues={"default": 1})
            # In a thread that no event loop waits for, as in a process of its own.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(worker.run).result()
            result.refresh()
            return result

    dummy.DummyBackend = Stored
    immediate.ImmediateBackend = Immediate


if __name__ == "__main__":
    os.environ.pop("HOLDFAST_URL", None)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
