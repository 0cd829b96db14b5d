"""Workflows: functions that describe a flow, started as a whole under their name.

What such a function returns is stored in one transaction. It can have a key, a deadline and a
parent, and is seen, cancelled and retried as one.
"""

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from uuid import UUID

from holdfast.callsite import caller
from holdfast.client import async_client_on, client_on
from holdfast.errors import Misuse
from holdfast.flow import Flow, Group, around, handles, laid_out
from holdfast.handle import Handle
from holdfast.records import Duration, Started, WorkflowState
from holdfast.task import aas_stored, as_stored

if TYPE_CHECKING:
    from holdfast.app import App

P = ParamSpec("P")
F = TypeVar("F")
R = TypeVar("R")


class WorkflowOptions(TypedDict, total=False):
    """The arguments of `workflow.options`."""

    key: str | None
    deadline: Duration | None
    child_of: UUID | None
    conn: Any


class Workflow(Generic[P, F]):
    """A function that returns a flow or a group; F is what it returns."""

    def __init__(
        self, app: "App", fn: Callable[P, F], name: str, options: WorkflowOptions | None = None
    ) -> None:
        self.app = app
        self.fn = fn
        self.name = name
        self._options: WorkflowOptions = options or {}
        update_wrapper(cast("Any", self), fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> F:
        """Describe the workflow without starting it, as a part of another or for a test."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Workflow({self.name!r})"

    def options(self, **options: Unpack[WorkflowOptions]) -> "Workflow[P, F]":
        """Return the workflow with these options.

        `key`: one live workflow of this name can have it. `deadline`: what has not ended that long
        after the start is cancelled. `child_of`: the id of a job that it goes with. `conn`: it is
        part of that connection's transaction.
        """
        for option in options.keys() - WorkflowOptions.__annotations__.keys():
            raise Misuse(
                f"{self.name}.options: unknown option `{option}`",
                why=caller(),
                fix=f"Options are: {', '.join(WorkflowOptions.__annotations__)}.",
            )
        return Workflow(self.app, self.fn, self.name, {**self._options, **options})

    @overload
    def start(self: "Workflow[P, Flow[R]]", *args: P.args, **kwargs: P.kwargs) -> "Run[R]": ...
    @overload
    def start(
        self: "Workflow[P, Group[R]]", *args: P.args, **kwargs: P.kwargs
    ) -> "Run[list[R]]": ...
    def start(self, *args: Any, **kwargs: Any) -> Any:
        """Store the workflow with all its jobs in one transaction.

        If a live workflow has the key, nothing is stored: `created` is false, and `id` is its id.
        """
        described, ends = self._described(args, kwargs)
        nodes, jobs = laid_out(ends)
        conn = self._options.get("conn")
        client = self.app.client if conn is None else client_on(conn)
        with around(nodes, jobs) as inside:
            stored = as_stored(client, nodes, inside.jobs)
            started = client.workflows.start(self.name, stored, **self._kept())
            inside.answers = started.jobs
        return Run(self, started, described, self._ends(nodes, started, len(ends)))

    @overload
    async def astart(
        self: "Workflow[P, Flow[R]]", *args: P.args, **kwargs: P.kwargs
    ) -> "Run[R]": ...
    @overload
    async def astart(
        self: "Workflow[P, Group[R]]", *args: P.args, **kwargs: P.kwargs
    ) -> "Run[list[R]]": ...
    async def astart(self, *args: Any, **kwargs: Any) -> Any:
        """Store the workflow, as `start` does."""
        described, ends = self._described(args, kwargs)
        nodes, jobs = laid_out(ends)
        conn = self._options.get("conn")
        client = self.app.aclient if conn is None else async_client_on(conn)
        with around(nodes, jobs) as inside:
            stored = await aas_stored(client, nodes, inside.jobs)
            started = await client.workflows.start(self.name, stored, **self._kept())
            inside.answers = started.jobs
        return Run(self, started, described, self._ends(nodes, started, len(ends)))

    def _described(self, args: Any, kwargs: Any) -> tuple[Any, Sequence[Any]]:
        described = cast("Any", self.fn)(*args, **kwargs)
        if isinstance(described, Flow):
            return described, (described,)
        if isinstance(described, Group) and described.calls:
            return described, described.calls
        raise Misuse(
            f"workflow {self.name} returned {described!r}"
            + (", a group without calls" if isinstance(described, Group) else ""),
            why=caller(),
            fix="Return a flow or a group of calls:  return chain(a.call(1), b)",
        )

    def _kept(self) -> dict[str, Any]:
        return {name: value for name, value in self._options.items() if name != "conn"}

    def _ends(self, nodes: list[Any], started: Started, many: int) -> list[Handle[Any]]:
        if not started.created:
            return []
        return handles(nodes, started.jobs, self._options.get("conn"))[len(nodes) - many :]


class Run(Generic[R]):
    """A workflow that was started; R is its result.

    `created` is false if a live one has the key: then `id` is that one's, and its result is known
    to whoever started it.
    """

    __slots__ = ("_described", "_ends", "created", "id", "workflow")

    def __init__(
        self,
        workflow: Workflow[..., Any],
        started: Started,
        described: Any,
        ends: list[Handle[Any]],
    ) -> None:
        self.workflow = workflow
        self.id = started.id
        self.created = started.created
        self._described = described
        self._ends = ends

    def __repr__(self) -> str:
        return f"Run({self.workflow.name}, {self.id}, created={self.created})"

    def state(self) -> WorkflowState | None:
        """Return its state; None a week after it has ended."""
        found = self.workflow.app.client.workflows.get(self.id)
        return found.state if found else None

    async def astate(self) -> WorkflowState | None:
        """Return its state, as `state` does."""
        found = await self.workflow.app.aclient.workflows.get(self.id)
        return found.state if found else None

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the last job, or those of a group, and return what it returned.

        Raises what `Handle.result` raises; the task of the last job needs `keep_result=True`.
        """
        return self._result([end.result(timeout) for end in self._mine()])

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the last job, as `result` does."""
        return self._result([await end.aresult(timeout) for end in self._mine()])

    def cancel(self, reason: str | None = None) -> None:
        """Cancel all that has not ended; workers, servers and upkeep do it job by job."""
        self.workflow.app.client.workflows.cancel(self.id, reason=reason)

    async def acancel(self, reason: str | None = None) -> None:
        """Cancel all that has not ended, as `cancel` does."""
        await self.workflow.app.aclient.workflows.cancel(self.id, reason=reason)

    def _mine(self) -> list[Handle[Any]]:
        if not self.created:
            raise Misuse(
                f"workflow {self.workflow.name} was not started: {self.id} has its key",
                fix="Look at that one:  client.workflows.jobs(run.id)",
            )
        return self._ends

    def _result(self, results: list[Any]) -> R:
        return cast("R", results if isinstance(self._described, Group) else results[0])
