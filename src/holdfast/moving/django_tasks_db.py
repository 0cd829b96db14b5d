"""django-tasks-db: the table of Django's own database backend for its Tasks.

Its jobs become those of Holdfast's backend: the tasks stay, and TASKS names another backend.
"""

from datetime import datetime
from typing import Any

from holdfast.django.priorities import priority_of_job
from holdfast.moving.found import Found, Rows

# What it stores for "at once".
_NO_TIME = 9999


def rows() -> list[Rows]:
    """Return where its jobs are."""
    return [
        Rows(
            table="django_tasks_database_dbtaskresult",
            waiting="""
                select t.*, t.task_path as kind from django_tasks_database_dbtaskresult t
                where t.status = 'READY'
                order by t.priority desc, t.run_after, t.enqueued_at for update of t
                """,
            running="""
                select task_path, count(*) from django_tasks_database_dbtaskresult
                where status = 'RUNNING' group by task_path
                """,
            # It has no state for a task that will not run.
            take="delete from django_tasks_database_dbtaskresult where id = any(%s)",
            read=_read,
        )
    ]


def _read(row: Any) -> Found:
    said: dict[str, Any] = {"backend": row.backend_name}
    after: datetime | None = None if row.run_after.year == _NO_TIME else row.run_after
    if row.priority:
        said["priority"] = row.priority
    if after:
        said["run_after"] = after.isoformat()
    return Found(
        id=row.id,
        kind=row.kind,
        args=row.args_kwargs["args"],
        kwargs=row.args_kwargs["kwargs"],
        of_django=True,
        options={
            "queue": row.queue_name,
            "priority": priority_of_job(row.priority),
            "run_at": after,
            "headers": {"django": said},
        },
    )
