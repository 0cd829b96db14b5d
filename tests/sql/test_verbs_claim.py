"""claim: who is given what, in which order, for how long."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import records
from tests.protocol import Later, Open, Protocol


@pytest.mark.proves("S0.1", "S0.12", "S0.13", "S3.19", "S4.5", "S4.6", "S4.16")
def test_a_claim_leases_the_job_to_the_worker(db: Protocol) -> None:
    id = db.put("greet", payload={"name": "Ada"}, key="k", subject="s", headers={"h": 1})

    leased = db.take(worker="w1")

    job = db.job(id)
    assert (leased.id, leased.kind, leased.payload, leased.attempt) == (
        id,
        "greet",
        {"name": "Ada"},
        1,
    )
    assert (leased.key, leased.subject, leased.headers) == ("k", "s", {"h": 1})
    assert (job.state, job.worker, job.attempt) == ("leased", "w1", 1)
    assert job.lease_until == leased.lease_until > leased.run_at


def test_a_claim_tells_the_error_of_the_last_attempt(db: Protocol) -> None:
    db.put(max_attempts=2)

    first = db.take()
    db.nack(first, message="boom", delay=timedelta(0))
    second = db.take()
    held = db.held(second.token)
    db.nack(second, message="bang")
    db.retry(second.id)
    reborn = db.take()

    assert [one.error for one in (first, second, *held)] == [None, "boom", "boom"]
    assert reborn.error is None  # another life


@pytest.mark.proves("S0.28", "S3.18", "S3.36", "S4.17")
def test_the_oldest_goes_first_inside_a_priority(db: Protocol) -> None:
    order = [1, 9, 0, 9, 1, 5]
    ids = [db.put(priority=priority) for priority in order]

    # A few at a time: what one claim gives is sorted, whatever it chose.
    claimed = [[job.id for job in db.claim(max_jobs=jobs)] for jobs in (1, 3, 9)]

    assert claimed == [[ids[n] for n in some] for some in ((1,), (3, 5, 0), (4, 2))]


@pytest.mark.proves("S4.17", "S4.18")
def test_one_job_at_a_time_comes_in_the_same_order(db: Protocol) -> None:
    ids = [db.put(priority=priority) for priority in (0, 3, 3)]

    assert [db.take().id for _ in ids] == [ids[1], ids[2], ids[0]]


@pytest.mark.proves("S4.17")
def test_promoted_jobs_come_in_the_order_of_becoming_due(db: Protocol, later: Later) -> None:
    delays = [50, 10, 40, 20, 30]
    ids = dict(zip(delays, [db.put(delay=delay) for delay in delays], strict=True))
    later(seconds=60)

    promoted = db.promote()

    assert promoted == 5
    assert [job.id for job in db.claim(max_jobs=5)] == [ids[delay] for delay in sorted(delays)]


def test_a_job_is_not_given_before_its_time(db: Protocol, later: Later) -> None:
    id = db.put(delay=60)

    later(seconds=59)
    early = db.claim()
    later(seconds=2)

    assert early == []
    assert [job.id for job in db.claim()] == [id]


@pytest.mark.proves("S0.27", "S3.18", "S4.18")
@pytest.mark.parametrize("lane", [None, "beside jobs of a lane"])
@pytest.mark.parametrize("by_kind", [False, True])
def test_a_worker_is_given_only_the_kinds_it_knows(
    db: Protocol, by_kind: bool, lane: str | None
) -> None:
    db.queue_set("default", by_kind=by_kind)
    ids = {
        kind: db.put(kind, priority=n, lane=lane if kind == "d" else None)
        for n, kind in enumerate("abcd")
    }

    claimed = [job.id for job in db.claim(max_jobs=9, kinds=["a", "c", "a"])]

    assert claimed == [ids["c"], ids["a"]]
    assert db.claim(max_jobs=9, kinds=["x"]) == []
    assert db.claim(max_jobs=9, kinds=[]) == []
    assert len(db.claim(max_jobs=9)) == 2


def test_switching_by_kind_on_loses_no_job(db: Protocol) -> None:
    before = db.put("a")
    db.queue_set("default", by_kind=True)
    after = db.put("a")

    assert [job.id for job in db.claim(max_jobs=9, kinds=["a"])] == [before, after]


def test_a_large_queue_is_prepared_for_by_kind_piece_by_piece(db: Protocol, other: Open) -> None:
    db.enqueue(*[{"kind": "a"}, {"kind": "b"}, {"kind": "a", "delay": 60}] * 10)
    db.enqueue(*[{"kind": "a", "queue": "other"}] * 10)
    held = other(autocommit=False)
    held.touch(held.take())
    steps, after = 0, None
    while steps == 0 or after is not None:
        query = "select holdfast.sort_some('default', %s, 7)"
        [(after,)] = db.connection.execute(query, [after]).fetchall()
        steps += 1
    query = "select queue, count(*) from holdfast.job where by_kind group by queue"

    assert steps == 5
    assert db.connection.execute(query).fetchall() == [("default", 29)]
    held.connection.rollback()
    db.queue_set("default", by_kind=True)
    assert db.connection.execute(query).fetchall() == [("default", 30)]
    assert {job.kind for job in db.claim(max_jobs=50, kinds=["b"])} == {"b"}


def test_switching_by_kind_off_loses_no_job(db: Protocol) -> None:
    db.queue_set("default", by_kind=True)
    before = db.put("a")
    db.queue_set("default", by_kind=False)
    after = db.put("a")

    assert [job.id for job in db.claim(max_jobs=9, kinds=["a"])] == [before, after]


@pytest.mark.proves("S0.27")
def test_a_queue_hands_out_its_own_jobs_only(db: Protocol) -> None:
    # Also if they lie side by side: a part is shared by the queues that happen to be in it.
    part = records.queue_part("mine")
    near = next(f"queue {n}" for n in range(1000) if records.queue_part(f"queue {n}") == part)
    mine = db.put(queue="mine")
    for theirs in (near, "theirs"):
        db.put(queue=theirs, priority=9)

    assert [job.id for job in db.claim("mine", max_jobs=9)] == [mine]
    assert db.claim("nobody uses this") == []


@pytest.mark.proves("S0.12")
@pytest.mark.parametrize("wanted", [1, 3, 10])
def test_a_claim_never_gives_more_than_asked_for(db: Protocol, wanted: int) -> None:
    db.enqueue(*[{"kind": "k", "priority": n % 10} for n in range(25)])

    assert len(db.claim(max_jobs=wanted)) == wanted


@pytest.mark.proves("S4.4", "S4.30")
def test_a_lease_lasts_thirty_seconds_by_default(db: Protocol) -> None:
    db.put()

    assert _lasts(db) == timedelta(seconds=30)


@pytest.mark.proves("S0.7", "S0.8", "S4.4")
@pytest.mark.parametrize(
    ("job", "claim", "queue", "lasts"),
    [
        (10, 20, 40, 10),
        (None, 180, 40, 180),
        (None, None, 40, 40),
        (10, None, None, 10),
    ],
)
def test_the_jobs_own_lease_goes_before_the_claims_and_the_queues(
    db: Protocol, job: int | None, claim: int | None, queue: int | None, lasts: int
) -> None:
    if queue:
        db.queue_set("default", lease=queue)
    db.put(lease=job)

    lease = timedelta(seconds=claim) if claim else None

    assert _lasts(db, lease=lease) == timedelta(seconds=lasts)


def test_a_lease_counts_from_the_claim_and_not_from_the_transaction(
    db: Protocol, other: Open, later: Later
) -> None:
    db.put()
    worker = other(autocommit=False)
    worker.connection.execute("select 1")
    later(seconds=25)

    leased = worker.take()

    assert leased.lease_until - leased.run_at > timedelta(seconds=54)


@pytest.mark.proves("S0.14", "S0.15", "S3.19", "S4.16")
def test_an_attempt_is_counted_at_every_claim(db: Protocol, later: Later) -> None:
    id = db.put(max_attempts=9)
    attempts = []
    for _ in range(6):
        attempts.append(db.take().attempt)
        later(seconds=31)
        db.reap()

    assert attempts == [1, 2, 3, 4, 5, 6]
    assert db.find("attempt:>5") == [id]


@pytest.mark.proves("S0.6", "S0.9", "S0.10", "S0.14")
def test_a_claim_reclaims_expired_leases_by_itself(db: Protocol, later: Later) -> None:
    id = db.put()
    db.take(worker="crashed")
    later(seconds=31)

    again = db.take(worker="heir")

    assert (again.id, again.attempt) == (id, 2)
    assert db.job(id).worker == "heir"


@pytest.mark.proves("S0.10")
def test_a_claim_reclaims_although_other_queues_have_due_jobs(db: Protocol, later: Later) -> None:
    id = db.put(queue="mine")
    db.take("mine")
    db.put(queue="other", delay=5)
    later(seconds=31)

    assert [job.id for job in db.claim("mine")] == [id]


@pytest.mark.proves("S0.10")
def test_a_claim_reclaims_although_other_queues_have_older_expired_leases(
    db: Protocol, later: Later
) -> None:
    for _ in range(3):
        db.put(queue="other")
        db.take("other")
    id = db.put(queue="mine")
    db.take("mine")
    later(seconds=31)

    assert [job.id for job in db.claim("mine")] == [id]


def test_a_claim_lets_in_due_jobs_of_its_own_queue(db: Protocol, later: Later) -> None:
    mine, other = _queues_of_one_part(db)
    for _ in range(5):
        db.put(queue=other, delay=1)
    id = db.put(queue=mine, delay=10)
    later(seconds=11)

    assert [job.id for job in db.claim(mine)] == [id]


@pytest.mark.proves("S0.5")
def test_two_claims_never_share_a_job(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 10)

    one, two = db.claim(worker="w1", max_jobs=5), db.claim(worker="w2", max_jobs=9)

    assert len(one) == len(two) == 5
    assert not {job.id for job in one} & {job.id for job in two}


@pytest.mark.proves("S0.31")
def test_the_process_that_settles_need_not_be_the_one_that_claimed(
    db: Protocol, other: Open
) -> None:
    db.put()
    claiming = other()
    leased = claiming.take()
    claiming.connection.close()

    [answer] = other().ack(leased)

    assert answer.outcome == "done"


def test_a_claim_that_is_rolled_back_never_was(db: Protocol, other: Open) -> None:
    id = db.put()
    worker = other(autocommit=False)
    lost = worker.take()

    worker.connection.rollback()

    assert db.job(id).attempt == 0
    assert db.held(lost.token) == []
    assert db.take().id == id


def test_a_claim_whose_reply_was_lost_is_found_by_its_token(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k", "payload": n, "priority": n} for n in range(3)])
    token = uuid4()
    db.claim(token=token, max_jobs=2)

    held = db.held(token)

    assert [job.payload for job in held] == [2, 1]
    assert {job.token for job in held} == {token}
    assert [outcome.outcome for outcome in db.ack(*held)] == ["done", "done"]


def test_only_what_a_token_still_holds_is_answered(db: Protocol, later: Later) -> None:
    db.enqueue(*[{"kind": "k"}] * 4)
    acked, failed, released, kept = db.claim(max_jobs=4)
    db.ack(acked)
    db.nack(failed)
    db.release(released)

    assert [job.id for job in db.held(kept.token)] == [kept.id]
    later(seconds=31)
    db.reap()
    assert db.held(kept.token) == []
    assert db.held() == []
    assert db.held(uuid4()) == []


def test_an_asynchronous_claim_is_a_claim(db: Protocol) -> None:
    db.put()

    leased = db.take(durable=False)

    assert db.ack(leased)[0].outcome == "done"
    assert db.connection.execute("show synchronous_commit").fetchone() == ("on",)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"token": None}, "HF207"),
        ({"queue": None}, "HF202"),
        ({"queue": ""}, "HF202"),
        ({"worker": None}, "HF202"),
        ({"worker": ""}, "HF202"),
        ({"worker": "a\nb"}, "HF202"),
        ({"worker": "w" * 201}, "HF202"),
        ({"max_jobs": 0}, "HF204"),
        ({"max_jobs": -1}, "HF204"),
        ({"max_jobs": 10_001}, "HF204"),
        ({"max_jobs": None}, "HF204"),
        ({"lease": timedelta(0)}, "HF204"),
        ({"lease": timedelta(seconds=-1)}, "HF204"),
    ],
)
@pytest.mark.proves("S4.19")
def test_a_claim_that_makes_no_sense_is_refused(
    db: Protocol, arguments: dict[str, Any], code: str
) -> None:
    id = db.put()
    given = {"queue": "default", "worker": "ada", "token": uuid4(), "max_jobs": 1, "lease": None}

    with pytest.raises(psycopg.Error) as refusal:
        db.connection.execute(
            "select id from holdfast.claim(queue => %(queue)s, worker => %(worker)s,"
            " token => %(token)s, max_jobs => %(max_jobs)s, lease => %(lease)s)",
            given | arguments,
        )

    assert refusal.value.sqlstate == code
    assert refusal.value.diag.message_hint
    assert db.state(id) == "queued"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_claim_on_an_old_snapshot_is_refused(db: Protocol, other: Open, level: str) -> None:
    db.put()
    worker = other(autocommit=False)
    worker.connection.execute(f"set transaction isolation level {level}")

    with pytest.raises(psycopg.Error) as refusal:
        worker.claim()

    assert refusal.value.sqlstate == "HF209"


@pytest.mark.proves("S0.24", "S0.26", "S0.33", "S3.4", "S3.5", "S4.7", "S4.8", "S4.32")
@pytest.mark.parametrize("analyzed", ["never", "while empty", "before the rare", "at last"])
@pytest.mark.parametrize(("queue", "kinds"), [("plain", None), ("sorted", ["rare"])])
def test_a_claim_reads_no_more_than_it_takes(
    db: Protocol, queue: str, kinds: list[str] | None, analyzed: str
) -> None:
    db.queue_set("sorted", by_kind=True)
    if analyzed == "while empty":
        db.connection.execute("vacuum analyze holdfast.job")
    db.enqueue(*[{"kind": "common", "queue": queue}] * 5000)
    if analyzed == "before the rare":
        db.connection.execute("analyze holdfast.job")
    db.enqueue(*[{"kind": "rare", "queue": queue}] * 20)
    if analyzed == "at last":
        db.connection.execute("analyze holdfast.job")

    with db.connection.transaction():
        before = db.rows_read()
        claimed = db.claim(queue, max_jobs=10, kinds=kinds)
        read = db.rows_read() - before

    assert len(claimed) == 10
    assert read < 100


def test_reading_many_rows_is_noticed(db: Protocol) -> None:
    db.enqueue(*[{"kind": "k"}] * 500)

    with db.connection.transaction():
        before = db.rows_read()
        db.connection.execute("select count(payload) from holdfast.job")
        assert db.rows_read() - before >= 500


def _lasts(db: Protocol, **options: Any) -> timedelta:
    leased = db.take(**options)
    [claimed_at] = db.connection.execute(
        "select claimed_at from holdfast.lease where token = %s", [leased.token]
    ).fetchone() or [None]
    return leased.lease_until - claimed_at


def _queues_of_one_part(db: Protocol) -> tuple[str, str]:
    rows = db.connection.execute(
        "select array_agg(name) from (select 'q' || n as name from generate_series(1, 200) n) q"
        " group by holdfast.queue_part(name) having count(*) > 1 limit 1"
    ).fetchone()
    assert rows is not None
    return rows[0][0], rows[0][1]


@pytest.mark.parametrize(
    ("bound_by", "commits"),
    [("nothing", "off"), ("turns", "off"), ("lane", "on"), ("limit", "on"), ("rate", "on")],
)
def test_a_claim_that_lets_somebody_in_under_a_limit_is_durable_whatever_was_asked(
    db: Protocol, other: Open, bound_by: str, commits: str
) -> None:
    settings: dict[str, dict[str, object]] = {
        "limit": {"limit": 1},
        "rate": {"rate_limit": 5, "rate_period": 60},
        "turns": {"fair": True},
    }
    if bound_by in settings:
        db.queue_set("default", **settings[bound_by])
    db.put(**({"lane": "one"} if bound_by == "lane" else {}))
    session = other(autocommit=False)

    session.take(durable=False)

    # What the transaction commits with: a crash must not forget who is in.
    assert session.connection.execute("show synchronous_commit").fetchone() == (commits,)
    session.connection.commit()
    assert session.connection.execute("show synchronous_commit").fetchone() == ("on",)
    session.connection.rollback()


def test_a_durable_lane_claim_commits_as_its_session_does(db: Protocol, other: Open) -> None:
    db.put(lane="one")
    session = other(autocommit=False)
    session.connection.execute("set synchronous_commit = local")

    session.take(durable=False)

    assert session.connection.execute("show synchronous_commit").fetchone() == ("local",)
    session.connection.rollback()


@pytest.mark.parametrize("full", ["lane", "limit"])
def test_a_claim_that_lets_nobody_in_need_not_be_durable(
    db: Protocol, other: Open, full: str
) -> None:
    if full == "limit":
        db.queue_set("default", limit=1)
    db.put(lane="one" if full == "lane" else None)
    db.put(lane="one" if full == "lane" else None)
    db.take()
    session = other(autocommit=False)

    assert session.claim(durable=False) == []

    assert session.connection.execute("show synchronous_commit").fetchone() == ("off",)
    session.connection.rollback()
