"""Code around every enqueue and every run of an app's tasks.

A middleware has a method `enqueue`, a method `run`, or both. Each is a generator that yields once:
what is above the `yield` happens before, what is below it after. It is never a coroutine, so that
it is the same around async, thread and process handlers.
"""

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from msgspec.structs import replace

from holdfast.callsite import caller, declared_at
from holdfast.errors import InvalidJob, Misuse
from holdfast.records import Enqueued, NewJob

if TYPE_CHECKING:
    from holdfast.arguments import Arguments
    from holdfast.current import CurrentJob

# The header that `carry` keeps the values of context variables in.
CONTEXT = "context"


class EnqueueMiddleware(Protocol):
    """Around each job that a task of the app enqueues.

    It yields the job to store, changed or not; nothing means unchanged. The `yield` returns what
    the database answered (`Enqueued`), or raises why the job was refused.
    """

    def enqueue(self, job: NewJob, /) -> Iterator[NewJob | None]: ...


class RunMiddleware(Protocol):
    """Around each run of a handler, in its thread or process and in its context.

    The `yield` returns what the handler returned, or raises what it raised. Whatever this raises
    takes the place of that error. An error that it catches still counts.
    """

    def run(self, job: "CurrentJob", /) -> Iterator[None]: ...


Middleware = EnqueueMiddleware | RunMiddleware
Around = Callable[[Any], Generator[Any, Any, Any]]
# The middleware around one job that has begun, outermost first.
Begun = list[Generator[Any, Any, Any]]


def with_headers(job: NewJob, headers: Mapping[str, Any]) -> NewJob:
    """Return the job with more headers; those that it has are kept."""
    return replace(job, headers={**headers, **(job.headers or {})})


class Carry:
    """Carries context variables from where a job is enqueued to its handler, in its headers.

    A job that the handler enqueues carries them on. Their values must be JSON; a variable that is
    not set is not carried.
    """

    def __init__(self, *variables: ContextVar[Any]) -> None:
        for variable in variables:
            if not isinstance(variable, ContextVar):
                raise Misuse(
                    f"{variable!r} cannot be carried: it is not a ContextVar",
                    why=caller(),
                    fix='Write  request_id = ContextVar("request_id")  and  carry(request_id)',
                )
        self._variables = {variable.name: variable for variable in variables}
        if len(self._variables) < len(variables):
            raise Misuse("two context variables have the same name", why=caller())

    def enqueue(self, job: NewJob) -> Iterator[NewJob]:
        """Put the values that are set here into the headers."""
        values = {
            name: value
            for name, variable in self._variables.items()
            if (value := variable.get(_UNSET)) is not _UNSET
        }
        for name, value in values.items():
            if not _is_json(value):
                raise InvalidJob(
                    f"the context variable {name!r} is {value!r}, which is not JSON",
                    why=caller(),
                    fix="Set it to a text or a number, and read it back in the handler.",
                    code="HF204",
                )
        own = (job.headers or {}).get(CONTEXT)
        if values:
            carried = {**values, **own} if isinstance(own, dict) else values
            job = replace(job, headers={**(job.headers or {}), CONTEXT: carried})
        yield job

    def run(self, job: "CurrentJob") -> Iterator[None]:
        """Set the variables to what the job carries."""
        carried = job.headers.get(CONTEXT)
        if isinstance(carried, dict):
            for name, value in carried.items():
                if variable := self._variables.get(name):
                    variable.set(value)
        yield


def carry(*variables: ContextVar[Any]) -> Carry:
    """Carry context variables from enqueue to handler: `App(middleware=[carry(request_id)])`."""
    return Carry(*variables)


def around(middleware: Sequence[Middleware], verb: str) -> tuple[Around, ...]:
    """Return the methods of this name, outermost first; raises Misuse for what is not one."""
    found = []
    if not isinstance(middleware, Sequence):
        raise Misuse(
            f"middleware={middleware!r} is not a list",
            why=caller(),
            fix="Give a list, the outermost first:  App(middleware=[…])",
        )
    for one in middleware:
        if isinstance(one, type):
            raise Misuse(
                f"the middleware {one.__name__} is a class",
                why=caller(),
                fix=f"Give an instance:  App(middleware=[{one.__name__}()])",
            )
        if not any(callable(getattr(one, name, None)) for name in ("enqueue", "run")):
            raise Misuse(
                f"the middleware {one!r} has neither a method `enqueue` nor a method `run`",
                why=caller(),
                fix="Write one of them as a generator:  def run(self, job): … yield …",
            )
        if (method := getattr(one, verb, None)) is not None:
            found.append(_checked(method, type(one).__name__, verb))
    return tuple(found)


