"""A function whose calls become jobs: typed, checked when enqueued, with options."""

import inspect
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, update_wrapper
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec
from psycopg import Connection
from psycopg.types.json import Jsonb

from holdfast import synonyms
from holdfast.arguments import Arguments, CodedArguments, Result
from holdfast.callsite import caller, declared_at
from holdfast.client import AsyncClient, Client, async_client_on, client_on
from holdfast.codec import Codec
from holdfast.crypto import Encryption
from holdfast.errors import InvalidJob, InvalidTask, Misuse
from holdfast.handle import Handle
from holdfast.middleware import Enqueuing
from holdfast.outcome import Policy, check_policy, seconds
from holdfast.records import Duration, Enqueued, JobOptions, NewJob, NewSchedule
from holdfast.records.limits import refusals
from holdfast.records.options import TaskDefaults
from holdfast.resources import wanted
from holdfast.stores import ClaimCheck

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.app import App
    from holdfast.flow import Flow, Group, Takes
    from holdfast.records.job import IfFailed

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])

Runs = Literal["async", "thread", "process"]


class DoneWhen(Protocol):
    """Checks in the database whether the work of an abandoned job is already done."""

    def __call__(self, conn: Connection[Any], job: Any, /) -> bool: ...


class TaskSettings(TaskDefaults, total=False):
    """The arguments of `@app.task`: the defaults of its jobs, and how they run."""

    kind: str
    timeout: Duration | None
    retry: Policy
    retry_budget: float | None
    keep_result: bool
    process: bool
    memory: int | None
    aliases: Sequence[str]
    old_arguments: Mapping[str, str | None]
    encryption: Encryption | None
    large_payloads: ClaimCheck | None


class Options(JobOptions, total=False):
    """The arguments of `task.options`: the fields of a NewJob, and the connection to enqueue on."""

    conn: Any


