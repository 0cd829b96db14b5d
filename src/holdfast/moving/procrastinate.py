"""Procrastinate: `procrastinate_jobs`. Its periodic tasks are in the code of the app, not here."""

from typing import Any

from holdfast.moving.found import Found, Rows


def rows() -> list[Rows]:
    """Return where its jobs are."""
    return [
        Rows(
            table="procrastinate_jobs",
            waiting="""
                select j.*, j.task_name as kind, exists (
                  select from procrastinate_jobs other
                  where other.lock = j.lock and other.status = 'doing') as held
                from procrastinate_jobs j
                where j.status = 'todo'
                order by j.priority desc, j.id
                for update of j
                """,
            running="""
                select task_name, count(*) from procrastinate_jobs
                where status = 'doing' group by task_name
                """,
            take="update procrastinate_jobs set status = 'cancelled' where id = any(%s)",
            read=_read,
        )
    ]


def _read(row: Any) -> Found:
    held = "a running job has its lock; import it when that one has ended"
    return Found(
        id=row.id,
        kind=row.kind,
        kwargs=row.args,
        attempts=row.attempts,
        problem=held if row.held else "",
        options={
            "queue": row.queue_name,
            "priority": row.priority,
            "run_at": row.scheduled_at,
            # One at a time, in order; and at most one that waits.
            "lane": row.lock,
            "key": row.queueing_lock,
        },
    )
