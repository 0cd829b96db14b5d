"""Anomalies over HTTP: looking, acking, muting, tuning; explanations, forecasts, the doctor."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Client
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving


@pytest.fixture
def server(serve: Serve) -> Serving:
    """A server that leaves detection to the test."""
    return serve(fresh=0.0, upkeep=False)


@pytest.fixture
def died(client: Client) -> str:
    """The id of an anomaly: a job of queue mail died."""
    client.enqueue("send", queue="mail", max_attempts=1)
    client.nack(client.claim("mail", worker="w"), error_kind="Timeout", message="30 s")
    [change] = client.detectors.run(["job_died"])
    assert change.id
    return change.id


@pytest.mark.proves("S4.11")
def test_an_anomaly_is_listed_acked_and_muted(api: Api, died: str) -> None:
    [listed] = api.get("/v1/anomalies").json()["anomalies"]
    acked = api.post(f"/v1/anomalies/{died}/ack", json={"note": "on it"}).json()
    muted = api.post(f"/v1/anomalies/{died}/mute", json={"seconds": 60, "reason": "known"}).json()
    unmuted = api.post(f"/v1/anomalies/{died}/unmute", json={}).json()
    all_of_it = api.post(f"/v1/anomalies/{died}/mute", json={"all": True}).json()

    assert (listed["id"], listed["code"], listed["queue"]) == (died, "job_died", "mail")
    assert listed["title"] == "1 send died"
    assert listed["evidence"]["count"] == 1
    assert listed["suggestion"] == "holdfast dead groups"
    assert (acked["note"], acked["acked_at"] is not None) == ("on it", True)
    assert [muted["muted"], unmuted["muted"], all_of_it["muted"]] == [True, False, True]


def test_what_is_over_is_listed_apart(api: Api, client: Client, died: str) -> None:
    client.detectors.set("job_died", enabled=False)
    client.detectors.run(["job_died"])

    assert api.get("/v1/anomalies").json()["anomalies"] == []
    [over] = api.get("/v1/anomalies", params={"over": "true"}).json()["anomalies"]
    assert (over["id"], over["resolved_at"] is not None) == (died, True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda api: api.get("/v1/anomalies/nonsense"),
        lambda api: api.post("/v1/anomalies/nonsense/ack", json={}),
        lambda api: api.post("/v1/anomalies/nonsense/mute", json={}),
    ],
)
def test_an_unknown_anomaly(api: Api, ask: Callable[[Api], Any]) -> None:
    answer = ask(api)

    assert (answer.status_code, answer.json()["code"]) == (404, "HF319")


def test_detectors_are_listed_and_tuned(api: Api) -> None:
    listed = {one["code"]: one for one in api.get("/v1/detectors").json()["detectors"]}
    tuned = api.patch("/v1/detectors/late", json={"thresholds": {"seconds": 60}, "queue": "mail"})
    off = api.patch("/v1/detectors/late", json={"enabled": False})
    unknown = api.patch("/v1/detectors/nonsense", json={})
    wrong = api.patch("/v1/detectors/late", json={"thresholds": {"hours": 1}})

    assert listed["late"]["thresholds"] == {"seconds": 300}
    assert tuned.json()["queues"] == {"mail": {"seconds": 60.0}}
    assert off.json()["enabled"] is False
    assert (unknown.status_code, unknown.json()["code"]) == (404, "HF227")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "HF221")


def test_queues_and_lanes_are_explained(api: Api, client: Client) -> None:
    client.enqueue("a", queue="mail", lane="l")
    client.enqueue("a", queue="mail", lane="l")
    client.queues.pause("mail", actor="ada", reason="deploy")

    queue = api.get("/v1/queues/mail/explain").json()["explain"]
    client.queues.resume("mail")
    [held] = client.claim("mail", worker="w1")
    lane = api.get("/v1/lanes/l/explain", params={"queue": "mail"}).json()["explain"]

    assert queue.startswith("Queue mail has been paused by ada since ")
    assert lane.startswith(f"Lane l is busy: job {held.id} runs on w1 until ")
    assert api.get("/v1/queues/nonsense/explain").status_code == 404


def test_forecasts_and_the_doctor(api: Api, client: Client) -> None:
    client.enqueue("a", queue="mail")
    [one] = api.get("/v1/forecasts", params={"queue": "mail", "target": 60}).json()["forecasts"]
    checks = {one["name"]: one for one in api.get("/v1/doctor").json()["checks"]}

    assert (one["queue"], one["waiting"], one["drained_at"]) == ("mail", 1, None)
    assert {"upkeep", "autovacuum", "horizon", "bloat", "kinds", "settings"} <= checks.keys()


def test_a_token_of_one_queue_sees_its_anomalies_only(
    serve: Serve, client: Client, died: str
) -> None:
    client.workers.beat("w9", clock="2001-01-01T00:00:00Z")
    client.detectors.run(["clock_skew"])
    mail = client.tokens.create("m", ["read", "operate"], queues=["mail"]).secret
    other = client.tokens.create("o", ["read", "operate"], queues=["other"]).secret
    looks = client.tokens.create("l", ["read"]).secret
    server = serve(fresh=0.0, upkeep=False, ways=["token"])

    def call(secret: str, method: str, path: str) -> Any:
        with server.client() as api:
            body = None if method == "GET" else {}
            return api.request(
                method, path, json=body, headers={"authorization": f"Bearer {secret}"}
            )

    def codes(secret: str, limit: int = 100) -> list[str]:
        found = call(secret, "GET", f"/v1/anomalies?limit={limit}").json()["anomalies"]
        return sorted(one["code"] for one in found)

    assert codes(mail) == ["job_died"]
    assert (codes(looks, limit=1), codes(mail, limit=1)) == (["clock_skew"], ["job_died"])
    assert codes(other) == []
    assert codes(looks) == ["clock_skew", "job_died"]
    assert call(other, "POST", f"/v1/anomalies/{died}/ack").status_code == 404
    assert call(looks, "POST", f"/v1/anomalies/{died}/ack").status_code == 403
    assert call(mail, "PATCH", "/v1/detectors/late").status_code == 403
    assert call(mail, "GET", "/v1/doctor").status_code == 403
    for queue in ("mail", "other"):
        client.detectors.set("late", queue=queue, seconds=60)
    told = call(mail, "GET", "/v1/detectors").json()["detectors"]
    assert [list(one["queues"]) for one in told if one["code"] == "late"] == [["mail"]]
    assert call(mail, "POST", f"/v1/anomalies/{died}/ack").status_code == 200
