"""The other dialect: routes and words of source 4, served by the same handlers."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from queue import Queue
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from holdfast import Client, NewJob
from holdfast.server import running
from holdfast.server.relay import look as relay_look
from holdfast.server.relay import operate as relay_operate
from holdfast.server.settings import Settings
from holdfast.upkeep import Upkeep
from tests.conftest import Clock, Connect
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving

# Messages of other types; HOLDFAST_TEST_BACKLOG=300000 for the long form.
BACKLOG = int(os.environ.get("HOLDFAST_TEST_BACKLOG", "30000"))
PREFIXES = pytest.mark.parametrize("prefix", ["", "/api"])


def dequeue(api: Api, prefix: str = "", **asked: Any) -> dict[str, Any]:
    answer = api.get(f"{prefix}/queue/message", params=asked)
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()
    return message


@PREFIXES
@pytest.mark.proves("S4.1", "S4.3", "S4.5", "S4.14", "S4.16", "S4.18", "S4.19")
def test_a_message_goes_through_its_life(api: Api, prefix: str) -> None:
    sent = api.post(
        f"{prefix}/queue/message", json={"type": "email", "payload": {"to": "a"}, "priority": 5}
    )
    before = api.get(f"{prefix}/queue/status").json()
    message = dequeue(api, prefix, consumer_id="c1")
    during = api.get(f"{prefix}/queue/status").json()
    acked = api.post(
        f"{prefix}/queue/message/{message['id']}/ack", json={"lock_token": message["lock_token"]}
    )
    after = api.get(f"{prefix}/queue/status").json()

    assert (sent.status_code, sent.json()["status"]) == (201, "queued")
    assert message["id"] == sent.json()["id"]
    assert (message["type"], message["payload"], message["priority"]) == ("email", {"to": "a"}, 5)
    assert (message["status"], message["consumer_id"]) == ("processing", "c1")
    assert (message["attempt_count"], message["max_attempts"]) == (1, 3)
    assert {"lock_token", "locked_until", "created_at", "dequeued_at"} <= message.keys()
    assert (acked.status_code, acked.json()["status"]) == (200, "acknowledged")
    assert [counts["queued"] for counts in (before, during, after)] == [1, 0, 0]
    assert [counts["processing"] for counts in (before, during, after)] == [0, 1, 0]
    assert [counts["acknowledged"] for counts in (before, during, after)] == [0, 0, 1]


@PREFIXES
def test_a_batch_is_stored_and_acked_by_id_in_the_body(api: Api, prefix: str) -> None:
    messages = [{"type": "a", "payload": {"n": n}} for n in range(3)]

    sent = api.post(f"{prefix}/queue/batch", json={"messages": messages})
    message = dequeue(api, prefix)
    acked = api.post(
        f"{prefix}/queue/ack", json={"id": message["id"], "lock_token": message["lock_token"]}
    )

    assert (sent.status_code, sent.json()["created"]) == (201, 3)
    assert [one["status"] for one in sent.json()["messages"]] == ["queued"] * 3
    assert acked.status_code == 200


def test_a_message_without_a_type_has_none_again(api: Api) -> None:
    api.post("/queue/message", json={"payload": [1, 2]})

    assert dequeue(api)["type"] is None


@pytest.mark.proves("S4.7", "S4.17")
def test_messages_come_by_priority_then_in_order(api: Api) -> None:
    for n, priority in enumerate([0, 9, 5, 9]):
        api.post("/queue/message", json={"type": "a", "payload": n, "priority": priority})

    assert [dequeue(api)["payload"] for _ in range(4)] == [1, 3, 2, 0]


@pytest.mark.proves("S4.8")
def test_a_type_is_dequeued_by_itself(api: Api) -> None:
    for n in ("a", "b", "a"):
        api.post("/queue/message", json={"type": n, "payload": n})

    assert dequeue(api, type="b")["type"] == "b"
    assert api.get("/queue/message", params={"type": "b"}).status_code == 404


def test_the_status_is_fresh_after_ones_own_write(serve: Serve) -> None:
    with serve(fresh=3600.0).client() as api:
        told = [api.get("/queue/status").json()]
        api.post("/queue/message", json={"payload": 1})
        told.append(api.get("/queue/status").json())
        message = dequeue(api)
        told.append(api.get("/queue/status").json())
        api.post("/queue/ack", json={"id": message["id"], "lock_token": message["lock_token"]})
        told.append(api.get("/queue/status").json())
        queues = api.get("/queues").json()["queues"]

    assert [(one["queued"], one["processing"]) for one in told] == [(0, 0), (1, 0), (0, 1), (0, 0)]
    assert [one["processing"] for one in queues] == [0]


def test_who_wrote_nothing_shares_the_answer_of_a_moment_ago(serve: Serve, client: Client) -> None:
    with serve(fresh=3600.0).client() as api:
        first = api.get("/queue/status").json()
        client.enqueue("a")
        shared = api.get("/queue/status").json()

    assert shared == first


def test_an_empty_queue_is_404_at_once_or_after_the_timeout(api: Api) -> None:
    started = time.monotonic()
    at_once = api.get("/queue/message")
    in_between = time.monotonic()
    later = api.get("/queue/message", params={"timeout": 0.5})

    assert (at_once.status_code, later.status_code) == (404, 404)
    assert (at_once.json()["code"], at_once.json()["holdfast_code"]) == ("NOT_FOUND", "HF317")
    assert in_between - started < 10
    assert time.monotonic() - in_between > 0.4


@pytest.mark.proves("S4.20", "S4.21", "S4.22")
@pytest.mark.parametrize("verb", ["ack", "nack", "touch"])
def test_a_missing_token_is_422_a_wrong_one_409_an_unknown_id_404(api: Api, verb: str) -> None:
    api.post("/queue/message", json={"type": "a", "payload": {}})
    message = dequeue(api)
    method = "PUT" if verb == "touch" else "POST"
    path = f"/queue/message/{message['id']}/{verb}"

    missing = api.request(method, path, json={})
    wrong = api.request(method, path, json={"lock_token": "lt_abc123"})
    unknown = api.request(
        method, f"/queue/message/{uuid4()}/{verb}", json={"lock_token": message["lock_token"]}
    )
    right = api.request(method, path, json={"lock_token": message["lock_token"]})

    assert [one.status_code for one in (missing, wrong, unknown, right)] == [422, 409, 404, 200]
    assert missing.json()["code"] == "HF207"


@pytest.mark.proves("S4.23")
def test_a_lock_is_extended(api: Api) -> None:
    api.post("/queue/message", json={"type": "a", "payload": {}})
    message = dequeue(api, ack_timeout_seconds=30)

    answer = api.put(
        f"/queue/message/{message['id']}/touch",
        json={"lock_token": message["lock_token"], "extend_seconds": 300},
    )

    assert answer.json()["locked_until"] == answer.json()["lease_until"]
    assert answer.json()["locked_until"] > message["locked_until"]


COLUMNS = {
    "id",
    "type",
    "payload",
    "priority",
    "status",
    "attempt_count",
    "max_attempts",
    "ack_timeout_seconds",
    "lock_token",
    "locked_until",
    "consumer_id",
    "created_at",
    "dequeued_at",
    "acknowledged_at",
    "last_error",
}


@pytest.mark.proves("S4.2", "S4.10", "S4x.4")
@pytest.mark.parametrize("way", ["/queue/message", "/queue/batch", "/queue/import", "/queues"])
def test_what_was_acknowledged_is_listed_and_its_life_followed_without_a_setting(
    api: Api, client: Client, clock: Clock, way: str
) -> None:
    one = {"type": "mail", "payload": 1, "queue": "shop"}
    if way == "/queues":
        api.post(way, json={"name": "shop"})
    single = way in ("/queue/message", "/queues")
    api.post("/queue/message" if single else way, json=one if single else {"messages": [one]})
    message = dequeue(api, queue="shop", consumer_id="ada")
    api.post("/queue/ack", json={"id": message["id"], "lock_token": message["lock_token"]})
    clock.advance(hours=23)
    client.upkeep.run()

    listed = api.get("/queue/acknowledged/messages").json()["messages"]
    life = api.get(f"/activity/message/{message['id']}").json()

    assert [(one["id"], one["status"]) for one in listed] == [(message["id"], "acknowledged")]
    assert listed[0]["acknowledged_at"] is not None
    assert life["status"] == "acknowledged"
    assert [one["action"] for one in life["activities"]] == ["enqueue", "dequeue", "ack"]
    assert [one["consumer_id"] for one in life["activities"]] == [None, "ada", "ada"]


def test_a_queue_that_somebody_set_up_stays_as_it_is(api: Api, client: Client) -> None:
    client.queues.set("quiet", keep_done=0)
    client.enqueue("mail", queue="used")
    for queue in ("quiet", "used"):
        api.post("/queue/message", json={"payload": 1, "queue": queue})
    refused = api.post("/queue/message", json={"payload": 1, "queue": "holdfast.alerts"})

    found = {one.queue: one for one in client.queues.list()}
    assert [found[name].activity for name in ("quiet", "used")] == ["failures"] * 2
    assert [found[name].keep_done for name in ("quiet", "used")] == [timedelta(0)] * 2
    assert refused.status_code == 403 or "holdfast.alerts" not in found


@pytest.mark.proves("S4.8", "S4.32")
@pytest.mark.parametrize("made_by", ["relay", "python"])
def test_a_dequeue_by_type_reads_no_more_behind_many_others_without_a_setting(
    api: Api, client: Client, database: str, made_by: str
) -> None:
    if made_by == "relay":
        api.post("/queue/message", json={"type": "common", "payload": 1})
    else:
        client.enqueue("common")
    dequeue(api, type="common")

    with psycopg.connect(database, autocommit=True) as connection:

        def read_by_one_claim() -> int:
            api.post("/queue/message", json={"type": "rare", "payload": 1})
            with connection.transaction():
                taken = connection.execute(
                    "select id from holdfast.claim("
                    "'default', 'w', gen_random_uuid(), kinds => '{rare}')"
                ).fetchall()
                [(rows,)] = connection.execute(
                    "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables"
                    " where relid = 'holdfast.job'::regclass"
                ).fetchall()
            assert len(taken) == 1
            return int(rows)

        alone = read_by_one_claim()
        many = [{"type": "common", "payload": 1}] * 3000
        assert api.post("/queue/batch", json={"messages": many}).json()["created"] == 3000
        behind = read_by_one_claim()

    assert behind <= alone + 20


@pytest.mark.proves("S4.30")
def test_the_ack_timeout_of_the_server_holds_where_neither_message_nor_queue_has_one(
    serve: Serve, client: Client
) -> None:
    client.queues.set("slow", lease=45)
    with serve(fresh=0.0, ack_timeout=90.0).client() as api:
        api.post("/queue/message", json={"payload": 1, "ack_timeout_seconds": 12})
        api.post("/queue/message", json={"payload": 2})
        api.post("/queue/message", json={"payload": 3, "queue": "slow"})
        config = api.get("/queue/config").json()
        listed = api.get("/queue/main/messages").json()["messages"]
        taken = [dequeue(api), dequeue(api), dequeue(api, queue="slow")]

    assert config["ack_timeout_seconds"] == 90
    assert {one["payload"]: one["ack_timeout_seconds"] for one in listed} == {1: 12, 2: 90, 3: 45}
    assert [one["ack_timeout_seconds"] for one in taken] == [12, 90, 45]


@pytest.mark.proves("S4.4", "S4.6")
def test_a_redelivered_message_shows_its_last_error_and_every_column_of_the_source(
    api: Api, client: Client
) -> None:
    client.queues.set("slow", lease=45)
    api.post("/queue/message", json={"payload": 1, "ack_timeout_seconds": 12})
    api.post("/queue/message", json={"payload": 1, "queue": "slow"})
    first = dequeue(api)
    failed = {"lock_token": first["lock_token"], "error": "no route", "retry_in": 0}
    api.post(f"/queue/message/{first['id']}/nack", json=failed)
    waiting = api.get("/queue/main/messages").json()["messages"]
    again, slow = dequeue(api), dequeue(api, queue="slow")

    assert [COLUMNS - one.keys() for one in (first, again, slow)] == [set()] * 3
    assert [COLUMNS - one.keys() for one in waiting] == [{"lock_token"}] * 2
    assert (first["last_error"], again["last_error"]) == (None, "no route")
    assert [one["ack_timeout_seconds"] for one in (first, again, slow)] == [12, 12, 45]
    assert {one["ack_timeout_seconds"] for one in waiting} == {12, 45}
    assert {one["last_error"] for one in waiting} == {"no route", None}
    held = datetime.fromisoformat(again["locked_until"]) - timedelta(seconds=12)
    assert datetime.fromisoformat(again["dequeued_at"]) == held


@pytest.mark.proves("S4.23")
def test_a_touch_shorter_than_what_is_left_changes_nothing_and_says_so(api: Api) -> None:
    api.post("/queue/message", json={"payload": 1})
    message = dequeue(api, ack_timeout_seconds=300)

    def touch(**said: Any) -> dict[str, Any]:
        body = {"lock_token": message["lock_token"], **said}
        told: dict[str, Any] = api.put(f"/queue/message/{message['id']}/touch", json=body).json()
        return told

    shorter = touch(extend_seconds=30)
    longer = touch(extend_seconds=600)
    usual = touch()

    assert (shorter["locked_until"], shorter["extended_by"]) == (message["locked_until"], 0)
    assert "not changed" in shorter["detail"]
    assert (longer["extended_by"], longer["extended"]) == (600, True)
    assert longer["locked_until"] > message["locked_until"]
    assert (usual["extended_by"], usual["locked_until"]) == (0, longer["locked_until"])


@pytest.mark.proves("S4.4", "S4.6", "S4.24", "S4.28", "S4.30")
def test_a_message_whose_worker_is_too_slow_is_given_to_another_and_dies_in_the_end(
    api: Api, client: Client, clock: Clock
) -> None:
    api.post(
        "/queue/message",
        json={"type": "a", "payload": {}, "ack_timeout_seconds": 10, "max_attempts": 2},
    )
    slow = dequeue(api, consumer_id="slow")
    clock.advance(seconds=11)
    client.upkeep.run()
    quick = dequeue(api, consumer_id="quick")
    late = api.post(f"/queue/message/{slow['id']}/ack", json={"lock_token": slow["lock_token"]})
    clock.advance(seconds=11)
    client.upkeep.run()

    assert quick["id"] == slow["id"]
    assert quick["attempt_count"] == 2
    assert quick["lock_token"] != slow["lock_token"]
    assert late.status_code == 409
    assert api.get("/queue/status").json()["dead"] == 1
    assert client.jobs.get(slow["id"]).error is not None


def test_a_nack_queues_the_message_again_until_it_is_dead(api: Api, client: Client) -> None:
    api.post("/queue/message", json={"type": "a", "payload": {}, "max_attempts": 2})
    answers = []
    for _ in range(2):
        message = dequeue(api)
        answers.append(
            api.post(
                f"/queue/message/{message['id']}/nack",
                json={"lock_token": message["lock_token"], "error": "boom", "retry_in": 0},
            ).json()
        )

    assert [answer["status"] for answer in answers] == ["queued", "dead"]
    assert client.jobs.get(message["id"]).error == "boom"


@pytest.mark.proves("S4.25", "S4.26")
def test_events_are_seen_as_they_happen(server: Serving, api: Api) -> None:
    seen: list[dict[str, Any]] = []

    def watch() -> None:
        with server.client() as own, own.stream("GET", "/queue/events") as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
                if seen and seen[-1].get("type") == "ack":
                    return

    watching = Thread(target=watch)
    watching.start()
    while not seen:  # the greeting
        time.sleep(0.01)
    api.post("/queue/message", json={"type": "email", "payload": {}})
    message = dequeue(api, consumer_id="ada")
    failed = {"lock_token": message["lock_token"], "error": "no", "retry_in": 0}
    api.post(f"/queue/message/{message['id']}/nack", json=failed)
    again = dequeue(api, consumer_id="bob")
    api.post(f"/queue/message/{message['id']}/ack", json={"lock_token": again["lock_token"]})
    watching.join(100)

    assert not watching.is_alive()
    id = message["id"]
    told = [event for event in seen if event.get("type") not in (None, "queue_update")]
    parts = ("id", "type", "status", "consumer_id")
    assert [(event["type"], *map(event["payload"].get, parts)) for event in told] == [
        ("enqueue", id, "email", "queued", None),
        ("dequeue", id, "email", "processing", "ada"),
        ("nack", id, "email", "queued", "ada"),
        ("dequeue", id, "email", "processing", "bob"),
        ("ack", id, "email", "acknowledged", "bob"),
    ]


@pytest.mark.proves("S4.29", "S4.31", "S4.34")
@pytest.mark.parametrize("servers", [1, 2])
def test_servers_alone_take_back_what_nobody_answers_for(
    serve: Serve, client: Client, servers: int
) -> None:
    started = [serve() for _ in range(servers)]
    with started[0].client() as one, started[-1].client() as other:
        one.post(
            "/queue/message",
            json={"type": "a", "payload": {}, "ack_timeout_seconds": 0.5, "max_attempts": 2},
        )
        first = dequeue(one, consumer_id="slow")
        again = dequeue(other, consumer_id="quick", timeout=20)
        end = time.monotonic() + 120
        while other.get("/queue/status").json()["dead"] == 0 and time.monotonic() < end:
            time.sleep(0.1)

    assert (again["id"], again["attempt_count"]) == (first["id"], 2)
    assert client.jobs.get(first["id"]).state == "dead"


@pytest.mark.proves("S4.29")
def test_a_server_looks_for_what_is_overdue_as_often_as_its_settings_say(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: Queue[float] = Queue()

    class Noted(Upkeep):
        def _tend(self, told: Any) -> float:
            paused.put(super()._tend(told))
            return 3600.0  # one turn is enough

    monkeypatch.setattr(running, "Upkeep", Noted)
    serve(upkeep_every=0.25)

    assert paused.get(timeout=60) in (0.25, 0.5)  # twice as long where there was nothing to do
    assert Settings().upkeep_every == 1.0


def test_metrics_and_health_answer(api: Api) -> None:
    api.post("/queue/message", json={"type": "a", "payload": {}, "queue": "mail"})

    [queue] = api.get("/queue/metrics").json()["queues"]

    assert (queue["queue"], queue["queued"]) == ("mail", 1)
    assert api.get("/health").json()["status"] == "ok"
    assert api.get("/api/health").status_code == 200


def send(api: Api, *payloads: Any, **fields: Any) -> list[str]:
    """Enqueue messages, each with its payload, and return their ids."""
    messages = [{"payload": payload} | fields for payload in payloads]
    answer = api.post("/queue/batch", json={"messages": messages})
    return [one["id"] for one in answer.json()["messages"]]


def fail(api: Api, count: int, **asked: Any) -> list[str]:
    """Dequeue messages and give them back as failed."""
    taken = api.get("/queue/messages/batch", params={"count": count} | asked).json()["messages"]
    items = [{"id": one["id"], "lock_token": one["lock_token"]} for one in taken]
    api.post("/queue/nack/batch", json={"messages": items})
    return [one["id"] for one in taken]


def status_of(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("code")


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_the_parameters_of_a_dequeue_are_those_of_relay(api: Api, prefix: str) -> None:
    api.post(
        f"{prefix}/queue/message",
        json={"type": "a", "payload": 1, "queue": "mail", "maxAttempts": 7, "ackTimeout": 11},
    )
    asked = {"timeout": 0, "ackTimeout": 90, "type": "a", "consumerId": "c7", "queue": "mail"}

    message = dequeue(api, prefix, **asked)

    assert (message["consumer_id"], message["queue"]) == ("c7", "mail")
    assert message["max_attempts"] == 7


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_several_are_dequeued_at_once(api: Api, prefix: str) -> None:
    send(api, 1, 2, 3)

    first = api.get(f"{prefix}/queue/messages/batch", params={"count": 2}).json()
    rest = api.get(f"{prefix}/queue/messages/batch", params={"count": 100}).json()
    none = api.get(f"{prefix}/queue/messages/batch")
    wrong = [api.get(f"{prefix}/queue/messages/batch", params={"count": n}) for n in (0, 101)]

    assert [one["payload"] for one in first["messages"]] == [1, 2]
    assert (first["count"], rest["count"]) == (2, 1)
    assert all(one["lock_token"] for one in first["messages"])
    assert (none.status_code, none.json()) == (200, {"messages": [], "count": 0})
    assert [one.status_code for one in wrong] == [422, 422]


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_several_are_acked_at_once_and_each_needs_its_token(api: Api, prefix: str) -> None:
    send(api, 1, 2, 3)
    taken = api.get("/queue/messages/batch").json()["messages"]
    items = [{"id": one["id"], "lock_token": one["lock_token"]} for one in taken]
    items[1]["lock_token"] = str(uuid4())
    del items[2]["lock_token"]
    items.append({"id": str(uuid4()), "lock_token": str(uuid4())})

    answer = api.post(f"{prefix}/queue/ack/batch", json={"messages": items}).json()

    assert (answer["succeeded"], answer["failed"]) == (1, 3)
    assert [one["success"] for one in answer["results"]] == [True, False, False, False]
    assert [one.get("code") for one in answer["results"]] == [
        None,
        "LOCK_LOST",
        "HF207",
        "NOT_FOUND",
    ]
    assert api.get("/queue/status").json()["processing"] == 2


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_several_are_nacked_at_once_and_it_is_told_which_are_dead(api: Api, prefix: str) -> None:
    send(api, 1, max_attempts=1)
    send(api, 2, 3)
    taken = api.get("/queue/messages/batch").json()["messages"]
    items = [
        {"id": one["id"], "lock_token": one["lock_token"], "errorReason": "boom"} for one in taken
    ]
    items[2]["lock_token"] = "lt_stale"

    answer = api.post(f"{prefix}/queue/nack/batch", json={"messages": items}).json()
    dead = api.get("/queue/dead/messages").json()["messages"]

    assert [answer[name] for name in ("succeeded", "failed", "requeued", "movedToDlq")] == [
        2,
        1,
        1,
        1,
    ]
    assert [(one["payload"], one["last_error"]) for one in dead] == [(1, "boom")]


@pytest.mark.proves("S4x.1")
def test_a_nack_says_why_in_the_word_of_relay(api: Api, client: Client) -> None:
    [id] = send(api, 1, max_attempts=1)
    message = dequeue(api)

    answer = api.post(
        f"/queue/message/{id}/nack",
        json={"lock_token": message["lock_token"], "errorReason": "no route"},
    )

    assert answer.json()["status"] == "dead"
    assert client.jobs.get(id).error == "no route"


@pytest.mark.proves("S4x.1")
def test_a_touch_tells_the_new_timeout_and_by_how_much(api: Api) -> None:
    [id] = send(api, 1)
    token = dequeue(api)["lock_token"]

    usual = api.put(f"/queue/message/{id}/touch", json={"lock_token": token})
    said = api.put(f"/queue/message/{id}/touch", json={"lock_token": token, "extend_seconds": 300})

    assert said.json()["extended_by"] == 300
    assert said.json()["new_timeout_at"] == said.json()["locked_until"]
    assert 25 < usual.json()["extended_by"] <= 31


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_messages_are_listed_and_deleted_by_when_they_were_enqueued(
    api: Api, clock: Clock, prefix: str
) -> None:
    old = send(api, "old")
    clock.advance(hours=2)
    mid = send(api, "mid")
    clock.advance(hours=2)
    new = send(api, "new")
    at = {
        one["payload"]: datetime.fromisoformat(one["created_at"])
        for one in api.get("/queue/messages").json()["messages"]
    }

    def asked(start: datetime | None, end: datetime | None) -> dict[str, str]:
        given = {"start": start, "end": end}
        return {name: one.isoformat() for name, one in given.items() if one is not None}

    def ids(start: datetime | None, end: datetime | None) -> list[str]:
        answer = api.get(f"{prefix}/queue/messages", params=asked(start, end))
        return [one["id"] for one in answer.json()["messages"]]

    between = ids(at["mid"], at["mid"])
    since = ids(at["mid"], None)
    until = ids(None, at["mid"] - timedelta(microseconds=1))
    neither = api.delete(f"{prefix}/queue/messages")
    deleted = api.delete(f"{prefix}/queue/messages", params=asked(at["mid"], at["mid"]))
    left = ids(None, None)

    assert (between, since, until) == (mid, [*new, *mid], old)
    assert neither.status_code == 422
    assert (deleted.status_code, deleted.json()["deleted"]) == (200, 1)
    assert left == [*new, *old]


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_the_counts_come_with_messages_if_asked(api: Api, prefix: str) -> None:
    send(api, 1, 2)
    dequeue(api)

    plain = api.get(f"{prefix}/queue/status").json()
    whole = api.get(f"{prefix}/queue/status", params={"include_messages": True}).json()

    assert "messages" not in plain
    assert {state: len(found) for state, found in whole["messages"].items()} == {
        "main": 1,
        "processing": 1,
        "dead": 0,
        "acknowledged": 0,
        "archived": 0,
    }
    assert "lock_token" not in whole["messages"]["processing"][0]


@PREFIXES
@pytest.mark.parametrize("stride", [1, 3, 500])
@pytest.mark.proves("S4x.1")
def test_a_state_is_listed_page_by_page(
    api: Api, prefix: str, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_look, "STRIDE", stride)
    sent = send(api, *range(5))

    pages = [
        api.get(f"{prefix}/queue/main/messages", params={"page": n, "limit": 2}).json()
        for n in (1, 2, 3, 4)
    ]
    whole = api.get(f"{prefix}/queue/main/messages").json()
    far = api.get(f"{prefix}/queue/main/messages", params={"page": 101, "limit": 100})
    unknown = api.get(f"{prefix}/queue/limbo/messages")

    found = [one["id"] for page in pages for one in page["messages"]]
    assert [len(page["messages"]) for page in pages] == [2, 2, 1, 0]
    assert found == [one["id"] for one in whole["messages"]]
    assert set(found) == set(sent)
    assert pages[0]["pagination"] == {
        "page": 1,
        "limit": 2,
        "total": 5,
        "totalPages": 3,
        "capped": False,
    }
    assert (far.status_code, unknown.status_code) == (422, 404)


@pytest.mark.proves("S4x.1")
def test_a_list_is_filtered_and_sorted(api: Api) -> None:
    send(api, 1, type="mail", priority=5)
    send(api, 2, type="mail", priority=9)
    send(api, 3, type="sms", priority=7)
    failed = fail(api, 1, type="sms")

    def found(**asked: Any) -> list[Any]:
        answer = api.get("/queue/main/messages", params=asked)
        return [one["payload"] for one in answer.json()["messages"]]

    now = datetime.now(UTC)
    assert found(filterType="mail") == [2, 1]
    assert found(filterPriority=9) == [2]
    assert found(filterPriority=">=7") == [3, 2]
    assert found(filterAttempts=1) == [3]
    assert found(startDate=(now + timedelta(hours=1)).isoformat()) == []
    assert found(endDate=(now + timedelta(hours=1)).isoformat()) == [3, 2, 1]
    assert found(search=failed[0]) == [3]
    assert found(search="no such error") == []
    assert found(sort="priority") == [2, 3, 1]
    assert found(sort="priority", order="asc") == [1, 3, 2]
    assert found(sort="created_at", order="asc", limit=1, page=2) == [2]
    assert found(queue="elsewhere") == []
    assert api.get("/queue/main/messages", params={"sort": "color"}).status_code == 422


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_what_is_exported_can_be_imported(api: Api, prefix: str) -> None:
    large = {"text": "x" * 5000}
    send(api, large, type="mail", priority=3, max_attempts=1, ack_timeout_seconds=7)
    fail(api, 1)

    exported = api.get(f"{prefix}/queue/dead/export")
    imported = api.post(f"{prefix}/queue/import", json={"messages": exported.json()["messages"]})
    message = dequeue(api)

    assert exported.headers["content-disposition"] == 'attachment; filename="dead.json"'
    assert exported.json()["next_cursor"] is None
    assert (imported.status_code, imported.json()["created"]) == (201, 1)
    assert (message["payload"], message["type"], message["priority"]) == (large, "mail", 3)
    assert message["id"] != exported.json()["messages"][0]["id"]
    assert (message["attempt_count"], message["max_attempts"]) == (1, 1)


@PREFIXES
@pytest.mark.proves("S4x.1", "S4x.2")
def test_messages_are_moved_by_id(api: Api, prefix: str) -> None:
    ids = send(api, 1, 2, max_attempts=1)
    fail(api, 1)

    def move(**said: Any) -> httpx.Response:
        return api.post(f"{prefix}/queue/move", json=said)

    archived = move(ids=ids, to="archived").json()
    wrong_state = move(ids=ids[:1], **{"from": "dead"}, to="main").json()
    back = move(ids=ids[:1], **{"from": "archived"}, to="main").json()
    elsewhere = move(ids=ids[1:], queue="other").json()
    not_there = move(ids=[str(uuid4()), "lt_abc"], to="main").json()

    assert (archived["moved"], archived["failed"]) == (1, 1)
    assert [one.get("code") for one in archived["results"]] == [None, "INVALID_STATE"]
    assert (back["moved"], back["results"][0]["status"]) == (1, "queued")
    assert elsewhere["moved"] == 1
    assert [one["code"] for one in not_there["results"]] == ["NOT_FOUND", "NOT_FOUND"]
    assert [one["code"] for one in wrong_state["results"]] == ["INVALID_STATE"]
    assert status_of(move(ids=ids, to="processing")) == (409, "INVALID_STATE")
    assert status_of(move(ids=ids)) == (422, "HF406")


@pytest.mark.proves("S4x.1")
def test_all_of_a_state_are_moved_by_an_operation(api: Api) -> None:
    send(api, 1, 2, 3, max_attempts=1)
    fail(api, 3)

    answer = api.post("/queue/move", json={"from": "dead", "to": "main"})

    assert (answer.status_code, answer.json()["moved"]) == (200, 3)
    assert answer.json()["operation"]["state"] == "done"
    assert api.get("/queue/status").json()["queued"] == 3


@pytest.mark.proves("S4x.1")
def test_what_takes_longer_is_told_by_its_operation(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_operate, "PATIENCE", 0.0)
    send(api, 1, 2)

    answer = api.delete("/queue/main/clear")
    place = answer.headers["location"]
    end = time.monotonic() + 120
    while (found := api.get(place).json())["state"] == "running" and time.monotonic() < end:
        time.sleep(0.01)

    assert (answer.status_code, answer.json()["operation"]["state"]) == (202, "running")
    assert (found["state"], found["changed"]) == ("done", 2)


@pytest.mark.proves("S4x.1")
def test_all_are_moved_once_by_a_request_that_comes_twice(api: Api) -> None:
    send(api, 1, 2, max_attempts=1)
    fail(api, 2)
    said = {"json": {"from": "dead", "to": "main"}, "headers": {"Idempotency-Key": "k1"}}

    first, second = api.post("/queue/move", **said), api.post("/queue/move", **said)
    end = time.monotonic() + 120
    while api.get("/queue/status").json()["queued"] < 2 and time.monotonic() < end:
        time.sleep(0.01)

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
    assert api.get("/queue/status").json()["queued"] == 2
    assert len(api.get("/v1/operations").json()["operations"]) == 1


@PREFIXES
@pytest.mark.proves("S4x.1", "S4x.2")
def test_a_message_is_changed_and_deleted(api: Api, prefix: str) -> None:
    [id, held] = send(api, {"n": 1}, {"n": 2}, priority=3)
    changed = api.put(f"{prefix}/queue/message/{id}", json={"payload": {"n": 9}, "priority": 1})
    message = dequeue(api)
    assert message["id"] == held
    nothing = api.put(f"{prefix}/queue/message/{id}", json={})
    locked = api.put(f"{prefix}/queue/message/{held}", json={"priority": 1})
    kept = api.delete(f"{prefix}/queue/message/{held}")
    after = api.get(f"{prefix}/queue/main/messages").json()["messages"]
    deleted = api.delete(f"{prefix}/queue/message/{id}")
    again = api.delete(f"{prefix}/queue/message/{id}")

    assert (changed.status_code, changed.json()["status"]) == (200, "queued")
    assert [(one["payload"], one["priority"]) for one in after] == [({"n": 9}, 1)]
    assert status_of(nothing) == (422, "UPDATE_FAILED")
    assert status_of(locked) == status_of(kept) == (409, "INVALID_STATE")
    assert (deleted.status_code, deleted.json()["deleted"]) == (200, True)
    assert status_of(again) == (404, "NOT_FOUND")


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_messages_are_deleted_by_id(api: Api, prefix: str) -> None:
    ids = send(api, 1, 2, 3)
    dequeue(api)

    answer = api.post(
        f"{prefix}/queue/messages/delete", json={"ids": [*ids[:2], str(uuid4())]}
    ).json()

    assert (answer["deleted"], answer["failed"]) == (1, 2)
    assert [one.get("code") for one in answer["results"]] == [
        "INVALID_STATE",
        None,
        "NOT_FOUND",
    ]
    assert api.get("/queue/status").json()["queued"] == 1


@PREFIXES
@pytest.mark.proves("S4x.1", "S4x.2")
def test_a_state_is_cleared_and_then_all(api: Api, prefix: str) -> None:
    send(api, 1, 2, max_attempts=1)
    fail(api, 2)
    send(api, 3, 4, 5)
    dequeue(api)

    processing = api.delete(f"{prefix}/queue/processing/clear")
    elsewhere = api.delete(f"{prefix}/queue/dead/clear", params={"queue": "other"})
    dead = api.delete(f"{prefix}/queue/dead/clear")
    rest = api.delete(f"{prefix}/queue/clear")
    counts = api.get("/queue/status").json()

    assert status_of(processing) == (409, "INVALID_STATE")
    assert [one.json()["cleared"] for one in (elsewhere, dead, rest)] == [0, 2, 2]
    assert (counts["queued"], counts["dead"], counts["processing"]) == (0, 0, 1)


@PREFIXES
@pytest.mark.proves("S4x.1")
def test_the_config_is_told(api: Api, client: Client, prefix: str) -> None:
    usual = api.get(f"{prefix}/queue/config").json()
    client.queues.set("default", lease=90, max_attempts=5)
    changed = api.get(f"{prefix}/queue/config").json()

    names = ("ack_timeout_seconds", "max_attempts", "max_priority_levels")
    assert [usual[name] for name in names] == [30, 3, 10]
    assert [changed[name] for name in names] == [90, 5, 10]


@pytest.mark.parametrize("prefix", ["", "/api", "/queue", "/api/queue"])
@pytest.mark.proves("S4x.1")
def test_activity_is_told_of_all_and_of_one(api: Api, prefix: str) -> None:
    [id] = send(api, 1, max_attempts=1, type="mail")
    fail(api, 1, consumerId="c1")
    api.delete("/queue/archived/clear")

    activities = api.get("/api/queue/activity").json()["activities"]
    of_one = api.get(f"{prefix}/activity/message/{id}").json()
    consumers = api.get(f"{prefix}/activity/consumers").json()["consumers"]
    anomalies = api.get(f"{prefix}/activity/anomalies").json()
    cleared = api.delete(f"{prefix}/activity/clear").json()
    unknown = api.get(f"{prefix}/activity/message/{uuid4()}")

    told = [(one["action"], one["message_id"], one["actor"]) for one in activities]
    assert {("nack", id, None), ("dlq", id, None)} <= set(told)
    assert "local" in {actor for _, _, actor in told}
    assert (of_one["message_id"], of_one["status"]) == (id, "dead")
    actions = [one["action"] for one in of_one["activities"]]
    assert actions[0] == "enqueue"
    assert {"dequeue", "nack", "dlq"} <= set(actions)
    assert isinstance(consumers, list)
    assert "anomalies" in anomalies
    assert cleared["cleared"] == 0
    assert status_of(unknown) == (404, "NOT_FOUND")


@PREFIXES
@pytest.mark.proves("S4x.1", "S4x.2")
def test_queues_are_made_changed_and_emptied(api: Api, prefix: str) -> None:
    made = api.post(
        f"{prefix}/queues", json={"name": "mail/in", "type": "partitioned", "max_attempts": 7}
    )
    again = api.post(f"{prefix}/queues", json={"name": "mail/in"})
    unlogged = api.post(f"{prefix}/queues", json={"name": "fast", "type": "unlogged"})
    odd = api.post(f"{prefix}/queues", json={"name": "odd", "type": "temporary"})
    changed = api.put(f"{prefix}/queues/mail/in", json={"ack_timeout_seconds": 90})
    send(api, 1, 2, queue="mail/in")
    one = api.get(f"{prefix}/queues/mail/in").json()
    names = [queue["name"] for queue in api.get(f"{prefix}/queues").json()["queues"]]
    deleted = api.delete(f"{prefix}/queues/mail/in")
    missing = [
        api.get(f"{prefix}/queues/none"),
        api.put(f"{prefix}/queues/none", json={}),
        api.delete(f"{prefix}/queues/none"),
    ]

    assert (made.status_code, made.json()["type"]) == (201, "partitioned")
    assert status_of(again) == (409, "INVALID_STATE")
    assert unlogged.json()["type"] == "standard"
    assert odd.status_code == 422
    assert changed.json()["ack_timeout_seconds"] == 90
    assert (one["message_count"], one["max_attempts"]) == (2, 7)
    assert names == ["fast", "mail/in"]
    assert deleted.json()["deleted"] == 2
    assert [status_of(answer) for answer in missing] == [(404, "NOT_FOUND")] * 3


def test_a_browser_gets_the_page_where_a_program_gets_the_queues(api: Api) -> None:
    browser = api.get("/queues", headers={"Accept": "text/html,application/xhtml+xml"})
    program = api.get("/queues", headers={"Accept": "application/json"})

    # Without a dashboard the page says how to build it.
    built = browser.status_code == 200 and browser.headers["content-type"].startswith("text/html")
    assert built or "dashboard" in browser.json()["detail"]
    assert program.json() == {"queues": []}


@pytest.mark.proves("S4x.2")
def test_a_refusal_has_the_code_of_relay_and_ours(api: Api, serve: Serve) -> None:
    [id] = send(api, 1)
    dequeue(api)

    lost = api.post("/queue/ack", json={"id": id, "lock_token": "lt_stale"})
    missing = api.post("/queue/ack", json={"id": str(uuid4()), "lock_token": "lt_stale"})
    not_json = api.post("/queue/ack", content=b"{", headers={"Content-Type": "application/json"})
    misfit = api.post("/queue/message", json={"payload": 1, "priority": 10})
    with serve(ways=["token"]).client() as stranger:
        refused = stranger.post("/queue/message", json={"payload": 1})

    told = lost.json()
    assert (lost.status_code, told["code"], told["error"]) == (409, "LOCK_LOST", "LOCK_LOST")
    assert (told["holdfast_code"], told["type"]) == ("HF300", "/errors/HF300")
    assert status_of(missing) == (404, "NOT_FOUND")
    assert [one.status_code for one in (not_json, misfit, refused)] == [400, 422, 401]


def test_a_user_of_some_queues_sees_and_changes_only_their_messages(
    serve: Serve, client: Client
) -> None:
    mine = client.tokens.create("mine", ["read", "operate", "admin"], queues=["mine"]).secret
    server = serve(ways=["token"], fresh=0.0)
    theirs_id, mine_id = (
        client.enqueue("a", queue="theirs").id,
        client.enqueue("a", queue="mine").id,
    )
    with server.client(headers={"X-API-Key": mine}) as api:
        listed = api.get("/queue/main/messages").json()
        exported = api.get("/queue/main/export").json()
        named = [str(theirs_id), str(mine_id)]
        deleted = api.post("/queue/messages/delete", json={"ids": named}).json()
        moved = api.post("/queue/move", json={"ids": named, "queue": "theirs"})
        client.enqueue("a", queue="mine")
        cleared = api.delete("/queue/clear").json()
        queues = api.get("/queues").json()["queues"]
        others = [api.get("/queues/theirs"), api.delete("/queues/theirs")]
        made = api.post("/queues", json={"name": "new"})

    assert [one["id"] for one in listed["messages"]] == [str(mine_id)]
    assert [one["id"] for one in exported["messages"]] == [str(mine_id)]
    assert [one.get("code") for one in deleted["results"]] == ["NOT_FOUND", None]
    assert moved.status_code == 403
    assert cleared["cleared"] == 1
    assert [one["name"] for one in queues] == ["mine"]
    assert [one.status_code for one in others] == [404, 404]
    assert made.status_code == 403
    assert client.jobs.get(theirs_id).state == "queued"


def test_what_is_redacted_is_redacted_here_too(serve: Serve) -> None:
    with serve(redact=["payload.password"], fresh=0.0).client() as api:
        send(api, {"password": "secret", "n": 1})
        answers = [
            api.get("/queue/main/messages"),
            api.get("/queue/main/export"),
            api.get("/queue/messages"),
            api.get("/queue/status", params={"include_messages": True}),
        ]

    assert not [one.url for one in answers if "secret" in one.text]


@pytest.mark.proves("S4.8", "S4.32")
def test_a_dequeue_by_type_is_soon_as_fast_behind_thousands_as_behind_none(
    api: Api, client: Client, connect: Connect
) -> None:
    client.copy(NewJob(kind="common", queue="mail") for _ in range(BACKLOG))
    client.enqueue_many([NewJob(kind="rare", queue="mail")] * 3)
    first = api.get("/queue/message?queue=mail&type=rare").json()
    end = time.monotonic() + 30 + BACKLOG / 2000
    while not client.queues.get("mail").by_kind:
        assert time.monotonic() < end, "the queue was not sorted"
        time.sleep(0.02)

    read = (
        "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
        " from pg_stat_xact_user_tables where relid = 'holdfast.job'::regclass"
    )
    session = connect()
    session.autocommit = False
    claim = (
        "select kind from holdfast.claim(queue => 'mail', worker => 'ada',"
        " token => gen_random_uuid(), kinds => '{rare}')"
    )
    assert session.execute(claim).fetchall() == [("rare",)]
    [(rows,)] = session.execute(read).fetchall()
    session.rollback()
    assert rows < 20
    second = api.get("/queue/message?queue=mail&type=rare").json()
    assert (first["type"], second["type"]) == ("rare", "rare")
    assert client.queues.get("mail").queued == BACKLOG + 1


def test_the_life_of_a_message_is_told_in_the_order_of_the_log(api: Api, client: Client) -> None:
    id = api.post("/queue/message", json={"payload": {}, "queue": "mail"}).json()["id"]
    for worker in ("ada", "bob", "cy"):  # each takes back what the one before let expire
        while not client.claim("mail", worker=worker, lease=0.001):
            time.sleep(0.001)
    told = api.get(f"/activity/message/{id}").json()["activities"]

    expected = ["enqueue", "dequeue", "timeout", "dequeue", "timeout", "dequeue"]
    assert [one["action"] for one in told] == expected
