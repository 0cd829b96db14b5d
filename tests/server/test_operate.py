"""What operators do over HTTP: to jobs, queues, schedules, lanes; one by one and many at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Client, NewJob, schema
from holdfast.client.aio.cluster_jobs import AsyncClusterJobs
from holdfast.server.live import standby
from tests.conftest import Clock, Connect
from tests.server.conftest import Api, Serve


def dead(client: Client, count: int, kind: str = "send", queue: str = "mail") -> None:
    client.enqueue_many(NewJob(kind=kind, queue=queue, max_attempts=1) for _ in range(count))
    while leases := client.claim(queue, worker="w", limit=1000):
        client.nack(leases, error_kind="Timeout", message="30 s waiting")


def ended(api: Api, id: str) -> dict[str, Any]:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        operation: dict[str, Any] = api.get(f"/v1/operations/{id}").json()
        if operation["state"] != "running":
            return operation
        time.sleep(0.05)
    raise AssertionError("it did not end")


def test_a_dead_job_is_edited_and_retried(api: Api, client: Client) -> None:
    dead(client, 1)
    [job] = api.get("/v1/dead").json()["jobs"]

    edited = api.patch(f"/v1/jobs/{job['id']}", json={"payload": {"to": "b"}, "priority": 7})
    retried = api.post(f"/v1/jobs/{job['id']}/retry", json={"reason": "mail is back"})

    now = client.jobs.get(job["id"])
    assert (edited.status_code, edited.json()["state"]) == (200, "dead")
    assert (retried.status_code, retried.json()["state"]) == (200, "queued")
    assert (now.payload, now.priority, now.reason) == ({"to": "b"}, 7, "mail is back")


def test_a_job_counts_the_attempts_of_all_its_lives(api: Api, client: Client) -> None:
    dead(client, 1)
    [id] = client.jobs.find("state:dead")
    for _ in range(2):
        api.post(f"/v1/jobs/{id}/retry", json={})
        client.nack(client.claim("mail", worker="w"))

    [listed] = api.get("/v1/jobs", params={"q": "attempts:>2"}).json()["jobs"]
    shown = api.get(f"/v1/jobs/{id}", params={"include": "attempts"}).json()

    assert (listed["id"], listed["attempt"], listed["total_attempts"]) == (str(id), 1, 3)
    assert (shown["total_attempts"], len(shown["attempts"])) == (3, 3)


def test_a_queue_tells_its_rate_of_success_and_is_told_to_archive(
    api: Api, client: Client, clock: Clock
) -> None:
    dead(client, 1)
    client.enqueue("send", queue="mail")
    client.ack(client.claim("mail", worker="w"))

    # The server samples too, each step of ten seconds once: what came after is in a later one.
    told: dict[str, Any] = {}
    end = time.monotonic() + 120
    while sum(row["done"] for row in told.get("day", [])) < 2 and time.monotonic() < end:
        clock.advance(seconds=10)
        client.upkeep.run()
        told = api.get("/v1/queues/mail").json()["success"]
    changed = api.patch("/v1/queues/mail", json={"archive_dead": 86400})

    assert told["day"] == [
        {"kind": None, "done": 1, "failed": 1, "rate": 0.5},
        {"kind": "send", "done": 1, "failed": 1, "rate": 0.5},
    ]
    assert told["hour"] == told["day"]
    assert (changed.status_code, changed.json()["archive_dead"]) == (200, 86400.0)


def test_a_job_is_cancelled_deleted_and_moved(api: Api, client: Client) -> None:
    one, two, three = (client.enqueue("a") for _ in range(3))

    cancelled = api.post(f"/v1/jobs/{one.id}/cancel", json={"reason": "user left"})
    deleted = api.delete(f"/v1/jobs/{two.id}")
    moved = api.patch(f"/v1/jobs/{three.id}", json={"queue": "other"})

    assert cancelled.json()["state"] == "cancelled"
    assert deleted.status_code == 200
    assert client.jobs.get(two.id) is None
    assert client.jobs.get(moved.json()["id"]).queue == "other"


def test_the_wrong_state_is_409_and_told(api: Api, client: Client) -> None:
    job = client.enqueue("a")
    client.claim(worker="w")

    retried = api.post(f"/v1/jobs/{job.id}/retry", json={})
    deleted = api.delete(f"/v1/jobs/{job.id}")
    edited = api.patch(f"/v1/jobs/{job.id}", json={"priority": 1})

    for answer in (retried, deleted, edited):
        assert (answer.status_code, answer.json()["code"]) == (409, "HF409")
        assert answer.json()["state"] == "leased"


def test_an_empty_edit_and_an_unknown_job_are_refused(api: Api, client: Client) -> None:
    job = client.enqueue("a")

    assert api.patch(f"/v1/jobs/{job.id}", json={}).json()["code"] == "HF222"
    assert api.patch(f"/v1/jobs/{uuid4()}", json={"priority": 1}).status_code == 404
    assert api.post(f"/v1/jobs/{uuid4()}/retry", json={}).status_code == 404


def test_a_job_is_found_by_the_end_of_its_id(api: Api, client: Client) -> None:
    job = client.enqueue("a")

    assert api.get(f"/v1/jobs/{str(job.id)[-8:]}").json()["id"] == str(job.id)
    assert api.get("/v1/jobs/nonsense").status_code == 404
    assert api.get("/v1/jobs/00000000").status_code == 404


def test_a_job_tells_why_it_waits_and_how_it_failed(api: Api, client: Client) -> None:
    dead(client, 1)
    [job] = client.jobs.list("state:dead")

    told = api.get(f"/v1/jobs/{job.id}", params={"include": "attempts"}).json()

    assert told["explain"].startswith("Dead since")
    assert told["attempts"][0]["error_kind"] == "Timeout"
    assert told["state"] == "dead"


def test_a_job_deleted_when_done_is_410_while_the_ledger_knows(api: Api, client: Client) -> None:
    job = client.enqueue("a")
    client.ack(client.claim(worker="web-1"))

    answer = api.get(f"/v1/jobs/{job.id}")
    never = api.get(f"/v1/jobs/{uuid4()}")

    assert (answer.status_code, answer.json()["code"]) == (410, "HF410")
    assert (answer.json()["worker"], answer.json()["state"]) == ("web-1", "done")
    assert never.status_code == 404


def test_lists_go_on_behind_their_cursor(api: Api, client: Client) -> None:
    jobs = [client.enqueue("a") for _ in range(5)]
    seen, cursor = [], ""

    while cursor is not None:
        page = api.get("/v1/jobs", params={"limit": 2, "cursor": cursor}).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]

    assert sorted(seen) == sorted(str(job.id) for job in jobs)
    assert api.get("/v1/jobs", params={"cursor": "nonsense"}).status_code == 422


def test_a_large_payload_is_a_preview_in_a_list_and_whole_in_detail(
    api: Api, client: Client
) -> None:
    job = client.enqueue("a", {"text": "x" * 5000})

    [listed] = api.get("/v1/jobs").json()["jobs"]
    whole = api.get(f"/v1/jobs/{job.id}").json()

    assert listed["payload"] is None
    assert listed["payload_preview"].startswith('{"text": "xxx')
    assert listed["payload_size"] > 5000
    assert len(whole["payload"]["text"]) == 5000


def test_a_list_that_did_not_change_is_304(api: Api, client: Client) -> None:
    client.enqueue("a")
    first = api.get("/v1/jobs")

    same = api.get("/v1/jobs", headers={"If-None-Match": first.headers["etag"]})
    client.enqueue("a")
    other = api.get("/v1/jobs", headers={"If-None-Match": first.headers["etag"]})

    assert (same.status_code, same.content) == (304, b"")
    assert other.status_code == 200


def test_a_bad_filter_is_422_with_its_position(api: Api) -> None:
    answer = api.get("/v1/jobs", params={"q": "kind:a colour:red"})

    assert (answer.status_code, answer.json()["code"]) == (422, "HF220")
    assert "position 8" in answer.json()["detail"]


def test_a_queue_is_set_paused_resumed_and_found_by_any_name(api: Api, client: Client) -> None:
    name = "mail/über uns?"
    path = "/v1/queues/mail%2F%C3%BCber%20uns%3F"

    made = api.patch(path, json={"limit": 4, "lease": 120})
    paused = api.post(f"{path}/pause", json={"reason": "mail is down", "seconds": 600})
    resumed = api.post(f"{path}/resume")
    found = api.get(path)

    assert (made.json()["queue"], made.json()["limit"], made.json()["lease"]) == (name, 4, 120)
    assert (paused.json()["paused_reason"], paused.json()["paused_by"]) == ("mail is down", "local")
    assert paused.json()["paused_until"] is not None
    assert resumed.json()["paused_at"] is None
    assert found.json()["queue"] == name


def test_bad_settings_are_refused_by_name(api: Api) -> None:
    unknown = api.patch("/v1/queues/mail", json={"colour": "red"})
    bad = api.patch("/v1/queues/mail", json={"limit": "many"})

    assert (unknown.status_code, unknown.json()["code"]) == (422, "HF221")
    assert "colour" in unknown.json()["detail"]
    assert bad.status_code == 422
    assert api.get("/v1/queues/mail").status_code == 404


def test_dead_jobs_are_grouped(api: Api, client: Client) -> None:
    dead(client, 3)
    dead(client, 1, kind="other")

    groups = api.get("/v1/dead/groups").json()["groups"]

    assert [(group["jobs"], group["kind"]) for group in groups] == [(3, "send"), (1, "other")]
    listed = api.get("/v1/dead", params={"q": f"group:{groups[0]['group']} kind:send"})
    assert len(listed.json()["jobs"]) == 3


def test_ten_are_retried_first_and_then_all_as_operations(api: Api, client: Client) -> None:
    dead(client, 700)

    canary = api.post(
        "/v1/operations:preview", json={"op": "retry", "q": "state:dead", "limit": 10}
    ).json()
    first = api.post("/v1/operations", json={"preview_token": canary["preview_token"]})
    ten = ended(api, first.json()["id"])
    after_ten = client.queues.get("mail")
    preview = api.post("/v1/operations:preview", json={"op": "retry", "q": "kind:send"}).json()
    second = api.post("/v1/operations", json={"preview_token": preview["preview_token"]})
    rest = ended(api, second.json()["id"])
    too_late = api.delete(f"/v1/operations/{rest['id']}")

    assert (canary["count"], len(canary["sample"])) == (10, 10)
    assert first.status_code == 202
    assert first.headers["location"] == f"/v1/operations/{first.json()['id']}"
    assert (ten["state"], ten["done"], ten["changed"]) == ("done", 10, 10)
    assert (after_ten.queued, after_ten.dead) == (10, 690)
    assert (preview["count"], preview["q"]) == (690, "kind:send state:dead,cancelled")
    assert (rest["state"], rest["changed"], rest["actor"]) == ("done", 690, "local")
    assert (too_late.status_code, too_late.json()["code"]) == (409, "HF409")
    assert (client.queues.get("mail").queued, client.queues.get("mail").dead) == (700, 0)


def test_what_an_operation_did_is_undone(api: Api, client: Client) -> None:
    dead(client, 12)
    preview = api.post("/v1/operations:preview", json={"op": "retry", "q": "state:dead"}).json()
    started = api.post("/v1/operations", json={"preview_token": preview["preview_token"]}).json()
    done = ended(api, started["id"])
    place = f"/v1/operations/{started['id']}/undo"

    answer = api.post(place, json={"reason": "wrong group", "rate": "500/s"})
    undone = ended(api, answer.json()["id"])
    again = api.post(place, json={})
    wrong = api.post(place, json={"rate": "soon"})
    unknown = api.post("/v1/operations/4711/undo", json={})

    assert done["undoable"] == 12
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/operations/{undone['id']}"
    assert (undone["verb"], undone["state"], undone["changed"]) == ("undo", "done", 12)
    assert undone["arguments"] == {"operation": int(started["id"])}
    assert (client.queues.get("mail").queued, client.queues.get("mail").dead) == (0, 12)
    assert (again.status_code, again.json()["code"]) == (409, "HF409")
    assert "it was already undone" in again.json()["detail"]
    assert (wrong.status_code, unknown.status_code) == (422, 404)


def test_jobs_that_came_after_the_preview_are_left_alone(api: Api, client: Client) -> None:
    dead(client, 3)
    preview = api.post("/v1/operations:preview", json={"op": "retry", "q": "state:dead"}).json()
    dead(client, 2)

    started = api.post("/v1/operations", json={"preview_token": preview["preview_token"]})
    done = ended(api, started.json()["id"])

    assert done["changed"] == 3
    assert client.queues.get("mail").dead == 2


def test_a_slow_operation_keeps_its_rate_and_can_be_stopped(api: Api, client: Client) -> None:
    client.enqueue_many(NewJob(kind="a", queue="mail") for _ in range(200))
    preview = api.post("/v1/operations:preview", json={"op": "cancel", "q": "queue:mail"}).json()
    body = {"preview_token": preview["preview_token"], "rate": "20/s"}

    began = time.monotonic()
    started = api.post("/v1/operations", json=body)
    again = api.post("/v1/operations", json=body)
    while api.get(f"/v1/operations/{started.json()['id']}").json()["changed"] < 15:
        time.sleep(0.05)
    stopped = api.delete(f"/v1/operations/{started.json()['id']}")
    seconds = time.monotonic() - began
    changed = stopped.json()["changed"]
    time.sleep(0.6)
    twice = api.delete(f"/v1/operations/{started.json()['id']}")

    assert started.json()["id"] == again.json()["id"]
    assert stopped.json()["state"] == "cancelled"
    assert 15 <= changed <= 20 * seconds + 40
    assert changed < 200
    assert client.queues.get("mail").queued == 200 - changed
    assert twice.json()["changed"] == changed


def test_an_old_preview_and_an_unknown_one_are_refused(
    api: Api, client: Client, clock: Clock
) -> None:
    preview = api.post("/v1/operations:preview", json={"op": "retry", "q": "state:dead"}).json()
    clock.advance(minutes=11)

    old = api.post("/v1/operations", json={"preview_token": preview["preview_token"]})
    unknown = api.post("/v1/operations", json={"preview_token": "pv_nonsense"})

    assert (old.status_code, old.json()["code"]) == (409, "HF412")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "HF314")
    assert api.get("/v1/operations/nonsense").status_code == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"op": "retry", "q": "  "}, "HF220"),
        ({"op": "retry", "q": "nonsense:x"}, "HF220"),
        ({"op": "retry", "q": "state:dead", "queue": "x"}, "HF225"),
        ({"op": "move", "q": "state:dead"}, "HF225"),
        ({"op": "cancel", "q": "state:queued", "delay": 3}, "HF225"),
        ({"op": "destroy", "q": "state:dead"}, "HF406"),
    ],
)
def test_a_preview_that_makes_no_sense_is_refused(api: Api, body: Any, code: str) -> None:
    answer = api.post("/v1/operations:preview", json=body)

    assert (answer.status_code, answer.json()["code"]) == (422, code)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"op": "archive", "q": "state:dead"}, {"archived": 4}),
        ({"op": "delete", "q": "state:dead"}, {}),
        ({"op": "retry", "q": "state:dead", "delay": 3600}, {"queued": 4}),
        ({"op": "move", "q": "state:dead", "queue": "elsewhere"}, {"dead": 4}),
    ],
)
def test_every_verb_can_be_done_to_many(
    api: Api, client: Client, body: Any, expected: dict[str, int]
) -> None:
    dead(client, 4)

    preview = api.post("/v1/operations:preview", json=body).json()
    started = api.post("/v1/operations", json={"preview_token": preview["preview_token"]})
    done = ended(api, started.json()["id"])

    states: dict[str, int] = {}
    for one in client.queues.depth():
        if one.jobs:
            states[one.state] = states.get(one.state, 0) + one.jobs
    assert done["changed"] == 4
    assert states == expected


def test_draining_a_queue_cancels_what_waits(api: Api, client: Client) -> None:
    client.enqueue_many(NewJob(kind="a", queue='od"d queue') for _ in range(5))
    client.claim('od"d queue', worker="w")

    started = api.post("/v1/queues/od%22d%20queue/drain", json={"reason": "wrong import"})
    done = ended(api, started.json()["id"])

    found = client.queues.get('od"d queue')
    assert (started.status_code, done["changed"]) == (202, 4)
    assert (found.queued, found.leased, found.cancelled) == (0, 1, 4)
    assert api.post("/v1/queues/nosuch/drain", json={}).status_code == 404


def test_an_operation_goes_on_after_its_server_is_gone(serve: Serve, client: Client) -> None:
    client.enqueue_many(NewJob(kind="a", queue="mail") for _ in range(40))
    preview = client.operations.preview("cancel", "queue:mail")
    started = client.operations.start(preview.token, rate=1.0)
    assert started is not None
    client.operations.step()

    with serve().client() as api:
        before = api.get(f"/v1/operations/{started.id}").json()
        end = time.monotonic() + 120
        while api.get(f"/v1/operations/{started.id}").json()["done"] == before["done"]:
            assert time.monotonic() < end, "nobody goes on with it"
            time.sleep(0.05)

    assert before["done"] >= 1
    assert client.queues.get("mail").cancelled == client.operations.get(started.id).changed


def test_a_schedule_is_made_changed_run_paused_and_deleted(api: Api, client: Client) -> None:
    made = api.put(
        "/v1/schedules/rates",
        json={"kind": "rates", "cron": "30 5 * * MON-FRI", "tz": "Europe/Paris"},
    )
    replaced = api.put("/v1/schedules/rates", json={"kind": "rates", "every": 60})
    changed = api.patch("/v1/schedules/rates", json={"queue": "slow", "paused": True})
    ran = api.post("/v1/schedules/rates/run", json={})
    shown = api.get("/v1/schedules/rates").json()
    deleted = api.delete("/v1/schedules/rates")

    assert (made.status_code, replaced.status_code) == (201, 200)
    assert (replaced.json()["cron"], replaced.json()["every"]) == (None, 60.0)
    assert (changed.json()["queue"], changed.json()["state"]) == ("slow", "paused")
    assert (ran.status_code, ran.json()["outcome"]) == (201, "run")
    assert client.jobs.get(ran.json()["job"]).queue == "slow"
    assert shown["slots"][0]["outcome"] == "run"
    assert deleted.json() == {"name": "rates", "deleted": True}
    assert api.get("/v1/schedules/rates").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "a", "cron": "61 * * * *"},
        {"kind": "a"},
        {"kind": "a", "cron": "* * * * *", "tz": "Mars/Base"},
        {"kind": "a", "cron": "* * * * *", "every": 60},
    ],
)
def test_a_schedule_that_can_never_fire_is_422(api: Api, body: Any) -> None:
    answer = api.put("/v1/schedules/bad", json=body)

    assert (answer.status_code, answer.json()["code"]) == (422, "HF223")


def test_lanes_are_listed_and_released_only_when_nobody_works_in_them(
    api: Api, client: Client, clock: Clock
) -> None:
    for _ in range(3):
        client.enqueue("a", queue="axiom", lane="axiom")
    client.claim("axiom", worker="db2", lease=3600)
    client.workers.beat("db2", slots=1)

    [lane] = api.get("/v1/lanes").json()["lanes"]
    alive = api.post("/v1/lanes/axiom/release", json={"queue": "axiom"})
    clock.advance(minutes=2)
    released = api.post("/v1/lanes/axiom/release", json={"queue": "axiom"})
    free = api.post("/v1/lanes/axiom/release", json={"queue": "axiom"})
    unknown = api.post("/v1/lanes/nosuch/release", json={"queue": "axiom"})

    assert (lane["lane"], lane["worker"], lane["running"], lane["waiting"]) == (
        "axiom",
        "db2",
        1,
        2,
    )
    assert (alive.status_code, alive.json()["code"]) == (409, "HF409")
    assert released.json()["outcome"] == "released"
    assert free.json()["outcome"] == "free"
    assert (unknown.status_code, unknown.json()["code"]) == (404, "HF316")
    assert client.queues.get("axiom").leased == 0


def test_a_halted_lane_is_resumed(api: Api, client: Client) -> None:
    client.queues.set("axiom", lane_on_failure="halt")
    for _ in range(2):
        client.enqueue("a", queue="axiom", lane="l", max_attempts=1)
    client.nack(client.claim("axiom", worker="w"))

    answer = api.post("/v1/lanes/l/release", json={"queue": "axiom"})

    assert answer.json()["outcome"] == "resumed"
    assert len(client.claim("axiom", worker="w")) == 1


def test_kinds_tell_their_schema_workers_and_jobs(api: Api, client: Client) -> None:
    client.kinds.declare([{"kind": "greet", "schema": {"type": "object"}, "doc": "Say hello."}])
    client.workers.beat("ada", kinds=["greet"])
    client.enqueue("greet")
    client.enqueue("lost")

    found = {kind["kind"]: kind for kind in api.get("/v1/kinds").json()["kinds"]}

    assert found["greet"]["schema"] == {"type": "object"}
    assert (found["greet"]["workers"], found["greet"]["jobs"]) == (["ada"], {"queued": 1})
    assert (found["lost"]["declared"], found["lost"]["workers"]) == (False, [])


def test_values_are_redacted_for_whoever_looks_and_whole_for_whoever_works(
    serve: Serve, client: Client
) -> None:
    rules = ["payload.password", "send:payload.to.*.email", "headers.authorization"]
    client.enqueue(
        "send",
        {"password": "hunter2", "to": [{"email": "a@x.io", "name": "Ada"}]},
        headers={"authorization": "secret", "a": "b"},
    )
    client.enqueue("other", {"to": [{"email": "a@x.io"}]})
    with serve(redact=rules).client() as api:
        listed = {job["kind"]: job for job in api.get("/v1/jobs").json()["jobs"]}
        shown = api.get(f"/v1/jobs/{listed['send']['id']}").json()
        by_oracle = api.get("/v1/jobs", params={"q": "payload.password:h*"})
        by_parent = api.get("/v1/jobs", params={"q": "payload.to.0:*a@x*"})
        by_preview = api.post(
            "/v1/operations:preview", json={"op": "cancel", "q": "payload.password:hunter2"}
        )
        edited = api.patch(
            f"/v1/jobs/{shown['id']}",
            json={"payload": shown["payload"] | {"note": "edited"}},
        )
        [lease, _] = api.post("/v1/claims", json={"worker": "w", "limit": 2}).json()["leases"]

    assert shown["payload"] == {"password": "•••", "to": [{"email": "•••", "name": "Ada"}]}
    assert shown["headers"] == {"authorization": "•••", "a": "b"}
    assert listed["send"]["payload"] == shown["payload"]
    assert listed["other"]["payload"] == {"to": [{"email": "a@x.io"}]}
    assert {one.status_code for one in (by_oracle, by_parent, by_preview)} == {403}
    assert edited.status_code == 200
    assert lease["payload"] == {
        "password": "hunter2",
        "to": [{"email": "a@x.io", "name": "Ada"}],
        "note": "edited",
    }


def test_values_are_redacted_in_schedules_and_kept_when_edited(
    serve: Serve, client: Client
) -> None:
    client.schedules.set(
        "nightly",
        kind="send",
        every=3600,
        payload={"password": "hunter2", "n": 1},
        options={"headers": {"authorization": "secret"}},
    )
    rules = ["payload.password", "headers.authorization"]
    with serve(redact=rules, fresh=0.0).client() as api:
        [listed] = api.get("/v1/schedules").json()["schedules"]
        shown = api.get("/v1/schedules/nightly").json()
        change = {"payload": shown["payload"] | {"n": 2}, "options": shown["options"]}
        patched = api.patch("/v1/schedules/nightly", json=change)
        put = api.put("/v1/schedules/nightly", json={"kind": "send", "every": 60, **change})

    stored = client.schedules.get("nightly")
    for answer in (listed, shown, patched.json(), put.json()):
        assert "hunter2" not in str(answer)
        assert "secret" not in str(answer)
    assert stored.payload == {"password": "hunter2", "n": 2}
    assert stored.options == {"headers": {"authorization": "secret"}}


def test_redaction_leaves_digits_and_masked_headers_as_they_were(
    serve: Serve, client: Client
) -> None:
    job = client.enqueue("a", headers={"authorization": "secret"})
    with serve(redact=["payload.password", "headers.authorization"]).client() as api:
        path = f"/v1/jobs/{job.id}"
        text = '{"payload": {"sum": 1.000000000000000000001, "password": "x"}}'
        api.patch(path, content=text, headers={"Content-Type": "application/json"})
        shown = api.get(path)
        edited = text.replace('"x"', '"•••"')
        api.patch(path, content=edited, headers={"Content-Type": "application/json"})
        api.patch(path, json={"headers": shown.json()["headers"] | {"a": "b"}})

    stored = client.jobs.get(job.id)
    assert "1.000000000000000000001" in shown.text
    assert "1.000000000000000000001" in stored.payload_json
    assert stored.payload["password"] == "x"
    assert stored.headers == {"authorization": "secret", "a": "b"}


@pytest.mark.parametrize("place", ["0", "-1", "+0"])
def test_a_redacted_value_in_a_list_is_not_found_out_by_its_place(
    serve: Serve, client: Client, place: str
) -> None:
    client.enqueue("a", {"cards": [{"number": "4111"}]})
    with serve(redact=["payload.cards.number"]).client() as api:
        answer = api.get("/v1/jobs", params={"q": f"payload.cards.{place}.number:4*"})

    assert answer.status_code == 403


def test_an_ended_job_is_put_away(api: Api, client: Client) -> None:
    dead(client, 1)
    waiting = client.enqueue("a")
    [job] = client.jobs.list("state:dead")

    archived = api.post(f"/v1/jobs/{job.id}/archive", json={"reason": "known"})
    refused = api.post(f"/v1/jobs/{waiting.id}/archive", json={})

    now = client.jobs.get(job.id)
    assert (archived.json()["state"], now.state, now.reason) == ("archived", "archived", "known")
    assert (refused.status_code, refused.json()["state"]) == (409, "queued")


def test_a_schedule_says_its_rule_in_english_and_its_next_slots(api: Api, client: Client) -> None:
    client.schedules.set("nightly", kind="a", cron="0 3 * * *", tz="Europe/Berlin")

    [listed] = api.get("/v1/schedules").json()["schedules"]
    one = api.get("/v1/schedules/nightly").json()
    paused = api.patch("/v1/schedules/nightly", json={"paused": True}).json()
    without = api.get("/v1/schedules/nightly").json()

    assert listed["explain"] == one["explain"] == paused["explain"]
    assert "03:00" in one["explain"]
    assert "Europe/Berlin" in one["explain"]
    assert len(one["next"]) == 10
    assert one["next"] == sorted(set(one["next"]))
    assert one["next"][0].endswith("Z")
    assert "next" not in without


def test_a_list_counts_what_matches_and_says_when_it_could_not_look_at_all(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.enqueue_many(NewJob(kind="a", payload={"n": n}) for n in range(300))

    plain = api.get("/v1/jobs", params={"limit": 1}).json()
    counted = api.get("/v1/jobs", params={"q": "kind:a", "limit": 1, "count": "true"}).json()
    none = api.get("/v1/jobs", params={"q": "kind:b", "count": "true"}).json()
    dead = api.get("/v1/dead", params={"count": "true"}).json()
    search = AsyncClusterJobs.search
    monkeypatch.setattr(AsyncClusterJobs, "search", partialmethod(search, patience=0))
    bounded = api.get("/v1/jobs", params={"q": "payload.n:0", "limit": 1}).json()

    assert "count" not in plain
    assert (counted["count"], counted["capped"], len(counted["jobs"])) == (300, False, 1)
    assert (none["count"], none["jobs"]) == (0, [])
    assert dead["count"] == 0
    assert "searched" not in counted
    assert 0 < bounded["searched"] < 300
    assert bounded["searched_to"] is not None
    assert bounded["cursor"] is not None


def test_the_system_tells_versions_and_sizes_and_no_secret(serve: Serve, client: Client) -> None:
    basic = {"ada": ("hunter2", "admin")}
    with serve(basic=basic).client() as api:
        answer = api.get("/v1/system")

    told = answer.json()
    names = [one["name"] for one in told["database"]["relations"]]
    assert told["database"]["schema"] == schema.status(client.url).needed
    assert told["database"]["size"] > 1_000_000
    assert {"job", "ended", "lease", "queue"} <= set(names)
    assert len(names) == len(set(names))
    assert told["settings"]["upkeep"] is True
    assert "hunter2" not in answer.text
    assert "dbname" not in answer.text


def test_metrics_answer_from_kept_counters(serve: Serve, client: Client) -> None:
    client.enqueue_many(NewJob(kind="a", queue="mail") for _ in range(10))
    with serve(fresh=0.0).client() as api:
        text = api.get("/metrics").text

    assert 'holdfast_queue_depth{queue="mail",state="queued"} 10' in text


def test_a_server_looks_at_its_standby_and_changes_the_primary(
    serve: Serve, client: Client, empty_database: str
) -> None:
    schema.migrate(empty_database)
    with Client(empty_database) as standby:
        standby.enqueue("a", queue="there")

    with serve(read_url=empty_database, fresh=0.0).client() as api:
        api.post("/v1/jobs", json={"kind": "a", "queue": "here"}).raise_for_status()
        [queue] = api.get("/v1/queues").json()["queues"]
        [job] = api.get("/v1/jobs").json()["jobs"]

    assert (queue["queue"], job["queue"]) == ("there", "there")
    assert [job.queue for job in client.jobs.list()] == ["here"]


def test_the_primary_answers_while_the_standby_does_not(
    serve: Serve, client: Client, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.migrate(empty_database)
    client.enqueue("a", queue="here")
    with Client(empty_database) as there:
        there.enqueue("a", queue="there")

    def told(api: Api) -> tuple[str, float | None]:
        [job] = api.get("/v1/jobs").json()["jobs"]
        return job["queue"], api.get("/v1/system").json()["standby"]["behind"]

    name = conninfo_to_dict(empty_database)["dbname"]
    with serve(read_url=empty_database, fresh=0.0, look=1.0, upkeep=False).client() as api:
        before = told(api)
        with psycopg.connect(client.url, autocommit=True) as connection:
            connection.execute(f'alter database "{name}" allow_connections false')
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
            )
            monkeypatch.setattr(standby, "REST", 3600.0)
            without = told(api)
            connection.execute(f'alter database "{name}" allow_connections true')
        ready = api.get("/readyz").status_code

    assert (before, without, ready) == (("there", 0.0), ("here", None), 200)


def test_as_many_requests_are_under_way_in_the_database_as_the_pool_has_connections(
    serve: Serve, connect: Connect
) -> None:
    first = connect(autocommit=False)
    first.execute("""select holdfast.enqueue('{"kind": "a", "key": "k"}')""")
    waiting = (
        "select count(*) from pg_stat_activity"
        " where application_name = 'holdfast server' and wait_event_type = 'Lock'"
    )
    server = serve(pool_size=3, upkeep=False)

    def ask(_: int) -> int:
        with server.client() as api:
            return api.post("/v1/jobs", json={"kind": "a", "key": "k"}).status_code

    with ThreadPoolExecutor(6) as threads:
        # All of them wait for the one that has their key and is not committed.
        answers = threads.map(ask, range(6))
        watcher, end = connect(), time.monotonic() + 120
        while (used := watcher.execute(waiting).fetchone()) != (3,) and time.monotonic() < end:
            time.sleep(0.01)
        first.commit()

    assert used == (3,)
    assert list(answers) == [200] * 6


def test_nothing_is_shared_that_is_older_than_a_second(serve: Serve, client: Client) -> None:
    with serve().client() as api:
        first = api.get("/v1/queues").json()
        client.enqueue("a")
        time.sleep(1.1)
        second = api.get("/v1/queues").json()

    assert (len(first["queues"]), len(second["queues"])) == (0, 1)


def test_who_is_calling_is_told(api: Api) -> None:
    me = api.get("/v1/me").json()

    assert (me["user"], me["read_only"], me["queues"]) == ("local", False, None)
    assert "admin" in me["scopes"]


def test_the_server_says_when_the_database_is_not_migrated(
    serve: Serve, empty_database: str
) -> None:
    with serve(empty_database, upkeep=False).client() as api:
        alive = api.get("/healthz")
        ready = api.get("/readyz")
        jobs = api.get("/v1/jobs")

    assert alive.status_code == 200
    assert (ready.status_code, ready.json()["code"]) == (503, "HF110")
    assert (jobs.status_code, jobs.json()["code"]) == (503, "HF110")
    assert ready.headers["retry-after"] == "2"


def test_the_server_says_when_the_database_is_away(serve: Serve) -> None:
    with serve("postgresql://nobody@127.0.0.1:1/nothing", upkeep=False).client() as api:
        answers = [
            api.get("/readyz"),
            api.get("/v1/queues"),
            api.post("/v1/jobs", json={"kind": "a"}),
        ]

    assert [(one.status_code, one.json()["code"]) for one in answers] == [(503, "HF100")] * 3


def test_dead_jobs_are_listed_by_the_time_of_their_failure_page_by_page(
    api: Api, client: Client, connect: Connect
) -> None:
    jobs = [client.enqueue("send", {"n": n}, max_attempts=1) for n in range(5)]
    leases = {lease.id: lease for lease in client.claim(worker="ada", limit=5)}
    order = [jobs[n].id for n in (2, 0, 4, 1, 3)]
    for id in order:
        client.nack([leases[id]], message="no")
    pages, cursor = [], ""
    while cursor is not None:
        page = api.get("/v1/dead", params={"order": "failed", "limit": 2, "cursor": cursor}).json()
        pages.append([job["id"] for job in page["jobs"]])
        cursor = page["cursor"]

    newest = [str(id) for id in reversed(order)]
    assert pages == [newest[:2], newest[2:4], newest[4:]]
    counted = api.get("/v1/dead", params={"order": "failed", "count": "true", "q": "kind:send"})
    assert counted.json()["count"] == 5
    assert api.get("/v1/dead", params={"order": "failed", "cursor": "bm90"}).status_code == 422
    connect().execute("update holdfast.dead set queue = 'other' where id = %s", [order[0]])
    token = client.tokens.create("eve", ["read"], queues=["other"]).secret
    seen = api.get(
        "/v1/dead", params={"order": "failed"}, headers={"Authorization": f"Bearer {token}"}
    ).json()
    assert [job["id"] for job in seen["jobs"]] == [str(order[0])]


def test_what_waits_is_listed_in_the_order_in_which_it_will_run(api: Api, client: Client) -> None:
    later = client.enqueue("a", queue="mail", delay=60)
    low = client.enqueue("b", queue="mail")
    high = client.enqueue("c", queue="mail", priority=5)
    jobs = api.get("/v1/queues/mail/upcoming").json()["jobs"]

    assert [job["id"] for job in jobs] == [str(one.id) for one in (high, low, later)]
    assert len(api.get("/v1/queues/mail/upcoming?limit=1").json()["jobs"]) == 1
    assert api.get("/v1/queues/nothing/upcoming").status_code == 404
    token = client.tokens.create("eve", ["read"], queues=["other"]).secret
    refused = api.get("/v1/queues/mail/upcoming", headers={"Authorization": f"Bearer {token}"})
    assert refused.status_code == 404
