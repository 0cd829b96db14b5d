"""Wake-ups that meet: with open transactions, with each other, with listeners that are gone."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.protocol import Open, Protocol

Start = Callable[..., Any]
AtOnce = Callable[..., list[Any]]


class Ear:
    """A session that listens, and proves by what it holds that it does."""

    def __init__(self, session: Protocol, db: Protocol) -> None:
        self.connection = session.connection
        self.connection.execute("listen holdfast")
        self.number = session.value("hear")
        self._db = db
        self._asked = 0

    def heard(self) -> list[str]:
        """What was committed for anybody up to now: an own ping comes after all of it."""
        self._asked += 1
        mark = f"mark-{self._asked}"
        self._db.value("ping", worker=mark)
        told: list[str] = []
        for notice in self.connection.notifies(timeout=100):
            if notice.payload == f"\n{mark}":
                return told
            if not notice.payload.startswith("\nmark-"):
                told.append(notice.payload)
        raise AssertionError("the ping did not arrive")


@pytest.fixture
def ear(db: Protocol, other: Open) -> Ear:
    return Ear(other(), db)


def wait_for_work(
    db: Protocol, worker: str = "ada", ear: Ear | None = None, queue: str = "default", **more: Any
) -> None:
    number = ear.number if ear else None
    db.value("await_work", queues=[queue], worker=worker, ear=number, **more)


def waiting(db: Protocol) -> list[str]:
    rows = db.connection.execute("select worker from holdfast.waiter order by worker").fetchall()
    return [worker for (worker,) in rows]


def test_an_open_import_leaves_the_wake_ups_to_others(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    wait_for_work(db, ear=ear)
    held_open.enqueue(*[{"kind": "k"}] * 20)

    db.put()

    assert ear.heard() == ["default\nada"]
    assert waiting(db) == []


def test_an_import_wakes_when_it_is_committed_who_waits_then(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    wait_for_work(db, "ada", ear)
    held_open.put()
    db.put()
    assert ear.heard() == ["default\nada"]
    wait_for_work(db, "bob", ear)

    held_open.connection.commit()

    assert ear.heard() == ["default\nbob"]


def test_an_import_that_is_undone_wakes_nobody_and_takes_no_wake_up(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    wait_for_work(db, ear=ear)
    held_open.enqueue(*[{"kind": "k"}] * 20)

    held_open.connection.rollback()

    assert ear.heard() == []
    assert waiting(db) == ["ada"]


def test_a_transaction_of_many_enqueues_wakes_as_many_as_it_has_jobs_and_sixteen_at_most(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    for n in range(20):
        wait_for_work(db, f"w{n:02}", ear)
    for _ in range(3):
        held_open.put()
    held_open.connection.commit()
    few = ear.heard()
    for n in range(20):
        wait_for_work(db, f"v{n:02}", ear)
    for _ in range(40):
        held_open.put()
    noted = held_open.connection.execute("select count(*) from holdfast.bell").fetchone()
    held_open.connection.commit()

    assert len(few) == 3
    assert len(ear.heard()) == 16
    assert noted == (16,)
    assert db.connection.execute("select count(*) from holdfast.bell").fetchone() == (0,)


def test_an_enqueue_that_a_savepoint_undid_does_not_use_up_the_wake_up_of_the_next(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    wait_for_work(db, ear=ear)
    held_open.connection.execute("savepoint before")
    held_open.enqueue(*[{"kind": "k"}] * 20)
    held_open.connection.execute("rollback to before")
    held_open.put()

    held_open.connection.commit()

    assert ear.heard() == ["default\nada"]


def test_a_worker_whose_listener_is_gone_takes_no_wake_up_from_others(
    db: Protocol, other: Open, ear: Ear
) -> None:
    wait_for_work(db, "alive", ear)
    dead = Ear(other(), db)
    for n in range(8):
        wait_for_work(db, f"dead-{n}", dead)
    dead.connection.close()
    _until_gone(db, dead.number)

    db.put()

    assert ear.heard() == ["default\nalive"]
    assert waiting(db) == []


def test_two_producers_that_meet_a_dead_listener_at_once_do_not_take_each_other_for_it(
    db: Protocol, held_open: Protocol, other: Open, ear: Ear
) -> None:
    dead = Ear(other(), db)
    wait_for_work(db, "alive", ear)
    wait_for_work(db, "dead", dead)
    dead.connection.close()
    _until_gone(db, dead.number)
    # As a producer does that is about to commit: it holds what it asked with.
    held_open.connection.execute("select pg_try_advisory_xact_lock_shared(4917, %s)", [dead.number])

    db.put()

    assert ear.heard() == ["default\nalive"]


def test_who_registered_last_is_woken_first(db: Protocol, ear: Ear) -> None:
    for worker in ("frozen", "fresh"):
        wait_for_work(db, worker, ear)

    db.put()

    assert ear.heard() == ["default\nfresh"]


def test_a_worker_registered_twice_is_woken_once(db: Protocol, ear: Ear) -> None:
    for _ in range(3):
        wait_for_work(db, "ada", ear)

    db.put()
    db.put()

    assert ear.heard() == ["default\nada"]


def test_workers_that_know_other_kinds_are_woken_beside_each_other(db: Protocol, ear: Ear) -> None:
    wait_for_work(db, "mailer", ear, kinds=["mail"])
    wait_for_work(db, "printer", ear, kinds=["print"])
    wait_for_work(db, "anything", ear)

    db.put("print")

    assert sorted(ear.heard()) == ["default\nanything", "default\nmailer", "default\nprinter"]


def test_who_leaves_waits_no_more(db: Protocol, ear: Ear) -> None:
    db.beat("gone")
    wait_for_work(db, "stays", ear)
    wait_for_work(db, "gone", ear)
    db.value("leave", worker="gone")

    db.put()

    assert ear.heard() == ["default\nstays"]


def test_a_wake_up_that_is_passed_on_goes_to_another(db: Protocol, ear: Ear) -> None:
    wait_for_work(db, "free", ear)
    wait_for_work(db, "full", ear)
    db.put()
    assert ear.heard() == ["default\nfull"]

    db.value("pass_on", queue="default")

    assert ear.heard() == ["default\nfree"]


def test_producers_at_once_wake_each_waiter_once(db: Protocol, at_once: AtOnce, ear: Ear) -> None:
    for n in range(4):
        wait_for_work(db, f"w{n}", ear)

    def produce(session: Protocol, nth: int) -> None:
        for _ in range(10):
            session.put()

    at_once(8, produce)

    assert sorted(ear.heard()) == [f"default\nw{n}" for n in range(4)]


@pytest.fixture
def prepares(db: Protocol) -> Iterator[None]:
    [row] = db.table("select current_setting('max_prepared_transactions')::integer as most")
    if row.most == 0:
        pytest.skip("max_prepared_transactions is 0")
    yield
    for prepared in db.table("select gid from pg_prepared_xacts"):
        db.connection.execute(f"rollback prepared '{prepared.gid}'")


@pytest.mark.usefixtures("prepares")
@pytest.mark.parametrize("waits", [True, False])
def test_a_transaction_that_enqueues_can_be_prepared_whether_or_not_a_worker_waits(
    db: Protocol, held_open: Protocol, ear: Ear, waits: bool
) -> None:
    if waits:
        wait_for_work(db, ear=ear)
    id = held_open.put()

    held_open.connection.execute("prepare transaction 'orders'")
    held_open.connection.rollback()
    prepared = ear.heard()
    db.connection.execute("commit prepared 'orders'")
    db.upkeep()

    assert prepared == []
    assert ear.heard() == (["default\nada"] if waits else [])
    assert db.take().id == id


@pytest.mark.usefixtures("prepares")
def test_a_cancel_of_a_running_job_can_be_prepared(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    id = db.put()
    db.take(worker="ada")

    held_open.cancel(id)
    held_open.connection.execute("prepare transaction 'stop'")
    held_open.connection.rollback()
    db.connection.execute("commit prepared 'stop'")
    db.upkeep()

    assert ear.heard() == ["\nada"]


def _until_gone(db: Protocol, number: int) -> None:
    asked = "select pg_try_advisory_lock(4917, %s) and pg_advisory_unlock(4917, %s)"
    while db.connection.execute(asked, [number, number]).fetchone() != (True,):
        pass


def test_what_was_noted_for_a_wake_up_is_of_no_use_to_strangers(db: Protocol) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.connection.execute(
            "set role holdfast_producer; insert into holdfast.bell (queue) values ('default')"
        )
    db.connection.execute("reset role")


@pytest.mark.parametrize(
    "statement",
    [
        """select from holdfast.enqueue('[{"kind": "k", "payload": "prepare transaction"}]')""",
        """select from holdfast.enqueue($tag$[{"kind": "prepare transaction"}]$tag$)""",
        """select from holdfast.enqueue(E'[{"kind": "it\\'s prepare transaction"}]')""",
        """select from holdfast.enqueue('[{"kind": "k"}]') /* not to prepare transaction */""",
        """select from holdfast.enqueue('[{"kind": "k"}]') as "prepare transaction" """,
        """select from holdfast.enqueue('[{"kind": "k", "payload": "set constraints"}]')""",
    ],
)
def test_a_job_that_speaks_of_prepared_transactions_wakes_like_any_other(
    db: Protocol, ear: Ear, statement: str
) -> None:
    wait_for_work(db, ear=ear)

    db.connection.execute(statement)

    assert ear.heard() == ["default\nada"]


