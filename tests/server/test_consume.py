"""Leasing and settling over HTTP: a worker in any language."""

import json
import socket
import time
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Client, recent
from holdfast.server.live import consumers
from holdfast.server.serve import _Protocol
from tests.conftest import Clock
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving

# How many sessions of the server wait for a backend.
BLOCKED = (
    "select count(*) from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    " and application_name = 'holdfast server'"
)


@pytest.fixture(autouse=True)
def consumers_are_written_down_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "EVERY", 0.2)


def claim(api: Api, **wanted: Any) -> list[dict[str, Any]]:
    answer = api.post("/v1/claims", json={"worker": "php-7"} | wanted)
    assert answer.status_code == 200, answer.text
    leases: list[dict[str, Any]] = answer.json()["leases"]
    return leases


def test_a_lease_tells_all_that_a_worker_needs(api: Api, client: Client) -> None:
    job = client.enqueue(
        "send", {"to": "a"}, queue="mail", headers={"traceparent": "00-ab"}, key="k", lane="l"
    )

    [lease] = claim(api, queues=["mail"], kinds=["send"], limit=5, lease=60)

    assert lease["id"] == str(job.id)
    assert (lease["kind"], lease["payload"], lease["worker"]) == ("send", {"to": "a"}, "php-7")
    assert (lease["attempt"], lease["max_attempts"]) == (1, 3)
    assert (lease["traceparent"], lease["key"], lease["lane"]) == ("00-ab", "k", "l")
    assert lease["lease_until"].endswith("Z")


def test_an_empty_queue_gives_an_empty_list_at_once(api: Api, client: Client) -> None:
    client.queues.set("mail")

    assert claim(api, queues=["mail"]) == []


def test_a_queue_nobody_ever_used_is_404(api: Api) -> None:
    answer = api.post("/v1/claims", json={"worker": "a", "queues": ["nosuch"]})

    assert (answer.status_code, answer.json()["code"]) == (404, "HF311")


def test_a_paused_queue_gives_an_empty_list_and_says_so(api: Api, client: Client) -> None:
    client.enqueue("a", queue="mail")
    client.queues.pause("mail")

    answer = api.post("/v1/claims", json={"worker": "a", "queues": ["mail"]})

    assert answer.json() == {"leases": [], "paused": True}


def test_several_queues_are_claimed_in_the_order_given(api: Api, client: Client) -> None:
    for queue in ("low", "high"):
        for _ in range(2):
            client.enqueue("a", queue=queue)

    leases = claim(api, queues=["high", "low"], limit=3)

    assert [lease["queue"] for lease in leases] == ["high", "high", "low"]


def test_a_job_goes_through_touch_and_ack(api: Api, client: Client) -> None:
    job = client.enqueue("a")
    [lease] = claim(api, lease=10)
    path, token = f"/v1/jobs/{lease['id']}", {"token": lease["token"]}

    touched = api.put(
        f"{path}/touch",
        json=token | {"lease": 300, "progress": {"done": 3, "total": 20, "note": "page 3"}},
    )
    progress = client.jobs.get(job.id).progress
    acked = api.post(f"{path}/ack", json=token | {"result": {"sent": True}})
    again = api.post(f"{path}/ack", json=token)

    assert touched.json()["lease_until"] > lease["lease_until"]
    assert (progress["done"], progress["total"], progress["note"]) == (3, 20, "page 3")
    assert acked.json() == {"id": str(job.id), "state": "done"}
    assert again.json() == {"id": str(job.id), "state": "done", "already": True}
    assert client.jobs.find("state:done") == [job.id]


@pytest.mark.parametrize("way", ["one by one", "at once", "all plain", "with a result"])
def test_jobs_of_workers_in_other_languages_are_found_when_they_are_done(
    api: Api, client: Client, way: str
) -> None:
    ids = [client.enqueue("a").id for _ in range(5)]
    leases = claim(api, limit=5)

    settle(api, leases, way)

    assert sorted(client.jobs.find("state:done")) == sorted(ids)


