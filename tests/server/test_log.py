"""The log of a job over HTTP: who may read it, who writes it, and what is masked in it."""

from typing import Any

import pytest

from holdfast import Client
from holdfast.outcome import printable
from holdfast.records import Failed, Lease
from holdfast.worker.logs import LINE, TAIL, Log
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving
from tests.server.test_stream import watching


def leased(client: Client, payload: Any = None, queue: str = "default") -> Lease:
    client.enqueue("report", payload, queue=queue)
    [lease] = client.claim(queue, worker="w")
    return lease


def test_a_log_is_read_from_a_line_on(api: Api, client: Client) -> None:
    lease = leased(client)
    client.log([lease], [["one", "two", "three"]])

    whole = api.get(f"/v1/jobs/{lease.id}/log").json()["lines"]
    rest = api.get(f"/v1/jobs/{lease.id}/log?after=2").json()["lines"]
    last = api.get(f"/v1/jobs/{lease.id}/log?limit=1").json()["lines"]

    assert [line["text"] for line in whole] == ["one", "two", "three"]
    assert rest == last == whole[2:]
    assert whole[0].keys() == {"nth", "attempt", "at", "text"}


def test_whoever_may_not_see_a_queue_may_not_see_its_logs(serve: Serve, client: Client) -> None:
    some = client.tokens.create("php", ["read", "consume"], queues=["mail"]).secret
    own, foreign = leased(client, queue="mail"), leased(client, queue="secret")
    client.log([own, foreign], [["mine"], ["not mine"]])
    headers = {"Authorization": f"Bearer {some}"}
    with serve(ways=["token"]).client(headers=headers) as api:
        assert api.get(f"/v1/jobs/{own.id}/log").status_code == 200
        refused = api.get(f"/v1/jobs/{foreign.id}/log")
        body = {"token": str(foreign.token), "log": ["forged"]}
        written = api.put(f"/v1/jobs/{foreign.id}/touch", json=body)

    assert (refused.status_code, written.status_code) == (404, 404)
    assert "not mine" not in refused.text
    assert [line.text for line in client.jobs.lines(foreign.id)] == ["not mine"]


def test_redacted_values_are_masked_in_lines(serve: Serve, client: Client) -> None:
    lease = leased(client, {"card": "4111-1111"})
    client.log([lease], [["charging 4111-1111", "charged"]])

    with serve(redact=["payload.card"]).client() as api:
        lines = api.get(f"/v1/jobs/{lease.id}/log").json()["lines"]

    assert [line["text"] for line in lines] == ["charging •••", "charged"]


SECRET = "4111-2222-3333-4444"


def test_a_redacted_value_is_masked_where_a_line_was_cut_inside_it(
    serve: Serve, client: Client
) -> None:
    cut = {}
    for shown in (1, 3, 4, len(SECRET) - 1):
        lease = leased(client, {"card": SECRET})
        log = Log()
        log.add("x" * (LINE - 1 - shown) + SECRET + " was charged")
        log.add("y" * (TAIL - 2 - shown) + SECRET + " was charged")
        client.log([lease], [log.unshown()[1]])
        client.settle([Failed(lease, "Refused", "no", log=log.text())])
        cut[lease.id] = shown

    with serve(redact=["payload.card"]).client() as api:
        for id, shown in cut.items():
            lines = api.get(f"/v1/jobs/{id}/log").json()["lines"]
            [attempt] = api.get(f"/v1/jobs/{id}?include=attempts").json()["attempts"]

            assert lines[0]["text"] == "x" * (LINE - 1 - shown) + "•••…"
            assert attempt["log"].endswith("y" * (TAIL - 2 - shown) + "•••…")


def test_a_redacted_value_is_masked_where_the_middle_of_a_text_was_left_out(
    serve: Serve, client: Client
) -> None:
    lease = leased(client, {"card": SECRET})
    message = printable("x" * 3316 + SECRET + "z" * 10_000 + SECRET + "y" * 6640, 10_000)
    first, _, last = message.partition("left out")
    assert first.partition("\n")[0].endswith(SECRET[:7])
    assert last.partition("\n")[2].startswith(SECRET[-8:])
    client.settle([Failed(lease, "Refused", message, message, log=message)])

    with serve(redact=["payload.card"]).client() as api:
        job = api.get(f"/v1/jobs/{lease.id}?include=attempts").json()

    [attempt] = job["attempts"]
    for told in (attempt["message"], attempt["traceback"], attempt["log"]):
        first, _, last = told.partition("left out")
        assert set(first.partition("\n")[0]) == {"x", "•"}
        assert set(last.partition("\n")[2]) == {"y", "•"}


def test_redacted_values_are_masked_in_the_error_the_explanation_and_lines_of_several(
    serve: Serve, client: Client
) -> None:
    lease = leased(client, {"card": "4111-1111", "pem": "BEGIN\nabcdef\nEND OF KEY"})
    client.log([lease], [["key BEGIN", "abcdef", "END OF KEY."]])
    client.settle([Failed(lease, "Refused", "refused 4111-1111")])

    with serve(redact=["payload.card", "payload.pem"]).client() as api:
        lines = api.get(f"/v1/jobs/{lease.id}/log").json()["lines"]
        shown = api.get(f"/v1/jobs/{lease.id}?include=attempts,events")
        listed = api.get("/v1/jobs")

    assert [line["text"] for line in lines] == ["key •••", "•••", "•••."]
    assert "refused •••" in shown.json()["error"]
    for answer in (shown, listed):
        assert "4111" not in answer.text


def test_a_touch_may_bring_lines(api: Api, client: Client) -> None:
    lease = leased(client)
    body = {"token": str(lease.token), "log": ["page 3", "nul \0 <b>bold</b>"]}

    assert api.put(f"/v1/jobs/{lease.id}/touch", json=body).status_code == 200

    assert [line.text for line in client.jobs.lines(lease.id)] == ["page 3", "nul \\0 <b>bold</b>"]


@pytest.mark.parametrize("asked", ["after=-1", "after=x", "limit=0", "limit=1001"])
def test_odd_questions_are_refused(api: Api, client: Client, asked: str) -> None:
    assert api.get(f"/v1/jobs/{leased(client).id}/log?{asked}").status_code == 422


def test_the_log_of_a_job_that_is_gone_says_so(api: Api, client: Client) -> None:
    lease = leased(client)
    client.log([lease], [["one"]])
    client.ack([lease])

    assert api.get(f"/v1/jobs/{lease.id}/log").status_code == 410


def test_a_watched_job_says_up_to_which_line_it_has_logged(server: Serving, client: Client) -> None:
    lease = leased(client)
    with watching(server, f"/v1/events/stream?watch={lease.id}") as watcher:
        assert watcher.next("job")["data"]["log"] == 0
        client.log([lease], [["one", "two"]])
        assert watcher.next("job")["data"]["log"] == 2
