"""reply_link, reply_asked, reply, reply_link_revoke: one wait of one job, answered by a link."""

from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.protocol import Later, Leased, Protocol
from tests.sql.test_verbs_steps import rows, send, steps, suspend

HASH = sha256(b"a secret").digest()
OTHER = sha256(b"another").digest()


def link(db: Protocol, job: UUID, step: str = "wait", id: str = "l1", **more: Any) -> None:
    given = "".join(f", {name} => %s" for name in more)
    query = f"select holdfast.reply_link(id => %s, hash => %s, job => %s, step => %s{given})"
    rows(db, query, id, HASH, job, step, *more.values())


def asked(db: Protocol, id: str = "l1", hash: bytes = HASH) -> Any:
    found = rows(db, "select * from holdfast.reply_asked(id => %s, hash => %s)", id, hash)
    return found[0] if found else None


def reply(db: Protocol, payload: Any = None, id: str = "l1", hash: bytes = HASH) -> str | None:
    query = "select holdfast.reply(id => %s, hash => %s, payload => %s) as outcome"
    outcome: str | None = rows(db, query, id, hash, Jsonb(payload))[0].outcome
    return outcome


def running(db: Protocol) -> Leased:
    db.put()
    return db.take()


def waiting(db: Protocol, event: str = "approved") -> UUID:
    job = running(db)
    suspend(db, job, event=event, schema={"type": "boolean"})
    return job.id


def test_a_reply_goes_to_the_wait_of_its_link_and_no_other(db: Protocol) -> None:
    first, second = waiting(db), waiting(db)
    link(db, second, question="May we?")

    shown = asked(db)
    outcome = reply(db, True)

    assert (shown.state, shown.event, shown.question) == ("open", "approved", "May we?")
    assert shown.schema == {"type": "boolean"}
    assert outcome == "received"
    assert steps(db, second) == [("wait", True)]
    assert [job.id for job in db.claim(max_jobs=5)] == [second]
    assert first != second


def test_a_link_is_used_once_even_if_the_job_waits_anew(db: Protocol) -> None:
    id = waiting(db)
    link(db, id)
    first = reply(db, True)
    [job] = db.claim()
    db.nack(job, final=True)
    rows(db, "select * from holdfast.retry(ids => %s, fresh => true)", [id])
    [again] = db.claim()
    suspend(db, again, event="approved")

    assert first == "received"
    assert asked(db).state == "closed"
    assert reply(db, False) == "closed"
    assert db.claim() == []


def test_a_link_waits_until_its_job_does(db: Protocol) -> None:
    job = running(db)
    link(db, job.id)

    before = (asked(db).state, reply(db, True))
    suspend(db, job, event="approved")

    assert before == ("not_yet", "not_yet")
    assert reply(db, True) == "received"


def test_what_was_answered_otherwise_is_closed(db: Protocol) -> None:
    id = waiting(db)
    link(db, id)

    send(db, "approved", payload=Jsonb(False))

    assert asked(db).state == "closed"
    assert reply(db, True) == "closed"
    assert steps(db, id) == [("wait", False)]


def test_a_wrong_an_expired_and_a_revoked_link_open_nothing(db: Protocol, later: Later) -> None:
    id = waiting(db)
    link(db, id, id="short", expires="1 hour")
    link(db, id, id="long")
    link(db, id, id="taken back")
    rows(db, "select holdfast.reply_link_revoke(id => 'taken back', actor => 'ada')")
    later(hours=2)

    assert reply(db, True, id="long", hash=OTHER) is None
    assert asked(db, id="long", hash=OTHER) is None
    assert (asked(db, id="short"), reply(db, True, id="short")) == (None, None)
    assert (asked(db, id="taken back"), reply(db, True, id="taken back")) == (None, None)
    assert reply(db, True, id="none") is None
    assert asked(db, id="long").state == "open"


def test_links_of_ended_jobs_are_closed_and_none_is_made_for_them(db: Protocol) -> None:
    id = waiting(db)
    link(db, id)
    rows(db, "select * from holdfast.cancel(ids => %s)", [id])

    assert (asked(db).state, reply(db, True)) == ("closed", "closed")
    with pytest.raises(errors.Error, match="is not live"):
        link(db, id, id="l2")


def test_a_link_follows_its_job_to_another_queue(db: Protocol) -> None:
    id = waiting(db)
    link(db, id)
    rows(db, "select * from holdfast.move(ids => %s, queue => 'elsewhere')", [id])

    assert reply(db, True) == "received"
    assert len(db.claim(queue="elsewhere")) == 1


def test_links_and_replies_are_in_the_activity_log_without_the_secret(db: Protocol) -> None:
    id = waiting(db)
    link(db, id, actor="ada")
    reply(db, True)

    told = rows(
        db,
        "select event, actor, detail::text as detail from holdfast.events "
        "where job = %s and event in ('reply_link_created', 'replied') order by seq",
        id,
    )
    assert [(one.event, one.actor) for one in told] == [
        ("reply_link_created", "ada"),
        ("replied", "link l1"),
    ]
    assert all("secret" not in one.detail and HASH.hex() not in one.detail for one in told)


def test_expired_links_are_forgotten(db: Protocol, later: Later) -> None:
    link(db, waiting(db), expires="1 hour")
    later(hours=2)

    rows(db, "select holdfast.forget_old(100)")

    assert rows(db, "select count(*) as links from holdfast.reply_link")[0].links == 0


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"expires": "-1 hour"}, "HF204"),
        ({"expires": "2 years"}, "HF204"),
        ({"question": "x" * 2001}, "HF202"),
        ({"step": ""}, "HF202"),
    ],
)
def test_a_link_that_cannot_be_is_refused(db: Protocol, given: Any, code: str) -> None:
    id = waiting(db)

    with pytest.raises(errors.Error) as refused:
        link(db, id, **given)
    assert refused.value.sqlstate == code
