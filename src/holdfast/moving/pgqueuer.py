"""pgqueuer: `pgqueuer` and, for its cron entrypoints, `pgqueuer_schedules`."""

import json
from typing import Any

from holdfast.moving.found import Found, Rows, Unreadable


def rows() -> list[Rows]:
    """Return where its jobs and schedules are."""
    return [
        Rows(
            table="pgqueuer",
            waiting="""
                select q.*, q.entrypoint as kind from pgqueuer q
                where q.status = 'queued' order by q.priority desc, q.id for update of q
                """,
            running="""
                select entrypoint, count(*) from pgqueuer
                where status = 'picked' group by entrypoint
                """,
            # What pgqueuer itself does to a job that is cancelled.
            take="""
                with taken as (
                  delete from pgqueuer where id = any(%s) returning id, entrypoint, priority)
                insert into pgqueuer_log (job_id, status, entrypoint, priority)
                select id, 'canceled', entrypoint, priority from taken
                """,
            read=_read_job,
        ),
        Rows(
            table="pgqueuer_schedules",
            waiting="""
                select s.*, s.entrypoint as kind, (
                  select count(*) from pgqueuer_schedules other
                  where other.entrypoint = s.entrypoint) as alike
                from pgqueuer_schedules s
                where s.status is distinct from 'picked' order by s.id for update of s
                """,
            running="""
                select entrypoint, count(*) from pgqueuer_schedules
                where status = 'picked' group by entrypoint
                """,
            take="delete from pgqueuer_schedules where id = any(%s)",
            read=_read_schedule,
        ),
    ]


def _read_job(row: Any) -> Found:
    try:
        payload = json.loads(row.payload or b"{}")
    except ValueError:
        raise Unreadable("its payload is not JSON") from None
    return Found(
        id=row.id,
        kind=row.kind,
        kwargs=payload if isinstance(payload, dict) else {},
        payload=payload,
        attempts=row.attempts,
        options={
            "priority": row.priority,
            "run_at": row.execute_after,
            "key": row.dedupe_key,
            "headers": row.headers,
        },
    )


def _read_schedule(row: Any) -> Found:
    name = row.kind if row.alike == 1 else f"{row.kind} {row.expression}"
    return Found(id=row.id, kind=row.kind, schedule={"name": name, "cron": row.expression})