WAYS = ["one by one", "at once", "all plain", "with a result"]


@pytest.mark.parametrize("way", WAYS)
def test_a_server_has_no_more_kept_than_a_burst(
    api: Api, client: Client, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "BURST", 3)
    monkeypatch.setattr(recent, "PER_SECOND", 0.001)
    for _ in range(10):
        client.enqueue("a")

    settle(api, claim(api, limit=10), way)

    assert len(client.jobs.find("state:done")) == 3


@pytest.mark.parametrize("way", WAYS)
def test_of_a_queue_that_keeps_no_recent_jobs_none_is_kept(
    api: Api, client: Client, way: str
) -> None:
    client.queues.set("private", keep_recent=False)
    for _ in range(3):
        client.enqueue("a", queue="private")

    settle(api, claim(api, queues=["private"], limit=3), way)

    assert client.jobs.find("state:done") == []


def settle(api: Api, leases: list[dict[str, Any]], way: str) -> None:
    """Ack leases in one of the ways that the server has for it."""
    if way in ("one by one", "with a result"):
        for lease in leases:
            more = {"result": 1} if way == "with a result" else {}
            answer = api.post(f"/v1/jobs/{lease['id']}/ack", json={"token": lease["token"]} | more)
            assert answer.json()["state"] == "done"
        return
    items = [{"id": one["id"], "token": one["token"], "verb": "ack"} for one in leases]
    if way == "at once":
        items[0]["result"] = 1
    answer = api.post("/v1/settle", json={"items": items})
    assert [one["state"] for one in answer.json()["results"]] == ["done"] * len(leases)


def test_a_result_is_kept_if_asked_for(api: Api, client: Client) -> None:
    job = client.enqueue("a")
    [lease] = claim(api)

    api.post(
        f"/v1/jobs/{job.id}/ack",
        json={"token": lease["token"], "result": {"sent": True}, "keep": True},
    )

    assert client.jobs.get(job.id).result == {"sent": True}


def test_a_failure_is_retried_later_and_ends_dead(api: Api, client: Client) -> None:
    job = client.enqueue("a", max_attempts=2)
    [lease] = claim(api)
    error = {"kind": "SMTPTimeout", "message": "no answer in 30 s", "traceback": "…"}

    first = api.post(
        f"/v1/jobs/{job.id}/nack", json={"token": lease["token"], "error": error, "retry_in": 0}
    )
    [lease] = claim(api)
    second = api.post(
        f"/v1/jobs/{job.id}/nack", json={"token": lease["token"], "error": "it broke"}
    )

    assert first.json()["state"] == "queued"
    assert first.json()["attempt"] == 1
    assert second.json()["state"] == "dead"
    assert second.json()["group"] == client.jobs.get(job.id).fingerprint
    assert client.jobs.attempts(job.id)[0].error_kind == "SMTPTimeout"


def test_a_released_lease_gives_the_attempt_back(api: Api, client: Client) -> None:
    job = client.enqueue("a")
    [lease] = claim(api)

    answer = api.post(f"/v1/jobs/{job.id}/release", json={"token": lease["token"]})

    assert answer.json()["state"] == "queued"
    assert client.jobs.get(job.id).attempt == 0


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "touch"])
def test_every_verb_needs_the_right_token_of_a_job_there_is(
    api: Api, client: Client, verb: str
) -> None:
    job = client.enqueue("a")
    claim(api)
    method = "PUT" if verb == "touch" else "POST"

    missing = api.request(method, f"/v1/jobs/{job.id}/{verb}", json={})
    wrong = api.request(method, f"/v1/jobs/{job.id}/{verb}", json={"token": str(uuid4())})
    odd = api.request(method, f"/v1/jobs/{job.id}/{verb}", json={"token": "lt_abc"})
    unknown = api.request(method, f"/v1/jobs/{uuid4()}/{verb}", json={"token": str(uuid4())})
    no_id = api.request(method, f"/v1/jobs/nonsense/{verb}", json={"token": str(uuid4())})

    assert (missing.status_code, missing.json()["code"]) == (422, "HF207")
    assert (wrong.status_code, wrong.json()["code"]) == (409, "HF300")
    assert (wrong.json()["state"], wrong.json()["attempt"]) == ("leased", 1)
    assert odd.status_code == 409
    assert (unknown.status_code, no_id.status_code) == (404, 404)
    assert client.jobs.get(job.id).state == "leased"


