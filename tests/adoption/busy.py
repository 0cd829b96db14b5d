"""Adopt, work off and give back a table while the application goes on writing it."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from holdfast import Client, adopt
from tests.adoption.shapes import Shape

# A writer that waits longer than this for a lock fails. A claim holds the rows it takes for a few
# milliseconds, on a busy machine for some more; whatever locks the table for its work takes longer.
LONGEST = "1s"


@dataclass
class Writers:
    """Two sessions that insert, update and delete rows of a table without a break.

    A third does so to a table of its own: what slows it down is the machine, not a lock.
    """

    url: str
    shape: Shape
    statements: int = 0
    longest: dict[str, float] = field(default_factory=dict)
    elsewhere: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    phase: str = "before"

    def __enter__(self) -> "Writers":
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=[n]) for n in (1, 2)]
        self._threads.append(threading.Thread(target=self._write_elsewhere))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        table, key = self.shape.table, self.shape.key
        one = f"{key} = %(key)s and {self.shape.marker.format(n=number)}"
        statements = [
            f"{self.shape.insert.format(n=number)} returning {key}",
            f"update {table} set {key} = {key} where {one} returning {key}",
            f"delete from {table} where {one} returning {key}",
        ]
        with psycopg.connect(self.url, autocommit=True, application_name="the app") as connection:
            self._repeat(connection, statements, self.longest)
            connection.execute(f"delete from {table} where {self.shape.marker.format(n=number)}")

    def _write_elsewhere(self) -> None:
        statements = [
            "insert into elsewhere default values returning id",
            "update elsewhere set id = id where id = %(key)s returning id",
            "delete from elsewhere where id = %(key)s returning id",
        ]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("create table elsewhere (id bigserial primary key)")
            self._repeat(connection, statements, self.elsewhere)

    def _repeat(
        self, connection: psycopg.Connection, statements: list[str], longest: dict[str, float]
    ) -> None:
        known = None
        connection.execute(f"set lock_timeout = '{LONGEST}'")
        while not self._over.wait(0.002):
            for statement in statements:
                began, phase = time.perf_counter(), self.phase
                try:
                    row = connection.execute(statement, {"key": known}).fetchone()
                    known = row[0] if row else known
                except psycopg.errors.LockNotAvailable as error:
                    self.failures.append(f"{phase}: {error}")
                except psycopg.errors.UniqueViolation:
                    pass  # after a delete that failed
                took = time.perf_counter() - began
                longest[phase] = max(longest.get(phase, 0.0), took)
                self.statements += 1


def run(url: str, shape: Shape, rows: int) -> dict[str, Any]:
    """Do it, and say what it cost whom; `equal` is whether every byte is as it was."""
    figures: dict[str, Any] = {"shape": shape.name, "rows": rows}
    with psycopg.connect(url, autocommit=True) as connection, Client(url) as client:
        shape.create(connection, rows)
        columns = shape.columns(connection)
        before = shape.digest(connection, columns), shape.structure(connection)
        with Writers(url, shape) as writers:
            time.sleep(0.5)
            writers.phase = "adopting"
            began = time.perf_counter()
            adopt.adopt(url, adopt.plan(url, shape.table, shape.choices))
            figures["adopted in"] = time.perf_counter() - began
            writers.phase = "starting"
            if shape.before:
                connection.execute(shape.before)
            writers.phase = "working"
            began, done, found = time.perf_counter(), 0, None
            while found is None or len(found) > 10:
                found = client.claim(shape.choices.queue or "", worker="w", limit=100)
                done += sum(one.outcome == "done" for one in client.ack(found))
            figures["jobs"], figures["worked off in"] = done, time.perf_counter() - began
            writers.phase = "giving back"
            began = time.perf_counter()
            adopt.unadopt(url, shape.table, force=True)
            figures["given back in"] = time.perf_counter() - began
            writers.phase = "after"
            time.sleep(0.2)
        after = shape.digest(connection, columns), shape.structure(connection)
    figures["equal"] = before == after
    figures["blocked"] = writers.failures
    figures["statements"] = writers.statements
    for name, longest in (("longest ms", writers.longest), ("elsewhere ms", writers.elsewhere)):
        figures[name] = {phase: round(1000 * seconds, 1) for phase, seconds in longest.items()}
    return figures
