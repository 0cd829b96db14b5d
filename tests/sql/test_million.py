"""With a million jobs waiting, a call still costs what it does, not what there is."""

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from tests.protocol import Leased, Protocol, shared_database

CLAIM = "select id from holdfast.claim(queue => %s, worker => 'ada', token => %s, max_jobs => 10"


class Cost(NamedTuple):
    """What a call cost: scans of the whole hot table, rows read anywhere, pages touched."""

    scans: int
    rows: int
    pages: int

    @property
    def small(self) -> bool:
        """Whether it is nothing against the million jobs and their 28,000 pages.

        A reap touches 563; the catalog costs some more where a plan is made anew meanwhile.
        """
        return self.scans == 0 and self.rows <= 100 and self.pages <= 1000


@pytest.fixture(scope="module")
def million_jobs(postgres: Any, whole_template: str) -> Iterator[Protocol]:
    with (
        shared_database(postgres.url, whole_template) as url,
        psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection,
    ):
        db = Protocol(connection)
        connection.execute("alter table holdfast.job set (autovacuum_enabled = off)")
        db.queue_set("big", by_kind=True)
        connection.execute(
            """
            insert into holdfast.job (part, id, queue, kind, by_kind, run_at, pos)
            select
              part, format('018f0000-0000-8%s-8000-%s',
                lpad(to_hex(part::int), 3, '0'), lpad(to_hex(n), 12, '0'))::uuid,
              queue, 'common', ready, now() + case when ready then '0' else interval '1 day' end,
              case when ready then nextval('holdfast.pos') end
            from (values ('big', true, 1, 800000), ('timed', false, 800001, 1000000))
              q(queue, ready, first, last)
            cross join lateral (select holdfast.queue_part(queue) as part) p
            cross join lateral generate_series(first, last) n
            """
        )
        for queue, jobs in (("big", 800_000), ("timed", 200_000)):
            connection.execute("select holdfast.copied(%s, '{common}', %s)", [queue, [jobs]])
        # The receipts of the last minutes.
        connection.execute(
            """
            insert into holdfast.lease
              (token, part, queue, worker, claimed_at, length, open, until, ids)
            select gen_random_uuid(), holdfast.queue_part('big'), 'big', 'ada', now(), '30 seconds',
                   false, now() + interval '5 minutes', array[gen_random_uuid()]
            from generate_series(1, 20000)
            """
        )
        db.enqueue(*[{"kind": "rare", "queue": "big"}] * 10)
        db.enqueue(*[{"kind": "common", "queue": "timed", "delay": 30}] * 10)
        db.fold()
        yield db


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def million(request: pytest.FixtureRequest, million_jobs: Protocol) -> Protocol:
    """A database with a million jobs. What a test does there has to be undone."""
    if request.param == "analysed":
        million_jobs.connection.execute("analyze holdfast.job")
    return million_jobs


@pytest.fixture
def held(million: Protocol) -> Iterator[list[Leased]]:
    """Ten leases, until the end of the test."""
    with million.connection.transaction(force_rollback=True):
        yield million.claim("big", max_jobs=10)


def cost_of(db: Protocol, query: str, *arguments: Any) -> Cost:
    """Run a query twice, so that getting to know the catalog is not counted, and undo it."""
    cursor = psycopg.ClientCursor(db.connection)
    with db.connection.transaction(force_rollback=True):
        cursor.execute(query, arguments)
    with db.connection.transaction(force_rollback=True):
        scans, rows = counters(db)
        cursor.execute("explain (analyze, buffers, format json) " + query, arguments)
        [[[explained]]] = cursor.fetchall()
        scans_after, rows_after = counters(db)
    plan = explained["Plan"]
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return Cost(scans_after - scans, rows_after - rows, pages)


def counters(db: Protocol) -> tuple[int, int]:
    """How often this session has scanned the hot table, and how many rows of ours it has read."""
    row = db.connection.execute(
        """
        select coalesce(sum(seq_scan) filter (where relname = 'job'), 0)::int,
               coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::int
        from pg_stat_xact_user_tables
        where schemaname = 'holdfast'
        """
    ).fetchone()
    return row or (0, 0)


@pytest.mark.proves("S0.24", "S0.33", "S4.7", "S4.32")
def test_a_claim_reads_what_it_takes(million: Protocol) -> None:
    cost = cost_of(million, CLAIM + ")", "big", uuid4())

    assert cost.small, cost


