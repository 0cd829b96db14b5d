"""Generated from aio/storing.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Iterable, Sequence
from itertools import islice
from uuid import UUID

import psycopg

from holdfast.client import wire
from holdfast.client.rows import CopySettings, Rows
from holdfast.client.sql import COPIED, COPY, ENQUEUE, ENQUEUE_ONE, ENQUEUE_PARTS, SEPARATOR
from holdfast.client.statement import Statement, may_retry
from holdfast.client.sync.joined import Joined
from holdfast.client.sync.pool import Bound, Pool
from holdfast.errors import (
    CannotConnect,
    Misuse,
    Refused,
    SchemaError,
    Unavailable,
    UnknownOutcome,
)
from holdfast.records import Enqueued, NewJob

# How many jobs one call can certainly store before its deadline.
_MANY = 5000
# From so many on, COPY takes less time than a call, although it needs more round trips.
_BULK = 1000
# How many jobs are rendered at a time while a COPY is under way.
_STRETCH = 500


def enqueue(
    door: Pool | Bound, jobs: Sequence[NewJob], ids: Sequence[UUID], repeat: bool
) -> list[Enqueued]:
    """Store jobs under their ids, in the way that suits their number; one answer for each."""
    if len(jobs) > _MANY and isinstance(door, Joined):
        return _enqueue_at_once(door, jobs, ids, repeat)
    if len(jobs) == 1 and (texts := wire.texts_of_one(jobs[0], ids[0])):
        return [_enqueue_one(door, texts, ids, repeat)]
    if len(jobs) >= _BULK and not repeat and wire.are_plain(jobs):
        return _enqueue_by_copy(door, jobs, ids)
    if len(jobs) > _MANY:
        return _enqueue_in_steps(door, jobs, ids, repeat)
    items = wire.items(jobs, ids)
    statement = Statement("enqueue", ENQUEUE, [items, True])
    if not repeat:
        statement = Statement("enqueue", ENQUEUE, [items, False], again=statement, ids=ids)
    return [Enqueued(*row) for row in door.run(statement)]


def _enqueue_one(
    door: Pool | Bound, texts: Sequence[str], ids: Sequence[UUID], repeat: bool
) -> Enqueued:
    """Store one job that has nothing but what most of them have."""
    statement = Statement("enqueue", ENQUEUE_ONE, [*texts, "true"], texts=True)
    if not repeat:
        statement = Statement(
            "enqueue", ENQUEUE_ONE, [*texts, "false"], again=statement, ids=ids, texts=True
        )
    [(answer,)] = door.run(statement)
    return Enqueued(ids[0], True) if answer is None else wire.enqueued(answer)


def copy(door: Pool | Bound, jobs: Iterable[NewJob], ids: Sequence[UUID] | None = None) -> int:
    """Store jobs by COPY; returns how many. With `ids`, none if enqueue has something to decide."""
    whole, jobs = jobs, iter(jobs)
    done = 0
    failed: Exception | None = None
    with door.transaction("copy") as bound:
        [(now,)] = bound.run(Statement("copy", "select holdfast.now()::text"))
        rows = Rows(now, wary=ids is not None)
        some = list(islice(jobs, _STRETCH))
        while some:
            # With ids all queues are looked at before the first row is sent.
            unknown = rows.unknown(some if ids is None else whole)
            rows.queues.update(_copy_settings(bound, unknown))
            if ids is not None and not all(queue.is_plain for queue in rows.queues.values()):
                return 0
            # One stream for as long as it can be: the server stores while more is rendered.
            with bound.copying(COPY) as stream:
                while some and not rows.unknown(some):
                    try:
                        text = rows.render(some, ids and ids[done : done + len(some)])
                        done += len(some)
                        some = list(islice(jobs, _STRETCH))
                    except Exception as error:
                        # Raised behind the stream: the driver sends its text to the server, which
                        # hangs up if that is long.
                        failed = error
                        break
                    try:
                        stream.write(text)
                    except UnicodeError as error:
                        failed = wire.not_unicode(error)
                        break
            if failed:
                raise failed
        for queue in rows.queues:
            kinds = {kind: stored for (name, kind), stored in rows.counts.items() if name == queue}
            bound.run(Statement("copied", COPIED, [queue, list(kinds), list(kinds.values())]))
    return done


def _enqueue_at_once(
    door: Joined, jobs: Sequence[NewJob], ids: Sequence[UUID], repeat: bool
) -> list[Enqueued]:
    """Store jobs by one statement, since the caller may have begun no transaction."""
    steps = [slice(start, start + _MANY) for start in range(0, len(jobs), _MANY)]
    parts = [wire.items(jobs[some], ids[some]) for some in steps]
    rows = door.run(Statement("enqueue", ENQUEUE_PARTS, [SEPARATOR.join(parts), repeat]))
    return [Enqueued(*row) for row in rows]


def _enqueue_in_steps(
    door: Pool | Bound, jobs: Sequence[NewJob], ids: Sequence[UUID], repeat: bool
) -> list[Enqueued]:
    """Store jobs by several calls in one transaction; if the connection breaks, repeat them all."""
    unknown: UnknownOutcome | None = None
    for turn in range(1, 4):
        answers: list[Enqueued] = []
        try:
            with door.transaction("enqueue") as bound:
                for start in range(0, len(jobs), _MANY):
                    some = slice(start, start + _MANY)
                    items = wire.items(jobs[some], ids[some])
                    rows = bound.run(Statement("enqueue", ENQUEUE, [items, repeat]))
                    answers += [Enqueued(*row) for row in rows]
            return answers
        except UnknownOutcome as error:
            unknown, repeat = error, True
        except Unavailable as error:
            if turn == 3 or isinstance(error, CannotConnect):
                if unknown is None:
                    raise
                break
        except psycopg.Error as error:
            # Only the caller can repeat work on its own connection.
            if turn == 3 or isinstance(door, Bound) or not may_retry(error):
                raise
    reason = unknown.reason if unknown else ""
    fix = "Repeat it with the same ids and repeat=True."
    raise UnknownOutcome("enqueue", reason, fix=fix, ids=ids)


def _enqueue_by_copy(
    door: Pool | Bound, jobs: Sequence[NewJob], ids: Sequence[UUID]
) -> list[Enqueued]:
    """Store plain jobs whose ids the client has just made."""
    if isinstance(door, Pool):  # a COPY that is refused ends the caller's transaction
        try:
            if copy(door, jobs, ids):
                return [Enqueued(id, True) for id in ids]
        except CannotConnect:
            raise
        except UnknownOutcome:
            return _enqueue_in_steps(door, jobs, ids, repeat=True)
        except (Unavailable, Refused, SchemaError):
            pass  # cut, or by a role that may only call functions
        except Misuse:
            pass  # COPY decides nothing: whether and why these are refused is for enqueue to say
        except psycopg.Error as error:
            if not may_retry(error):
                raise
    return _enqueue_in_steps(door, jobs, ids, repeat=False)


def _copy_settings(door: Bound, queues: Iterable[str]) -> dict[str, CopySettings]:
    unseen = dict.fromkeys(queues, CopySettings())
    if unseen:
        sql = (
            f"select queue, {wire.columns(CopySettings)} from holdfast.queues "
            "where queue = any(%s::text[])"
        )
        rows = door.run(Statement("queues", sql, [list(unseen)]))
        unseen.update((name, CopySettings(*settings)) for name, *settings in rows)
    return unseen
