"""What every verb does to a job in every state: the whole protocol as two tables.

A cell says what the verb answers and, after `>`, the state the job is in afterwards (`-`: no such
job). Holder verbs are called with the token of the job's last holder, or of nobody if there was
none; the rows marked `stranger` with a token that never held the job. Operator verbs answer yes
(changed) or no.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.protocol import Hold, Later, Protocol

LIVE = """
                    ready          scheduled      blocked        follow-up      leased         expired        handed-over
enqueue             same>queued    same>queued    same>queued    other>queued   same>leased    same>leased    same>leased
enqueue replace     same>queued    same>queued    same>queued    same>queued    new>leased     new>leased     new>leased
enqueue after       same>queued    same>queued    same>queued    same>queued    new>leased     new>leased     new>leased
claim               given>leased   not>queued     not>queued     not>queued     not>leased     given>leased   not>leased
touch               lost>queued    lost>queued    lost>queued    lost>queued    leased>leased  leased>leased  leased>leased
touch stranger      lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    lost>leased    lost>leased
ack                 lost>queued    lost>queued    lost>queued    lost>queued    done>-         done>-         done>-
ack stranger        lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    lost>leased    lost>leased
nack                lost>queued    lost>queued    lost>queued    lost>queued    queued>queued  queued>queued  queued>queued
nack stranger       lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    lost>leased    lost>leased
release             lost>queued    lost>queued    lost>queued    lost>queued    queued>queued  queued>queued  queued>queued
release stranger    lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    lost>leased    lost>leased
cancel own          lost>queued    lost>queued    lost>queued    lost>queued    cancelled>cancelled cancelled>cancelled cancelled>cancelled
cancel stranger     lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    lost>leased    lost>leased
hand over           lost>queued    lost>queued    lost>queued    lost>queued    leased>leased  leased>leased  leased>leased
hand stranger       lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    lost>leased    lost>leased
reconcile done      lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    done>-         lost>leased
reconcile not       lost>queued    lost>queued    lost>queued    lost>queued    lost>leased    queued>queued  lost>leased
reap                not>queued     not>queued     not>queued     not>queued     not>leased     queued>queued  not>leased
cancel              yes>cancelled  yes>cancelled  yes>cancelled  yes>cancelled  yes>cancelled  yes>cancelled  yes>cancelled
retry               no>queued      no>queued      no>queued      no>queued      no>leased      no>leased      no>leased
edit                yes>queued     yes>queued     yes>queued     yes>queued     no>leased      no>leased      no>leased
move                yes>queued     yes>queued     yes>queued     yes>queued     no>leased      no>leased      no>leased
archive             no>queued      no>queued      no>queued      no>queued      no>leased      no>leased      no>leased
delete               yes>-          yes>-          yes>-          yes>-          no>leased      no>leased      no>leased
explain             Ready>queued   Not>queued     Lane>queued    Duplicate>queued Leased>leased  The>leased     Waiting>leased
get                 found>queued   found>queued   found>queued   found>queued   found>leased   found>leased   found>leased
"""  # noqa: E501

ENDED = """
                    done-kept      done-deleted   dead           cancelled      archived       unknown
