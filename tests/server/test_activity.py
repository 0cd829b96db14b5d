"""The record over HTTP: activity, strikes, numbers over time, consumers, and what is redacted."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Client
from holdfast.records import Failed
from holdfast.server.live import consumers
from tests.conftest import Clock
from tests.server.conftest import Api, Serve


def fail(client: Client, kind: str = "send", queue: str = "mail", **payload: object) -> None:
    client.enqueue(kind, payload, queue=queue, max_attempts=1)
    client.nack(client.claim(queue, worker="ada"), error_kind="Timeout", message="no route")


@pytest.mark.proves("S4.10")
def test_the_log_is_read_page_by_page_and_by_what_it_says(api: Api, client: Client) -> None:
    for _ in range(3):
        fail(client)
    [id, *_] = client.jobs.find("state:dead")
    api.post(f"/v1/jobs/{id}/retry", json={"reason": "route is back"})

    first = api.get("/v1/activity", params={"queue": "mail", "limit": 3}).json()
    rest = api.get("/v1/activity", params={"queue": "mail", "cursor": first["cursor"]}).json()
    history = api.get("/v1/activity", params={"job": str(id)}).json()["events"]
    nobody = api.get("/v1/activity", params={"actor": "nobody"}).json()
    future = {"from": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}

    told = [one["event"] for one in first["events"] + rest["events"]]
    assert told == ["retried", "nacked", "nacked", "nacked"]
    assert rest["cursor"] is None
    assert [one["event"] for one in history] == ["retried", "nacked"]
    assert history[0]["reason"] == "route is back"
    assert history[0]["actor"]
    assert nobody == {"events": [], "cursor": None}
    assert api.get("/v1/activity", params=future).json()["events"] == []


def test_a_job_shows_its_attempts_and_its_history(api: Api, client: Client) -> None:
    fail(client)
    [id] = client.jobs.find("state:dead")

    shown = api.get(f"/v1/jobs/{id}", params={"include": "attempts,events"}).json()

    assert shown["attempts"][0]["message"] == "no route"
    assert [one["event"] for one in shown["events"]] == ["nacked"]


def test_what_is_redacted_is_masked_in_the_record_too(serve: Serve, client: Client) -> None:
    with serve(fresh=0.0, redact=["payload.card"]).client() as api:
        client.enqueue("pay", {"card": "4111-1111", "n": 1}, max_attempts=1)
        [lease] = client.claim("default", worker="ada")
        failed = Failed(lease, "Refused", "refused 4111-1111", log="card 4111-1111 was refused")
        client.settle([failed])
        [id] = client.jobs.find("state:dead")
        client.jobs.edit([id], payload={"card": "5500-0000", "n": 2}, actor="eve")
        client.jobs.edit([id], payload={"card": "4111-1111", "n": 2}, actor="eve")
        shown = api.get(f"/v1/jobs/{id}", params={"include": "attempts,events"}).json()
        tried = api.post("/v1/strikes", json={"payload": {"card": "4111-1111"}})

    [attempt] = shown["attempts"]
    assert attempt["log"] == "card ••• was refused"
    assert attempt["message"] == "refused •••"
    edited = [
        one["detail"]["was"]["payload"] for one in shown["events"] if one["event"] == "edited"
    ]
    assert edited == [{"card": "•••", "n": 2}, {"card": "•••", "n": 1}]
    assert (tried.status_code, tried.json()["code"]) == (403, "HF401")


def test_a_strike_is_added_listed_and_lifted(api: Api, client: Client) -> None:
    client.enqueue("send", queue="mail")
    added = api.post(
        "/v1/strikes", json={"kind": "send", "reason": "provider is down", "expires": 3600}
    )
    none = api.post("/v1/claims", json={"worker": "w", "queues": ["mail"]}).json()
    [listed] = api.get("/v1/strikes").json()["strikes"]
    lifted = api.delete(f"/v1/strikes/{listed['number']}").json()
    [lease] = api.post("/v1/claims", json={"worker": "w", "queues": ["mail"]}).json()["leases"]

    assert added.status_code == 201
    assert none["leases"] == []
    assert (listed["held"], listed["in_force"], listed["reason"]) == (1, True, "provider is down")
    assert lifted["in_force"] is False
    assert lease["kind"] == "send"
    assert api.get("/v1/strikes").json()["strikes"] == []
    assert len(api.get("/v1/strikes", params={"all": True}).json()["strikes"]) == 1
    assert api.delete("/v1/strikes/99").json()["code"] == "HF318"
    assert api.post("/v1/strikes", json={}).json()["code"] == "HF228"


def test_a_token_of_some_queues_sees_and_strikes_only_those(serve: Serve, client: Client) -> None:
    fail(client, queue="mail")
    fail(client, queue="other")
    client.queues.set("other", limit=3)
    client.strikes.add(queue="other", kind="send")
    secret = client.tokens.create("ops", ["read", "operate"], queues=["mail"]).secret
    headers = {"Authorization": f"Bearer {secret}"}
    with serve(fresh=0.0).client(headers=headers) as api:
        seen = api.get("/v1/activity").json()["events"]
        other = api.get("/v1/activity", params={"queue": "other"})
        everywhere = api.post("/v1/strikes", json={"kind": "send"})
        elsewhere = api.post("/v1/strikes", json={"kind": "send", "queue": "other"})
        mine = api.post("/v1/strikes", json={"kind": "send", "queue": "mail"})
        listed = api.get("/v1/strikes").json()["strikes"]
        series = api.get("/v1/metrics/series", params={"queue": "other"})

    assert {one["queue"] for one in seen} == {"mail"}
    assert {r.status_code for r in (other, everywhere, elsewhere, series)} == {403}
    assert mine.status_code == 201
    assert [one["queue"] for one in listed] == ["mail"]


@pytest.mark.proves("S4.12", "S4x.5")
def test_consumers_over_http_have_statistics(
    serve: Serve, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "EVERY", 0.2)
    with serve(fresh=0.0, upkeep=False).client() as api:
        client.enqueue("send")
        client.enqueue("send")
        body = {"worker": "php-7", "limit": 2, "lease": 60}
        good, bad = api.post("/v1/claims", json=body).json()["leases"]
        api.post(f"/v1/jobs/{good['id']}/ack", json={"token": good["token"]})
        api.post(f"/v1/jobs/{bad['id']}/nack", json={"token": bad["token"], "error": "no"})
        seen: dict[str, Any] = {}
        while not (seen.get("acked") and seen.get("failed")):
            [seen] = api.get("/v1/workers").json()["workers"] or [{}]
    client.upkeep.run()

    assert seen["worker"] == "php-7"
    assert (seen["claimed"], seen["acked"], seen["failed"], seen["lost"]) == (2, 1, 1, 0)
    assert seen["busy_time"] > 0
    assert seen["claimed_at"]
    assert seen["acked_at"]
    assert len(seen["claims"]) == 1
    assert any(value is not None for _, value in client.activity.series("run_p50", step=10))
    assert any(value is not None for _, value in client.activity.series("pickup_p50", step=10))


@pytest.mark.proves("S4.13")
def test_series_answer_from_what_upkeep_sampled(serve: Serve, client: Client, clock: Clock) -> None:
    clock.begin_a_minute()
    client.enqueue("a", queue="mail")
    client.upkeep.run()
    clock.advance(seconds=10)
    with serve(fresh=0.0, upkeep=False).client() as api:

        def last(**params: Any) -> Any:
            found = api.get("/v1/metrics/series", params={"step": 10, **params}).json()
            return found["points"][-1][1]

        assert last(metric="queued") == 1
        assert last(metric="enqueued", queue="mail", kind="a") == pytest.approx(0.1)
        assert last(metric="done", queue="nosuch") == 0
        assert last(metric="run_p95") is None
