"""Strikes met by claims: whoever claims after strike_add has answered gets no struck job."""

import threading
from time import monotonic
from uuid import UUID

from tests.protocol import Open, Protocol


def strike(db: Protocol, **rule: str) -> int:
    [row] = db.call("strike_add", columns=["number"], **rule)
    return int(row[0])


def lift(db: Protocol, number: int) -> None:
    db.call("strike_lift", number=number, columns=["number"])


def test_a_strike_waits_for_no_claim_and_the_next_claim_obeys_it(db: Protocol, other: Open) -> None:
    first, second = db.put("send"), db.put("send")
    claiming = other(autocommit=False)
    assert claiming.take().id == first

    number = strike(db, kind="send")

    assert other().claim(max_jobs=10) == []
    claiming.connection.commit()
    assert db.job(first).state == "leased"
    lift(db, number)
    assert db.take().id == second


def test_a_strike_that_is_not_committed_holds_nothing_back(db: Protocol, other: Open) -> None:
    id = db.put("send")
    striking = other(autocommit=False)
    strike(striking, kind="send")

    assert db.take().id == id
    striking.connection.rollback()


def test_a_job_that_another_claim_is_at_is_neither_held_back_twice_nor_lost(
    db: Protocol, other: Open
) -> None:
    ids = {db.put("send") for _ in range(20)}
    number = strike(db, kind="send")
    one = other(autocommit=False)
    assert one.claim(max_jobs=10) == []

    assert other().claim(max_jobs=10) == []
    one.connection.rollback()
    assert other().claim(max_jobs=10) == []

    lift(db, number)
    assert {job.id for job in db.claim(max_jobs=100)} == ids


def test_under_load_no_claim_that_began_under_a_strike_gets_a_struck_job(
    db: Protocol, other: Open
) -> None:
    kinds = ["send", "other"]
    db.enqueue(*({"kind": kinds[n % 2]} for n in range(4000)))
    got: list[tuple[float, float, list[tuple[UUID, str]]]] = []
    over = threading.Event()

    def work(session: Protocol) -> None:
        while not over.is_set():
            began = monotonic()
            jobs = session.claim(max_jobs=5)
            got.append((began, monotonic(), [(job.id, job.kind) for job in jobs]))
            session.ack(*jobs)

    threads = [threading.Thread(target=work, args=[other()]) for _ in range(3)]
    for thread in threads:
        thread.start()
    spans = []
    try:
        for _ in range(8):
            number = strike(db, kind="send")
            since = monotonic()
            seen = len(got)
            while len(got) < seen + 30:
                over.wait(0.001)
            spans.append((since, monotonic()))
            lift(db, number)
            seen = len(got)
            while len(got) < seen + 10:
                over.wait(0.001)
        while db.connection.execute("select 1 from holdfast.job limit 1").fetchone():
            over.wait(0.01)
    finally:
        over.set()
        for thread in threads:
            thread.join()

    ids = [id for _, _, jobs in got for id, _ in jobs]
    assert len(ids) == len(set(ids)) == 4000
    struck = [
        kind
        for began, ended, jobs in got
        for _, kind in jobs
        if any(since <= began and ended <= until for since, until in spans)
    ]
    assert "other" in struck
    assert "send" not in struck
