"""A search gives what a list gives, in pages, however little time it has."""

from datetime import UTC, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from psycopg import errors

from tests.conftest import Clock
from tests.protocol import Protocol

FILTERS = [
    "",
    "state:dead",
    "state:queued,dead kind:k1",
    "state:dead state:queued",
    "state:done",
    "-state:dead",
    "queue:q3",
    "queue:q3,q4",
    "queue:q3 payload.n:7",
    "-queue:q3",
    "queue:nosuch",
    'queue:"q3"',
    "payload.n:29",
    "kind:k* priority:>8",
    "created:>=2020-01-01",
    "created:<2020-01-01T00:00:00Z",
    "boom",
    "nothing at all",
    '"boom state:done queue:q9 again"',
    'error:"boom state:done queue:q9 again" queue:q3',
]


@pytest.fixture
def filled(db: Protocol) -> Protocol:
    for queue in range(6):
        items = [
            {"kind": f"k{n % 3}", "queue": f"q{queue}", "payload": {"n": n}, "priority": n % 10}
            for n in range(30)
        ]
        db.enqueue(*[item | {"max_attempts": 1} for item in items])
        db.nack(*db.claim(f"q{queue}", max_jobs=12), message="boom state:done queue:q9 again")
    return db


def search(db: Protocol, filter: str, **more: Any) -> tuple[list[UUID], UUID | None]:
    rows = db.call("search", columns=("job", "searched_to"), filter=filter, **more)
    bound = rows[0].searched_to if rows else None
    ids = [row.job for row in rows if row.job is not None]
    return [UUID(text.strip("()").split(",")[0]) for text in ids], bound


@pytest.mark.parametrize(
    "term", ["state:dead", "queue:q3,q4", "kind:k*", "payload.n:7", "priority:>8", "boom"]
)
def test_a_leading_minus_leaves_exactly_what_the_term_does_not_find(
    filled: Protocol, term: str
) -> None:
    every = {job.id for job in filled.list(max_jobs=1000)}
    found = {job.id for job in filled.list(term, max_jobs=1000)}
    others = {job.id for job in filled.list(f"-{term}", max_jobs=1000)}

    assert found
    assert others == every - found


@pytest.mark.proves("S3.25")
def test_what_waits_can_be_looked_at_by_its_kind(filled: Protocol) -> None:
    truth = filled.table(
        "select id from holdfast.job where kind = 'k1' and token is null and queue = 'q3'"
    )

    found = filled.list("state:queued kind:k1 queue:q3", max_jobs=1000)

    assert {job.id for job in found} == {row.id for row in truth}
    assert {(job.kind, job.state, job.queue) for job in found} == {("k1", "queued", "q3")}


def test_a_list_has_the_newest_first_and_goes_on_behind_its_last(filled: Protocol) -> None:
    filled.put(queue="q3")
    newest = filled.table("select id from holdfast.job order by created_at desc, id desc limit 1")
    whole = [job.id for job in filled.list(max_jobs=1000)]
    rest = filled.call("list", columns=("id",), filter="", max_jobs=1000, before=whole[9])

    assert whole[0] == newest[0].id
    assert whole == sorted(whole, reverse=True)
    assert [row.id for row in rest] == whole[10:]


@pytest.mark.parametrize("filter", FILTERS)
def test_pages_of_a_search_without_time_add_up_to_the_list(filled: Protocol, filter: str) -> None:
    listed = [job.id for job in filled.list(filter, max_jobs=1000)]

    found = {page: pages_of(filled, filter, page) for page in (1, 7, 1000)}

    assert found == dict.fromkeys(found, listed)


def pages_of(db: Protocol, filter: str, page: int) -> list[UUID]:
    """What a search finds that asks for so many at a time, and has no time."""
    found: list[UUID] = []
    before: UUID | None = None
    while True:
        ids, bound = search(db, filter, max_jobs=page, before=before, patience=timedelta(0))
        found += ids
        if bound is None and len(ids) < page:
            return found
        before = ids[-1] if bound is None else bound


def test_with_time_a_search_finds_the_one_job_among_all(filled: Protocol) -> None:
    ids, bound = search(filled, "payload.n:29 queue:q2", patience=timedelta(seconds=10))

    assert (len(ids), bound) == (1, None)


def test_a_search_in_vain_without_time_says_how_far_it_came(filled: Protocol) -> None:
    ids, bound = search(filled, "nothing", max_jobs=1, patience=timedelta(0))

    assert ids == []
    assert bound is not None


