"""One id given to jobs of several queues: several jobs, and none is taken for another."""

from uuid import UUID

import psycopg
import pytest

from holdfast.records import new_id, part_of, queue_part
from tests.protocol import Later, Protocol


def same_part(queue: str) -> str:
    """The name of another queue in the same part."""
    names = (f"twin{n}" for n in range(10_000))
    return next(name for name in names if queue_part(name) == queue_part(queue))


@pytest.fixture
def id() -> UUID:
    """An id made for the queue mail."""
    return new_id("mail")


@pytest.fixture(params=["no queue is fanned out", "some queue is"])
def both(request: pytest.FixtureRequest, db: Protocol, id: UUID) -> tuple[UUID, UUID]:
    """Two jobs that were given the same id, in the queues mail and text."""
    if request.param == "some queue is":
        db.queue_set("wide", fanout=8)
    mail = db.put("k", queue="mail", id=str(id), payload="mail")
    text = db.put("k", queue="text", id=str(id), payload="text")
    return mail, text


def test_each_has_the_id_that_enqueue_answered(
    db: Protocol, both: tuple[UUID, UUID], id: UUID
) -> None:
    mail, text = both

    assert mail == id
    assert part_of(text) == queue_part("text")
    assert [db.job(each).payload for each in both] == ["mail", "text"]


@pytest.mark.parametrize("order", [0, 1])
def test_a_look_at_one_that_is_gone_does_not_show_the_other(
    db: Protocol, both: tuple[UUID, UUID], order: int
) -> None:
    gone = both[order]
    db.ack(db.take("mail" if order == 0 else "text"))

    assert db.get(gone) is None
    assert db.explain(gone).startswith("No job has the id")
    assert db.state(both[1 - order]) == "queued"


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("verb", ["cancel", "delete", "archive", "retry"])
def test_no_verb_reaches_the_other(
    db: Protocol, both: tuple[UUID, UUID], order: int, verb: str
) -> None:
    queues = ["mail", "text"]
    db.ack(db.take(queues[order]))
    if verb in ("archive", "retry"):
        db.cancel(both[1 - order])
    before = db.job(both[1 - order])

    [answer] = getattr(db, verb)(both[order])

    assert (answer.changed, answer.detail) == (False, f"no job has the id {both[order]}")
    assert db.job(both[1 - order]) == before


def test_a_job_is_not_edited_or_moved_for_the_other(db: Protocol, both: tuple[UUID, UUID]) -> None:
    mail, text = both
    db.ack(db.take("mail"))

    [edited] = db.edit(mail, changes={"payload": "wrong"})
    [moved] = db.move(mail, queue="other")

    assert (edited.changed, moved.changed) == (False, False)
    assert (db.job(text).payload, db.job(text).queue) == ("text", "text")


@pytest.mark.parametrize("ended", ["waits", "died", "was cancelled", "runs", "is done"])
def test_a_repeat_stores_the_job_although_another_queue_has_one_of_that_id(
    db: Protocol, id: UUID, ended: str
) -> None:
    db.put("k", queue="mail", id=str(id), max_attempts=1)
    if ended != "waits":
        job = db.take("mail")
        db.nack(job) if ended == "died" else None
        db.cancel(job.id) if ended == "was cancelled" else None
        db.ack(job) if ended == "is done" else None

    [answer] = db.enqueue({"kind": "k", "queue": "text", "id": str(id)}, repeat=True)

    assert answer.created
    assert db.job(answer.id).queue == "text"
    db.ack(db.take("text"))
    db.enqueue({"kind": "k", "queue": "text", "id": str(id)}, repeat=True)
    assert db.claim("text") == []


@pytest.mark.parametrize("ended", ["died", "is done"])
def test_a_repeat_stores_the_job_although_a_queue_of_the_same_part_had_one_of_that_id(
    db: Protocol, id: UUID, ended: str
) -> None:
    db.put("k", queue="mail", id=str(id), max_attempts=1)
    job = db.take("mail")
    db.nack(job) if ended == "died" else db.ack(job)
    twin = same_part("mail")

    db.enqueue({"kind": "k", "queue": twin, "id": str(id)}, repeat=True)

    assert [each.id for each in db.claim(twin)] == [id]


def test_in_two_queues_of_one_part_the_second_is_refused(db: Protocol, id: UUID) -> None:
    db.put("k", queue="mail", id=str(id))

    with pytest.raises(psycopg.Error) as refusal:
        db.put("k", queue=same_part("mail"), id=str(id))

    assert refusal.value.sqlstate == "HF206"


def test_a_moved_job_is_found_by_each_id_it_had(db: Protocol, id: UUID) -> None:
    db.put("k", queue="mail", id=str(id))
    had = [id]
    for queue in ("text", "fax", "mail", "fax"):
        [moved] = db.move(had[0], queue=queue)
        assert moved.new_id is not None
        had.append(moved.new_id)

    assert {db.job(each).queue for each in had} == {"fax"}
    db.ack(db.take("fax"))
    assert [db.get(each) for each in had] == [None] * 5


def test_a_job_moved_to_where_its_id_is_taken_gets_another(
    db: Protocol, both: tuple[UUID, UUID]
) -> None:
    mail, text = both

    [moved] = db.move(mail, queue="text")

    assert moved.changed
    assert moved.new_id not in both
    assert (db.job(mail).payload, db.job(text).payload) == ("mail", "text")
    assert len(db.claim("text", max_jobs=9)) == 2


def test_a_dead_job_moved_to_where_its_id_is_taken_gets_another(
    db: Protocol, both: tuple[UUID, UUID]
) -> None:
    mail, text = both
    db.nack(db.take("mail"), final=True)

    [moved] = db.move(mail, queue="text")
    db.retry(mail)

    assert moved.changed
    assert (db.job(mail).payload, db.job(text).payload) == ("mail", "text")
    assert len(db.claim("text", max_jobs=9)) == 2


def test_a_repeat_of_a_job_that_was_moved_and_is_done_runs_nothing_twice(
    db: Protocol, id: UUID
) -> None:
    db.put("k", queue="mail", id=str(id))
    db.move(id, queue="text")
    db.ack(db.take("text"))

    [answer] = db.enqueue({"kind": "k", "queue": "mail", "id": str(id)}, repeat=True)

    assert answer.created
    assert (db.claim("mail"), db.claim("text")) == ([], [])


def test_in_a_fanned_out_queue_the_id_that_was_made_is_understood(db: Protocol) -> None:
    db.queue_set("wide", fanout=8)
    ids = [new_id("wide") for _ in range(16)]
    answers = db.enqueue(*[{"kind": "k", "queue": "wide", "id": str(id)} for id in ids])

    assert [db.job(id).id for id in ids] == [answer.id for answer in answers]
    assert db.state(new_id("wide")) is None


def test_old_ids_are_forgotten_when_the_job_is_gone(db: Protocol, id: UUID, later: Later) -> None:
    other = new_id("mail")
    for each in (id, other):
        db.put("k", queue="mail", id=str(each))
    first, second = db.move(id, other, queue="text")
    done = db.take("text")
    db.ack(done)
    later(hours=2)

    db.upkeep()

    stays = second if done.id == first.new_id else first
    [left] = db.table("select id from holdfast.alias")
    assert left.id == stays.id
    assert db.job(stays.id).queue == "text"


def test_looking_for_an_id_that_is_not_there_reads_no_job(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 100)

    with db.connection.transaction():
        before = db.rows_read()
        assert db.get(new_id("mail")) is None
        assert db.rows_read() == before
