"""The corpus of hostile input over every route; `python -m tests.server.hostile` is longer."""

import pytest

from holdfast import Client, NewJob
from holdfast.server.routes import ROUTES
from tests.server.conftest import Serve
from tests.server.hostile import ENDLESS, knock, requests


def test_no_input_gives_a_500_tells_how_the_server_is_made_or_loses_a_job(
    serve: Serve, client: Client
) -> None:
    kept = client.enqueue_many([NewJob(kind="kept", queue="safe")] * 3)
    token = client.tokens.create(
        "hostile", ["read", "produce", "consume", "operate"], queues=["default"]
    )
    headers = {"Authorization": f"Bearer {token.secret}"}
    with serve(ways=["token"], redact=["payload.to"]).client(headers=headers) as api:
        statuses, wrong = knock(api, 1200)

    assert wrong == []
    assert statuses[200] > 50
    # Another queue's jobs are as they were.
    assert {job.id for job in client.jobs.list("queue:safe")} == {one.id for one in kept}


def test_the_corpus_reaches_every_route() -> None:
    there = [entry for entry in ROUTES if not entry.path.endswith(ENDLESS)]
    asked = [method for method, _, _ in requests(len(there))]

    assert asked == [entry.method for entry in there]


@pytest.mark.parametrize("seed", [2])
def test_whoever_is_unknown_is_refused_everywhere(serve: Serve, seed: int) -> None:
    with serve(ways=["token"]).client() as api:
        statuses, wrong = knock(api, 400, seed)

    assert wrong == []
    assert not statuses.keys() & {201, 202}