@pytest.mark.parametrize("analysed", [False, True], ids=["not analysed", "analysed"])
def test_a_search_for_dead_jobs_reads_no_live_ones(filled: Protocol, analysed: bool) -> None:
    # The few jobs fit on a page, so that the planner would rather read all than look one up.
    filled.connection.execute("analyze" if analysed else "select")
    with filled.connection.transaction():
        before = filled.rows_read()
        search(filled, "state:dead", max_jobs=50)
        read = filled.rows_read() - before

    assert read == 0


@pytest.mark.parametrize("filter", ["state:cancelled", "state:dead,cancelled queue:q3"])
def test_a_search_for_a_state_that_no_row_has_ends_in_time_too(db: Protocol, filter: str) -> None:
    db.connection.execute(
        "insert into holdfast.history (part, id, state, queue, kind, priority, attempt, "
        "max_attempts, run_at, created_at, ended_at, payload) "
        "select p, holdfast.id_in(p), 'done', 'q3', 'k', 0, 1, 1, now(), now(), now(), '{}' "
        "from holdfast.queue_part('q3') p, generate_series(1, 3000)"
    )

    [row] = db.call(
        "search",
        columns=("job", "searched_to", "searched"),
        filter=filter,
        patience=timedelta(microseconds=0),
    )

    assert (row.job, row.searched) == (None, 50)
    assert row.searched_to is not None


@pytest.mark.parametrize("max_jobs", [0, 100_001])
def test_a_page_has_1_to_100000_jobs(db: Protocol, max_jobs: int) -> None:
    with pytest.raises(errors.Error) as refused:
        search(db, "", max_jobs=max_jobs)

    assert refused.value.sqlstate == "HF204"


@pytest.mark.parametrize("filter", FILTERS)
def test_a_count_is_the_length_of_the_list(filled: Protocol, filter: str) -> None:
    [row] = filled.call(
        "count_jobs", columns=("jobs", "capped"), filter=filter, patience=timedelta(seconds=10)
    )

    assert tuple(row) == (len(filled.list(filter, max_jobs=1000)), False)


def test_a_count_ends_at_its_cap_and_when_its_time_is_up(filled: Protocol) -> None:
    filled.enqueue(*[{"kind": "many", "queue": "many"}] * 3000)

    def count(**asked: Any) -> tuple[int, bool]:
        [row] = filled.call("count_jobs", columns=("jobs", "capped"), **asked)
        return row.jobs, row.capped

    assert count(filter="kind:k*", most=7) == (7, True)
    assert count(filter="kind:many", most=2999, patience=timedelta(seconds=10)) == (2999, True)
    assert count(filter="kind:many", most=3000, patience=timedelta(seconds=10)) == (3000, False)
    assert count(filter="kind:many", patience=timedelta(0)) == (1000, True)


@pytest.mark.parametrize("most", [0, 1_000_001])
def test_a_count_has_a_cap(db: Protocol, most: int) -> None:
    with pytest.raises(errors.Error) as refused:
        db.call("count_jobs", columns=("jobs",), filter="", most=most)

    assert refused.value.sqlstate == "HF204"


def test_jobs_are_found_by_when_they_were_created_in_any_zone(db: Protocol, clock: Clock) -> None:
    early = db.put()
    clock.advance(hours=1)
    late = db.put()
    [at] = [job.created_at for job in db.list("") if job.id == late]
    elsewhere = at.astimezone(timezone(timedelta(hours=-5)))

    for moment in (at.astimezone(UTC), elsewhere):
        text = moment.isoformat(timespec="microseconds")
        assert db.find(f"created:>={text}") == [late]
        assert db.find(f"created:>{text}") == []
        assert db.find(f"created:<{text}") == [early]
        assert set(db.find(f"created:<={text}")) == {late, early}
        assert db.find(f"-created:<{text}") == [late]


@pytest.mark.parametrize(
    "text",
    ["2026-01-31", ">2026-13-01", ">2026-01-31T12:00:00", ">yesterday", ">2026-02-30T00:00Z", ">"],
)
def test_a_moment_that_is_none_or_has_no_zone_is_refused(db: Protocol, text: str) -> None:
    with pytest.raises(errors.Error) as refused:
        db.find(f"created:{text}")

    assert refused.value.sqlstate == "HF220"