def test_a_holder_that_was_too_slow_changes_nothing(api: Api, client: Client, clock: Clock) -> None:
    job = client.enqueue("a", {"n": 1})
    [slow] = claim(api, lease=30)
    clock.advance(seconds=31)
    client.upkeep.run()
    [quick] = claim(api, worker="php-9")

    late = api.post(f"/v1/jobs/{job.id}/ack", json={"token": slow["token"]})
    good = api.post(f"/v1/jobs/{job.id}/ack", json={"token": quick["token"]})

    assert (late.status_code, late.json()["code"]) == (409, "HF300")
    assert "php-9" in late.json()["detail"]
    assert good.status_code == 200


def test_many_leases_are_settled_at_once_each_with_its_answer(api: Api, client: Client) -> None:
    for n in range(5):
        client.enqueue("a", {"n": n}, max_attempts=1)
    leases = claim(api, limit=5)
    items: list[Any] = [
        {"id": lease["id"], "token": lease["token"], "verb": verb}
        for lease, verb in zip(leases, ("ack", "nack", "release", "cancel"), strict=False)
    ]
    items[1]["error"] = {"kind": "Broken", "message": "it broke"}
    items.append({"id": leases[4]["id"], "token": str(uuid4()), "verb": "ack"})
    items.append({"id": str(uuid4()), "token": str(uuid4()), "verb": "ack"})
    items.append({"id": leases[4]["id"], "verb": "ack"})
    items.append("nonsense")

    answer = api.post("/v1/settle", json={"items": items})

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [result.get("state") for result in results[:4]] == [
        "done",
        "dead",
        "queued",
        "cancelled",
    ]
    assert [result["ok"] for result in results] == [True] * 4 + [False] * 4
    assert [result["status"] for result in results[4:]] == [409, 404, 422, 422]
    assert [result["code"] for result in results[4:]] == ["HF300", "HF310", "HF207", "HF406"]


@pytest.mark.parametrize("more", [{}, {"keep": False}], ids=["plain", "with a field more"])
def test_many_plain_acks_each_have_the_answer_that_they_have_alone(
    api: Api, client: Client, more: dict[str, Any]
) -> None:
    """Acks with nothing to store are read and made in a shorter way; a field more ends that."""
    for _ in range(4):
        client.enqueue("a")
    leases = claim(api, limit=4)
    items = [{"id": lease["id"], "token": lease["token"], "verb": "ack"} for lease in leases]
    client.ack([(UUID(leases[1]["id"]), UUID(leases[1]["token"]))])
    items[2]["token"] = str(uuid4())
    items.append({"id": str(uuid4()), "token": str(uuid4()), "verb": "ack"})

    results = api.post("/v1/settle", json={"items": [item | more for item in items]}).json()

    told = [
        {name: value for name, value in result.items() if name != "detail"}
        for result in results["results"]
    ]
    assert told == [
        {"id": leases[0]["id"], "ok": True, "state": "done"},
        {"id": leases[1]["id"], "ok": True, "already": True},
        {"id": leases[2]["id"], "ok": False, "status": 409, "code": "HF300"},
        {"id": leases[3]["id"], "ok": True, "state": "done"},
        {"id": items[4]["id"], "ok": False, "status": 404, "code": "HF310"},
    ]
    assert [str(job.id) for job in client.jobs.list("state:leased")] == [leases[2]["id"]]
    _until(lambda: [(one.claimed, one.acked) for one in client.workers.list()] == [(4, 2)])


