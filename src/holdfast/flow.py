"""Order between calls: chains and groups, whose results reach what follows them, typed.

A `Flow` is described by plain expressions and stored as a whole, in one transaction. Nothing is
kept of it but its jobs: each waits in the database until those before it have ended.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from msgspec.structs import replace

from holdfast.callsite import caller
from holdfast.client import async_client_on, client_on
from holdfast.errors import InvalidTask, Misuse
from holdfast.handle import Handle
from holdfast.middleware import Enqueuing
from holdfast.records import Enqueued, NewJob
from holdfast.records.job import IfFailed
from holdfast.task import Call, Enqueuer, Task, aas_stored, as_stored

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R")
A_contra = TypeVar("A_contra", contravariant=True)


class Place(TypedDict, total=False):
    """Where a flow begins: what it waits for, and the workflow or job that it belongs to."""

    after: Sequence[UUID]
    workflow: UUID
    child_of: UUID


class Takes(Protocol[A_contra, R]):
    """A task that can be called with one argument, the result of what is before it."""

    def call(self, result: A_contra, /) -> Call[R]:
        """Return the call."""


class Flow(Generic[R]):
    """Calls in order; R is the result of the last one."""

    __slots__ = ("before", "job", "task")

    def __init__(self, task: Task[..., R, Any], job: NewJob, before: tuple[Any, ...]) -> None:
        self.task = task
        self.job = job
        self.before = before

    def then(self, task: Takes[R, B], *, if_failed: IfFailed = "wait") -> "Flow[B]":
        """Return the flow that goes on with a task, which gets the result of the last call.

        `if_failed`: what becomes of it if the last call dies or is cancelled.
        """
        made: Flow[B] = _following((self,), task, 1, if_failed)
        return made

    def enqueue(self, *, conn: Any = None, **place: Unpack[Place]) -> Handle[R]:
        """Store all jobs in one transaction, that of `conn` if given; returns the last one's.

        `after`: jobs, by id, that the first calls wait for. `workflow`, by its id or that of a job
        in it, is the one that they join. `child_of`: a job of a workflow that they go with.
        """
        return self._last(enqueue(self, conn=conn, **place))

    async def aenqueue(self, *, conn: Any = None, **place: Unpack[Place]) -> Handle[R]:
        """Store all jobs, as `enqueue` does."""
        return self._last(await aenqueue(self, conn=conn, **place))

    def _last(self, handles: list[Handle[Any]]) -> Handle[R]:
        return cast("Handle[R]", handles[-1])


class Group(Generic[R]):
    """Calls that run side by side; each returns R."""

    __slots__ = ("calls",)

    def __init__(self, calls: Iterable[Call[R] | Flow[R]]) -> None:
        self.calls = tuple(calls)

    def __iter__(self) -> Iterator[Call[R] | Flow[R]]:
        return iter(self.calls)

    def then(self, task: Takes[list[R], B], *, if_failed: IfFailed = "wait") -> Flow[B]:
        """Return the flow that goes on with a task, which gets the list of all results.

        They are in the order of the calls. `if_failed`: what becomes of it if one of them dies or
        is cancelled; with "run" it gets null for that one.
        """
        if not self.calls:
            raise Misuse(
                "an empty group has no end that a task could follow",
                why=caller(),
                fix="Enqueue the task itself, with an empty list.",
            )
        made: Flow[B] = _following(self.calls, task, "all", if_failed)
        return made

    def enqueue(self, *, conn: Any = None, **place: Unpack[Place]) -> list[Handle[R]]:
        """Store all jobs in one transaction, that of `conn` if given; returns those of the group.

        Of a flow in the group it is the last job. `after`, `workflow`, `child_of`: as of a flow.
        """
        stored = enqueue(*self.calls, conn=conn, **place)
        return cast("list[Handle[R]]", stored[len(stored) - len(self.calls) :])

    async def aenqueue(self, *, conn: Any = None, **place: Unpack[Place]) -> list[Handle[R]]:
        """Store all jobs, as `enqueue` does."""
        stored = await aenqueue(*self.calls, conn=conn, **place)
        return cast("list[Handle[R]]", stored[len(stored) - len(self.calls) :])


def group(*calls: Call[R] | Flow[R]) -> Group[R]:
    """Return calls that run side by side: `group(a.call(1), a.call(2)).then(report)`."""
    return Group(calls)


@overload
def chain(first: Call[A] | Flow[A], second: Takes[A, B], /) -> Flow[B]: ...
@overload
def chain(first: Call[A] | Flow[A], second: Takes[A, B], third: Takes[B, C], /) -> Flow[C]: ...
@overload
def chain(
    first: Call[A] | Flow[A], second: Takes[A, B], third: Takes[B, C], fourth: Takes[C, D], /
) -> Flow[D]: ...
@overload
def chain(
    first: Call[A] | Flow[A],
    second: Takes[A, B],
    third: Takes[B, C],
    fourth: Takes[C, D],
    fifth: Takes[D, E],
    /,
) -> Flow[E]: ...
def chain(first: Any, *tasks: Any) -> Any:
    """Return a call and the tasks that follow it, each with the result of the one before.

    `chain(a.call(1), b, c)` is `a.call(1).then(b).then(c)`.
    """
    for task in tasks:
        first = _following((first,), task, 1, "wait")
    return first


def enqueue(
    *ends: Call[Any] | Flow[Any], conn: Any = None, **place: Unpack[Place]
) -> list[Handle[Any]]:
    """Store flows with all that is before them; returns a handle for each job, the ends last."""
    nodes, jobs = laid_out(ends, **place)
    if not jobs:
        return []
    client = nodes[0].task.app.client if conn is None else client_on(conn)
    with around(nodes, jobs) as inside:
        inside.answers = client.enqueue_many(as_stored(client, nodes, inside.jobs))
    return handles(nodes, inside.answers, conn)


async def aenqueue(
    *ends: Call[Any] | Flow[Any], conn: Any = None, **place: Unpack[Place]
) -> list[Handle[Any]]:
    """Store flows, as `enqueue` does."""
    nodes, jobs = laid_out(ends, **place)
    if not jobs:
        return []
    client = nodes[0].task.app.aclient if conn is None else async_client_on(conn)
    with around(nodes, jobs) as inside:
        stored = await aas_stored(client, nodes, inside.jobs)
        inside.answers = await client.enqueue_many(stored)
    return handles(nodes, inside.answers, conn)


def around(nodes: Sequence[Any], jobs: Sequence[NewJob]) -> Enqueuing:
    """Return the middleware of the app around these jobs."""
    pairs = [(node.task.arguments, job) for node, job in zip(nodes, jobs, strict=True)]
    return Enqueuing(nodes[0].task.app.around_enqueue, pairs)


def _following(before: tuple[Any, ...], given: Any, which: Any, if_failed: IfFailed) -> Any:
    """Make the call of a task whose first argument is a result, or the list of all."""
    if not isinstance(given, Enqueuer):
        raise Misuse(
            f"{given!r} is not a task",
            why=caller(),
            fix="Give the task itself, as in  chain(a.call(1), b)  or  .then(b)",
        )
    task: Task[..., Any, Any] = given._task
    takes = task.arguments.first
    if takes is None:
        raise InvalidTask(
            f"{task.kind} has no argument for the result of what is before it",
            why=caller(),
            fix="Give it one, even if it does not use it.",
        )
    for one in before:
        _refuse_half(one.task, task)
    job = given._follower(takes)
    job = replace(job, take={takes: which}, if_failed=if_failed)
    return Flow(task, job, before)


def _refuse_half(first: Task[..., Any, Any], then: Task[..., Any, Any]) -> None:
    """Refuse to go on from an encrypted result in clear text, or the other way round."""
    if _encrypts(first) == _encrypts(then):
        return
    sealed, plain = (first, then) if _encrypts(first) else (then, first)
    raise InvalidTask(
        f"{then.kind} takes the result of {first.kind}, and only {sealed.kind} is encrypted",
        why=caller(),
        fix=f"Declare {plain.kind} with the same encryption:  @app.task(encryption=…)",
    )


def _encrypts(task: Task[..., Any, Any]) -> bool:
    return task.codec is not None and task.codec.encryption is not None


def laid_out(ends: Iterable[Any], **place: Unpack[Place]) -> tuple[list[Any], list[NewJob]]:
    """Return all calls of flows, each after those it waits for and once, and the jobs of them.

    The ends come last, in their order, unless one of them is before another.
    """
    first = place.pop("after", ())
    ends = list(ends)
    last = {id(end) for end in ends}
    places: dict[int, int] = {}
    nodes: list[Any] = []
    jobs: list[NewJob] = []

    def put(node: Any) -> None:
        before = getattr(node, "before", ())
        after: list[Any] = [places[id(one)] for one in before] or [*(node.job.after or ()), *first]
        nodes.append(node)
        jobs.append(replace(node.job, after=after, **place) if after or place else node.job)
        places[id(node)] = len(nodes)

    # Without recursion: a chain may be longer than the stack is deep.
    stack: list[tuple[Any, bool]] = []
    for end in ends:
        stack += [(one, False) for one in reversed(getattr(end, "before", ()))]
        while stack:
            node, seen = stack.pop()
            if id(node) in places:
                continue
            if seen or not getattr(node, "before", ()):
                put(node)
            else:
                stack.append((node, True))
                stack += [(one, False) for one in reversed(node.before)]
    if len(last) < len(ends) or any(id(end) in places for end in ends):
        raise Misuse(
            "a call is given twice, or is before another that is given",
            why=caller(),
            fix="Give only the ends of flows; what is before them is stored with them.",
        )
    for end in ends:
        put(end)
    return nodes, jobs


def handles(nodes: list[Any], stored: Sequence[Enqueued], conn: Any) -> list[Handle[Any]]:
    """Return a handle for each call that was stored."""
    pairs = zip(nodes, stored, strict=True)
    return [Handle(node.task, one, on_conn=conn is not None) for node, one in pairs]
