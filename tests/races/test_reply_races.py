"""Two at once at one wait: two replies, a reply and an event, a reply and the end of its time."""

from collections.abc import Callable
from typing import Any

from tests.protocol import Protocol
from tests.sql.test_replies import link, reply, waiting
from tests.sql.test_verbs_steps import send, steps


def test_of_many_who_reply_by_one_link_one_is_heard(
    db: Protocol, at_once: Callable[..., list[Any]]
) -> None:
    id = waiting(db)
    link(db, id)

    outcomes = at_once(8, lambda session, nth: reply(session, nth))

    assert sorted(outcomes) == ["closed"] * 7 + ["received"]
    assert steps(db, id) == [("wait", outcomes.index("received"))]


def test_a_reply_and_an_event_at_once_are_heard_once_and_the_other_is_not_lost(
    db: Protocol, held_open: Protocol, start: Callable[..., Any]
) -> None:
    id = waiting(db)
    link(db, id)
    reply(held_open, "by link")
    sending = start(lambda session: send(session, "approved"))
    sending.answer()

    held_open.connection.commit()

    assert steps(db, id) == [("wait", "by link")]
    [(kept,)] = db.connection.execute("select count(*) from holdfast.sent").fetchall()
    assert kept == 1


def test_a_reply_that_is_rolled_back_leaves_the_link_to_the_next(
    db: Protocol, held_open: Protocol, start: Callable[..., Any]
) -> None:
    id = waiting(db)
    link(db, id)
    reply(held_open, "first")
    second = start(lambda session: reply(session, "second"))
    assert second.waits()

    held_open.connection.rollback()

    assert second.answer() == "received"
    assert steps(db, id) == [("wait", "second")]