def test_many_plain_acks_end_only_jobs_of_the_callers_queues(serve: Serve, client: Client) -> None:
    held = []
    for queue in ("mail", "secret", "mail"):
        client.enqueue("a", queue=queue)
        held += client.claim(queue, worker="w")
    token = client.tokens.create("php", ["consume"], queues=["mail"])
    items = [{"id": str(one.id), "token": str(one.token), "verb": "ack"} for one in held]

    with serve(ways=["token"]).client(headers={"Authorization": f"Bearer {token.secret}"}) as api:
        results = api.post("/v1/settle", json={"items": items}).json()["results"]

    assert [(one["id"], one["ok"], one.get("status")) for one in results] == [
        (str(held[0].id), True, None),
        (str(held[1].id), False, 404),
        (str(held[2].id), True, None),
    ]
    assert [job.id for job in client.jobs.list("state:leased")] == [held[1].id]


def test_acks_of_one_job_twice_in_one_request_are_one_ack(api: Api, client: Client) -> None:
    client.enqueue("a")
    [lease] = claim(api)
    item = {"id": lease["id"], "token": lease["token"], "verb": "ack"}

    results = api.post("/v1/settle", json={"items": [item, item]}).json()["results"]

    assert [result["ok"] for result in results] == [True, True]
    assert [(str(job.id), job.state) for job in client.jobs.list("")] == [(lease["id"], "done")]


def test_a_claim_waits_until_there_is_a_job(server: Serving, client: Client) -> None:
    client.queues.set("mail")
    got: list[tuple[float, Any]] = []

    def wait() -> None:
        with server.client() as api:
            got.append((time.monotonic(), claim(api, queues=["mail"], wait=50)))
            got.append((time.monotonic(), None))

    waiting = Thread(target=wait)
    waiting.start()
    _until(lambda: _waiters(client) > 0)
    stored = time.monotonic()
    job = client.enqueue("a", queue="mail")
    waiting.join()

    assert [lease["id"] for lease in got[0][1]] == [str(job.id)]
    assert got[1][0] - stored < 1.0


def test_a_claim_that_waits_finds_within_seconds_what_nobody_told_it_of(
    server: Serving, client: Client
) -> None:
    client.queues.set("mail")
    got: list[Any] = []

    def wait() -> None:
        with server.client() as api:
            got.extend(claim(api, queues=["mail"], wait=50))

    waiting = Thread(target=wait)
    waiting.start()
    with psycopg.connect(client.url, autocommit=True) as connection:
        # Once it has looked and waits, nobody knows of it any more.
        _until(lambda: connection.execute("delete from holdfast.waiter").rowcount > 0)
        [live] = server.server._live.values()
        _until(lambda: time.monotonic() - live.waits._looked["mail"] > 0.5)
        job = client.enqueue("a", queue="mail")
        waiting.join(20)  # well before its time is up: then it would look once more

    assert [lease["id"] for lease in got] == [str(job.id)]


def test_a_claim_that_waited_in_vain_gets_an_empty_list(api: Api, client: Client) -> None:
    client.queues.set("mail")
    started = time.monotonic()

    assert claim(api, queues=["mail"], wait=0.5) == []
    assert 0.4 < time.monotonic() - started < 25  # an hour or a minute would be somebody else's


def test_all_who_wait_get_their_share_of_a_burst(server: Serving, client: Client) -> None:
    client.queues.set("mail")
    got: list[str] = []

    def wait() -> None:
        with server.client() as api:
            got.extend(lease["id"] for lease in claim(api, queues=["mail"], wait=50))

    threads = [Thread(target=wait) for _ in range(10)]
    for thread in threads:
        thread.start()
    _until(lambda: _waiting(server) == 10)
    jobs = [client.enqueue("a", queue="mail") for _ in range(10)]
    started = time.monotonic()
    for thread in threads:
        thread.join()

    assert sorted(got) == sorted(str(job.id) for job in jobs)
    assert time.monotonic() - started < 25  # before their time is up: then they look once more


