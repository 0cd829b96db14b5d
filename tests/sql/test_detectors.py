"""Detectors: each is provoked, raised once, explained, delivered, and over when its cause is."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.protocol import Later, Open, Protocol

Story = Callable[[Protocol, Later, Open], Iterator[None]]
"""Makes something look wrong, waits, and puts it right."""


class Case(NamedTuple):
    code: str
    says: str
    fix: str
    story: Story
    settings: dict[str, Any]
    queue: str | None


CASES: list[Case] = []


def looks_wrong(
    code: str, says: str, fix: str, *, queue: str | None = "default", **settings: Any
) -> Callable[[Story], Story]:
    def register(story: Story) -> Story:
        CASES.append(Case(code, says, fix, story, settings, queue))
        return story

    return register


class Changed(NamedTuple):
    id: str | None
    change: str
    severity: str
    title: str


def detect(db: Protocol, *codes: str) -> list[Changed]:
    rows = db.connection.execute(
        "select id, change, severity, title from holdfast.detect(codes => %s)",
        [list(codes) or None],
    )
    return [Changed(*row) for row in rows]


def deliveries(db: Protocol) -> list[str]:
    found = db.list("queue:holdfast.alerts")
    return sorted(f"{job.payload['event']} {job.payload['anomaly']['code']}" for job in found)


# -- the stories


@looks_wrong("no_worker", "No worker for work", "holdfast worker list")
def _no_worker(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.fold()
    db.beat("w1", kinds=["other"], queues=["default"])
    later(seconds=61)
    db.beat("w1")
    yield
    db.beat("w2", kinds=["work"], queues=["default"])


@looks_wrong("unreadable", "No worker can read work", "holdfast job explain ")
def _unreadable(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.beat("w1", kinds=["work"], queues=["default"], shapes={"work": "v1"})
    given = db.take()
    unread = {"shape": "v1", "problem": "there is no argument `currency`"}
    db.settle({"id": given.id, "token": given.token, "verb": "release", "unread": unread})
    later(seconds=31)
    db.beat("w1")
    yield
    # Another declaration of the kind: it may be able to.
    db.beat("w2", kinds=["work"], queues=["default"], shapes={"work": "v2"})


@looks_wrong("late", "default is 6 m behind", "holdfast queue forecast default")
def _late(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.fold()
    later(minutes=6)
    yield
    db.ack(db.take())


@looks_wrong("failure_jump", "default: 50 % of attempts fail", "holdfast dead groups")
def _failure_jump(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    detect(db)
    work(db, done=60, failed=2)
    later(minutes=20)
    detect(db)
    later(minutes=20)
    detect(db)
    work(db, done=20, failed=20)
    later(seconds=11)
    yield
    later(minutes=15)


@looks_wrong("lease_lost_burst", "default: 10 leases expired", "holdfast worker list")
def _lease_lost_burst(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.enqueue(*[{"kind": "work"}] * 10)
    db.claim(max_jobs=10)
    later(seconds=31)
    assert len(db.reap()) == 10
    yield
    later(minutes=6)


@looks_wrong("lease_stolen", "ada lost a lease but is running", "holdfast job explain ")
def _lease_stolen(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.take(worker="ada")
    later(seconds=31)
    db.reap()
    db.beat("ada", kinds=["work"])
    yield
    later(minutes=6)


@looks_wrong("flapping_job", "work failed 4 of 5 attempts", "holdfast job show ")
def _flapping_job(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put(max_attempts=5)
    for _ in range(4):
        db.nack(db.take(), message="flaps", delay=timedelta(0))
    yield
    db.ack(db.take())


@looks_wrong("last_attempt", "work: 1 job is close to dying", "holdfast job list 'queue:default")
def _last_attempt(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put(max_attempts=3)
    for _ in range(2):
        db.nack(db.take(), message="boom", delay=timedelta(0))
    yield
    db.ack(db.take())


@looks_wrong("job_died", "1 work died", "holdfast dead groups")
def _job_died(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put(max_attempts=1)
    db.nack(db.take(), message="boom")
    yield
    later(minutes=6)


@looks_wrong("zombie_job", "work is held by ada, whose lease has expired", "holdfast upkeep --once")
def _zombie_job(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.take(worker="ada")
    later(seconds=61)
    yield
    db.reap()


@looks_wrong(
    "retry_storm",
    "default: 20 failed jobs are due at once",
    "holdfast queue pause --for 10m --reason 'retry storm' default",
    jobs=20,
)
def _retry_storm(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.enqueue(*[{"kind": "work"}] * 20)
    db.fold()
    db.nack(*db.claim(max_jobs=20), message="down", delay=timedelta(seconds=30))
    yield
    later(seconds=31)
    db.promote()


@looks_wrong("lane_held", "Lane axiom has been held for 11 m", "holdfast job cancel ")
def _lane_held(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.enqueue(*[{"kind": "work", "lane": "axiom"}] * 2)
    held = db.take(lease=timedelta(hours=1))
    later(minutes=11)
    yield
    db.ack(held)


@looks_wrong("lane_halted", "Lane axiom is halted", "holdfast job retry ")
def _lane_halted(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.queue_set("default", lane_on_failure="halt")
    db.enqueue(*[{"kind": "work", "lane": "axiom", "max_attempts": 1}] * 2)
    db.nack(db.take(), message="boom")
    yield
    db.lane_set("default", "axiom", halted=False)


@looks_wrong(
    "schedule_missed", "Schedule nightly missed its slot", "holdfast schedule show nightly"
)
def _schedule_missed(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    slot = schedule(db, "nightly")
    later(seconds=70)
    yield
    fire(db, "nightly", slot)


@looks_wrong(
    "schedule_overlap", "Schedule nightly overlaps itself", "holdfast schedule show nightly"
)
def _schedule_overlap(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    slot = schedule(db, "nightly")
    later(seconds=1)
    second = fire(db, "nightly", slot)
    later(minutes=1)
    fire(db, "nightly", second)
    yield
    db.ack(db.take())


@looks_wrong("upkeep_failing", "Upkeep fails: promoted", "holdfast upkeep --once")
def _upkeep_failing(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    for _ in range(3):
        db.connection.execute(
            "select holdfast.note_failing('promoted', 'default', '23514', 'refused by a check')"
        )
    yield
    later(minutes=6)


@looks_wrong("worker_lost", "ada is silent", "holdfast worker list", queue=None)
def _worker_lost(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.beat("ada", busy=2, host="db2", pid=77)
    later(seconds=61)
    yield
    db.beat("ada")


@looks_wrong("version_skew", "Workers run 2 versions", "holdfast worker list", queue=None)
def _version_skew(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    long_ago = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    db.beat("ada", version="1.8", pid=1, started_at=long_ago)
    db.beat("bob", version="1.9", pid=2, started_at=long_ago)
    yield
    db.beat("ada", version="1.9")


@looks_wrong("clock_skew", "The clock of db2 is 5 s ahead", "timedatectl status", queue=None)
def _clock_skew(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.beat("ada", host="db2", clock=(datetime.now(UTC) + timedelta(seconds=5)).isoformat())
    yield
    db.beat("ada", clock=datetime.now(UTC).isoformat())


@looks_wrong(
    "listen_down", "ada receives no notifications", "export HOLDFAST_LISTEN_URL", queue=None
)
def _listen_down(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.beat("ada", listens=False)
    later(seconds=31)
    db.beat("ada", listens=False)
    yield
    db.beat("ada", listens=True)


@looks_wrong(
    "notify_backlog", "The notification queue is 0 % full", "select pid", queue=None, share=0
)
def _notify_backlog(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    yield
    tune(db, "notify_backlog", share=0.5)


@looks_wrong(
    "horizon_pinned",
    "has pinned the vacuum horizon",
    "select pg_terminate_backend(",
    queue=None,
    seconds=0,
)
def _horizon_pinned(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    forgotten = other(autocommit=False).connection
    forgotten.execute("set application_name = 'report of ada'")
    forgotten.execute("set transaction isolation level repeatable read")
    forgotten.execute("select 1 from holdfast.job")
    yield
    forgotten.rollback()


@looks_wrong(
    "bloat", "holdfast.mute has ", "vacuum (verbose) holdfast.mute", queue=None, rows=20000
)
def _bloat(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.connection.execute(
        "insert into holdfast.mute (code, subject, muted_at, until)"
        " select 'none', n::text, now(), now() from generate_series(1, 30000) n"
    )
    db.connection.execute("delete from holdfast.mute")
    flush_statistics(db)
    yield
    db.connection.execute("vacuum holdfast.mute")
    flush_statistics(db)


@looks_wrong("counters_drift", "Counters of default are wrong", "select * from holdfast.recount();")
def _counters_drift(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.fold()
    db.connection.execute("update holdfast.total set queued = queued + 3")
    yield
    assert len(db.recount()) == 1


@looks_wrong(
    "table_broken",
    "Queue tasks cannot use its table",
    "Remove its queue: holdfast unadopt public.gone",
    queue="tasks",
)
def _table_broken(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    adopt_nothing(db, live=True)
    yield
    db.connection.execute("delete from holdfast.adopted")


@looks_wrong(
    "row_refused",
    "1 row of public.gone cannot be written",
    "holdfast job retry 'queue:tasks state:dead'",
    queue="tasks",
)
def _row_refused(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    adopt_nothing(db, live=False)
    db.connection.execute(
        "insert into holdfast.adopted_fault (part, id, kind, state, verb, code, message, at) "
        "values (4000, gen_random_uuid(), 'tasks', 'leased', 'ack', '23514', 'no', holdfast.now())"
    )
    yield
    db.connection.execute("delete from holdfast.adopted_fault; delete from holdfast.adopted")


def adopt_nothing(db: Protocol, *, live: bool) -> None:
    db.connection.execute(
        "insert into holdfast.adopted (part, queue, relation, spec, live) "
        "values (4000, 'tasks', 'public.gone', '{}', %s)",
        [live],
    )


@looks_wrong("paused_long", "default has been paused for 2 d", "holdfast queue resume default")
def _paused_long(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.pause("default", reason="deploy", actor="ada")
    later(days=2)
    yield
    db.resume("default")


@looks_wrong(
    "payload_near_limit",
    "work: payloads near the limit of default",
    "holdfast queue set default payload_limit=2000",
)
def _payload_near_limit(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.queue_set("default", payload_limit=1000)
    db.put(payload="x" * 900)
    db.fold()
    yield
    db.queue_set("default", payload_limit=100_000)


@looks_wrong("bulk_delete", "default: 5 jobs were deleted at once", "holdfast op list")
def _bulk_delete(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    jobs = db.enqueue(*[{"kind": "work"}] * 6)
    db.fold()
    db.delete(*[job.id for job in jobs[:5]])
    db.fold()
    yield
    later(minutes=6)


@looks_wrong("bulk_move", "slow: 5 jobs were moved here at once", "holdfast op list", queue="slow")
def _bulk_move(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    jobs = db.enqueue(*[{"kind": "work"}] * 5)
    db.fold()
    db.move(*[job.id for job in jobs], queue="slow")
    db.fold()
    yield
    later(minutes=6)


@looks_wrong("queue_cleared", "default was cleared", "holdfast job list 'queue:default")
def _queue_cleared(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    jobs = db.enqueue(*[{"kind": "work"}] * 5)
    db.fold()
    db.cancel(*[job.id for job in jobs])
    db.fold()
    yield
    db.put()


@looks_wrong(
    "bulk_enqueue", "default: 5 jobs were enqueued at once", "holdfast op list", enabled=True
)
def _bulk_enqueue(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.enqueue(*[{"kind": "work"}] * 5)
    db.fold()
    yield
    later(minutes=6)


@looks_wrong("burst_claims", "ada claimed 50 jobs at once", "holdfast worker list", enabled=True)
def _burst_claims(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.enqueue(*[{"kind": "work"}] * 50)
    for _ in range(5):
        db.claim(max_jobs=10)
    yield
    later(seconds=11)


@looks_wrong("flash_job", "ada acks jobs instantly", "holdfast job list state:done", enabled=True)
def _flash_job(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    db.ack(db.take(), keep=True)
    yield
    later(minutes=2)


@looks_wrong(
    "large_payload", "work: payloads of up to 6002 bytes", "holdfast job show ", enabled=True
)
def _large_payload(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put(payload="x" * 6000)
    db.fold()
    yield
    db.ack(db.take())


@looks_wrong(
    "long_running", "work has been running for 11 s", "holdfast job explain ", enabled=True
)
def _long_running(db: Protocol, later: Later, other: Open) -> Iterator[None]:
    db.put()
    held = db.take()
    later(seconds=11)
    yield
    db.ack(held)


# -- what holds for all of them


@pytest.mark.proves("S4.11", "S4x.3")
@pytest.mark.parametrize("case", CASES, ids=[case.code for case in CASES])
def test_a_detector_raises_once_explains_delivers_and_resolves(
    db: Protocol, later: Later, other: Open, case: Case
) -> None:
    webhook(db, severity="info")
    if case.settings:
        tune(db, case.code, **case.settings)
    assert detect(db, case.code) == [] or case.code == "notify_backlog"
    story = case.story(db, later, other)
    next(story)

    raised = detect(db, case.code)
    again = detect(db, case.code)
    [found] = db.table(
        "select code, queue, severity, title, detail, suggestion, evidence, resolved_at,"
        " since <= seen_at as known_since from holdfast.anomalies"
    )
    next(story, None)
    over = detect(db, case.code)

    if case.code != "notify_backlog":  # it was there from the beginning
        assert [change.change for change in raised] == ["raised"]
    assert again == []
    assert (found.code, found.queue, found.resolved_at) == (case.code, case.queue, None)
    assert case.says in found.title
    assert found.detail
    assert found.suggestion.startswith(case.fix)
    assert isinstance(found.evidence, dict)
    assert found.known_since
    assert [(change.change, change.id) for change in over] == [("resolved", over[0].id)]
    assert db.table("select id from holdfast.anomalies where resolved_at is null") == []
    assert deliveries(db) == [f"anomaly.raised {case.code}", f"anomaly.resolved {case.code}"]


# The threshold that, set so, lets pass what each story provokes.
PATIENT: dict[str, tuple[str, float]] = {
    "no_worker": ("seconds", 1e9),
    "unreadable": ("seconds", 1e9),
    "late": ("seconds", 1e9),
    "lane_held": ("seconds", 1e9),
    "schedule_missed": ("seconds", 1e9),
    "worker_lost": ("seconds", 1e9),
    "version_skew": ("seconds", 1e9),
    "clock_skew": ("seconds", 6),
    "horizon_pinned": ("seconds", 1e9),
    "paused_long": ("seconds", 1e9),
    "long_running": ("seconds", 60),
    "lease_stolen": ("seconds", 0),
    "flash_job": ("seconds", 0),
    "job_died": ("jobs", 2),
    "upkeep_failing": ("times", 4),
    "retry_storm": ("jobs", 21),
    "bulk_delete": ("jobs", 6),
    "bulk_move": ("jobs", 6),
    "bulk_enqueue": ("jobs", 6),
    "queue_cleared": ("jobs", 6),
    "burst_claims": ("jobs", 51),
    "failure_jump": ("share", 0.6),
    "notify_backlog": ("share", 1),
    "payload_near_limit": ("share", 0.95),
    "lease_lost_burst": ("leases", 11),
    "flapping_job": ("attempts", 5),
    "last_attempt": ("left", 0),
    "zombie_job": ("times", 3),
    "bloat": ("rows", 1e9),
    "counters_drift": ("rows", 0),
    "large_payload": ("bytes", 6002),
}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.code in PATIENT], ids=lambda case: case.code
)
def test_what_stays_within_its_threshold_is_not_raised(
    db: Protocol, later: Later, other: Open, case: Case
) -> None:
    name, value = PATIENT[case.code]
    tune(db, case.code, **{"enabled": True, **case.settings, name: value})
    story = case.story(db, later, other)
    next(story)

    assert detect(db, case.code) == []
    next(story, None)


def test_a_lease_was_stolen_only_from_a_worker_that_lives_on(db: Protocol, later: Later) -> None:
    tune(db, "lease_stolen", enabled=True)
    for worker in ("ada", "bob"):
        db.put(queue=worker)
        db.beat(worker, kinds=["work"])
        db.take(worker, worker)
    later(seconds=31)
    db.reap()
    db.beat("ada")

    assert [change.title for change in detect(db, "lease_stolen")] == [
        "ada lost a lease but is running"
    ]


def test_every_detector_has_a_case(db: Protocol) -> None:
    codes = {row.code for row in db.table("select code from holdfast.detector_catalogue")}

    assert codes == {case.code for case in CASES}


def test_an_empty_database_has_no_anomaly(db: Protocol) -> None:
    for case in CASES:
        if case.code != "horizon_pinned":
            tune(db, case.code, enabled=True)

    assert detect(db) == []
    assert db.table("select code, problem from holdfast.detectors where problem is not null") == []


def test_detectors_look_when_they_are_due(db: Protocol, later: Later) -> None:
    _provoke(db, later)

    assert [change.change for change in detect(db)] == ["raised"]
    db.ack(db.take())
    assert detect(db) == []
    later(seconds=10)
    assert [change.change for change in detect(db)] == ["resolved"]


def test_what_comes_back_soon_goes_on_and_nobody_is_told_twice(db: Protocol, later: Later) -> None:
    webhook(db)
    _provoke(db, later)
    detect(db, "late")
    db.pause("default")
    detect(db, "late")

    db.resume("default")
    assert detect(db, "late") == []
    [again] = db.table("select times, resolved_at from holdfast.anomalies")
    assert (again.times, again.resolved_at) == (2, None)
    assert deliveries(db) == ["anomaly.raised late", "anomaly.resolved late"]


def test_what_gets_worse_is_told_again_and_is_nobodys_any_more(db: Protocol, later: Later) -> None:
    webhook(db)
    _provoke(db, later)
    [raised] = detect(db, "late")
    db.connection.execute("select holdfast.anomaly_ack(%s, actor => 'ada')", [raised.id])
    later(hours=1)
    db.ack(*db.claim("holdfast.alerts", max_jobs=9), keep=True)

    [worse] = detect(db, "late")

    assert (worse.change, worse.severity, worse.id) == ("worsened", "critical", raised.id)
    [found] = db.table("select acked_at, acked_by from holdfast.anomalies")
    assert (found.acked_at, found.acked_by) == (None, None)
    assert deliveries(db) == ["anomaly.raised late", "anomaly.worsened late"]


def test_ack_says_who_cares(db: Protocol, later: Later) -> None:
    _provoke(db, later)
    [raised] = detect(db, "late")

    [acked] = db.call(
        "anomaly_ack",
        id=raised.id,
        note="on it",
        actor="ada",
        columns=["acked_by", "note", "muted"],
    )
    nobody = db.call("anomaly_ack", id="nonsense", columns=["id"])

    assert (acked.acked_by, acked.note, acked.muted) == ("ada", "on it", False)
    assert nobody == []
    assert detect(db, "late") == []


@pytest.mark.parametrize(
    ("where", "muted"),
    [
        ({}, True),
        ({"queue": "default"}, True),
        ({"queue": "other"}, False),
        ({"subject": "other"}, False),
    ],
)
def test_a_muted_anomaly_is_listed_and_not_told(
    db: Protocol, later: Later, where: dict[str, str], muted: bool
) -> None:
    webhook(db)
    _provoke(db, later)
    db.value("anomaly_mute", code="late", actor="ada", **where)

    assert [change.change for change in detect(db, "late")] == ["raised"]
    assert [row.muted for row in db.table("select muted from holdfast.anomalies")] == [muted]
    assert deliveries(db) == ([] if muted else ["anomaly.raised late"])


def test_a_mute_ends_by_itself_or_by_unmute(db: Protocol, later: Later) -> None:
    _provoke(db, later)
    until = datetime.now(UTC) + timedelta(hours=1)
    db.value("anomaly_mute", code="late", until=until)
    detect(db, "late")

    assert [row.code for row in db.table("select code from holdfast.mutes")] == ["late"]
    assert db.value("anomaly_unmute", code="late") is True
    assert db.value("anomaly_unmute", code="late") is False
    db.value("anomaly_mute", code="late", until=until)
    later(hours=2)
    assert [row.muted for row in db.table("select muted from holdfast.anomalies")] == [False]


def test_thresholds_are_those_of_the_queue_then_of_all_then_usual(
    db: Protocol, later: Later
) -> None:
    for queue in ("a", "b", "c"):
        db.put(queue=queue)
    db.fold()
    tune(db, "late", seconds=10)
    tune(db, "late", queue="b", seconds=100)
    tune(db, "late", queue="c", enabled=False)
    later(seconds=20)

    assert [change.title for change in detect(db, "late")] == ["a is 20 s behind"]
    later(seconds=90)
    changes = detect(db, "late")
    assert sorted(change.title for change in changes) == ["a is 110 s behind", "b is 110 s behind"]


def test_a_webhook_is_told_what_it_asked_for(db: Protocol, later: Later) -> None:
    webhook(db, "grave", severity="critical")
    webhook(db, "dead only", codes=["job_died"])
    webhook(db, "mail only", queues=["mail"])
    webhook(db, "all of it", severity="info")
    _provoke(db, later)
    detect(db, "late")

    [told] = db.list("queue:holdfast.alerts")

    assert told.payload["webhook"] == "all of it"
    assert told.payload["anomaly"]["title"] == "default is 6 m behind"


@pytest.mark.parametrize(
    "name", ["a b", "$(touch pwned)", "it's", "`x`; rm -rf ~", "--help", "plain-1", 'a"b\\c']
)
def test_a_suggestion_is_what_a_shell_takes(db: Protocol, later: Later, name: str) -> None:
    quoted = db.value("shell", word=name)
    said = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\n' {quoted}"], capture_output=True, text=True, check=True
    ).stdout

    assert said.removeprefix("--\n") == name + "\n"
    db.put(queue=name)
    db.pause(name)
    later(hours=25)
    assert [one.change for one in detect(db, "paused_long")] == ["raised"]
    [told] = db.table("select suggestion from holdfast.anomalies")
    assert told.suggestion == f"holdfast queue resume {quoted}"


def test_troubles_with_deliveries_are_not_delivered(db: Protocol, later: Later) -> None:
    webhook(db, severity="info")
    db.put("send", max_attempts=1)
    db.nack(db.take(), message="30 s")
    detect(db, "job_died")
    db.settle(
        *(
            {"id": str(told.id), "token": str(told.token), "verb": "nack", "final": True}
            for told in db.claim("holdfast.alerts", max_jobs=9)
        )
    )

    assert [change.change for change in detect(db, "job_died")] == ["raised"]
    assert db.find("queue:holdfast.alerts state:queued") == []


def test_a_detector_that_breaks_stops_no_other(db: Protocol, later: Later) -> None:
    _provoke(db, later)
    with broken(db, "detect_bloat"):
        changes = detect(db)

    assert [(change.change, change.title) for change in changes] == [
        ("failed", "22012: division by zero"),
        ("raised", "default is 6 m behind"),
    ]


def test_two_who_detect_at_once_do_the_work_of_one(db: Protocol, later: Later, other: Open) -> None:
    _provoke(db, later)
    first = other(autocommit=False)

    assert [change.change for change in detect(first, "late")] == ["raised"]
    assert detect(db, "late") == []
    first.connection.commit()
    assert detect(db, "late") == []


def test_a_detector_of_ones_own_reports_and_resolves(db: Protocol) -> None:
    finding = {"title": "Refunds pile up", "subject": "refunds", "severity": "critical"}

    def report(*findings: Any) -> list[str]:
        rows = db.call("report", code="refunds", findings=Jsonb(findings), columns=["change"])
        return [row.change for row in rows]

    assert report(finding) == ["raised"]
    assert report(finding) == []
    assert report() == ["resolved"]


def test_a_detector_of_ones_own_is_due_once_in_a_span(db: Protocol, later: Later) -> None:
    def due() -> Any:
        return db.value("detector_due", code="refunds", every=timedelta(minutes=1))

    assert [due(), due()] == [True, False]
    later(seconds=61)
    assert due() is True
    assert "refunds" in [row.code for row in db.table("select code from holdfast.detectors")]


@pytest.mark.parametrize(
    ("call", "code", "told"),
    [
        ("detect('{nonsense}')", "HF227", "no detector is called 'nonsense'"),
        ("anomaly_mute('nonsense')", "HF227", "no detector is called 'nonsense'"),
        ("anomaly_mute('late', now() - interval '1 day')", "HF204", "is in the past"),
        ("detector_set('late', '{\"hours\": 1}')", "HF221", "setting 'hours' of detector late"),
        ("detector_set('late', '{\"seconds\": -1}')", "HF221", "cannot be -1"),
        ("detector_set('late', '{\"seconds\": 1e300}')", "HF221", "cannot be 1"),
        ("detector_set('nonsense', '{}')", "HF227", "no detector is called 'nonsense'"),
        ("report('late', '[]')", "HF219", "is built in"),
        ("report('mine', '{}')", "HF219", "must be a JSON array"),
        ("report('mine', '[{}]')", "HF219", "finding 1 is not valid"),
        ('report(\'mine\', \'[{"title": "a", "severity": "bad"}]\')', "HF219", "finding 1"),
        ("webhook_set('a', '{\"url\": \"ftp://a\"}')", "HF221", "are not valid for a webhook"),
        ("webhook_set('a', '{\"secret\": \"short\"}')", "HF221", "16 to 200 characters"),
        ("webhook_set('a', '{\"nonsense\": 1}')", "HF221", "'nonsense' of a webhook is unknown"),
    ],
)
def test_misuse_is_refused(db: Protocol, call: str, code: str, told: str) -> None:
    with pytest.raises(errors.DatabaseError, match=told) as refused:
        db.connection.execute(f"select holdfast.{call}")  # type: ignore[arg-type]

    assert refused.value.sqlstate == code


def test_a_secret_is_in_no_view(db: Protocol) -> None:
    webhook(db)

    [seen] = db.table("select * from holdfast.webhooks")

    assert "secret" not in seen._fields
    [target] = db.call("webhook_target", name="hook", columns=["url", "secret"])
    assert tuple(target) == ("http://localhost/hook", "0123456789abcdef")


def test_readings_older_than_an_hour_thin_out(db: Protocol, later: Later) -> None:
    for _ in range(30):
        work(db, done=1)
        later(seconds=30)
        detect(db, "late")
    before = len(db.table("select * from holdfast.reading where queue = 'default'"))
    later(hours=2)
    detect(db, "late")

    after = len(db.table("select * from holdfast.reading where queue = 'default'"))
    assert before == 30
    assert 2 <= after <= 4


# -- helpers


def _provoke(db: Protocol, later: Later) -> None:
    db.put()
    db.fold()
    later(minutes=6)
    db.beat("ada", kinds=["work"])


def tune(db: Protocol, code: str, *, queue: str | None = None, **settings: Any) -> None:
    db.call("detector_set", code=code, settings=Jsonb(settings), queue=queue, columns=["code"])


def webhook(db: Protocol, name: str = "hook", **settings: Any) -> None:
    settings = {"url": "http://localhost/hook", "secret": "0123456789abcdef", **settings}
    db.call("webhook_set", name=name, settings=Jsonb(settings), columns=["name"])


def work(db: Protocol, *, done: int = 0, failed: int = 0) -> None:
    for count, fails in ((done, False), (failed, True)):
        if not count:
            continue
        db.enqueue(*[{"kind": "work", "max_attempts": 1}] * count)
        held = db.claim(max_jobs=count, token=uuid4())
        if fails:
            db.nack(*held, message="boom")
        else:
            db.ack(*held)
    db.fold()


def schedule(db: Protocol, name: str) -> datetime:
    """Makes a schedule whose slot has just come; returns the slot."""
    db.connection.execute(
        "select holdfast.schedule_declare(%s)",
        [Jsonb([{"name": name, "kind": "work", "cron": "* * * * *"}])],
    )
    [slot] = db.connection.execute(
        "update holdfast.schedule set next_at = date_trunc('second', holdfast.now())"
        " returning next_at"
    ).fetchone() or (None,)
    assert isinstance(slot, datetime)
    return slot


def fire(db: Protocol, name: str, slot: datetime) -> datetime:
    """Fires a slot; returns the next, a minute later."""
    following = slot + timedelta(minutes=1)
    while following <= db.connection.execute("select holdfast.now()").fetchone()[0]:  # type: ignore[index]
        following += timedelta(minutes=1)
    db.connection.execute(
        "select holdfast.schedule_fire(%s, %s, array[%s], %s)", [name, slot, slot, following]
    )
    return following


def flush_statistics(db: Protocol) -> None:
    if db.connection.info.server_version >= 150000:
        db.connection.execute("select pg_stat_force_next_flush()")
    db.connection.execute("select 1")


@contextmanager
def broken(db: Protocol, function: str) -> Iterator[None]:
    [source] = db.connection.execute(
        "select pg_get_functiondef(oid) from pg_proc where proname = %s", [function]
    ).fetchone() or ("",)
    db.connection.execute(
        f"create or replace function holdfast.{function}(at timestamptz)"  # type: ignore[arg-type]
        " returns setof holdfast.finding language plpgsql stable"
        " as 'begin perform 1 / 0; end'"
    )
    try:
        yield
    finally:
        db.connection.execute(source)
