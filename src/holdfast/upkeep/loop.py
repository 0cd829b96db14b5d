"""Upkeep: regular maintenance, in one loop that any process may run.

Duties are idempotent, so that several processes may do them at once; a row in the database names a
leader, to save the others the work. A duty that fails does not stop the others.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any
from uuid import UUID

import psycopg
from msgspec.structs import replace

from holdfast import conninfo, cron
from holdfast.client import Client
from holdfast.errors import (
    HoldfastError,
    InvalidSchedule,
    Misuse,
    Refused,
    SchemaError,
    Unavailable,
    UnknownOutcome,
)
from holdfast.jitter import random_between
from holdfast.records import Doubtful, DueSchedule, Tended
from holdfast.watch import webhooks
from holdfast.watch.webhooks import OwnDetector

__all__ = ["DoneWhen", "Upkeep"]

log = logging.getLogger("holdfast.upkeep")

DoneWhen = Callable[[psycopg.Connection[Any], Doubtful], bool]
"""Says whether the work of a job is done although nobody acked it. It only looks."""

# How long a process leads; all processes check again well before this has passed.
LEAD = 5.0
# How often a failing check is tried before its job counts as not done.
ASKED = 3
# How long a check may keep the database busy.
CHECK = 10.0
# How long a single turn continues with slices.
SLICES = 5.0
_BATCH = 100
# The next chunk of an operation is due after such a pause.
_DUE_SOON = 0.02

_Held = tuple[UUID, UUID]


class Upkeep:
    """Does the upkeep of one database: leases, due jobs, counters, pages, schedules, checks.

    It also runs the detectors, logs what they find and delivers it to webhooks.

    `holder` names this process among those that could lead. `checks`, by kind, are asked before a
    job whose worker vanished is run again. `detectors`, by code, are the app's own. Idle, it makes
    one transaction in twice `every` seconds, and one in ten to detect. `empty` is called when it
    has seen that none of `queues` has a job, so that a worker in this process need not look, too.
    """

    def __init__(
        self,
        client: Client,
        *,
        holder: str,
        checks: Mapping[str, DoneWhen] | None = None,
        detectors: Mapping[str, OwnDetector] | None = None,
        every: float = 1.0,
        queues: Sequence[str] = (),
        empty: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._queues = list(queues) or None
        self._empty = empty
        self._holder = holder
        self._checks = dict(checks or {})
        self._detectors = dict(detectors or {})
        self._look_at = dict.fromkeys(self._detectors, 0.0)
        self._courier: threading.Thread | None = None
        self._sender: threading.Thread | None = None
        self._stopped = threading.Event()
        self._every = every
        self._failing: dict[str, str] = {}
        self._asked: dict[_Held, int] = {}
        self._reached = False
        self._leads = False
        self._apart = False

    def turn(self) -> dict[str, int]:
        """Do every duty once, even if another process leads; returns how much each of them did.

        A duty that fails is logged the first time, and does not stop the others. Raises only what
        stops all duties: no database, no schema, no rights.
        """
        done = self._counted(self._duty("upkeep", self._keep) or {})
        fired, _ = self._duty("schedules", self._fire) or (0, None)
        told = self._duty("anomalies", self._detect) or 0
        told += self._detect_own()
        self._duty("deliveries", lambda: webhooks.deliver(self._client, self._holder))
        return {**done, "fired": fired, **self._look(), "anomalies": told}

    def catch_up(self) -> None:
        """Do what the time alone makes due: expired leases, doubtful jobs, slots of schedules."""
        self._client.upkeep.reap()
        self._look()
        self._duty("schedules", self._fire)

    def run(
        self, stop: threading.Event, told: Callable[[dict[str, int]], None] | None = None
    ) -> None:
        """Do the duties while this process leads, and wait while another does, until `stop`.

        It waits during outages; the client logs once when the database goes away and comes back.
        `told` is called with what each turn did.
        """
        pause = 0.0
        self._stopped = stop
        while not stop.wait(pause):
            try:
                pause = self._tend(told)
                self._recovered("database")
                self._reached = True
            except (Unavailable, UnknownOutcome) as error:
                self._leads = False
                # The client logs later outages, but not a database that was never reachable.
                if not self._reached:
                    self._failed("database", error)
                pause = random_between(0.1, 1.0)
            except (SchemaError, Refused) as error:
                self._failed("database", error)
                pause = LEAD
        if self._leads:
            with suppress(HoldfastError):
                self._client.upkeep.lead(
                    self._holder, length=0.0
                )  # so that another follows at once

    def _tend(self, told: Callable[[dict[str, int]], None] | None) -> float:
        """Do one turn of the leader; returns how long to wait for the next."""
        tended = self._duty("upkeep", self._slices)
        led, self._leads = self._leads, tended is None or tended.leads
        doubtful = tended is None or tended.doubtful
        own = self._detect_own()
        if not self._leads:
            # The leader may not have these checks, so every process runs those it has.
            if doubtful:
                self._look()
            return LEAD * random_between(0.6, 1.0)
        # If that failed, it is unknown who leads and what is due: run the other duties.
        if tended and (tended.done or {}).get("strays"):
            self._send_strays()
        done = self._counted(tended.done or {}) if tended else {}
        next_slot = tended.next_slot if tended else timedelta()
        if next_slot is not None and next_slot <= timedelta():
            fired, next_slot = self._duty("schedules", self._fire) or (0, None)
            done["fired"] = fired
        if doubtful:
            done |= self._look()
        if tended and tended.operating:
            done["operated"] = self._duty("operations", self._operate) or 0
        # Not in its first turn: a worker that has just started should run jobs first.
        if tended and tended.detecting and led:
            own += self._duty("anomalies", self._detect) or 0
        if tended and tended.delivering:
            self._send_out()
        if own:
            done["anomalies"] = own
        busy = any(done.values())
        if told:
            told(done)
        # Work comes in bursts: after a turn without work, wait longer.
        pause = self._every if busy else 2 * self._every
        if next_slot is not None:
            pause = min(pause, max(next_slot.total_seconds(), 0.01))
        return pause

    def _slices(self) -> Tended:
        """Run upkeep in slices, each in its own transaction, while there is more to do."""
        end = monotonic() + self._every
        done: dict[str, Any] = {}
        while True:
            if self._apart:
                tended = self._step_by_step()
            else:
                try:
                    tended = self._client.upkeep.tend(
                        self._holder, length=LEAD, queues=self._queues
                    )
                except (HoldfastError, psycopg.Error) as error:
                    if isinstance(error, SchemaError | Refused):
                        raise
                    # One step that takes too long must not keep the others from being done.
                    self._apart = True
                    raise
            if tended.empty and self._queues:
                self._empty()
            said = tended.done or {}
            done = _added(done, said)
            if not said.get("more") or monotonic() > end or self._stopped.is_set():
                return replace(tended, done=done if tended.leads else None)

    def _step_by_step(self) -> Tended:
        """Run each step in its own transaction; record those that fail."""
        self._apart = False
        nothing = self._client.upkeep.tend(self._holder, length=LEAD, steps=[])
        if not nothing.leads:
            return nothing
        done: dict[str, Any] = {}
        for step in self._client.upkeep.steps():
            if step == "strays":
                continue  # in a thread of their own
            try:
                said = self._client.upkeep.run([step])
            except (HoldfastError, psycopg.Error) as error:
                if isinstance(error, SchemaError | Refused):
                    raise
                self._client.now()  # raises if it is not the step but the database that is gone
                self._apart = True
                said = {"failed": {step: _reason(error)}}
            done = _added(done, said)
        failed = done.get("failed")
        tended = self._client.upkeep.tend(self._holder, length=LEAD, steps=[], failed=failed)
        return replace(tended, done=_added(done, tended.done or {}))

    def _keep(self) -> dict[str, Any]:
        """Run upkeep even if another process leads, slice by slice, while there is more to do."""
        end = monotonic() + SLICES
        done: dict[str, Any] = {}
        while True:
            said = self._client.upkeep.run()
            done = _added(done, said)
            if not said.get("more") or monotonic() > end:
                return done

    def _counted(self, done: dict[str, Any]) -> dict[str, int]:
        done.pop("more", None)
        done.pop("strays", None)
        failed = done.pop("failed", {})
        for step in done:
            if step not in failed:
                self._recovered(step)
        for step, reason in failed.items():
            self._failed(step, reason)
        return done

    def _fire(self) -> tuple[int, timedelta | None]:
        """Fire due slots; returns how many jobs were created and the time until the next slot."""
        fired = 0
        waits: list[timedelta] = []
        come = self._client.schedules.due(_BATCH)
        if len(come) == _BATCH:
            waits.append(timedelta())  # there may be more
        for due in come:
            name = f"schedule {due.name}"
            try:
                jobs, wait = self._fire_one(due)
            except InvalidSchedule as error:
                # Not final: another machine may know the time zone.
                if self._failed(name, error):
                    self._client.schedules.fail(due, error.what)
            except (HoldfastError, psycopg.Error) as error:
                if _hopeless(error):
                    raise
                self._failed(name, error)
            else:
                self._recovered(name)
                fired += jobs
                waits += [wait] if wait is not None else []
        return fired, min(waits, default=None)

    def _fire_one(self, due: DueSchedule) -> tuple[int, timedelta | None]:
        turn = _decided(due)
        never = None if turn.next_at else "there is no further slot in fifty years"
        slots = self._client.schedules.fire(due, turn.slots, turn.next_at, problem=never)
        wait = turn.next_at - due.now if turn.next_at else None
        return sum(slot.outcome == "fired" for slot in slots), wait

    def _operate(self) -> int:
        """Run steps of operations for a while; returns how many jobs they processed."""
        seen = 0
        end = monotonic() + self._every
        while (now := monotonic()) < end:
            if (step := self._client.operations.step()) is not None:
                seen += step.seen
            else:  # not due yet, or done
                sleep(min(_DUE_SOON, end - now))
        return seen

    def _detect(self) -> int:
        """Run the detectors that are due; returns how many anomalies are new, worse or resolved."""
        changes = self._client.detectors.run()
        webhooks.tell_log(changes)
        return len(changes)

    def _detect_own(self) -> int:
        """Run the app's own detectors that are due, each in one process of all that have it."""
        told = 0
        for code, own in self._detectors.items():
            if monotonic() < self._look_at[code]:
                continue
            self._look_at[code] = monotonic() + own.every
            told += self._duty(f"detector {code}", partial(self._detect_one, code, own)) or 0
        return told

    def _detect_one(self, code: str, own: OwnDetector) -> int:
        if not self._client.detectors.due(code, every=0.9 * own.every):
            return 0
        with closing(self._connect()) as connection:
            timer = threading.Timer(CHECK, _cancel, [connection])
            timer.start()
            try:
                found = list(own.looks(connection))
            except HoldfastError:
                raise
            except Exception as error:
                # Whatever is wrong with one detector must not end the upkeep of the whole fleet.
                raise Misuse(f"detector {code} failed: {_reason(error)}") from error
            finally:
                timer.cancel()
        changes = self._client.detectors.report(code, found)
        webhooks.tell_log(changes)
        return len(changes)

    def _send_out(self) -> None:
        """Deliver waiting anomalies in a thread, because a receiver may be slow."""
        if self._courier is None or not self._courier.is_alive():
            self._courier = threading.Thread(
                target=self._duty,
                args=("deliveries", self._deliver),
                name="holdfast-courier",
                daemon=True,
            )
            self._courier.start()

    def _send_strays(self) -> None:
        """Send jobs to the nodes of their queues in a thread, because a node may stand still."""
        if self._sender is None or not self._sender.is_alive():
            self._sender = threading.Thread(
                target=self._duty,
                args=("strays", self._send),
                name="holdfast-strays",
                daemon=True,
            )
            self._sender.start()

    def _send(self) -> None:
        # A connection of its own: one of the pool may have reached the node before, and would wait
        # for it, where a new one notices that the node takes no connections.
        with (
            suppress(Unavailable, SchemaError, Refused, psycopg.OperationalError),
            closing(self._connect()) as connection,
        ):
            connection.autocommit = True
            more = True
            while more and not self._stopped.is_set():
                row = connection.execute("select holdfast.upkeep('{strays}')").fetchone()
                more = row is not None and "more" in row[0]

    def _deliver(self) -> None:
        with suppress(Unavailable, UnknownOutcome, SchemaError, Refused):
            webhooks.deliver(self._client, self._holder, self._stopped.is_set)

    def _look(self) -> dict[str, int]:
        if not self._checks:
            return {}
        return self._duty("checks", self._reconcile) or {}

    def _reconcile(self) -> dict[str, int]:
        """Check each job whose worker disappeared, and settle it as done or failed."""
        doubtful = self._client.upkeep.doubtful(list(self._checks), limit=_BATCH)
        held = {(job.id, job.token): job for job in doubtful}
        self._asked = {lease: self._asked.get(lease, 0) for lease in held}
        found = [(lease, done) for lease, done in self._ask(held) if done is not None]
        if not found:
            return {}
        outcomes = [answer.outcome for answer in self._client.upkeep.reconcile(found)]
        return {
            "reconciled": outcomes.count("done"),
            "undone": len(outcomes) - outcomes.count("done"),
        }

    def _ask(self, held: Mapping[_Held, Doubtful]) -> Iterator[tuple[_Held, bool | None]]:
        connection: psycopg.Connection[Any] | None = None
        try:
            for lease, job in held.items():
                if connection is None or connection.closed:
                    connection = self._connect()
                yield lease, self._is_done(connection, job)
        finally:
            if connection is not None:
                connection.close()

    def _is_done(self, connection: psycopg.Connection[Any], job: Doubtful) -> bool | None:
        """Return whether a job is done; None if its check failed and may be tried again."""
        timer = threading.Timer(CHECK, _cancel, [connection])
        timer.start()
        try:
            return bool(self._checks[job.kind](connection, job))
        except Exception as error:
            self._asked[job.id, job.token] += 1
            given_up = self._asked[job.id, job.token] >= ASKED
            log.warning(
                "check failed, job counts as not done" if given_up else "check failed",
                extra={"job": str(job.id), "kind": job.kind, "reason": _reason(error)},
                exc_info=error,
            )
            return False if given_up else None
        finally:
            timer.cancel()
            with suppress(psycopg.Error):
                connection.rollback()

    def _connect(self) -> psycopg.Connection[Any]:
        url = self._client.url
        try:
            connection = psycopg.connect(
                **conninfo.parameters(url, application_name="holdfast checks")
            )
        except psycopg.OperationalError as error:
            raise conninfo.cannot_connect(url, error) from error
        connection.autocommit = False  # a check must only read: what it writes is rolled back
        return connection

    def _duty(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            result = work()
        except (HoldfastError, psycopg.Error) as error:
            if _hopeless(error):
                raise
            self._failed(name, error)
            return None
        self._recovered(name)
        return result

    def _failed(self, duty: str, error: Exception | str) -> bool:
        """Log a failure if it is new; returns whether it is."""
        reason = error if isinstance(error, str) else _reason(error)
        if self._failing.get(duty) == reason:
            return False
        self._failing[duty] = reason
        log.warning("duty failed", extra={"duty": duty, "reason": reason})
        return True

    def _recovered(self, duty: str) -> None:
        if self._failing.pop(duty, None) is not None:
            log.warning("duty works again", extra={"duty": duty})


def _added(done: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what several slices did as one."""
    sums = {
        step: done.get(step, 0) + amount
        for step, amount in said.items()
        if step not in ("failed", "more", "strays")
    }
    failed = {**done.get("failed", {}), **said.get("failed", {})}
    strays = {"strays": True} if "strays" in said else {}
    return {**done, **sums, **({"failed": failed} if failed else {}), **strays}


def _decided(due: DueSchedule) -> cron.Turn:
    try:
        rule = cron.rule(cron=due.cron, every=due.every, anchor=due.anchor, tz=due.tz)
        return cron.turn(rule, next_at=due.next_at, since=due.since, now=due.now, missed=due.missed)
    except InvalidSchedule:
        raise
    except Exception as error:
        # Whatever is wrong with one schedule must not end the upkeep of the whole fleet.
        raise InvalidSchedule(f"cannot be computed: {_reason(error)}") from error


def _cancel(connection: psycopg.Connection[Any]) -> None:
    with suppress(psycopg.Error):
        connection.cancel_safe()


def _hopeless(error: Exception) -> bool:
    return isinstance(error, Unavailable | UnknownOutcome | SchemaError | Refused)


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
