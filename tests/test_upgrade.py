"""Releases change functions while callers are at work: nobody notices, and nothing is lost."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import psycopg

from holdfast import Client, NewJob, schema
from tests.conftest import Connect

SECONDS = 2.5

# A later release of claim: one parameter more, one column more.
LATER_CLAIM = """
drop schema if exists before cascade;
create schema before;
alter function holdfast.claim(text, text, uuid, integer, interval, text[], boolean)
  set schema before;
create function holdfast.claim(
  queue text, worker text, token uuid, max_jobs integer default 1, lease interval default null,
  kinds text[] default null, durable boolean default true, site text default 'here')
returns table (
  id uuid, kind text, payload jsonb, priority smallint, attempt smallint, max_attempts smallint,
  lease_until timestamptz, run_at timestamptz, created_at timestamptz, key text, lane text,
  tenant text, subject text, headers jsonb, lease_for interval, length interval,
  error text, followed boolean, claimed_at text)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  select c.*, claim.site
  from before.claim(claim.queue, claim.worker, claim.token, claim.max_jobs, claim.lease,
                    claim.kinds, claim.durable) c
$$;
"""


class Ledger:
    """What producers were told is stored, and what workers were told is done."""

    def __init__(self) -> None:
        self.stored: list[UUID] = []
        self.done: list[UUID] = []
        self.failures: list[BaseException] = []


@contextmanager
def at_work(*lives: Callable[[Ledger], None]) -> Iterator[Ledger]:
    """Live these lives again and again, each in a thread, until the block ends."""
    ledger = Ledger()
    stop = threading.Event()

    def live(life: Callable[[Ledger], None]) -> None:
        try:
            while not stop.is_set():
                life(ledger)
        except BaseException as error:
            ledger.failures.append(error)

    threads = [threading.Thread(target=live, args=[life]) for life in lives]
    for thread in threads:
        thread.start()
    try:
        yield ledger
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def client_life(client: Client, worker: str) -> Callable[[Ledger], None]:
    def life(ledger: Ledger) -> None:
        jobs = [NewJob(kind="greet", lane=lane) for lane in (None, None, worker)]
        ledger.stored += [answer.id for answer in client.enqueue_many(jobs)]
        leases = client.claim(worker=worker, limit=5)
        client.touch(leases)
        ledger.done += [answer.id for answer in client.ack(leases) if answer.outcome == "done"]
        client.queues.list()

    return life


def prepared_life(connection: psycopg.Connection, worker: str) -> Callable[[Ledger], None]:
    """A caller that has the server prepare its statements, as most drivers do."""

    def life(ledger: Ledger) -> None:
        token = uuid4()
        ledger.stored += rows(
            connection, 'select id from holdfast.enqueue(items => \'[{"kind": "greet"}]\')'
        )
        ids = rows(
            connection,
            "select id from holdfast.claim(queue => 'default', worker => %s, token => %s,"
            " max_jobs => 5)",
            worker,
            token,
        )
        ledger.done += rows(
            connection,
            "select id from holdfast.ack(ids => %s, tokens => %s) where outcome = 'done'",
            ids,
            [token],
        )
        rows(connection, "select queued from holdfast.queues")

    return life


def rows(connection: psycopg.Connection, query: str, *arguments: object) -> list[UUID]:
    return [value for (value,) in connection.execute(query, arguments, prepare=True)]


def forget_the_functions(connection: psycopg.Connection) -> None:
    """Let the functions look as if another release had installed them."""
    connection.execute("update holdfast.migration set checksum = 'stale' where version = 0")


def drained(database: str, ledger: Ledger) -> Counter[UUID]:
    """How often each job was done, once all that is left has been worked off."""
    with Client(database) as client:
        # A lane whose next job nobody was told of moves on with the next upkeep.
        while client.upkeep.run() and (leases := client.claim(worker="last", limit=1000)):
            ledger.done += [answer.id for answer in client.ack(leases)]
    return Counter(ledger.done)


def test_nothing_is_lost_while_functions_are_replaced(database: str, connect: Connect) -> None:
    owner = connect()
    migrations = 0

    with Client(database) as client:
        prepared = psycopg.connect(database, autocommit=True)
        lives = [client_life(client, "ada"), client_life(client, "bob")]
        with prepared, at_work(*lives, prepared_life(prepared, "eve")) as ledger:
            end = time.monotonic() + SECONDS
            while not ledger.failures and (
                time.monotonic() < end or migrations < 3 or len(ledger.stored) <= 50
            ):
                forget_the_functions(owner)
                schema.migrate(database)
                migrations += 1

    assert ledger.failures == []
    assert drained(database, ledger) == Counter(ledger.stored)
    schema.check(database)


def test_callers_of_the_release_before_work_with_what_a_later_one_adds(
    database: str, connect: Connect
) -> None:
    owner = connect()

    with Client(database) as client:
        prepared = psycopg.connect(database, autocommit=True)
        lives = [client_life(client, "ada"), prepared_life(prepared, "eve")]
        with prepared, at_work(*lives) as ledger:
            for _ in range(3):
                schema.migrate(database)
                await_progress(ledger)
                with owner.transaction():
                    owner.execute(LATER_CLAIM)
                    forget_the_functions(owner)
                await_progress(ledger)

    assert ledger.failures == []
    assert drained(database, ledger) == Counter(ledger.stored)


def await_progress(ledger: Ledger) -> None:
    """Wait until some more jobs have been done."""
    wanted = len(ledger.done) + 10
    while len(ledger.done) < wanted and not ledger.failures:
        time.sleep(0.005)


# What migration 0012 found in a database of the release before.
BEFORE_HOMES = """
drop table holdfast.alias;
drop index holdfast.queue_fanned, holdfast.lane_halted;
alter table holdfast.lease drop column problem;
delete from holdfast.migration where version = 12;
update holdfast.migration set checksum = 'stale' where version = 0;
"""


def test_a_database_that_holds_jobs_no_verb_could_reach_is_mended(
    database: str, connect: Connect
) -> None:
    session = connect()
    session.execute(BEFORE_HOMES)
    session.execute(
        """
        with home as (select holdfast.queue_part('default') as part)
        insert into holdfast.job (part, id, queue, kind, max_attempts, run_at, created_at)
        select h.part, holdfast.id_in(((h.part + 1) % 64)::smallint), 'default', '', -5, 'infinity',
          '-infinity'
        from home h, generate_series(1, 3)
        """
    )
    # and one whose number, with the right part, another job has
    session.execute(
        """
        insert into holdfast.job (part, id, queue, kind)
        select j.part, holdfast.stamp(j.id, j.part), 'default', 'k' from holdfast.job j limit 1
        """
    )

    schema.migrate(database)

    rows = session.execute(
        "select holdfast.part_of(id) = part, isfinite(run_at), isfinite(created_at)"
        " from holdfast.job"
    ).fetchall()
    assert rows == [(True, True, True)] * 4
    with Client(database) as client:
        assert {
            change.changed for change in client.jobs.cancel(client.jobs.find("queue:default"))
        } == {True}


def test_lane_settings_that_a_fan_out_left_behind_are_found_again(
    database: str, connect: Connect
) -> None:
    with Client(database) as client:
        client.queues.set("default", fanout=8)
    session = connect()
    session.execute(BEFORE_HOMES)
    session.execute(
        "insert into holdfast.lane (part, queue, name, lane_limit)"
        " select holdfast.queue_part('default'), 'default', 'l' || n, 2"
        " from generate_series(1, 9) n"
    )

    schema.migrate(database)

    rows = session.execute(
        "select part = holdfast.lane_part(queue, name), lane_limit from holdfast.lane"
    ).fetchall()
    assert rows == [(True, 2)] * 9


def test_ids_of_jobs_that_were_moved_before_are_understood(database: str, connect: Connect) -> None:
    with Client(database) as client:
        stored = client.enqueue("k", queue="mail")
        client.jobs.move([stored.id], queue="other")
        connect().execute(BEFORE_HOMES)

        schema.migrate(database)

        found = client.jobs.get(stored.id)
    assert found is not None
    assert found.queue == "other"


def test_who_waits_for_an_end_while_the_database_is_upgraded_is_told(
    database: str, connect: Connect
) -> None:
    session = connect()
    with Client(database) as client:
        stored = client.enqueue("k")
        client.jobs.await_end([stored.id], waiter="me")
        session.execute(
            """
            drop sequence holdfast.listening;
            create table holdfast.listening ();
            delete from holdfast.migration where version = 41;
            update holdfast.migration set checksum = 'stale' where version = 0;
            """
        )

        schema.migrate(database)

        session.execute("listen holdfast_ended")
        client.jobs.cancel([stored.id])
    told = [one.payload for one in session.notifies(timeout=10, stop_after=1)]
    assert told == [f"{stored.id}\nme"]