def test_a_client_that_goes_away_while_it_waits_leaves_nothing_leased(
    server: Serving, client: Client
) -> None:
    client.queues.set("mail")
    connections = _Protocol.near.total()
    gone = _ask_to_claim(server, {"worker": "gone", "queues": ["mail"], "wait": 30})
    _until(lambda: _waiting(server) == 1)

    gone.close()
    job = client.enqueue("a", queue="mail")

    _until(lambda: _waiting(server) == 0)
    _until(lambda: _Protocol.near.total() == connections)
    _until(lambda: client.jobs.get(job.id).state == "queued")
    assert client.jobs.get(job.id).attempt == 0


def test_a_client_that_goes_away_while_its_claim_is_under_way_leaves_nothing_leased(
    server: Serving, client: Client
) -> None:
    client.queues.set("mail", limit=5)
    client.claim("mail", worker="first")  # the gate is there from the first claim on
    gone = _ask_to_claim(server, {"worker": "gone", "queues": ["mail"], "wait": 30})
    _until(lambda: _waiting(server) == 1)
    [live] = server.server._live.values()
    _until(lambda: time.monotonic() - live.waits._looked["mail"] > 0.5)
    [place] = live.waits._places["mail"]

    with psycopg.connect(client.url) as gate, psycopg.connect(client.url) as watcher:
        gate.execute("select from holdfast.gate where queue = 'mail' for update")
        job = client.enqueue("a", queue="mail")
        watcher.autocommit = True
        _until(lambda: watcher.execute(BLOCKED, [gate.info.backend_pid]).fetchone() == (1,))
        gone.close()
        _until(lambda: place.gone)
    _until(lambda: _waiting(server) == 0)

    _until(lambda: client.jobs.get(job.id).state == "queued")
    assert client.jobs.get(job.id).attempt == 0


@pytest.mark.parametrize("wait", [0, 30])
def test_a_client_that_goes_away_during_its_first_look_leaves_nothing_leased(
    server: Serving, client: Client, wait: int
) -> None:
    client.queues.set("mail", limit=5, activity="all")
    client.claim("mail", worker="first")  # the gate is there from the first claim on
    job = client.enqueue("a", queue="mail")
    connections = _Protocol.near.total()
    with psycopg.connect(client.url) as gate, psycopg.connect(client.url) as watcher:
        watcher.autocommit = True
        gate.execute("select from holdfast.gate where queue = 'mail' for update")
        gone = _ask_to_claim(server, {"worker": "gone", "queues": ["mail"], "wait": wait})
        _until(lambda: watcher.execute(BLOCKED, [gate.info.backend_pid]).fetchone() == (1,))
        gone.close()
        _until(lambda: _Protocol.near.total() == connections)
        gate.rollback()

        events = "select array_agg(event order by seq) from holdfast.event where job = %s"
        _until(lambda: "released" in watcher.execute(events, [job.id]).fetchall()[0][0])

    back = client.jobs.get(job.id)
    assert (back.state, back.attempt) == ("queued", 0)


@pytest.mark.parametrize("wait", [0, 30])
def test_what_was_claimed_for_a_client_that_has_gone_is_back_at_once(
    server: Serving, client: Client, wait: int
) -> None:
    connections = _Protocol.near.total()
    job = client.enqueue("a", queue="mail")

    for _ in range(20):
        _ask_to_claim(server, {"worker": "gone", "queues": ["mail"], "wait": wait}).close()
    with server.client() as later:  # whoever comes later is let in later
        later.get("/healthz")
    _until(lambda: _Protocol.near.total() == connections and not _waiting(server))

    def is_back() -> bool:
        found = client.jobs.get(job.id)
        return (found.state, found.attempt) == ("queued", 0)

    # Long before its lease has run out. One that has gone may still claim it for a moment.
    _until(is_back)


