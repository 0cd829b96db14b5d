"""Workflows: jobs that belong together, under a name."""

import re
from typing import Any, NoReturn
from uuid import UUID

from holdfast.errors import UnknownWorkflow
from holdfast.records import Workflow
from holdfast.server.api.operate import begun
from holdfast.server.http import inputs, render
from holdfast.server.http.problems import Problem
from holdfast.server.http.request import Answer, Request

# Groups in one response.
GROUPS = 1000
_HEX = re.compile(r"[0-9a-f]{8,32}")


async def listed(request: Request) -> Answer:
    """List workflows, the newest first; a token for some queues sees those that use only them."""
    asked: inputs.WorkflowPage = request.query
    found = await request.reads.workflows.list(
        name=asked.name or None,
        key=asked.key or None,
        state=asked.state or None,
        limit=asked.limit + 1,
        before=_uuid(asked.cursor) if asked.cursor else None,
        queues=request.user.queues,
    )
    shown = found[: asked.limit]
    cursor = str(shown[-1].id) if len(found) > asked.limit else None
    return Answer({"workflows": [render.record(one) for one in shown], "cursor": cursor})


async def shown(request: Request) -> Answer:
    """Show a workflow with its jobs, in groups.

    A group has the jobs of one kind and queue that wait for the same groups. The id of a job shows
    the workflow that it belongs to.
    """
    found = await find(request)
    groups = await request.reads.workflows.groups(found.id, limit=GROUPS + 1)
    told = render.record(found)
    told["groups"] = [render.record(one) for one in groups[:GROUPS]]
    told["more_groups"] = len(groups) > GROUPS
    return Answer(told)


async def jobs(request: Request) -> Answer:
    """List the jobs of a workflow, in the order in which they were added."""
    asked: inputs.WorkflowJobs = request.query
    found = await find(request)
    some = await request.reads.workflows.jobs(
        found.id,
        group=asked.group or None,
        state=asked.state or None,
        limit=asked.limit + 1,
        past=int(asked.cursor) if asked.cursor else 0,
    )
    shown = some[: asked.limit]
    cursor = str(shown[-1].nth) if len(some) > asked.limit else None
    return Answer({"jobs": [_job(one) for one in shown], "cursor": cursor})


async def cancel(request: Request) -> Answer:
    """Cancel a workflow: it takes no more jobs, and an operation cancels those it has.

    `POST /v1/operations/{id}/undo` undoes it.
    """
    found = await find(request)
    started = await request.client.workflows.cancel(
        found.id,
        reason=request.body.reason,
        actor=request.actor,
        queues=request.user.queues,
    )
    return begun(request, started or _gone(request))


async def retry(request: Request) -> Answer:
    """Retry the dead and cancelled jobs of a workflow, by an operation."""
    found = await find(request)
    said: inputs.WorkflowRetried = request.body
    started = await request.client.workflows.retry(
        found.id,
        from_job=said.from_job,
        reason=said.reason,
        actor=request.actor,
        queues=request.user.queues,
    )
    return begun(request, started or _gone(request))


def _gone(request: Request) -> NoReturn:
    raise UnknownWorkflow(request.part("id"))


async def find(request: Request) -> Workflow:
    """Return the workflow in the path; refuse one that is unknown, or not the user's to see."""
    text = request.part("id").lower()
    digits = text.replace("-", "")
    ids = await request.reads.workflows.find(digits) if _HEX.fullmatch(digits) else []
    if len(ids) > 1:
        raise Problem(404, "HF320", f"several workflows end in {text}", fix="Give the whole id.")
    found = await request.reads.workflows.get(ids[0], queues=request.user.queues) if ids else None
    if found is None:
        raise UnknownWorkflow(text)
    return found


def _job(one: Any) -> dict[str, Any]:
    told = render.record(one)
    del told["nth"]
    return told


def _uuid(cursor: str) -> UUID:
    try:
        return UUID(cursor)
    except ValueError:
        raise Problem(
            422,
            "HF406",
            f"cursor {cursor!r} was not made by this server",
            fix="Pass the cursor of the previous page, or none.",
        ) from None