@pytest.mark.usefixtures("prepares")
@pytest.mark.parametrize(
    "statement",
    [
        "PREPARE\n TRANSACTION 'odd'",
        "prepare/* it */transaction 'odd'",
        "prepare -- it\ntransaction 'odd'",
    ],
)
def test_a_transaction_is_prepared_however_it_is_written(
    db: Protocol, held_open: Protocol, ear: Ear, statement: str
) -> None:
    wait_for_work(db, ear=ear)
    held_open.put()

    held_open.connection.execute(statement)
    held_open.connection.rollback()
    db.connection.execute("commit prepared 'odd'")
    db.upkeep()

    assert ear.heard() == ["default\nada"]


def test_a_job_from_a_transaction_that_nobody_waited_for_yet_is_told_by_the_next_upkeep(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    held_open.put()
    wait_for_work(db, ear=ear)
    assert db.claim() == []
    held_open.connection.commit()
    unheard = ear.heard()

    db.upkeep()

    assert unheard == []
    assert ear.heard() == ["default\nada"]


def test_upkeep_wakes_nobody_for_what_was_taken_or_has_been_told(db: Protocol, ear: Ear) -> None:
    db.put()
    db.upkeep()
    wait_for_work(db, "late", ear)
    db.upkeep()
    db.put()
    db.ack(*db.claim(max_jobs=2))
    assert ear.heard() == ["default\nlate"]
    wait_for_work(db, "idle", ear)

    db.upkeep()

    assert ear.heard() == []


def test_nothing_is_passed_on_where_nothing_is_left(db: Protocol, ear: Ear) -> None:
    wait_for_work(db, "idle", ear)
    db.put(delay=3600)

    db.value("pass_on", queue="default")

    assert ear.heard() == []


def test_an_open_import_that_checks_its_constraints_at_once_leaves_the_wake_ups_to_others(
    db: Protocol, held_open: Protocol, ear: Ear
) -> None:
    wait_for_work(db, "ada", ear)
    held_open.connection.execute("set constraints all immediate")
    held_open.put()

    db.put()

    assert ear.heard() == ["default\nada"]
    wait_for_work(db, "bob", ear)
    held_open.connection.commit()
    assert ear.heard() == ["default\nbob"]


CHECKS = [
    "set constraints all immediate",
    "Set\nConstraints /* now */ all immediate; set constraints all deferred",
    "set constraints holdfast.ring immediate",
    "do $$ begin set constraints all immediate; end $$",
]


@pytest.mark.parametrize("check", CHECKS)
def test_an_import_whose_constraints_are_checked_afterwards_leaves_the_wake_ups_to_others(
    db: Protocol, held_open: Protocol, ear: Ear, check: str
) -> None:
    wait_for_work(db, "ada", ear)
    held_open.put()
    held_open.connection.execute(check)

    db.put()

    assert ear.heard() == ["default\nada"]
    wait_for_work(db, "bob", ear)
    held_open.connection.commit()
    db.upkeep()
    assert ear.heard() == ["default\nbob"]


@pytest.mark.parametrize("check", CHECKS)
def test_an_import_that_is_undone_after_its_constraints_were_checked_takes_no_wake_up(
    db: Protocol, held_open: Protocol, ear: Ear, check: str
) -> None:
    wait_for_work(db, ear=ear)
    held_open.put()
    held_open.connection.execute(check)

    held_open.connection.rollback()

    assert ear.heard() == []
    assert waiting(db) == ["ada"]


@pytest.mark.usefixtures("prepares")
@pytest.mark.parametrize("check", CHECKS)
def test_an_import_whose_constraints_are_checked_can_be_prepared(
    db: Protocol, held_open: Protocol, ear: Ear, check: str
) -> None:
    wait_for_work(db, ear=ear)
    held_open.put()
    held_open.connection.execute(check)

    held_open.connection.execute("prepare transaction 'checked'")
    held_open.connection.rollback()
    db.connection.execute("commit prepared 'checked'")
    db.upkeep()

    assert ear.heard() == ["default\nada"]


def _tell_ada(db: Protocol, verb: str) -> Callable[[Protocol], Any]:
    """What tells the worker that runs a job: by the job, or by its name."""
    id = db.put()
    db.beat("ada")
    db.take(worker="ada")
    if verb == "cancel":
        return lambda session: session.cancel(id)
    return lambda session: session.value("stop_worker", worker="ada")


@pytest.mark.parametrize("verb", ["cancel", "stop_worker"])
def test_one_worker_is_told_at_the_commit_although_constraints_are_checked_at_once(
    db: Protocol, held_open: Protocol, ear: Ear, verb: str
) -> None:
    tell = _tell_ada(db, verb)
    held_open.connection.execute("set constraints all immediate")

    tell(held_open)
    held_open.connection.commit()

    assert ear.heard() == ["\nada"]


@pytest.mark.usefixtures("prepares")
@pytest.mark.parametrize("verb", ["cancel", "stop_worker"])
@pytest.mark.parametrize("first", [True, False])
def test_what_tells_one_worker_can_be_prepared_whenever_constraints_are_checked(
    db: Protocol, held_open: Protocol, ear: Ear, verb: str, first: bool
) -> None:
    tell = _tell_ada(db, verb)
    if first:
        held_open.connection.execute("set constraints all immediate")
    tell(held_open)
    if not first:
        held_open.connection.execute("set constraints all immediate")

    held_open.connection.execute("prepare transaction 'stop'")
    held_open.connection.rollback()
    db.connection.execute("commit prepared 'stop'")
    db.upkeep()

    assert ear.heard() == ["\nada"]


@pytest.mark.parametrize(
    "program",
    [
        'do $$ begin perform from holdfast.enqueue(\'[{{"kind": "k"}}]\'); {}; end $$',
        'begin; select from holdfast.enqueue(\'[{{"kind": "k"}}]\'); {}',
    ],
)
@pytest.mark.parametrize("commit", ["commit", "commit and chain"])
def test_a_program_that_commits_in_between_wakes_at_once(
    db: Protocol, ear: Ear, program: str, commit: str
) -> None:
    wait_for_work(db, ear=ear)

    db.connection.execute(program.format(commit))
    db.connection.rollback()

    assert ear.heard() == ["default\nada"]


@pytest.mark.parametrize("patience", ["null", "'-1 s'", "'2 days'", "'290000 years'"])
def test_nobody_waits_for_longer_than_anybody_can_mean(db: Protocol, patience: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        db.connection.execute(f"select holdfast.await_work('{{default}}', 'ada', {patience})")

    assert refusal.value.sqlstate == "HF204"


def test_a_slot_whose_holder_takes_no_other_job_is_told_by_the_next_upkeep(
    db: Protocol, ear: Ear
) -> None:
    db.queue_set("default", limit=1)
    db.enqueue(*[{"kind": "k"}] * 2)
    running = db.take(worker="comes once")
    wait_for_work(db, ear=ear)
    assert db.claim() == []
    db.upkeep()
    assert ear.heard() == ["default\nada"]  # there is one; it is not its turn
    wait_for_work(db, ear=ear)
    db.upkeep()
    db.ack(running)
    told = ear.heard()

    db.upkeep()

    assert told == []
    assert ear.heard() == ["default\nada"]


@pytest.mark.parametrize("setting", [{"limit": 2}, {"limit": None}])
def test_a_limit_that_lets_in_more_wakes_who_waits(
    db: Protocol, ear: Ear, setting: dict[str, int | None]
) -> None:
    db.queue_set("default", limit=1)
    db.enqueue(*[{"kind": "k"}] * 2)
    db.take()
    wait_for_work(db, ear=ear)
    assert db.claim() == []

    db.queue_set("default", **setting)

    assert ear.heard() == ["default\nada"]


def copied(db: Protocol) -> Callable[[], object]:
    part, id = db.value("queue_part", queue="default"), db.value("new_id", queue="default")

    def copy() -> None:
        with db.connection.transaction():
            db.connection.execute(
                "insert into holdfast.job (part, id, queue, kind, payload)"
                " values (%s, %s, 'default', 'k', '{}')",
                [part, id],
            )
            db.connection.execute("select holdfast.copied('default', '{k}', '{1}')")

    return copy


def resumed(db: Protocol) -> Callable[[], object]:
    db.pause("default")
    db.put()
    return lambda: db.resume("default")


def retried(db: Protocol) -> Callable[[], object]:
    id = db.put()
    db.nack(db.take(), final=True)
    return lambda: db.retry(id)


def moved(db: Protocol) -> Callable[[], object]:
    id = db.put(queue="elsewhere")
    return lambda: db.move(id, queue="default")


def edited(db: Protocol) -> Callable[[], object]:
    id = db.put(delay=3600)
    return lambda: db.edit(id, changes={"run_at": "2000-01-01T00:00:00Z"})


def released(db: Protocol) -> Callable[[], object]:
    db.put()
    job = db.take()
    return lambda: db.release(job)


def failed(db: Protocol) -> Callable[[], object]:
    db.put()
    job = db.take()
    return lambda: db.nack(job, delay=timedelta(0))


def settled_as_failed(db: Protocol) -> Callable[[], object]:
    db.put()
    job = db.take()
    item = {"id": str(job.id), "token": str(job.token), "verb": "nack", "delay": 0}
    return lambda: db.settle(item)


def come_due(db: Protocol) -> Callable[[], object]:
    db.put(delay=60)
    db.later(seconds=61)
    return db.promote


def taken_back(db: Protocol) -> Callable[[], object]:
    db.queue_set("default", backoff=0)
    db.put()
    db.take(lease=timedelta(seconds=5))
    db.later(seconds=6)
    return db.reap


def lifted(db: Protocol) -> Callable[[], object]:
    [strike] = db.call("strike_add", columns=["number"], kind="work")
    db.put()
    assert db.claim() == []
    return lambda: db.call("strike_lift", columns=["number"], number=strike.number)


def followed(db: Protocol) -> Callable[[], object]:
    db.put(key="1")
    job = db.take()
    db.put(key="1", on_conflict="after")
    return lambda: db.ack(job)


def next_of_a_lane(db: Protocol) -> Callable[[], object]:
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2)
    job = db.take()
    return lambda: db.ack(job)


def let_go(db: Protocol) -> Callable[[], object]:
    db.queue_set("default", limit=1)
    db.enqueue(*[{"kind": "k"}] * 2)
    job = db.take()
    db.cancel(job.id)
    return lambda: db.ack(job)


def wider_lane(db: Protocol) -> Callable[[], object]:
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2)
    db.take()
    return lambda: db.lane_set("default", "l", limit=2)


def wider_lanes(db: Protocol) -> Callable[[], object]:
    db.enqueue(*[{"kind": "k", "lane": "l"}] * 2)
    db.take()
    return lambda: db.queue_set("default", lane_limit=2)


@pytest.mark.parametrize(
    "way",
    [
        copied, resumed, retried, moved, edited, released, failed, settled_as_failed, come_due,
        taken_back, lifted, followed, next_of_a_lane, let_go, wider_lane, wider_lanes,
    ],
    ids=lambda way: way.__name__,
)  # fmt: skip
def test_whatever_makes_a_job_ready_wakes_who_waits(
    db: Protocol, ear: Ear, way: Callable[[Protocol], Callable[[], object]]
) -> None:
    make_ready = way(db)
    wait_for_work(db, ear=ear)

    make_ready()

    assert "default\nada" in ear.heard()
    assert len(db.claim(max_jobs=9)) == 1