class Enqueuer(Generic[P, R]):
    """Enqueues calls of one task with certain options; takes the arguments of its function."""

    def __init__(self, task: "Task[P, R, Any]", options: Options) -> None:
        self._task = task
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a job that will call the function with these arguments.

        With the option `conn` it is part of that connection's transaction; without, it is stored
        at once.
        """
        conn = self._options.get("conn")
        job = self._task._job(args, kwargs, self._options, "enqueue")
        client = self._task.app.client if conn is None else client_on(conn)
        [enqueued] = store(client, [Call(self._task, job)])
        return Handle(self._task, enqueued, on_conn=conn is not None)

    def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Handle[R]]:
        """Store a job, as `enqueue` does; wrong arguments are refused before it is awaited."""
        return self._aenqueue(self._task._job(args, kwargs, self._options, "aenqueue"))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> "Call[R]":
        """Return the call without enqueueing it, for `app.enqueue_many`."""
        if self._options.get("conn") is not None:
            raise Misuse(
                f"{self._task.kind}.options(conn=…).call(): a call has no connection yet",
                why=caller(),
                fix="Give it to  app.enqueue_many(calls, conn=conn)",
            )
        return Call(self._task, self._task._job(args, kwargs, self._options, "call"))

    def map(self: "Takes[A, B]", items: "Iterable[A]") -> "Group[B]":
        """Return a call for each item, to run side by side: `resize.map(paths).then(report)`."""
        made: Group[B] = import_module("holdfast.flow").Group(self.call(item) for item in items)
        return made

    def options(self, **options: Unpack[Options]) -> "Enqueuer[P, R]":
        """Return the task with these options, instead of its own."""
        _check(f"{self._task.kind}.options", options, Options)
        for no in no_options({name: one for name, one in options.items() if one is not None}):
            raise InvalidJob(
                f"{self._task.kind}.options: {no.what}", why=caller(), fix=no.fix, code=no.code
            )
        return Enqueuer(self._task, {**self._options, **options})

    if not TYPE_CHECKING:  # a type checker refuses what is not there by itself

        def __getattr__(self, name: str) -> Any:
            told = f"{type(self).__name__!r} object has no attribute {name!r}"
            if ours := synonyms.method(self._task.kind, name):
                told += f": {ours}"
            raise AttributeError(told, name=name, obj=self)

    def _follower(self, takes: str) -> NewJob:
        """Return the job of a call whose argument `takes` will be a result."""
        self._task.arguments.check_rest(takes)
        return self._task._fields_of(takes, self._options)

    async def _aenqueue(self, job: NewJob) -> Handle[R]:
        conn = self._options.get("conn")
        client = self._task.app.aclient if conn is None else async_client_on(conn)
        [enqueued] = await astore(client, [Call(self._task, job)])
        return Handle(self._task, enqueued, on_conn=conn is not None)


class Task(Enqueuer[P, R], Generic[P, R, C]):
    """A function whose calls can be enqueued: R is its result, C what a direct call returns."""

    def __init__(self, app: "App", fn: Callable[P, C], settings: TaskSettings) -> None:
        super().__init__(self, {})
        self.app = app
        self.fn = fn
        self.around = app.around_run
        self.kind = settings.get("kind") or _name(fn)
        _check_settings(self.kind, fn, settings)
        self.queue = settings.get("queue", "default")
        self.runs = _runs(fn, process=settings.get("process", False))
        self.lease = _seconds(settings.get("lease"))
        self.timeout = _seconds(settings.get("timeout"))
        self.retry = settings.get("retry")
        self.retry_budget = settings.get("retry_budget")
        self.keep_result = settings.get("keep_result", False)
        self.memory = settings.get("memory")
        self.check: DoneWhen | None = None
        self.aliases = tuple(settings.get("aliases", ()))
        old = settings.get("old_arguments")
        self.codec = _codec(app, settings, (self.kind, *self.aliases))
        self.arguments = (
            Arguments(fn, self.kind, old)
            if self.codec is None
            else CodedArguments(fn, self.kind, old, self.codec)
        )
        self.wants = wanted(fn, self.kind, self.arguments.hints)
        self._result = Result(fn, self.kind, self.codec) if self.keep_result else None
        of_jobs = {k: v for k, v in settings.items() if k in Options.__annotations__}
        self._chosen: dict[str, Any] = {k: v for k, v in of_jobs.items() if callable(v)}
        self._fields = {k: v for k, v in of_jobs.items() if not callable(v)}
        # Without the attributes of the function, which do not belong to the task.
        update_wrapper(cast("Any", self), fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function directly, without a job."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Task({self.kind!r}, queue={self.queue!r})"

    @overload
    def done_when(self, check: str) -> None: ...
    @overload
    def done_when(self, check: F) -> F: ...
    def done_when(self, check: Any) -> Any:
        """Declare a check that runs before an abandoned job runs again: is its work already done?

        `@task.done_when` above a function of a connection and the job; or SQL that selects one
        boolean and may use the arguments by name, as in `… where id = %(order_id)s`.
        """
        if isinstance(check, str):
            self.check = _sql_check(self, check)
            return None
        self.check = check
        return check

    def encode_result(self, returned: Any) -> Any:
        """Return a result as the database stores it; raises InvalidResult if it cannot be."""
        if self._result is None:  # another job waits for it
            self._result = Result(self.fn, self.kind, self.codec)
        return self._result.encode(returned)

    def decode_result(self, result_json: str | None) -> R:
        """Return a kept result in the return type of the function."""
        return cast("R", self._result.decode(result_json) if self._result else None)

    def _job(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, verb: str
    ) -> NewJob:
        payload = self.arguments.encode(args, kwargs, verb)
        fields = self._said(options)
        for name, choose in self._chosen.items():
            if name not in options:
                try:
                    fields[name] = choose(*args, **kwargs)
                except TypeError:
                    fields[name] = self._choose_by_name(name, choose, args, kwargs)
        return NewJob(kind=self.kind, payload=payload, **fields)

    def _fields_of(self, takes: str, options: Options) -> NewJob:
        """Return a job without a payload, of which one argument is not known yet."""
        for name in self._chosen.keys() - options.keys():
            raise InvalidTask(
                f"{self.kind}: {name}= is a function of the arguments, but `{takes}` is a result",
                why=caller(),
                fix=f"Give it beforehand:  {self.kind}.options({name}=…)",
            )
        return NewJob(kind=self.kind, **self._said(options))

    def _said(self, options: Options) -> dict[str, Any]:
        """Return the fields of a job that do not depend on its arguments."""
        fields: dict[str, Any] = {**self._fields, **options}
        fields.pop("conn", None)
        if "expires_at" in options and "expires" not in options:
            fields.pop("expires", None)  # the task's own, for calls that do not say
        return fields

    def _choose_by_name(
        self, name: str, choose: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function with those arguments that it takes; its own errors pass through."""
        takes = inspect.signature(choose)
        if _fits(takes, args, kwargs):
            raise
        given = self.arguments.by_name(args, kwargs)
        if not any(p.kind is p.VAR_KEYWORD for p in takes.parameters.values()):
            given = {key: value for key, value in given.items() if key in takes.parameters}
        if not _fits(takes, (), given):
            raise InvalidTask(
                f"{self.kind}: {name}={_shown(choose)} takes {takes}, which is not what "
                f"{self.kind}{inspect.signature(self.fn)} was given",
                why=caller(),
                fix=f"Give it parameters of {self.kind} by their names, with the same defaults.",
            ) from None
        return choose(**given)

    def _schedule(self, name: str, payload: Mapping[str, Any], **rule: Any) -> NewSchedule:
        job = self._job((), payload, {}, "schedule")
        options = {field: getattr(job, field) for field in {**self._fields, **self._chosen}}
        queue = options.pop("queue", "default")
        # The same every time it is declared: else each worker that starts would change it.
        stored = job.payload if self.codec is None else self.codec.payload(job.payload, fixed=True)
        arguments = msgspec.json.decode(stored)
        return NewSchedule(
            name=name, kind=self.kind, queue=queue, payload=arguments, options=options, **rule
        )


