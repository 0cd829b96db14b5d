# ruff: noqa: N818 - an error is named for what happened
"""Every error Holdfast raises: a small tree whose messages say what to do next.

An error reads as *what happened and the value that caused it · why · what fixes it*, and carries a
code that names one page of the documentation. Expected results are values, never errors: a
duplicate is an `Enqueued`, a lost lease is a `Settled`, until the caller asks for an exception.
"""

import shlex
from collections.abc import Sequence
from typing import Any
from uuid import UUID


def shell_word(word: str) -> str:
    """Return a word as a shell takes it, for commands that people copy."""
    # What looks like an option follows two dashes.
    return ("-- " if word.startswith("-") else "") + shlex.quote(word)


class HoldfastError(Exception):
    """Anything Holdfast refuses or cannot do; `str()` is the whole message for a terminal."""

    code = "HF000"
    # What a program exits with that it ends.
    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "", code: str = "") -> None:
        super().__init__(what)
        self.code = code or type(self).code
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        parts = [part for part in (self.what, self.why, self.fix) if part]
        return f"{self.code} " + "\n".join(parts).replace("\n", "\n      ")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


class Unavailable(HoldfastError):
    """The database cannot be used now; nothing was changed and the call may be repeated."""

    code = "HF102"
    exit_code = 3


class CannotConnect(Unavailable):
    """PostgreSQL could not be reached. The message never shows a password."""

    code = "HF100"

    def __init__(
        self, server: str, reason: str, *, source: str = "", tries: int = 1, seconds: float = 0.0
    ) -> None:
        tried = f"Tried {tries} {'time' if tries == 1 else 'times'} in {seconds:.0f} s."
        super().__init__(
            f"cannot reach PostgreSQL at {server}: {reason}",
            why=f"from {source}. {tried}" if source else tried,
            fix=(
                "Check that the server runs, or unset HOLDFAST_URL to use the embedded one."
                if "HOLDFAST_URL" in source
                else "Check that the server runs and that the address is right."
            ),
        )
        self.server = server
        self.reason = reason
        self.source = source
        self.tries = tries
        self.seconds = seconds


class EmbeddedUnavailable(HoldfastError):
    """No PostgreSQL could be started on this machine."""

    code = "HF101"
    exit_code = 3

    def __init__(self, what: str, *, tried: Sequence[str] = (), fix: str = "") -> None:
        super().__init__(
            what,
            why="\n".join(tried),
            fix=fix or 'Run:  pip install "holdfast[dev]"     or set HOLDFAST_URL',
        )
        self.tried = tuple(tried)


class SchemaError(HoldfastError):
    """The schema in the database is not the one this program speaks to."""

    code = "HF112"
    exit_code = 4


class NotMigrated(SchemaError):
    """The database has no Holdfast schema, or an older one."""

    code = "HF110"

    def __init__(self, database: str, *, found: int | None, needed: int | None = None) -> None:
        has = "no holdfast schema" if found is None else f"holdfast schema {found}"
        needs = f" (found: {found or 'none'}, this version needs {needed})" if needed else ""
        super().__init__(
            (f'database "{database}"' if database else "the database") + f" has {has}{needs}",
            fix="Run:  holdfast migrate            See the SQL first:  holdfast migrate --sql",
        )
        self.database = database
        self.found = found
        self.needed = needed


class SchemaTooNew(SchemaError):
    """The schema belongs to a newer Holdfast. It is never downgraded."""

    code = "HF111"

    def __init__(self, *, found: int | str, known: int | str) -> None:
        super().__init__(
            f"schema is version {found}, this program knows {known}. "
            "Upgrade holdfast on this host, or run an older schema."
        )
        self.found = found
        self.known = known


class SchemaDrift(SchemaError):
    """The schema has the right version but differs from what this program would install."""

    code = "HF112"


class MigrationBlocked(SchemaError):
    """A migration gave up waiting for other sessions; nothing was changed."""

    code = "HF113"


class UnknownOutcome(HoldfastError):
    """The connection was lost after a call was sent: it may or may not have been committed.

    Distinct from failure: doing it again may do it twice, giving up may lose it. Calls that can be
    repeated safely are repeated by the client and end here only when their deadline has passed.
    """

    code = "HF120"

    def __init__(self, call: str, reason: str, *, fix: str = "", ids: Sequence[UUID] = ()) -> None:
        super().__init__(f"{call}: outcome unknown, {reason}", fix=fix)
        self.call = call
        self.reason = reason
        self.ids = tuple(ids)


class Misuse(HoldfastError):
    """A call that can never succeed in this form."""

    code = "HF200"
    exit_code = 2


class InvalidJob(Misuse):
    """A job that cannot be enqueued: an unknown field, a bad name or value (HF201 to HF214)."""

    code = "HF201"


class InvalidArguments(InvalidJob):
    """Arguments of a task that do not fit its function (HF200), or are missing or unknown (HF201).

    `where` is the caller's line.
    """

    code = "HF200"

    def __init__(self, what: str, *, where: str = "", fix: str = "", code: str = "") -> None:
        super().__init__(what, why=where, fix=fix, code=code)
        self.where = where


class PayloadTooLarge(InvalidJob):
    """A payload over the limit of its queue."""

    code = "HF210"


class InvalidFilter(Misuse):
    """A filter that cannot be read; the message names the term."""

    code = "HF220"


class InvalidSetting(Misuse):
    """An unknown setting of a queue or lane (HF221), or a field that cannot be edited (HF222)."""

    code = "HF221"


