"""What a worker says in bulk: rows are read late, and acks answer only what was lost."""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast.leased import lease_of
from holdfast.records import Claim, Failed, NewJob


def claimed(client: Any, limit: int = 10) -> tuple[Claim, list[Any]]:
    claim = Claim("default", "ada", limit)
    [rows] = client.drain.exchange([], [], [], [claim]).leased
    return claim, list(rows)


def test_a_raw_row_is_read_as_the_lease_that_a_claim_answers(client: Any) -> None:
    client.enqueue(
        "greet",
        {"name": "Žofie"},
        priority=3,
        headers={"trace": "ß"},
        subject="order 1",
        tenant="acme",
        lane="a",
        lease=timedelta(days=40, minutes=3),
    )
    client.enqueue("greet", {"name": "Ada"})

    claim, rows = claimed(client)

    assert [lease_of(row, claim) for row in rows] == client.held([claim.token])


def test_an_exchange_answers_which_acks_were_lost_by_their_places(client: Any) -> None:
    for _ in range(3):
        client.enqueue("greet")
    claim, rows = claimed(client)
    ids = [row[0] for row in rows]
    token, strange = claim.token.bytes, uuid4().bytes

    answer = client.drain.exchange(ids, [token, strange, token], [], [])

    assert list(answer.lost) == [1]
    assert "is leased by ada" in answer.lost[1]
    again = client.drain.exchange(ids, [token, token, token], [], [])
    assert again.lost == {}, "what this very token ended before is not lost"


def test_an_exchange_settles_and_claims_besides(client: Any) -> None:
    for _ in range(3):
        client.enqueue("greet")
    claim, [first, second] = claimed(client, 2)
    failed = Failed(lease_of(second, claim), "ValueError", "no")

    answer = client.drain.exchange(
        [first[0]], [claim.token.bytes], [failed], [Claim("default", "ada", 1), Claim("x", "ada")]
    )

    assert [one.outcome for one in answer.settled] == ["queued"]
    assert [len(rows) for rows in answer.leased] == [1, 0]


def test_claims_of_unknown_outcome_are_asked_for_together(client: Any) -> None:
    client.enqueue("greet")
    client.enqueue("greet")
    one, [row] = claimed(client, 1)
    other, [second] = claimed(client, 1)

    held = client.drain.held([one, other, Claim("default", "ada")])

    assert {(claim.token, row) for claim, row in held} == {(one.token, row), (other.token, second)}


@pytest.mark.parametrize("driver", ["python", "binary"])
def test_both_of_psycopgs_drivers_read_and_write_raw_values(database: str, driver: str) -> None:
    script = """
import sys, psycopg
from holdfast import Client
from holdfast.leased import lease_of
from holdfast.records import Claim
with Client(sys.argv[1]) as client:
    client.enqueue("greet", {"name": "Ada"}, lease=90)
    claim = Claim("default", "ada")
    [[row]] = client.drain.exchange([], [], [], [claim]).leased
    assert [lease_of(row, claim)] == client.held([claim.token])
    assert not client.drain.exchange([row[0]], [claim.token.bytes], [], []).lost
    assert not client.held([claim.token])
    print(psycopg.pq.__impl__)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, database],
        env={**os.environ, "PSYCOPG_IMPL": driver},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.stdout.strip() == driver, run.stderr


def test_no_claims_hold_nothing(client: Any) -> None:
    assert client.drain.held([]) == []


def test_an_ack_is_understood_if_a_later_release_says_more_about_it(
    client: Any, connect: Any
) -> None:
    """A column is added at the end of an answer: whoever names columns does not notice."""
    for _ in range(3):
        client.enqueue("greet")
    claim, rows = claimed(client)
    ids = [row[0] for row in rows]
    connect().execute(
        """
        alter function holdfast.ack(uuid[], uuid[], jsonb, boolean, integer) rename to ack_of_today;
        create function holdfast.ack(
          ids uuid[], tokens uuid[], results jsonb default null, keep boolean default false,
          recent integer default 0)
        returns table (id uuid, outcome text, detail text, more bigint) language sql as $$
          select a.id, a.outcome, a.detail, 7 from holdfast.ack_of_today(ids, tokens) a
        $$
        """
    )

    answer = client.drain.exchange(ids, [claim.token.bytes, uuid4().bytes, uuid4().bytes], [], [])

    assert list(answer.lost) == [1, 2]


def test_of_a_job_that_was_lost_and_claimed_again_the_earlier_lease_is_lost(client: Any) -> None:
    client.enqueue("greet")
    first, [row] = claimed(client)
    client.release([lease_of(row, first)])
    again, _ = claimed(client)

    answer = client.drain.exchange([row[0]] * 2, [first.token.bytes, again.token.bytes], [], [])

    assert list(answer.lost) == [0]


def test_a_claim_that_was_cut_off_and_is_still_under_way_is_said_to_be_in_doubt(
    make_client: Any, proxy: Any, connect: Any
) -> None:
    """Both of its sendings lease jobs under its token; the answer has those of the second."""
    client = make_client(proxy.url, timeout=60.0)
    client.queues.set("default", limit=100)
    for _ in range(4):
        client.enqueue("greet")
    claimed(client, 1)  # makes the gate
    gate, watch = connect(autocommit=False), connect()
    gate.execute("select from holdfast.gate for update")

    def wait_for_claims(number: int) -> None:
        deadline = time.monotonic() + 60
        while watch.execute(
            "select count(*) from pg_stat_activity where query like '%holdfast.claim%'"
            " and wait_event_type = 'Lock' and datname = current_database()"
        ).fetchone() != (number,):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    claim, answers = Claim("default", "ada", 1), []
    asking = threading.Thread(
        target=lambda: answers.append(client.drain.exchange([], [], [], [claim]))
    )
    asking.start()
    wait_for_claims(1)
    proxy.down()
    proxy.up()
    wait_for_claims(2)
    gate.commit()
    asking.join()

    [answer] = answers
    assert answer.repeated
    assert [len(rows) for rows in answer.leased] == [1]
    assert len(client.drain.held([claim])) == 2


def test_results_travel_with_the_acks_and_reach_who_waits_for_them(client: Any) -> None:
    last = NewJob(kind="c", payload={}, after=[1, 2], take={"got": "all"})
    client.enqueue_many([NewJob(kind="a"), NewJob(kind="b"), last])
    claim, rows = claimed(client)
    ids, tokens = [row[0] for row in rows], [claim.token.bytes] * 2

    answer = client.drain.exchange(ids, tokens, [], [], results=b'[null,{"x":[1,"y"]}]')
    again = client.drain.exchange(ids, [uuid4().bytes] * 2, [], [], results=b"[1,2]")

    assert answer.lost == {}
    assert again.lost.keys() == {0, 1}
    [follower] = client.claim("default", worker="w")
    assert follower.payload == {"got": [None, {"x": [1, "y"]}]}