class Declares(Protocol):
    """The result of `@app.task(…)`: turns the function below it into a task."""

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R, R]: ...


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A call of a task whose arguments are checked and encoded, to be enqueued with others."""

    task: Task[..., R, Any]
    job: NewJob

    def then(self, task: "Takes[R, B]", *, if_failed: "IfFailed" = "wait") -> "Flow[B]":
        """Return the flow that goes on with a task, which gets the result of this call.

        `if_failed`: what becomes of it if this call dies or is cancelled.
        """
        made: Flow[B] = import_module("holdfast.flow")._following((self,), task, 1, if_failed)
        return made


def store(client: Client, calls: "Sequence[Call[Any]]") -> list[Enqueued]:
    """Store calls of tasks of one app, inside its middleware."""
    methods = calls[0].task.app.around_enqueue
    if not methods:
        return client.enqueue_many(as_stored(client, calls, [call.job for call in calls]))
    with Enqueuing(methods, [(call.task.arguments, call.job) for call in calls]) as around:
        around.answers = client.enqueue_many(as_stored(client, calls, around.jobs))
    return list(around.answers)


async def astore(client: AsyncClient, calls: "Sequence[Call[Any]]") -> list[Enqueued]:
    """Like `store`, on an event loop."""
    methods = calls[0].task.app.around_enqueue
    if not methods:
        return await client.enqueue_many(
            await aas_stored(client, calls, [call.job for call in calls])
        )
    with Enqueuing(methods, [(call.task.arguments, call.job) for call in calls]) as around:
        around.answers = await client.enqueue_many(await aas_stored(client, calls, around.jobs))
    return list(around.answers)


def as_stored(client: Client, calls: "Sequence[Any]", jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the jobs of calls with their payloads as the database gets them.

    After the middleware, which sees and may change what was enqueued. What is too large for the
    database is in its store by then: a job never has an address at which nothing is.
    """
    if all(call.task.codec is None for call in calls):
        return jobs
    changed = []
    for call, job in zip(calls, jobs, strict=True):
        if (codec := call.task.codec) is not None:
            job, large = codec.stored(job)
            if large is not None:
                codec.put(client, large)
        changed.append(job)
    return changed


async def aas_stored(
    client: AsyncClient, calls: "Sequence[Any]", jobs: Sequence[NewJob]
) -> Sequence[NewJob]:
    """Like `as_stored`, on an event loop."""
    if all(call.task.codec is None for call in calls):
        return jobs
    changed = []
    for call, job in zip(calls, jobs, strict=True):
        if (codec := call.task.codec) is not None:
            job, large = codec.stored(job)
            if large is not None:
                await codec.aput(client, large)
        changed.append(job)
    return changed


