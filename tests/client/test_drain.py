"""What a worker says in bulk: rows are read late, and acks answer only what was lost."""

import os
import subprocess
import sys
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast.leased import lease_of
from holdfast.records import Claim, Failed


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