def test_a_claim_repeated_with_its_key_gives_the_same_leases(api: Api, client: Client) -> None:
    client.enqueue("a")
    client.enqueue("a")
    body = {"worker": "php-7"}

    first = api.post("/v1/claims", json=body, headers={"Idempotency-Key": "try-1"})
    second = api.post("/v1/claims", json=body, headers={"Idempotency-Key": "try-1"})
    third = api.post("/v1/claims", json=body, headers={"Idempotency-Key": "try-2"})

    ids = [answer.json()["leases"][0]["id"] for answer in (first, second, third)]
    assert ids[0] == ids[1] != ids[2]


def test_more_waiting_claims_than_allowed_are_refused(serve: Serve, client: Client) -> None:
    client.queues.set("mail")
    server = serve(waits=1)
    first = _ask_to_claim(server, {"worker": "a", "queues": ["mail"], "wait": 30})
    _until(lambda: _waiting(server) == 1)
    with server.client() as api:
        answer = api.post("/v1/claims", json={"worker": "b", "queues": ["mail"], "wait": 30})
    first.close()

    assert (answer.status_code, answer.json()["code"]) == (503, "HF429")
    assert answer.headers["retry-after"] == "2"


@pytest.mark.proves("S4.12", "S4x.5")
def test_consumers_are_workers_with_counts_that_add_up_over_servers(
    serve: Serve, client: Client
) -> None:
    with serve().client(headers={"User-Agent": "relay-php/1.2"}) as one, serve().client() as other:
        for _ in range(6):
            client.enqueue("a")
        for api in (one, other):
            leases = claim(api, worker="php-7", limit=3)
            api.post(f"/v1/jobs/{leases[0]['id']}/ack", json={"token": leases[0]["token"]})
            api.post(f"/v1/jobs/{leases[1]['id']}/nack", json={"token": leases[1]["token"]})
            api.post(f"/v1/jobs/{leases[2]['id']}/ack", json={"token": str(uuid4())})
    # What was claimed and how it ended may be written down in two turns.
    counts = (6, 2, 2)
    _until(
        lambda: [(one.claimed, one.acked, one.failed) for one in client.workers.list()] == [counts],
    )

    [worker] = client.workers.list()
    assert (worker.worker, worker.host, worker.alive) == ("php-7", "127.0.0.1", True)
    assert worker.version is not None


def test_what_a_consumer_claimed_of_several_queues_is_counted(serve: Serve, client: Client) -> None:
    with serve().client() as api:
        for queue in ("mail", "pay"):
            client.enqueue("a", queue=queue)
        leases = claim(api, worker="php-7", queues=["mail", "pay"], limit=5)
        items = [{"id": one["id"], "token": one["token"], "verb": "ack"} for one in leases]
        api.post("/v1/settle", json={"items": items})

    _until(
        lambda: [(one.claimed, one.acked) for one in client.workers.list()] == [(2, 2)],
    )


def test_a_consumer_that_should_stop_is_told_when_it_claims(
    server: Serving, api: Api, client: Client
) -> None:
    client.enqueue("a")
    claim(api, worker="php-7")
    _until(lambda: len(client.workers.list()) == 1)

    stopped = api.post("/v1/workers/php-7/stop", json={})
    client.enqueue("a")

    assert stopped.status_code == 202
    _until(
        lambda: (
            api.post("/v1/claims", json={"worker": "php-7", "lease": 1}).json().get("stop") is True
        ),
        pause=0.5,
    )


def _ask_to_claim(server: Serving, wanted: dict[str, Any]) -> socket.socket:
    body = json.dumps(wanted).encode()
    asked = socket.create_connection(("127.0.0.1", server.port))
    asked.sendall(
        b"POST /v1/claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return asked


def _waiting(server: Serving) -> int:
    return sum(live.waits.count for live in server.server._live.values())


def _waiters(client: Client) -> int:
    with psycopg.connect(client.url) as connection:
        [(count,)] = connection.execute("select count(*) from holdfast.waiter").fetchall()
    return int(count)


def _until(true: Any, *, within: float = 60.0, pause: float = 0.02) -> None:
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(pause)
