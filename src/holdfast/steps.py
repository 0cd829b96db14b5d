"""Steps of a job: each runs once, its result is stored, and the next run of the handler gets it.

A handler that is run again, after a crash, a failure, a sleep or a wait, starts from the top: its
steps answer from the record, and everything else simply runs. What is checked is only what the
record says: each name once in a run, and the steps that the handler itself calls in their order.
"""

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast import jsonb
from holdfast.arguments import Result
from holdfast.callsite import declared_at
from holdfast.crypto import CannotOpen
from holdfast.doubt import amake_certain, assert_not_lost, make_certain
from holdfast.errors import (
    EventTimeout,
    HoldfastError,
    InvalidPayload,
    InvalidResult,
    InvalidTask,
    LeaseLost,
    PayloadTooLarge,
    StepMisuse,
    Unavailable,
    UnknownOutcome,
)
from holdfast.outcome import Suspend, seconds
from holdfast.records import UNSEEN, Awaited, Duration, NewStep, Step
from holdfast.step_writer import async_writer_of, writer_of

if TYPE_CHECKING:
    from holdfast.current import CurrentJob

# Between two tries to store a step while the database is away; the worker renews the lease.
BREATH = 0.2
# Seconds that a job may sleep or wait: a hundred years, as the database says.
LONGEST = 3_153_600_000
# Characters of a schema that is stored with a wait; the database takes twice as many bytes.
SCHEMA = 8000


