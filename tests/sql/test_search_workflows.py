"""What looks for jobs of a workflow finds exactly them, and reads no others."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from psycopg import errors

from tests.protocol import Protocol
from tests.sql.test_search import pages_of, search
from tests.sql.test_workflows import rows, start

LONG = timedelta(seconds=10)


class Flows(NamedTuple):
    """Two workflows among other jobs."""

    db: Protocol
    one: UUID
    other: UUID

    def text(self, filter: str) -> str:
        return filter.format(one=self.one, other=self.other, none=uuid4())


@pytest.fixture
def flows(db: Protocol) -> Flows:
    """A workflow with jobs in every state and several queues, of which some were moved."""
    db.queue_set("kept", keep_done=86400)
    first, last = "first", "kept"
    db.enqueue(*[{"kind": "noise", "queue": queue} for queue in (first, last) for _ in range(100)])
    kinds = ("waits", "moved", "moved twice", "held", "cancelled", "archived", "dead", "died there")
    jobs = [{"kind": kind, "queue": first, "max_attempts": 1, "priority": 9} for kind in kinds]
    one = start(
        db, *jobs, {"kind": "done", "queue": last, "priority": 9}, {"kind": "late", "after": [1]}
    )
    other = start(
        db, {"kind": "waits", "queue": first}, {"kind": "dead", "queue": last}, name="other"
    )
    members = rows(db, "select id, kind from holdfast.workflow_jobs(%(one)s)", one=one)
    ids = {job.kind: job.id for job in members}
    db.cancel(ids["cancelled"])
    for kind in ("archived", "dead", "died there"):
        [job] = claimed(db, first, kind)
        db.nack(job, message="boom")
    db.archive(ids["archived"])
    claimed(db, first, "held")
    db.ack(*claimed(db, last, "done"))
    for kind, queues in {"moved": ("elsewhere",), "moved twice": ("elsewhere", "there")}.items():
        for queue in queues:
            [answer] = db.move(ids[kind], queue=queue)
            assert answer.changed
    db.move(ids["died there"], queue="there")
    db.enqueue(*[{"kind": "noise", "queue": queue} for queue in (first, last) for _ in range(100)])
    return Flows(db, one, other)


def claimed(db: Protocol, queue: str, kind: str) -> Any:
    return db.claim(queue, kinds=[kind])


FILTERS = [
    "workflow:{one}",
    "workflow:{one} state:dead",
    "workflow:{one} state:queued,leased",
    "state:done,cancelled,archived workflow:{one}",
    "workflow:{one} -state:dead",
    "workflow:{one} state:archived",
    "workflow:{one} queue:there",
    "kind:moved* workflow:{one}",
    "workflow:{one} -kind:moved",
    "workflow:{one},{other}",
    "workflow:{one} workflow:{other}",
    "workflow:{one} workflow:{one},{other}",
    "workflow:{none}",
    'workflow:{one} "boom"',
]
# Found by reading jobs, as by other terms.
READING = [
    "-workflow:{one} -kind:noise",
    'workflow:"{one}"',
    'error:"a workflow:{one} b"',
    "-workflow:{one} workflow:{other}",
]


@pytest.mark.parametrize("filter", [*FILTERS, *READING])
def test_every_way_to_look_finds_what_the_filter_says(flows: Flows, filter: str) -> None:
    db, filter = flows.db, flows.text(filter)
    condition = db.value("filter_sql", filter=filter)
    truth = [
        row.id
        for row in db.table(
            f"select j.id from holdfast.jobs j where {condition} order by j.id desc"
        )
    ]

    listed = [job.id for job in db.list(filter, max_jobs=1000)]
    [counted] = db.call("count_jobs", columns=("jobs", "capped"), filter=filter, patience=LONG)

    assert listed == truth
    assert list(db.find(filter)) == truth
    assert search(db, filter, max_jobs=1000, patience=LONG) == (truth, None)
    assert {page: pages_of(db, filter, page) for page in (1, 3, 1000)} == dict.fromkeys(
        (1, 3, 1000), truth
    )
    assert tuple(counted) == (len(truth), False)
    died = [row.id for row in db.call("died", columns=("id",), filter=filter)]
    assert sorted(died) == sorted(row.id for row in db.list(f"{filter} state:dead", max_jobs=1000))


def test_the_jobs_of_the_workflow_are_all_there_is_to_find(flows: Flows) -> None:
    states = {job.kind: job.state for job in flows.db.list(f"workflow:{flows.one}")}

    assert states == {
        "waits": "queued",
        "moved": "queued",
        "moved twice": "queued",
        "held": "leased",
        "cancelled": "cancelled",
        "archived": "archived",
        "dead": "dead",
        "died there": "dead",
        "done": "done",
        "late": "queued",
    }


WAYS: dict[str, Callable[[Protocol, str], Any]] = {
    "list": lambda db, text: db.list(text),
    "find": lambda db, text: db.find(text),
    "search": lambda db, text: search(db, text),
    "count": lambda db, text: db.call("count_jobs", columns=("jobs",), filter=text),
    "died": lambda db, text: db.call("died", columns=("id",), filter=text),
    "preview": lambda db, text: db.call(
        "operation_preview", columns=("total",), verb="cancel", filter=text
    ),
}


@pytest.mark.parametrize("analysed", [False, True], ids=["not analysed", "analysed"])
def test_only_jobs_of_the_workflow_are_read(flows: Flows, analysed: bool) -> None:
    db = flows.db
    db.connection.execute("analyze" if analysed else "select")
    read: dict[tuple[str, str], int] = {}
    with db.connection.transaction():
        for way, look in WAYS.items():
            for filter in FILTERS:
                before = db.rows_read()
                look(db, flows.text(filter))
                read[way, filter] = db.rows_read() - before

    # Of 400 others none. The five that live of one workflow, and the two of the other, are read
    # once to find them, and up to three times to return them.
    assert max(read.values()) <= 7 * 4, read


@pytest.mark.parametrize("way", WAYS)
def test_a_planner_that_would_rather_read_every_job_reads_only_those_of_the_workflow(
    db: Protocol, way: str
) -> None:
    db.enqueue(*[{"kind": "noise"}] * 30)
    id = start(db, {"kind": "a"}, {"kind": "a"})
    db.connection.execute("analyze")
    with db.connection.transaction():
        db.connection.execute("set local random_page_cost = 1000000")
        before = db.rows_read()
        WAYS[way](db, f"workflow:{id}")
        read = db.rows_read() - before

    assert read <= 2 * 4


def test_pages_of_a_list_and_of_what_died_go_on_behind_the_last(flows: Flows) -> None:
    db, filter = flows.db, f"workflow:{flows.one}"
    whole = [job.id for job in db.list(filter)]
    rest = db.call("list", columns=("id",), filter=filter, before=whole[3])
    short = db.call("list", columns=("id",), filter=filter, max_jobs=4)
    died = db.call("died", columns=("id", "ended_at"), filter=filter)
    later = db.call(
        "died",
        columns=("id",),
        filter=filter,
        before=died[0].ended_at,
        before_id=died[0].id,
    )

    assert [row.id for row in short] == whole[:4]
    assert [row.id for row in rest] == whole[4:]
    assert len(died) == 2
    assert [row.id for row in later] == [died[1].id]


def test_a_search_of_a_large_workflow_stops_when_its_time_is_up(db: Protocol) -> None:
    id = start(db, *[{"kind": "a"}] * 3000)

    [row] = db.call(
        "search",
        columns=("job", "searched_to", "searched"),
        filter=f"workflow:{id} kind:b",
        patience=timedelta(0),
    )
    [counted] = db.call(
        "count_jobs", columns=("jobs", "capped"), filter=f"workflow:{id}", patience=timedelta(0)
    )
    [capped] = db.call(
        "count_jobs",
        columns=("jobs", "capped"),
        filter=f"workflow:{id}",
        most=2999,
        patience=LONG,
    )

    assert (row.job, row.searched) == (None, 50)
    assert row.searched_to is not None
    assert tuple(counted) == (1000, True)
    assert tuple(capped) == (2999, True)
    assert len(pages_of(db, f"workflow:{id}", 700)) == 3000


@pytest.mark.parametrize(
    "filter", ["workflow:{none} kin:x", "workflow:x", "workflow:,{none}", "workflow:{none},x"]
)
def test_a_filter_that_is_none_is_refused_all_the_same(db: Protocol, filter: str) -> None:
    for way in WAYS.values():
        with pytest.raises(errors.Error) as refused:
            way(db, filter.format(none=uuid4()))
        assert refused.value.sqlstate == "HF220"