@pytest.mark.proves("S0.26", "S0.27", "S3.5", "S4.8", "S4.32")
def test_a_claim_of_one_kind_passes_over_the_others(million: Protocol) -> None:
    cost = cost_of(million, CLAIM + ", kinds => '{rare}')", "big", uuid4())

    assert cost.small, cost


def test_a_claim_from_an_empty_queue_finds_that_out_at_once(million: Protocol) -> None:
    cost = cost_of(million, CLAIM + ")", "nobody", uuid4())

    assert cost.small, cost


@pytest.mark.parametrize("verb", ["touch", "ack", "nack", "release"])
@pytest.mark.proves("S4.21", "S4.32")
def test_a_holder_reads_the_jobs_it_holds(million: Protocol, held: list[Leased], verb: str) -> None:
    query = f"select outcome from holdfast.{verb}(ids => %s, tokens => %s)"
    cost = cost_of(million, query, [job.id for job in held], [held[0].token])

    assert cost.small, cost


@pytest.mark.proves("S0.25", "S4.9", "S4.28")
def test_a_reap_reads_what_expired(million: Protocol, held: list[Leased]) -> None:
    million.later(seconds=31)

    cost = cost_of(million, "select id from holdfast.reap()")

    assert len(million.reap()) == len(held)
    assert cost.small, cost


def test_a_promote_reads_what_is_due(million: Protocol) -> None:
    with million.connection.transaction(force_rollback=True):
        million.later(seconds=31)

        cost = cost_of(million, "select holdfast.promote()")

        assert million.promote() == 10
    assert cost.small, cost


@pytest.mark.parametrize("step", ["reap", "promote", "sweep", "raise_floors", "fold"])
def test_upkeep_that_has_nothing_to_do_does_nothing(million: Protocol, step: str) -> None:
    cost = cost_of(million, f"select holdfast.{step}()")

    assert cost.small, cost


@pytest.mark.parametrize(
    "call", ["cancel(%s)", "delete(%s)", "edit(%s, '{\"priority\": 1}')", "move(%s, 'elsewhere')"]
)
def test_an_operator_reads_the_jobs_it_names(million: Protocol, call: str) -> None:
    ids = [job.id for job in million.list(max_jobs=5)]

    cost = cost_of(million, f"select changed from holdfast.{call}", ids)

    assert cost.scans == 0
    assert cost.rows <= 100


@pytest.mark.parametrize("key", ["", ', "key": "k"'], ids=["plain", "keyed"])
@pytest.mark.proves("S4.32")
def test_an_enqueue_reads_no_jobs(million: Protocol, key: str) -> None:
    query = "select id from holdfast.enqueue(items => %s)"
    cost = cost_of(million, query, f'[{{"kind": "common", "queue": "big"{key}}}]')

    assert cost.small, cost


@pytest.mark.proves("S4.33")
def test_counting_by_state_reads_no_jobs(million: Protocol) -> None:
    counted = cost_of(million, "select count(*) from holdfast.job where token is null")
    kept = cost_of(million, "select state, jobs from holdfast.depth")

    assert million.depth("big") == {"queued": 800_010}
    assert not counted.small
    assert kept.small, kept


def test_queues_and_their_oldest_jobs_are_seen_without_reading_them_all(million: Protocol) -> None:
    cost = cost_of(million, "select queue, queued, oldest from holdfast.queues")

    assert cost.small, cost


@pytest.mark.parametrize("look", ["id from holdfast.get(%s)", "holdfast.explain(%s)"])
def test_one_job_is_found_by_its_id(million: Protocol, look: str) -> None:
    with million.connection.transaction(force_rollback=True):
        id = million.take("big").id

        cost = cost_of(million, f"select {look}", id)

    assert cost.small, cost


def test_explaining_the_last_job_counts_ten_thousand_ahead_and_no_more(million: Protocol) -> None:
    last = next(job for job in million.list(max_jobs=20) if job.kind == "rare")

    cost = cost_of(million, "select holdfast.explain(%s)", last.id)

    assert "more than 10000 jobs are ahead" in million.explain(last.id)
    assert cost.rows <= 10_100


def test_the_newest_jobs_are_listed_without_reading_them_all(million: Protocol) -> None:
    cost = cost_of(million, "select id from holdfast.list(max_jobs => 20)")

    assert cost.small, cost
