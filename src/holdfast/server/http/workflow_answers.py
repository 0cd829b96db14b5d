# mypy: disable-error-code="valid-type"
# To mypy, types derived from records are variables.
"""The responses about workflows, as those of `answers`."""

from typing import Annotated
from uuid import UUID

from msgspec import Struct

from holdfast import records
from holdfast.records.fields import says
from holdfast.server.http.answers import StoredJob
from holdfast.server.http.derive import answer


class JobCounts(Struct, kw_only=True):
    """How many jobs are in which state."""

    total: int
    waiting: Annotated[int, says("for other jobs, an event, or a time")]
    queued: int
    leased: int
    done: int
    dead: int
    cancelled: int


class Counted(Struct, kw_only=True):
    """Fields of a workflow that its record has as JSON."""

    jobs: JobCounts


Workflow = answer(records.Workflow, more=Counted)
WorkflowGroup = answer(records.WorkflowGroup, more=Counted)
WorkflowJob = answer(records.WorkflowJob, leave_out=("nth",))


class WorkflowGroups(Counted, kw_only=True):
    """A workflow with its jobs in groups."""

    groups: list[WorkflowGroup]
    more_groups: Annotated[bool, says("there are more groups than these")]


WorkflowShown = answer(
    records.Workflow, "A workflow with its jobs.", name="WorkflowShown", more=WorkflowGroups
)


class StartedWorkflow(Struct, kw_only=True):
    """The workflow that was started, or the live one that has its key."""

    id: UUID
    created: bool
    jobs: Annotated[
        list[StoredJob],
        says("the outcome for each job; none if the workflow was not created"),
    ]


class WorkflowPage(Struct, kw_only=True):
    """A page of workflows; `cursor` is null on the last one."""

    workflows: list[Workflow]
    cursor: str | None


class WorkflowJobs(Struct, kw_only=True):
    """A page of the jobs of a workflow; `cursor` is null on the last one."""

    jobs: list[WorkflowJob]
    cursor: str | None