class InvalidPayload(HoldfastError):
    """The payload of a job does not fit the function that should run it (any more)."""

    code = "HF230"


class PayloadLost(HoldfastError):
    """The payload of a job is not in its store, or is another one."""

    code = "HF233"


class InvalidTask(Misuse):
    """A function that cannot be a task, or not as it was declared."""

    code = "HF231"


class InvalidResult(HoldfastError):
    """What a handler returned cannot be kept as JSON."""

    code = "HF232"


class StepMisuse(Misuse):
    """A step that does not fit the record of its job, or is called where none can be."""

    code = "HF213"


class EventTimeout(HoldfastError, TimeoutError):
    """The event that a job waited for did not come in time; this is on record, and stays so."""

    code = "HF341"

    def __init__(self, event: str, key: str | None = None) -> None:
        told = f" (key {key})" if key is not None else ""
        super().__init__(f"the event {event}{told} did not come in time")
        self.event = event
        self.key = key


class InvalidSchedule(Misuse):
    """A schedule that can never fire, or has an invalid field, which the message names."""

    code = "HF223"


class LeaseLost(HoldfastError):
    """A lease was settled or touched too late: the caller no longer holds the job.

    Treat the work of the holder as not done.
    """

    code = "HF300"

    def __init__(self, id: UUID, detail: str = "") -> None:
        super().__init__(f"lease lost: {detail or f'job {id}'}")
        self.id = id
        self.detail = detail


class UnknownJob(HoldfastError):
    """No job has this id: it never existed, or was deleted when it was done."""

    code = "HF310"

    def __init__(self, id: UUID | str) -> None:
        super().__init__(f"no job has the id {id}")
        self.id = id


class UnknownQueue(HoldfastError):
    """No queue has this name: nothing was ever enqueued into it or set for it."""

    code = "HF311"

    def __init__(self, queue: str, *, suggestion: str = "") -> None:
        super().__init__(
            f"no queue is named {queue!r}{suggestion}",
            fix="See them:  holdfast queue list     Create it:  holdfast queue set "
            f"{shell_word(queue)} max_attempts=3",
        )
        self.queue = queue


class NoResult(HoldfastError):
    """A job has no result to give. `id` is its id."""

    code = "HF332"

    def __init__(self, id: UUID, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.id = id


class JobFailed(NoResult):
    """A job died before it had a result; `error` is the last error of its handler."""

    code = "HF330"

    def __init__(self, id: UUID, kind: str, error: str, *, attempts: int) -> None:
        times = f"{attempts} {'attempt' if attempts == 1 else 'attempts'}"
        super().__init__(
            id,
            f"job {id} ({kind}) is dead after {times}: {error}",
            fix=f"See the details:  holdfast job show {id}",
        )
        self.kind = kind
        self.error = error
        self.attempts = attempts


class JobCancelled(NoResult):
    """A job was cancelled before it had a result."""

    code = "HF331"

    def __init__(self, id: UUID, kind: str, reason: str) -> None:
        super().__init__(id, f"job {id} ({kind}) was cancelled" + (f": {reason}" if reason else ""))
        self.kind = kind
        self.reason = reason


class ResultNotKept(NoResult):
    """A job ended and nothing of its result is left."""

    code = "HF332"


class ResultTimeout(NoResult, TimeoutError):
    """A job has not ended in time; it goes on."""

    code = "HF333"


class ResultUnreadable(NoResult):
    """A result was kept, and is not what its function returns (any more)."""

    code = "HF334"


class UnknownSchedule(HoldfastError):
    """No schedule has this name."""

    code = "HF312"


class UnknownWorker(HoldfastError):
    """No worker of the last day has this name."""

    code = "HF313"


class UnknownOperation(HoldfastError):
    """No operation has this id, or its preview is gone."""

    code = "HF314"


class UnknownStrike(HoldfastError):
    """No strike has this number."""

    code = "HF318"

    def __init__(self, number: int | str) -> None:
        super().__init__(
            f"no strike has the number {number}", fix="See them:  holdfast strike list"
        )


class UnknownWorkflow(HoldfastError):
    """No workflow has this id, and no job of one."""

    code = "HF320"

    def __init__(self, id: UUID | str) -> None:
        super().__init__(f"no workflow has the id {id}", fix="See them:  holdfast workflow list")
        self.id = id


class UnknownToken(HoldfastError):
    """No token has this id."""

    code = "HF315"


class UnknownAnomaly(HoldfastError):
    """No anomaly has this id."""

    code = "HF319"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"no anomaly has the id {id}",
            why="Anomalies are deleted a week after they are resolved.",
            fix="See them:  holdfast anomaly list",
        )


class AppNotFound(Misuse):
    """There is no app of this name, or a new process could not import it."""

    code = "HF240"


class AppBroken(HoldfastError):
    """The module of an app raised an error while it was imported."""

    code = "HF241"


class WorkerDied(HoldfastError):
    """A process of a worker died, again and again, as soon as it was started."""

    code = "HF340"


class Refused(HoldfastError):
    """The caller may not do this: a read-only server, a missing right, an unconfirmed deletion."""

    code = "HF401"
    exit_code = 5


def _restore(
    kind: type[HoldfastError], args: tuple[Any, ...], state: dict[str, Any]
) -> HoldfastError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class CannotAdopt(Misuse):
    """A table cannot be adopted, linked or unadopted as requested; nothing was changed."""

    code = "HF250"


class AdoptionBlocked(HoldfastError):
    """A step of an adoption gave up waiting for other sessions; run again, it goes on there."""

    code = "HF251"