enqueue             new>done       new>-          new>dead       new>cancelled  new>archived   new>-
enqueue replace     new>done       new>-          new>dead       new>cancelled  new>archived   new>-
enqueue after       new>done       new>-          new>dead       new>cancelled  new>archived   new>-
claim               not>done       not>-          not>dead       not>cancelled  not>archived   not>-
touch               lost>done      lost>-         lost>dead      lost>cancelled lost>archived  unknown>-
touch stranger      lost>done      unknown>-      lost>dead      lost>cancelled lost>archived  unknown>-
ack                 already>done   already>-      lost>dead      lost>cancelled lost>archived  unknown>-
ack stranger        lost>done      unknown>-      lost>dead      lost>cancelled lost>archived  unknown>-
nack                lost>done      lost>-         already>dead   lost>cancelled already>archived unknown>-
nack stranger       lost>done      unknown>-      lost>dead      lost>cancelled lost>archived  unknown>-
release             lost>done      lost>-         lost>dead      lost>cancelled lost>archived  unknown>-
release stranger    lost>done      unknown>-      lost>dead      lost>cancelled lost>archived  unknown>-
cancel own          lost>done      lost>-         lost>dead      lost>cancelled lost>archived  unknown>-
cancel stranger     lost>done      unknown>-      lost>dead      lost>cancelled lost>archived  unknown>-
hand over           lost>done      lost>-         lost>dead      lost>cancelled lost>archived  unknown>-
hand stranger       lost>done      unknown>-      lost>dead      lost>cancelled lost>archived  unknown>-
reconcile done      lost>done      lost>-         lost>dead      lost>cancelled lost>archived  unknown>-
reconcile not       lost>done      lost>-         lost>dead      lost>cancelled lost>archived  unknown>-
reap                not>done       not>-          not>dead       not>cancelled  not>archived   not>-
cancel              no>done        no>-           no>dead        no>cancelled   no>archived    no>-
retry               yes>queued     no>-           yes>queued     yes>queued     yes>queued     no>-
edit                no>done        no>-           yes>dead       no>cancelled   no>archived    no>-
move                no>done        no>-           yes>dead       no>cancelled   no>archived    no>-
archive             yes>archived   no>-           yes>archived   yes>archived   no>archived    no>-
delete               yes>-          no>-           yes>-          yes>-          yes>-          no>-
explain             Done>done      No>-           Dead>dead      Cancelled>cancelled Archived>archived No>-
get                 found>done     none>-         found>dead     found>cancelled found>archived none>-
"""  # noqa: E501

KEYED = {"kind": "work", "key": "k"}
LANE = {**KEYED, "lane": "l"}


def _cells() -> Iterator[tuple[str, str, str]]:
    for table in (LIVE, ENDED):
        states, *rows = table.strip("\n").splitlines()
        for row in rows:
            verb, cells = row[:20].strip(), row[20:].split()
            yield from (
                (state, verb, cell) for state, cell in zip(states.split(), cells, strict=True)
            )


@pytest.mark.proves("S0.30", "S3.2", "S4.2", "S4.14", "S4.15", "S4.20", "S4.21", "S4.22")
@pytest.mark.parametrize(
    ("state", "verb", "cell"), [pytest.param(*cell, id=f"{cell[1]} {cell[0]}") for cell in _cells()]
)
def test_a_verb_does_to_a_job_what_the_table_says(
    db: Protocol, later: Later, state: str, verb: str, cell: str
) -> None:
    subject = STATES[state](db, later)

    answer = VERBS[verb](db, subject)

    assert f"{answer}>{db.state(subject.id) or '-'}" == cell


def test_the_tables_name_every_state_and_verb() -> None:
    cells = list(_cells())

    assert {(state, verb) for state, verb, _ in cells} == {
        (state, verb) for state in STATES for verb in VERBS
    }


def _ready(db: Protocol, later: Later) -> Hold:
    return _unheld(db.put(**KEYED))


def _scheduled(db: Protocol, later: Later) -> Hold:
    return _unheld(db.put(**KEYED, delay=3600))


def _blocked(db: Protocol, later: Later) -> Hold:
    _, second = db.enqueue({"kind": "work", "lane": "l"}, LANE)
    db.take()
    # The claim met it behind the running one and took it out of the ready order.
    assert db.claim() == []
    return _unheld(second.id)


def _follow_up(db: Protocol, later: Later) -> Hold:
    db.put(**KEYED)
    db.take()
    return _unheld(db.put(**KEYED, on_conflict="after"))


def _leased(db: Protocol, later: Later) -> Hold:
    db.put(**KEYED)
    job = db.take()
    return Hold(job.id, job.token)


def _expired(db: Protocol, later: Later) -> Hold:
    held = _leased(db, later)
    later(seconds=31)
    return held


def _handed_over(db: Protocol, later: Later) -> Hold:
    held = _leased(db, later)
    ticket = Hold(held.id, uuid4())
    db.hand_over(held, ticket.token)
    return ticket


def _done_kept(db: Protocol, later: Later) -> Hold:
    db.queue_set("default", keep_done=3600)
    return _done_deleted(db, later)


def _done_deleted(db: Protocol, later: Later) -> Hold:
    held = _leased(db, later)
    db.ack(held)
    return held


def _dead(db: Protocol, later: Later) -> Hold:
    db.put(**KEYED, max_attempts=1)
    job = db.take()
    db.nack(job)
    return Hold(job.id, job.token)


def _cancelled(db: Protocol, later: Later) -> Hold:
    held = _leased(db, later)
    db.cancel(held.id)
    return held


def _archived(db: Protocol, later: Later) -> Hold:
    held = _dead(db, later)
    db.archive(held.id)
    return held


def _unknown(db: Protocol, later: Later) -> Hold:
    return _unheld(uuid4())


def _unheld(id: UUID) -> Hold:
    return Hold(id, uuid4())


STATES: dict[str, Callable[[Protocol, Later], Hold]] = {
    "ready": _ready,
    "scheduled": _scheduled,
    "blocked": _blocked,
    "follow-up": _follow_up,
    "leased": _leased,
    "expired": _expired,
    "handed-over": _handed_over,
    "done-kept": _done_kept,
    "done-deleted": _done_deleted,
    "dead": _dead,
    "cancelled": _cancelled,
    "archived": _archived,
    "unknown": _unknown,
}


def _enqueue(policy: str) -> Callable[[Protocol, Hold], str]:
    def enqueue(db: Protocol, held: Hold) -> str:
        [answer] = db.enqueue({**KEYED, "on_conflict": policy})
        if answer.created:
            return "new"
        return "same" if answer.duplicate_of == held.id else "other"

    return enqueue


def _claim(db: Protocol, held: Hold) -> str:
    return "given" if held.id in [job.id for job in db.claim(max_jobs=5)] else "not"


def _reap(db: Protocol, held: Hold) -> str:
    return next((reaped.outcome for reaped in db.reap() if reaped.id == held.id), "not")


def _settle(db: Protocol, held: Hold, verb: str) -> str:
    [answer] = db.settle({"verb": verb, "id": held.id, "token": held.token})
    return answer.outcome


def _stranger(held: Hold) -> Hold:
    return Hold(held.id, uuid4())


def _changed(answers: list) -> str:
    [answer] = answers
    # Whoever asked for nothing to happen is told why.
    assert answer.changed == (answer.detail is None)
    return "yes" if answer.changed else "no"


VERBS: dict[str, Callable[[Protocol, Hold], str]] = {
    "enqueue": _enqueue("skip"),
    "enqueue replace": _enqueue("replace"),
    "enqueue after": _enqueue("after"),
    "claim": _claim,
    "touch": lambda db, held: db.touch(held)[0].outcome,
    "touch stranger": lambda db, held: db.touch(_stranger(held))[0].outcome,
    "ack": lambda db, held: db.ack(held)[0].outcome,
    "ack stranger": lambda db, held: db.ack(_stranger(held))[0].outcome,
    "nack": lambda db, held: db.nack(held, delay=timedelta(0))[0].outcome,
    "nack stranger": lambda db, held: db.nack(_stranger(held))[0].outcome,
    "release": lambda db, held: db.release(held)[0].outcome,
    "release stranger": lambda db, held: db.release(_stranger(held))[0].outcome,
    "cancel own": lambda db, held: _settle(db, held, verb="cancel"),
    "cancel stranger": lambda db, held: _settle(db, _stranger(held), verb="cancel"),
    "hand over": lambda db, held: db.hand_over(held).outcome,
    "hand stranger": lambda db, held: db.hand_over(_stranger(held)).outcome,
    "reconcile done": lambda db, held: db.reconcile(held, done=[True])[0].outcome,
    "reconcile not": lambda db, held: db.reconcile(held, done=[False])[0].outcome,
    "reap": _reap,
    "cancel": lambda db, held: _changed(db.cancel(held.id)),
    "retry": lambda db, held: _changed(db.retry(held.id)),
    "edit": lambda db, held: _changed(db.edit(held.id, changes={"priority": 3})),
    "move": lambda db, held: _changed(db.move(held.id, queue="elsewhere")),
    "archive": lambda db, held: _changed(db.archive(held.id)),
    "delete": lambda db, held: _changed(db.delete(held.id)),
    "explain": lambda db, held: db.explain(held.id).split()[0],
    "get": lambda db, held: "found" if db.get(held.id) else "none",
}