def _checked(method: Any, owner: str, verb: str) -> Around:
    if not inspect.isgeneratorfunction(method):
        raise Misuse(
            f"the middleware {owner}.{verb}{declared_at(method)} is not a generator",
            why=caller(),
            fix=f"Write it as  def {verb}(self, job): … yield …  without async or a decorator.",
        )
    checked: Around = method
    return checked


def begin(method: Around, job: Any, begun: Begun) -> Any:
    """Run the part of a middleware above its `yield`, and add it to those begun.

    Returns what it yields.
    """
    one = method(job)
    yielded = next(one, _END)
    if yielded is _END:
        raise Misuse(
            f"the middleware {_name(one)} did not yield",
            fix="To skip a job, raise holdfast.Cancel(…) above the `yield`.",
        )
    begun.append(one)
    return yielded


def end(begun: Begun, returned: Any, raised: BaseException | None) -> BaseException | None:
    """Run the parts below the `yield`, in reverse; returns the error that it came to, if any."""
    while begun:
        one = begun.pop()
        if raised is not None:
            raised = _thrown(one, raised)
        elif returned is not None:
            raised = _sent(one, returned)
        else:
            # Most handlers return nothing, and this needs no exception to end a generator.
            try:
                if next(one, _END) is not _END:
                    raised = _yielded_twice(one)
            except BaseException as error:
                raised = error
    return raised


def _sent(begun: Generator[Any, Any, Any], returned: Any) -> BaseException | None:
    try:
        begun.send(returned)
    except StopIteration:
        return None
    except BaseException as error:
        return error
    return _yielded_twice(begun)


def _thrown(begun: Generator[Any, Any, Any], raised: BaseException) -> BaseException:
    trace = raised.__traceback__
    try:
        begun.throw(raised)
    except StopIteration:
        pass  # it was caught, and still counts: an error that is lost here is a lost job
    except BaseException as error:
        # A generator that lets a StopIteration through raises a RuntimeError instead of it.
        passed = error is raised or (
            isinstance(raised, StopIteration) and error.__cause__ is raised
        )
        if not passed:
            return error
    else:
        return _yielded_twice(begun)
    raised.__traceback__ = trace  # without the frames of the middleware
    return raised


def _yielded_twice(begun: Generator[Any, Any, Any]) -> BaseException:
    begun.close()
    return Misuse(f"the middleware {_name(begun)} yields more than once")


def _name(begun: Any) -> str:
    return str(begun.__qualname__)


class Enqueuing:
    """The middleware around jobs that are enqueued together; a context manager.

    `jobs` are those to store; `answers` have to be set inside.
    """

    def __init__(
        self, methods: Sequence[Around], jobs: Sequence[tuple["Arguments", NewJob]]
    ) -> None:
        self.jobs: list[NewJob] = []
        self.answers: Sequence[Enqueued] = ()
        self._methods = methods
        self._given = jobs
        self._begun: list[Begun] = []

    def __enter__(self) -> Self:
        try:
            for arguments, job in self._given:
                self._begun.append([])
                self.jobs.append(self._begin(arguments, job, self._begun[-1]))
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(error)

    def _begin(self, arguments: "Arguments", job: NewJob, begun: Begun) -> NewJob:
        changed = job
        for method in self._methods:
            yielded = begin(method, changed, begun)
            if yielded is None:
                continue
            if not isinstance(yielded, NewJob) or yielded.kind != job.kind:
                raise Misuse(
                    f"a middleware yields {yielded!r} for a job of the kind {job.kind!r}",
                    why=declared_at(method).strip(),
                    fix="Yield the job, or  msgspec.structs.replace(job, priority=9)  and such.",
                )
            changed = yielded
        if changed.payload is not job.payload:
            changed = replace(changed, payload=arguments.checked(changed.payload))
        return changed

    def _end(self, error: BaseException | None) -> None:
        answers: Sequence[Any] = self.answers or [None] * len(self._begun)
        ended = error
        # In reverse, as blocks inside each other end: else what one has put back, such as a
        # context variable, the next would replace by what the first had set.
        for begun, answer in reversed(list(zip(self._begun, answers, strict=True))):
            ended = end(begun, answer, error) or ended
        if ended is not None and ended is not error:
            raise ended


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or type(value) in (str, int, float, bool)


_UNSET: Any = object()
_END: Any = object()