class Book:
    """What is on record of a job, what its handler has called in this run, and whether both fit."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._lock = threading.Lock()
        self._recorded: dict[str, Step] | None = None
        self._order: dict[int, str] = {}
        # The names called in this run and their places; 0 for what the handler did not call itself.
        self._called: dict[str, int] = {}
        self._places = 0
        self._running: set[str] = set()

    @property
    def loaded(self) -> bool:
        """Whether the record is known."""
        return self._recorded is not None

    def load(self, recorded: Sequence[Step]) -> None:
        """Take in the record; the first time counts."""
        with self._lock:
            if self._recorded is None:
                self._order = {step.nth: step.name for step in recorded if step.nth}
                self._recorded = {step.name: step for step in recorded}

    def call(self, name: str, *, own: bool) -> int:
        """Note that a step is called; returns its place, or 0 if it has none in the order."""
        # Before anything is done: what has no name cannot be stored afterwards.
        given: Any = name
        if type(given) is not str or not 0 < len(name) <= 200 or _UNSEEN.search(name):
            raise StepMisuse(
                f"{self._of}: {name!r} cannot be the name of a step",
                fix="A name is a text of 1 to 200 printable characters.",
            )
        with self._lock:
            place = self._called.get(name)
            if name in self._running or (place is not None and name in (self._recorded or {})):
                raise StepMisuse(
                    f"{self._of}: the step {name!r} was called twice in this run",
                    fix=f'Name each by what is its own:  job.step(f"{name}-{{n}}", …)',
                )
            # One that failed keeps its place when the handler tries it again.
            if place is None:
                self._places += own
                place = self._called[name] = self._places if own else 0
            self._running.add(name)
            return place

    def numbered(self, name: str) -> str:
        """Return a name that was not called in this run: with a number from the second on."""
        number = 1
        while (told := name if number == 1 else f"{name} {number}") in self._called:
            number += 1
        return told

    def on_record(self, name: str, place: int) -> Step | None:
        """Return what is on record of a step that was called; None if it has to be run."""
        assert self._recorded is not None
        known = self._recorded.get(name)
        if place and (known is None or known.nth):
            expected = self._order.get(place)
            if expected not in (None, name) or (known is not None and known.nth != place):
                self._refuse_order(name, place, expected, known)
        return known

    def ended(self, name: str, recorded: Step | None = None) -> None:
        """Note that a step has ended: it failed, or its result is stored."""
        with self._lock:
            self._running.discard(name)
            if recorded and self._recorded is not None:
                self._recorded.setdefault(name, recorded)

    def undo(self, names: Iterable[str]) -> None:
        """Forget steps whose transaction was rolled back: they may be called again."""
        with self._lock:
            for name in names:
                (self._recorded or {}).pop(name, None)

    def running(self) -> list[str]:
        """Return the steps that were called and have not ended."""
        return sorted(self._running)

    def refuse_running(self, what: str) -> None:
        """Refuse to give the lease back while a step runs, whose result could not be stored."""
        if self._running:
            running = ", ".join(map(repr, self.running()))
            raise StepMisuse(
                f"{self._of}: {what} was called while a step runs: {running}",
                fix="Await the other steps first; a job sleeps, or waits for one event, at a time.",
            )

    def _refuse_order(
        self, name: str, place: int, expected: str | None, known: Step | None
    ) -> NoReturn:
        was = f"was {expected!r}" if expected else "was none"
        now = f"{name!r}, which was step {known.nth}" if known else f"{name!r}, which is new"
        raise StepMisuse(
            f"{self._of}: step {place} {was} when it was stored, and is now {now}",
            why="The handler was changed while this job was under way, or decides by what is not "
            "a step.",
            fix="Run the job with the code that it began with, or forget its steps:  "
            "holdfast job retry --fresh",
        )


class Steps:
    """The steps of one job, as its handler calls them."""

    def __init__(self, job: "CurrentJob") -> None:
        self._job = job
        self.book = Book(f"{job.kind} {job.id}")
        # Results of steps inside `transaction()`, which stores them before it commits.
        self.pending: list[NewStep] = []

    def step(self, name: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function once and store its result; a coroutine if it is a coroutine function."""
        call = partial(fn, *args, **kwargs)
        place = self._call(name, alone=False)
        if _is_async(fn) or asyncio._get_running_loop() is not None:
            return self._arun(name, place, fn, call)
        with self._running(name):
            self._load()
            if (known := self.book.on_record(name, place)) is not None:
                return self._decoded(fn, name, known)
            make_certain(self._job)
            _result_of(fn, name)
            began = monotonic()
            done = self._new_step(fn, name, call(), place, began)
            if self._store(done) == "already":
                return self._other(fn, name, self._job.app.client.steps.list(self._job.id))
            return self._stored(fn, done)

    async def _arun(self, name: str, place: int, fn: Any, call: Callable[[], Any]) -> Any:
        with self._running(name):
            await self._aload()
            if (known := self.book.on_record(name, place)) is not None:
                return self._decoded(fn, name, known)
            await amake_certain(self._job)
            _result_of(fn, name)
            began = monotonic()
            returned = call()
            if inspect.isawaitable(returned):
                returned = await returned
            done = self._new_step(fn, name, returned, place, began)
            if await self._astore(done) == "already":
                return self._other(fn, name, await self._job.app.aclient.steps.list(self._job.id))
            return self._stored(fn, done)

    def atomic_step(self, name: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function with a connection: what it writes and its result commit together."""
        if not _is_async(fn):
            self._refuse_on_loop(f"the step {name!r} of a plain function", "an async function")
        place = self._call(name, alone=True)
        if _is_async(fn):
            return self._aatomic(name, place, fn, args, kwargs)
        with self._running(name):
            self._load()
            if (known := self.book.on_record(name, place)) is not None:
                return self._decoded(fn, name, known)
            _result_of(fn, name)
            client = self._job.app.client
            done, began = None, monotonic()
            try:
                make_certain(self._job)
                with client.steps.transaction() as connection:
                    returned = fn(connection, *args, **kwargs)
                    done = self._new_step(fn, name, returned, place, began)
                    assert_not_lost(self._job)
                    [answer] = client.on(connection).steps.store([(self._job.lease, done)])
                    self._refuse_second(name, self._held_by(answer))
            except UnknownOutcome as error:
                client.touch([self._job.lease])  # waits for a commit that is under way
                self._committed(name, client.steps.list(self._job.id), error)
            except _Stored:
                return self._other(fn, name, client.steps.list(self._job.id))
            assert done is not None
            return self._stored(fn, done)

    async def _aatomic(self, name: str, place: int, fn: Any, args: Any, kwargs: Any) -> Any:
        with self._running(name):
            await self._aload()
            if (known := self.book.on_record(name, place)) is not None:
                return self._decoded(fn, name, known)
            _result_of(fn, name)
            client = self._job.app.aclient
            done, began = None, monotonic()
            try:
                await amake_certain(self._job)
                async with client.steps.transaction() as connection:
                    returned = await fn(connection, *args, **kwargs)
                    done = self._new_step(fn, name, returned, place, began)
                    assert_not_lost(self._job)
                    [answer] = await client.on(connection).steps.store([(self._job.lease, done)])
                    self._refuse_second(name, self._held_by(answer))
            except UnknownOutcome as error:
                await client.touch([self._job.lease])  # waits for a commit that is under way
                self._committed(name, await client.steps.list(self._job.id), error)
            except _Stored:
                return self._other(fn, name, await client.steps.list(self._job.id))
            assert done is not None
            return self._stored(fn, done)

    def sleep(self, name: str, until: datetime | None, delay: Duration | None) -> None:
        """Give the lease back until the time has come; the next run goes on here."""
        self._refuse_on_loop("sleep()", "await job.asleep(…)")
        _check_sleep(until, delay)
        self._load()
        self._sleep(name, until, delay)

    async def asleep(self, name: str, until: datetime | None, delay: Duration | None) -> None:
        """Like `sleep`, for async handlers."""
        _check_sleep(until, delay)
        await self._aload()
        self._sleep(name, until, delay)

    def wait_event(
        self, name: str, event: str, key: str | None, timeout: Duration | None, wanted: Any
    ) -> Any:
        """Return the payload of an event; give the lease back until it comes."""
        self._refuse_on_loop("wait_event()", "await job.await_event(…)")
        _check_length("timeout", timeout)
        self._load()
        name, place = self._wait(name, f"event {event}", "wait_event()")
        with self._running(name):
            known = self.book.on_record(name, place)
            if known is None or known.ended_at is None:
                make_certain(self._job)
                found = self._job.app.client.steps.await_event(
                    self._job.lease, name, event, key=key, nth=place
                )
                self._awaited(found, name, place, event, key, timeout, wanted)
                return _payload(found.result_json, event, wanted)
            if known.timed_out:
                raise EventTimeout(event, key)
            return _payload(known.result_json, event, wanted)

    async def await_event(
        self, name: str, event: str, key: str | None, timeout: Duration | None, wanted: Any
    ) -> Any:
        """Like `wait_event`, for async handlers."""
        _check_length("timeout", timeout)
        await self._aload()
        name, place = self._wait(name, f"event {event}", "await_event()")
        with self._running(name):
            known = self.book.on_record(name, place)
            if known is None or known.ended_at is None:
                await amake_certain(self._job)
                found = await self._job.app.aclient.steps.await_event(
                    self._job.lease, name, event, key=key, nth=place
                )
                self._awaited(found, name, place, event, key, timeout, wanted)
                return _payload(found.result_json, event, wanted)
            if known.timed_out:
                raise EventTimeout(event, key)
            return _payload(known.result_json, event, wanted)

    def _sleep(self, name: str, until: datetime | None, delay: Duration | None) -> None:
        name, place = self._wait(name, "sleep", "sleep()")
        with self._running(name):
            known = self.book.on_record(name, place)
            lease = self._job.lease
            # By the clock of the database, which decided that the job is due.
            claimed = lease.lease_until - lease.length
            if known is not None and known.until is not None and known.until <= claimed:
                return
            if known is not None:
                until, delay = known.until, None
            self._suspend(Suspend(name, place, until, delay))

    def _awaited(
        self,
        found: Awaited,
        name: str,
        place: int,
        event: str,
        key: str | None,
        timeout: Duration | None,
        wanted: Any,
    ) -> None:
        match found.outcome:
            case "lost":
                raise LeaseLost(self._job.id, found.detail or "")
            case "waiting":
                delay = timeout if found.until is None else None
                asked = _schema(wanted)
                self._suspend(Suspend(name, place, found.until, delay, event, key, asked))
            case "timed_out":
                raise EventTimeout(event, key)

    def _suspend(self, wanted: Suspend) -> NoReturn:
        self._job.suspended = wanted
        raise wanted

    def _wait(self, name: str, usual: str, what: str) -> tuple[str, int]:
        self.book.refuse_running(what)
        name = name or self.book.numbered(usual)
        return name, self._call(name, alone=True)

    def _call(self, name: str, *, alone: bool) -> int:
        job = self._job
        if job.suspended:
            raise job.suspended  # the handler must not go on: somebody else may run it soon
        if job.ticket or job.settled or (alone and job.in_transaction):
            raise StepMisuse(
                f"{job.kind} {job.id}: the step {name!r} was called "
                + ("inside of transaction()" if job.in_transaction else "after the job had ended")
            )
        return self.book.call(name, own=job.calls_itself())

    @contextmanager
    def _running(self, name: str) -> Iterator[None]:
        try:
            yield
        finally:
            self.book.ended(name)

    def _load(self) -> None:
        if not self.book.loaded:
            self.book.load(self._job.app.client.steps.list(self._job.id))

    async def _aload(self) -> None:
        if not self.book.loaded:
            self.book.load(await self._job.app.aclient.steps.list(self._job.id))

    def _store(self, done: NewStep) -> str:
        if self._job.in_transaction:
            self.pending.append(done)
            return "pending"
        client = self._job.app.client
        writer = writer_of(client)
        while True:
            try:
                return self._held_by(writer.store(client, self._job.lease, done))
            except PayloadTooLarge as error:
                raise _too_large(done.name, error) from error
            except (Unavailable, UnknownOutcome) as error:
                # What was done must not be done again because the database was away for a moment.
                self._refuse_unheld(error)
                sleep(BREATH)

    async def _astore(self, done: NewStep) -> str:
        if self._job.in_transaction:
            self.pending.append(done)
            return "pending"
        client = self._job.app.aclient
        writer = async_writer_of(client)
        while True:
            try:
                return self._held_by(await writer.store(client, self._job.lease, done))
            except PayloadTooLarge as error:
                raise _too_large(done.name, error) from error
            except (Unavailable, UnknownOutcome) as error:
                self._refuse_unheld(error)
                await asyncio.sleep(BREATH)

    def _stored(self, fn: Callable[..., Any], done: NewStep) -> Any:
        # What is returned is what the next run would get: no other type, no shared object.
        step = _step(done)
        self.book.ended(done.name, step)
        return self._decoded(fn, done.name, step)

    def _new_step(
        self, fn: Callable[..., Any], name: str, returned: Any, place: int, began: float
    ) -> NewStep:
        try:
            encoded = jsonb.encode(returned)
        except jsonb.Unfit as unfit:
            raise InvalidResult(
                f"the result of the step {name!r}{declared_at(fn)} {unfit}",
                fix=unfit.fix or "Return what JSON can say: values, a dataclass or a model.",
            ) from None
        if (codec := self._job.task.codec) is not None:
            encoded = codec.result(encoded, name)
        return NewStep(name, encoded, place, monotonic() - began)

    def _decoded(self, fn: Callable[..., Any], name: str, known: Step) -> Any:
        text: Any = known.result_json
        try:
            if (codec := self._job.task.codec) is not None:
                text = codec.opened_result("null" if text is None else text, name)
            return _result_of(fn, name).decode(text)
        except CannotOpen as problem:
            # Another worker may have the key: what was done must not be done again for want of it.
            self._job.unread = True
            raise InvalidPayload(
                f"{self._job.kind} {self._job.id}: the result of the step {name!r} cannot be read: "
                f"{problem.what}",
                fix=problem.fix,
            ) from None
        except msgspec.ValidationError as error:
            raise InvalidResult(
                f"the result of the step {name!r} does not fit {_told(fn)} any more: {error}",
                fix="Change the function back, or forget the job's steps:  "
                "holdfast job retry --fresh",
            ) from None

    def _other(self, fn: Callable[..., Any], name: str, known: Sequence[Step]) -> Any:
        """Return the result that is on record, whoever stored it: the next run gets that one."""
        [step] = [one for one in known if one.name == name]
        self.book.ended(name, step)
        return self._decoded(fn, name, step)

    def _refuse_second(self, name: str, outcome: str) -> None:
        # An earlier call has committed after all, though nobody heard of it: not a second effect.
        if outcome == "already":
            raise _Stored(name)

    def undo(self) -> None:
        """Forget the steps of a transaction that was rolled back."""
        self.book.undo([one.name for one in self.pending])
        self.pending.clear()

    def _refuse_unheld(self, error: HoldfastError) -> None:
        if not self._job.held():
            self._job.cut_by = error  # not the job's fault: the attempt does not count
            raise error

    def _held_by(self, answer: tuple[str, str | None]) -> str:
        outcome, detail = answer
        if outcome not in ("stored", "already"):
            raise LeaseLost(self._job.id, detail or "")
        return outcome

    def _committed(self, name: str, known: Sequence[Step], error: UnknownOutcome) -> None:
        if all(step.name != name for step in known):
            self._job.cut_by = Unavailable(
                f"the transaction of the step {name!r} was not committed", why=error.reason
            )
            raise self._job.cut_by from error

    def _refuse_on_loop(self, what: str, fix: str) -> None:
        if asyncio._get_running_loop() is not None:
            raise StepMisuse(
                f"{self._job.kind}: {what} would block the event loop", fix=f"Use {fix} instead."
            )


class _Stored(Exception):  # noqa: N818 - rolls a transaction back, and is caught behind it
    """The step is on record already."""


def _check_sleep(until: datetime | None, delay: Duration | None) -> None:
    if until is not None and until.tzinfo is None:
        raise StepMisuse(
            f"until {until.isoformat()} has no time zone",
            fix="Say which:  datetime.now(UTC), or  at.replace(tzinfo=…)",
        )
    _check_length("sleep", delay)


def _check_length(what: str, length: Duration | None) -> None:
    if length is not None and not 0 <= seconds(length) <= LONGEST:
        raise StepMisuse(
            f"{what} {length} is out of range", fix="Give one of 0 seconds to 100 years."
        )


def _too_large(name: str, error: PayloadTooLarge) -> InvalidResult:
    # Another attempt would only repeat what was done.
    return InvalidResult(
        f"the result of the step {name!r} cannot be stored: {error.what}",
        fix="Store it elsewhere and return its address; the limit is payload_limit of the queue.",
    )


def _is_async(fn: Any) -> bool:
    while isinstance(fn, partial):
        fn = fn.func
    called = fn if inspect.isroutine(fn) else type(fn).__call__
    return inspect.iscoroutinefunction(called)


def _step(done: NewStep) -> Step:
    now = datetime.min
    return Step(
        done.name, "step", done.nth, 0, now, now, None, None, None, False, done.result_json.decode()
    )


def _payload(told: str | None, event: str, wanted: Any) -> Any:
    try:
        return jsonb.decoder(wanted).decode(told or "null")
    except msgspec.ValidationError as error:
        raise InvalidResult(
            f"the payload of the event {event} does not fit {wanted!r}: {error}",
            fix="Change the type; the event is on record, and a retry reads it again.",
        ) from None


def _schema(wanted: Any) -> dict[str, Any] | None:
    """What the event's payload has to fit, for a form; nothing if it cannot be told in short."""
    if wanted is Any:
        return None
    try:
        told = jsonb.schema(wanted)
    except (NameError, TypeError):
        return None
    return told if len(json.dumps(told)) <= SCHEMA else None


def _result_of(fn: Callable[..., Any], name: str) -> Result:
    try:
        return _results(fn)
    except InvalidTask as error:
        raise InvalidTask(
            error.what.replace("its result cannot be kept", "its result cannot be stored"),
            fix=f"Return JSON values, a dataclass or a model from the step {name!r}.",
        ) from None
    except TypeError:  # what cannot be hashed is not looked up
        return Result(fn, _told(fn))


@lru_cache(512)
def _results(fn: Callable[..., Any]) -> Result:
    return Result(fn, _told(fn))


def _told(fn: Any) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__name__", fn))


_UNSEEN = re.compile(f"[{UNSEEN}]")
