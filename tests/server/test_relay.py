"""The other dialect: routes and words of source 4, served by the same handlers."""

import json
import time
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Client
from tests.conftest import Clock
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving

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


def test_an_empty_queue_is_404_at_once_or_after_the_timeout(api: Api) -> None:
    started = time.monotonic()
    at_once = api.get("/queue/message")
    in_between = time.monotonic()
    later = api.get("/queue/message", params={"timeout": 0.5})

    assert (at_once.status_code, later.status_code) == (404, 404)
    assert at_once.json()["code"] == "HF317"
    assert in_between - started < 2
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
    client.upkeep()
    quick = dequeue(api, consumer_id="quick")
    late = api.post(f"/queue/message/{slow['id']}/ack", json={"lock_token": slow["lock_token"]})
    clock.advance(seconds=11)
    client.upkeep()

    assert quick["id"] == slow["id"]
    assert quick["attempt_count"] == 2
    assert quick["lock_token"] != slow["lock_token"]
    assert late.status_code == 409
    assert api.get("/queue/status").json()["dead"] == 1
    assert client.get(slow["id"]).error is not None


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
    assert client.get(message["id"]).error == "boom"


@pytest.mark.proves("S4.25", "S4.26")
def test_events_are_seen_as_they_happen(server: Serving, api: Api) -> None:
    seen: list[dict[str, Any]] = []

    def watch() -> None:
        with server.client() as own, own.stream("GET", "/queue/events") as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
                if {"enqueue", "dequeue", "ack"} <= {event.get("type") for event in seen}:
                    return

    watching = Thread(target=watch)
    watching.start()
    while not seen:  # the greeting
        time.sleep(0.01)
    api.post("/queue/message", json={"type": "email", "payload": {}})
    message = dequeue(api)
    api.post(f"/queue/message/{message['id']}/ack", json={"lock_token": message["lock_token"]})
    watching.join(10)

    enqueued = next(event for event in seen if event.get("type") == "enqueue")
    assert enqueued["payload"] == {"id": message["id"], "type": "email"}
    assert not watching.is_alive()


@pytest.mark.proves("S4.29", "S4.31", "S4.34")
def test_servers_alone_take_back_what_nobody_answers_for(serve: Serve, client: Client) -> None:
    with serve().client() as one, serve().client() as other:
        one.post(
            "/queue/message",
            json={"type": "a", "payload": {}, "ack_timeout_seconds": 0.5, "max_attempts": 2},
        )
        first = dequeue(one, consumer_id="slow")
        again = dequeue(other, consumer_id="quick", timeout=20)
        end = time.monotonic() + 20
        while other.get("/queue/status").json()["dead"] == 0 and time.monotonic() < end:
            time.sleep(0.1)

    assert (again["id"], again["attempt_count"]) == (first["id"], 2)
    assert client.get(first["id"]).state == "dead"


def test_metrics_and_health_answer(api: Api) -> None:
    api.post("/queue/message", json={"type": "a", "payload": {}, "queue": "mail"})

    [queue] = api.get("/queue/metrics").json()["queues"]

    assert (queue["queue"], queue["queued"]) == ("mail", 1)
    assert api.get("/health").json()["status"] == "ok"
    assert api.get("/api/health").status_code == 200
