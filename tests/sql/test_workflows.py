"""Workflows: jobs that belong together, under a name."""

from typing import Any
from uuid import UUID

from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from tests.protocol import Protocol

FAN = [
    {"kind": "split"},
    *[{"kind": "part", "after": [1]}] * 3,
    {"kind": "sum", "after": [2, 3, 4]},
]


def start(db: Protocol, *items: dict[str, Any], name: str = "import", **more: Any) -> UUID:
    [row, *_] = begin(db, *items, name=name, **more)
    assert row.started
    return UUID(str(row.workflow))


def begin(db: Protocol, *items: dict[str, Any], name: str = "import", **more: Any) -> list[Any]:
    named = ", ".join(f"{field} => %({field})s" for field in more)
    return rows(
        db,
        f"select * from holdfast.workflow_start(name => %(name)s, items => %(items)s"
        f"{', ' if more else ''}{named})",
        name=name,
        items=Jsonb(list(items)),
        **more,
    )


def rows(db: Protocol, query: str, **given: Any) -> list[Any]:
    with db.connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query, given).fetchall()  # type: ignore[arg-type]


def shown(db: Protocol, id: UUID) -> Any:
    [row] = rows(db, "select * from holdfast.workflows where id = %(id)s", id=id)
    return row


def counts(db: Protocol, id: UUID) -> dict[str, int]:
    return {state: jobs for state, jobs in shown(db, id).jobs.items() if jobs}


def run(db: Protocol) -> list[str]:
    ran = []
    while jobs := db.claim():
        [job] = jobs
        ran.append(job.kind)
        db.ack(job)
    return ran


def test_a_workflow_knows_its_jobs_until_the_last_has_ended(db: Protocol) -> None:
    id = start(db, *FAN)

    assert shown(db, id).state == "running"
    assert counts(db, id) == {"total": 5, "queued": 1, "waiting": 4}
    db.ack(*db.claim())
    held = db.claim(max_jobs=2)
    assert counts(db, id) == {"total": 5, "done": 1, "leased": 2, "queued": 1, "waiting": 1}
    db.ack(*held)
    assert run(db) == ["part", "sum"]
    assert shown(db, id).state == "done"
    assert shown(db, id).ended_at is not None
    assert counts(db, id) == {"total": 5, "done": 5}


def test_jobs_of_one_kind_that_follow_the_same_are_one_group(db: Protocol) -> None:
    id = start(db, *FAN)

    groups = rows(db, "select * from holdfast.workflow_groups(%(id)s)", id=id)
    assert [(one.kind, one.jobs["total"]) for one in groups] == [
        ("split", 1),
        ("part", 3),
        ("sum", 1),
    ]
    assert [one.after for one in groups] == [[], [groups[0].group], [groups[1].group]]
    assert [one.job is None for one in groups] == [False, True, False]


def test_its_jobs_come_page_by_page_with_what_they_wait_for(db: Protocol) -> None:
    id = start(db, *FAN)
    run(db)

    jobs = rows(db, "select * from holdfast.workflow_jobs(%(id)s, max_jobs => 4)", id=id)
    rest = rows(
        db,
        "select * from holdfast.workflow_jobs(%(id)s, past => %(past)s)",
        id=id,
        past=jobs[-1].nth,
    )
    assert [one.kind for one in (*jobs, *rest)] == ["split", "part", "part", "part", "sum"]
    assert [one.state for one in (*jobs, *rest)] == ["done"] * 5
    assert rest[0].after == [one.id for one in jobs[1:]]
    assert all(one.began_at is not None and one.attempt == 1 for one in jobs)