def no_options(given: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """Say which options a job cannot have; a function chooses one with each call."""
    return refusals(NewJob, {name: one for name, one in given.items() if not callable(one)})


def _codec(app: "App", settings: TaskSettings, kinds: Sequence[str]) -> Codec | None:
    encryption = settings.get("encryption", app.encryption)
    large = settings.get("large_payloads", app.large_payloads)
    if encryption is None and large is None:
        return None
    if large is not None and not isinstance(large, ClaimCheck):
        raise InvalidTask(
            f"task {kinds[0]!r}: large_payloads is not a ClaimCheck but {type(large).__name__}",
            why=caller(),
            fix="Write  large_payloads=holdfast.stores.ClaimCheck(store)",
        )
    if encryption is not None and not isinstance(encryption, Encryption):
        raise InvalidTask(
            f"task {kinds[0]!r}: encryption is not an Encryption but {type(encryption).__name__}",
            why=caller(),
            fix='Write  encryption=holdfast.crypto.Encryption({"2026-11": key})',
        )
    return Codec(encryption, kinds, large, lambda: app.client)


def _check_settings(kind: str, fn: Callable[..., Any], settings: TaskSettings) -> None:
    _check(f"task {kind!r}", settings, TaskSettings)
    problem = ""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        problem = "it is a generator: declare a function or a coroutine"
    elif _is_method(fn):
        problem = "it is a method: declare a function"
    elif isinstance(settings.get("aliases"), str):
        problem = f"aliases is a text: write aliases=[{settings.get('aliases')!r}]"
    elif settings.get("memory") is not None and not settings.get("process"):
        problem = "memory= needs process=True"
    elif (memory := settings.get("memory")) is not None and not _is_number(memory, int):
        problem = f"memory {memory!r} is not a number of bytes above zero"
    elif (budget := settings.get("retry_budget")) is not None and (
        budget != 0 and not _is_number(budget, int | float)
    ):
        problem = f"retry_budget {budget!r} is not a share of its attempts"
    elif (length := settings.get("timeout")) is not None and not (
        isinstance(length, timedelta) or _is_number(length, int | float)
    ):
        problem = f"timeout {length!r} is not a number of seconds above zero"
    elif length is not None and not seconds(length) > 0:
        problem = f"timeout {length!r} is not a time above zero"
    elif (old := settings.get("old_arguments")) is not None and not isinstance(old, Mapping):
        problem = f"old_arguments {old!r} does not say the new names: {{'old': 'new'}}"
    elif template := _template(fn, settings):
        problem = (
            f"{template}={settings[template]!r} would be the same for every job: "  # type: ignore[literal-required]
            f"write  {template}=lambda …: f{settings[template]!r}"  # type: ignore[literal-required]
        )
    try:
        check_policy(settings.get("retry"))
    except TypeError as error:
        problem = str(error)
    where = f"task {kind!r}{declared_at(fn)}"
    if problem:
        raise InvalidTask(f"{where}: {problem}")
    names = [{"kind": one} for one in (kind, *settings.get("aliases", ()))]
    for refused in (refused for given in (*names, settings) for refused in no_options(given)):
        raise InvalidTask(f"{where}: {refused.what}", fix=refused.fix)


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and bool(value > 0)


def _template(fn: Callable[..., Any], settings: TaskSettings) -> str:
    """Return a setting whose text names a parameter in braces, as if that were filled in.

    As a key it would let one job of the task live at a time, and drop all others.
    """
    named = set(signature.parameters) if (signature := _signature(fn)) else set()
    for name in ("key", "lane", "tenant", "subject"):
        text = settings.get(name)
        if isinstance(text, str) and not named.isdisjoint(re.findall(r"{(\w+)}", text)):
            return name
    return ""


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # refused elsewhere: it is not a function
        return None


def _check(where: str, given: Mapping[str, Any], known: type) -> None:
    for option in given.keys() - known.__annotations__.keys():
        elsewhere = synonyms.elsewhere(option) if known is TaskSettings else ""
        near = "" if elsewhere else synonyms.meant(option, known.__annotations__)
        raise InvalidJob(
            f"{where}: unknown option `{option}`" + (f" (did you mean `{near}`?)" if near else ""),
            why=caller(),
            fix=elsewhere or f"Options are: {', '.join(known.__annotations__)}.",
        )


def _fits(takes: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        takes.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _shown(choose: Any) -> str:
    return f"{getattr(choose, '__name__', choose)}{declared_at(choose)}"


def _name(fn: Any) -> str:
    name = getattr(fn, "__name__", "")
    if isinstance(fn, Task) or not callable(fn) or name in ("", "<lambda>"):
        raise InvalidTask(
            f"{fn!r} is not a function with a name", why=caller(), fix='Name it:  kind="…"'
        )
    return str(name)


def _is_method(fn: Callable[..., Any]) -> bool:
    owner = getattr(fn, "__qualname__", "").rpartition(".")[0]
    code = getattr(fn, "__code__", None)
    if inspect.ismethod(fn) or code is None or not owner or owner.endswith("<locals>"):
        return False
    return code.co_varnames[:1] in (("self",), ("cls",))


def _runs(fn: Callable[..., Any], *, process: bool) -> Runs:
    if process:
        return "process"
    called = fn if inspect.isroutine(fn) or isinstance(fn, partial) else type(fn).__call__
    return "async" if inspect.iscoroutinefunction(called) else "thread"


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else seconds(duration)


def _sql_check(task: Task[..., Any, Any], sql: str) -> DoneWhen:
    for name in re.findall(r"%\((\w+)\)", sql):
        if not task.arguments.takes(name):
            raise InvalidTask(
                f"{task.kind}.done_when: `{name}` is not an argument of {task.kind}", why=caller()
            )

    def check(conn: Connection[Any], job: Any, /) -> bool:
        given = {**task.arguments.defaults, **job.payload}
        values = {k: Jsonb(v) if isinstance(v, dict | list) else v for k, v in given.items()}
        row = conn.execute(cast("Any", sql), values).fetchone()
        return bool(row and row[0])

    return check
