"""What the server promises holds against whoever knocks: each of these got in, or broke it."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from holdfast import Client, NewJob
from holdfast.server.doors import local_user
from holdfast.server.live import feed, waits
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def bearer(client: Client, *scopes: str, queues: list[str] | None = None) -> dict[str, str]:
    made = client.tokens.create("t", list(scopes), queues=queues)  # type: ignore[arg-type]
    return {"Authorization": f"Bearer {made.secret}"}


# Leasing by GET.


@pytest.mark.parametrize("path", ["/queue/message", "/api/queue/message", "/queue/messages/batch"])
def test_a_page_of_another_site_leases_nothing_by_a_get(
    serve: Serve, client: Client, path: str
) -> None:
    client.enqueue("send")
    # What a browser sends by plain HTTP to a name that is not of this machine: nothing of its own.
    page = {"Host": "jobs.example.org", "Accept": "*/*", "User-Agent": "Mozilla/5.0"}
    with serve(insecure=True, fresh=0.0).client(headers=page) as browser:
        refused = browser.get(path, params={"queue": "default"})
        waiting = client.queues.get("default").queued
        leased = browser.get(path, headers={"X-Requested-With": "curl"})

    assert (refused.status_code, refused.json()["code"]) == (403, "HF403")
    assert waiting == 1
    assert leased.status_code == 200


def test_a_consumer_on_this_machine_or_with_a_token_leases_by_get_as_before(
    serve: Serve, client: Client, api: Api
) -> None:
    client.enqueue_many([NewJob(kind="send")] * 2)
    token = bearer(client, "consume")
    with serve(ways=["token"]).client(headers={"Host": "jobs.example.org"}) as far:
        answers = [api.get("/queue/message"), far.get("/queue/message", headers=token)]

    assert [answer.status_code for answer in answers] == [200, 200]


# Open mode.


def test_a_proxy_that_adds_nothing_makes_nobody_a_local_admin(serve: Serve) -> None:
    with serve(hosts=["jobs.example.org", "localhost", "127.0.0.1"]).client() as api:
        named = api.get("/v1/me", headers={"Host": "jobs.example.org"}).json()
        here = api.get("/v1/me").json()

    assert (named["user"], here["user"]) == (None, "local")


def test_what_speaks_to_servers_as_nginx_does_is_not_this_machine_asking(server: Serving) -> None:
    request = b"GET /v1/queues HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as asking:
        asking.sendall(request)
        answer = asking.recv(100)

    assert b" 401 " in answer


# A proxy that copies bytes and nothing else; it opens its side as the user it is told to be.
PIPE = """
import asyncio, os, sys
async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def serve(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    await asyncio.gather(copy(reader, back), copy(there, writer))
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    os.setuid(int(sys.argv[2]))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
"x".encode("idna")
asyncio.run(main())
"""


@contextmanager
def piped(server: Serving, user: int) -> Iterator[Api]:
    command = [sys.executable, "-c", PIPE, str(server.port), str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            port = int(running.stdout.readline())
            with httpx.Client(base_url=f"http://localhost:{port}", timeout=30) as through:
                yield through
        finally:
            running.terminate()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a socket is")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_a_bare_proxy_of_another_user_makes_nobody_a_local_admin(
    server: Serving, client: Client
) -> None:
    token = bearer(client, "read")
    # Through it everybody can say that they asked for this machine.
    forged = {"Host": f"localhost:{server.port}"}
    with piped(server, 65534) as through:
        me = through.get("/v1/me", headers=forged).json()
        refused = through.post("/v1/jobs", json={"kind": "a"}, headers=forged)
        leased = through.get("/queue/message", headers=forged)
        known = through.get("/v1/queues", headers=forged | token)
    with piped(server, os.geteuid()) as own:
        mine = own.get("/v1/me", headers=forged).json()

    assert me["user"] is None
    assert (refused.status_code, leased.status_code, known.status_code) == (401, 401, 200)
    assert "another user's process" in refused.json()["detail"]
    assert "holdfast token create" in refused.json()["fix"]
    assert mine["user"] == "local"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a socket is")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_system_tells_whose_a_connection_is_and_a_closed_one_is_nobodys(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        calling = socket.create_connection(listening.getsockname()[:2])
        accepted, caller = listening.accept()
        with accepted:
            here = accepted.getsockname()
            ends = local_user._end(caller), local_user._end(here)
            open_ = local_user.owner(caller, here), local_user._listed(*ends)
            other = local_user.owner((host, 1), here)
            # The system would say that it is root's.
            calling.close()
            closed = local_user.owner(caller, here), local_user._listed(*ends)

    assert open_ == (os.geteuid(), os.geteuid())
    assert (other, closed) == (None, (None, None))


def test_whoever_typed_sudo_is_whoever_runs_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusted(user: int, release: str = "6.1", **variables: str) -> set[int]:
        monkeypatch.setattr(os, "geteuid", lambda: user)
        monkeypatch.setattr(local_user, "_read", lambda path: release)
        monkeypatch.delenv("SUDO_UID", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return set(local_user.trusted.__wrapped__())

    assert trusted(1000, SUDO_UID="7") == {1000}
    assert trusted(0) == {0}
    assert trusted(0, SUDO_UID="1000") == {0, 1000}
    assert trusted(1000, "5.15.90.1-microsoft-standard-WSL2") == {0, 1000}


# Redaction.


@pytest.fixture
def hiding(serve: Serve) -> Iterator[Api]:
    rules = ["send_sms:payload.to", "headers.auth"]
    with serve(fresh=0.0, redact=rules).client() as opened:
        yield opened


def test_a_number_that_python_does_not_read_breaks_no_list(
    hiding: Api, client: Client, connect: Any
) -> None:
    client.enqueue("send_sms", {"to": "0049", "n": 1})
    with connect() as connection:
        # As it may be there from before such numbers were refused.
        connection.execute(
            "update holdfast.job set payload = %s::jsonb",
            ['{"to": "0049", "n": %s}' % ("9" * 5000)],
        )

    answer = hiding.get("/v1/jobs")

    assert answer.status_code == 200
    assert "0049" not in answer.text


def test_headers_of_a_schedule_are_hidden_in_the_log(hiding: Api) -> None:
    hiding.put(
        "/v1/schedules/nightly",
        json={"kind": "send_sms", "every": 60, "options": {"headers": {"auth": "secret-1"}}},
    )

    answers = [hiding.get("/v1/activity"), hiding.get("/v1/schedules")]

    assert "schedule_set" in answers[0].text
    assert all("secret-1" not in answer.text for answer in answers)


def test_a_schedule_shows_nothing_more_under_another_kind(hiding: Api) -> None:
    body = {"kind": "send_sms", "every": 60, "payload": {"to": "0049-151"}}
    hiding.put("/v1/schedules/nightly", json=body)
    answer = hiding.patch("/v1/schedules/nightly", json={"kind": "other"})
    masked = hiding.patch("/v1/schedules/nightly", json={"payload": answer.json()["payload"]})

    assert (answer.status_code, masked.status_code) == (200, 200)
    assert "0049-151" not in answer.text + hiding.get("/v1/schedules").text


def test_the_explanation_of_a_job_that_is_held_back_tells_no_payload(
    hiding: Api, client: Client
) -> None:
    job = client.enqueue("send_sms", {"to": "0049-151"}).id
    client.strikes.add(kind="send_sms", payload={"to": "0049-151"})

    answer = hiding.get(f"/v1/jobs/{job}")

    assert "Held back by strike" in answer.json()["explain"]
    assert "0049-151" not in answer.text


# No input gives a 500.


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/assets/" + "x" * 300, None),
        ("GET", "/assets/%00", None),
        ("PATCH", "/v1/queues/x", {"actor": 1}),
        ("PATCH", "/v1/queues/x", {"queue": "y"}),
        ("PATCH", "/v1/queues/x", {"self": 1}),
        ("PATCH", "/v1/detectors/late", {"thresholds": {"queue": 1}}),
        ("PATCH", "/v1/detectors/late", {"thresholds": {"self": 1}}),
        ("PATCH", "/v1/detectors/late", {"thresholds": {"enabled": 1}}),
        ("GET", "/v1/metrics/series?from=1e20", None),
        ("GET", "/v1/metrics/series?from=0001-01-01T00:00:00%2B14:00", None),
        ("GET", "/v1/activity?from=0001-01-01T00:00:00%2B14:00", None),
        ("GET", "/v1/activity?until=9999-12-31T23:59:59-14:00", None),
        ("POST", "/v1/jobs", {"kind": "a", "run_at": "0001-01-01T00:00:00+14:00"}),
        ("POST", "/v1/queues/x/pause", {"until": "9999-12-31T23:59:59-14:00"}),
        ("POST", "/v1/jobs", {"kind": "a", "headers": {"n": 10**400}}),
    ],
)
def test_odd_input_is_refused_and_breaks_nothing(
    api: Api, method: str, path: str, body: dict[str, Any] | None
) -> None:
    content = None if body is None else json.dumps(body)
    answer = api.request(
        method, path, content=content, headers={"Content-Type": "application/json"} if body else {}
    )

    assert 200 <= answer.status_code < 500, answer.text
    assert answer.status_code != 200 or method == "GET"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/activity?after=%0A", None),
        ("GET", "/v1/activity?cursor=7%0A", None),
        ("GET", "/queue/main/messages?filterPriority=1%0A", None),
        ("POST", "/v1/jobs", {"kind": "a\n"}),
        ("POST", "/v1/jobs", {"kind": "a", "queue": "a\n"}),
        ("POST", "/queue/message", {"payload": 1, "queue": "a\n"}),
    ],
)
def test_a_line_break_at_the_end_is_noticed(
    api: Api, method: str, path: str, body: dict[str, Any] | None
) -> None:
    answer = api.request(method, path, json=body)

    assert answer.status_code == 422


def test_a_moment_beyond_the_calendar_is_refused_without_a_trace_in_the_log(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    answer = api.get("/queue/messages?start=0001-01-01T00:00:00%2B14:00")

    assert answer.status_code == 422
    assert "Traceback" not in caplog.text


def test_a_number_beyond_a_double_is_refused_over_http(api: Api, client: Client) -> None:
    client.enqueue("send")
    lease = api.post("/v1/claims", json={"worker": "w"}).json()["leases"][0]
    bomb = "[" + ",".join(["1e131071"] * 100) + "]"
    json_type = {"Content-Type": "application/json"}
    ack = f'{{"token": "{lease["token"]}", "result": {bomb}, "keep": true}}'

    answers = [
        api.post("/v1/jobs", content=f'{{"kind": "a", "payload": {bomb}}}', headers=json_type),
        api.post("/queue/message", content=f'{{"payload": {bomb}}}', headers=json_type),
        api.post(f"/v1/jobs/{lease['id']}/ack", content=ack, headers=json_type),
        api.put("/v1/schedules/s", content=f'{{"kind":"a","every":60,"payload":{bomb}}}',
                headers=json_type),
    ]  # fmt: skip

    assert [answer.status_code for answer in answers] == [422] * 4
    assert client.queues.get("default").leased == 1


# Streams.


def test_a_stream_of_a_quiet_queue_is_not_silent_while_others_are_busy(
    serve: Serve, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PING", 1.0)
    monkeypatch.setattr(feed, "CALM", 0.3)
    token = bearer(client, "read", queues=["quiet"])
    server = serve(ways=["token"])
    over = threading.Event()

    def keep_busy() -> None:
        while not over.wait(0.1):
            client.enqueue("send", queue="busy")

    with (
        ThreadPoolExecutor(1) as pool,
        server.client(headers=token) as api,
        api.stream("GET", "/v1/events/stream", timeout=60.0) as stream,
    ):
        pool.submit(keep_busy)
        try:
            assert any(line.startswith(": ping") for line in stream.iter_lines())
        finally:
            over.set()


# Shares.


@contextmanager
def waiting(server: Serving, headers: dict[str, str], count: int) -> Iterator[list[socket.socket]]:
    body = json.dumps({"worker": "w", "wait": 30}).encode()
    told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v1/claims HTTP/1.1\r\nHost: localhost\r\n{told}Content-Type: application/json\r\n"
    )
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.sendall(request)
            opened.append(one)
        yield opened


def test_one_token_leaves_room_for_the_waits_of_another(serve: Serve, client: Client) -> None:
    greedy, other = bearer(client, "consume"), bearer(client, "consume")
    server = serve(ways=["token"], waits=4)
    with server.client() as api, waiting(server, greedy, 4):
        until = time.monotonic() + 120
        while server_waits(server) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        refused = api.post("/v1/claims", json={"worker": "w", "wait": 5}, headers=greedy)
        served = api.post("/v1/claims", json={"worker": "v", "wait": 0.1}, headers=other)

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert served.status_code == 200


def test_a_token_that_holds_all_it_can_leaves_others_to_claim_stream_and_sign_in(
    serve: Serve, client: Client
) -> None:
    greedy, other = bearer(client, "read", "consume"), bearer(client, "read", "consume")
    person = client.tokens.create("person", ["read"]).secret
    # Fewer than one address may have, of which all of this test come.
    server = serve(ways=["token"], waits=20, streams=20, streams_per_address=100, requests=400)
    with server.client() as api, ExitStack() as stack:
        # As many as it gets, and then as many again: waits, streams, and requests that do not end.
        stack.enter_context(waiting(server, greedy, 40))
        streams = [streaming(server, greedy, stack) for _ in range(20)]
        for _ in range(30):
            stack.enter_context(unended(server, greedy))
        until = time.monotonic() + 120
        while server_waits(server) < 10:
            assert time.monotonic() < until
            time.sleep(0.02)
        refused = [
            api.post("/v1/claims", json={"worker": "w", "wait": 5}, headers=greedy).status_code,
            *streams[10:],
        ]
        client.enqueue("send")
        # The ones that wait may be given it first; what is asked for is an answer.
        waited = api.post("/v1/claims", json={"worker": "v", "wait": 0.1}, headers=other)
        stream = streaming(server, other, stack)
        signed_in = api.post("/v1/session", json={"token": person})
        looked = api.get("/v1/queues", headers=other)

    assert streams[:10] == [200] * 10
    assert set(refused) == {429}
    assert [waited.status_code, stream, signed_in.status_code, looked.status_code] == [200] * 4


def test_an_address_that_has_all_its_connections_leaves_others_to_connect(
    serve: Serve, client: Client
) -> None:
    token = bearer(client, "read")
    server = serve(ways=["token"], requests=20, waits=10, streams=10)
    with ExitStack() as stack:
        # A quarter of forty, and more in vain.
        for _ in range(30):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.settimeout(5)
        with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
            httpx.get(f"{server.url}/v1/queues", headers=token)
        near = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=server.url, transport=near, headers=token) as elsewhere:
            answer = elsewhere.get("/v1/queues")

    assert answer.status_code == 200


def streaming(server: Serving, headers: dict[str, str], stack: ExitStack) -> int:
    """Open a stream that stays open; returns how it was answered."""
    one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
    told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    one.sendall(f"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n{told}\r\n".encode())
    return int(one.recv(12).split()[1])


@contextmanager
def unended(server: Serving, headers: dict[str, str]) -> Iterator[None]:
    """A request whose body never comes."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as one:
        told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST /v1/claims HTTP/1.1\r\nHost: localhost\r\n{told}Content-Length: 1000\r\n"
        one.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        yield


def server_waits(server: Serving) -> int:
    return sum(live.waits.count for live in server.server._live.values())


def test_whoever_is_unknown_sends_little(serve: Serve) -> None:
    server = serve(ways=["token"])
    with server.client() as api:
        answers = [
            api.post("/v1/session", json={"token": "x" * 5000}),
            api.post("/v1/session", content=b"x" * 1_000_000),
        ]

    assert [answer.status_code for answer in answers] == [413, 413]


def test_bodies_that_are_under_way_have_room_for_others(serve: Serve, client: Client) -> None:
    greedy, other = bearer(client, "produce"), bearer(client, "produce")
    server = serve(ways=["token"], bodies=200_000)
    large = {"kind": "a", "payload": "x" * 120_000}
    with server.client() as api, halfway(server, greedy, 90_000):
        refused = api.post("/v1/jobs", json=large, headers=greedy)
        served = api.post("/v1/jobs", json={"kind": "a", "payload": "x" * 50_000}, headers=other)

    assert (refused.status_code, served.status_code) == (503, 201)


@contextmanager
def halfway(server: Serving, headers: dict[str, str], size: int) -> Iterator[None]:
    """A request whose body does not end."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("POST", "/v1/jobs")
    for name, value in (headers | {"Content-Type": "application/json"}).items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(size + 1))
    connection.endheaders()
    connection.send(b" " * size)
    until = time.monotonic() + 120
    while server.server._bodies._all < size:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield
    finally:
        connection.close()


def test_wrong_secrets_of_others_do_not_keep_a_user_out(serve: Serve, client: Client) -> None:
    token = client.tokens.create("ada", ["read"]).secret
    link = client.tokens.create("link", ["admin"], sort="link", expires=600).secret
    with serve(ways=["token"]).client() as api:
        foreign = {"Sec-Fetch-Site": "cross-site"}
        for _ in range(12):
            api.get("/sign-in", params={"link": "x"}, headers=foreign)
            api.post("/v1/session", json={"token": "hf_wrong"})
        right = api.post("/v1/session", json={"token": token})
        linked = api.post("/sign-in", params={"link": link})
        wrong = api.post("/v1/session", json={"token": "hf_wrong"})

    assert (right.status_code, linked.status_code, wrong.status_code) == (200, 303, 429)


# Queues of others.


def test_a_lease_is_of_no_use_to_a_token_of_another_queue(serve: Serve, client: Client) -> None:
    client.enqueue("send", queue="mail")
    [lease] = client.claim("mail", worker="w")
    body = {"token": str(lease.token)}
    item = body | {"id": str(lease.id), "verb": "ack"}
    with serve(ways=["token"]).client(headers=bearer(client, "consume", queues=["sms"])) as api:
        answers = [
            api.post(f"/v1/jobs/{lease.id}/ack", json=body),
            api.post(f"/v1/jobs/{lease.id}/nack", json=body),
            api.post(f"/v1/jobs/{lease.id}/release", json=body),
            api.put(f"/v1/jobs/{lease.id}/touch", json=body),
            api.post(f"/queue/message/{lease.id}/ack", json={"lock_token": str(lease.token)}),
        ]
        settled = api.post("/v1/settle", json={"items": [item]}).json()["results"]

    assert [answer.status_code for answer in answers] == [404] * 5
    assert (settled[0]["ok"], settled[0]["status"]) == (False, 404)
    assert client.queues.get("mail").leased == 1
    assert all("mail" not in answer.text for answer in answers)


def test_a_consumer_takes_no_name_of_a_worker_of_other_queues(serve: Serve, client: Client) -> None:
    client.workers.beat("w1", queues=["mail"], host="mailer")
    with serve(ways=["token"], fresh=0.0).client(
        headers=bearer(client, "consume", queues=["sms"])
    ) as api:
        taken = api.post("/v1/claims", json={"worker": "w1", "queues": ["sms"]})

    assert taken.status_code == 403
    assert "mail" not in taken.text
    [worker] = [one for one in client.workers.list() if one.worker == "w1"]
    assert (worker.queues, worker.host) == (["mail"], "mailer")


def test_a_schedule_of_another_queue_is_refused_without_its_name(
    serve: Serve, client: Client
) -> None:
    client.schedules.set("nightly", kind="send", every=60, queue="secret-queue")
    with serve(ways=["token"]).client(
        headers=bearer(client, "operate", "read", queues=["sms"])
    ) as api:
        answers = [
            api.patch("/v1/schedules/nightly", json={"paused": True}),
            api.delete("/v1/schedules/nightly"),
            api.put("/v1/schedules/nightly", json={"kind": "a", "every": 60, "queue": "sms"}),
        ]

    assert all(answer.status_code in (403, 404) for answer in answers)
    assert all("secret-queue" not in answer.text for answer in answers)


def test_nobody_claims_what_belongs_to_holdfast(api: Api) -> None:
    answer = api.post("/v1/claims", json={"worker": "w", "queues": ["holdfast.alerts"]})

    assert (answer.status_code, answer.json()["code"]) == (403, "HF211")


# Lists.


def test_a_list_shortens_headers_and_results_too(api: Api, client: Client) -> None:
    client.queues.set("default", keep_done=3600)
    job = client.enqueue("send", headers={"h": "x" * 5000}).id
    leases = client.claim(worker="w")
    client.ack(leases, ["y" * 5000])

    [listed] = api.get("/v1/jobs", params={"q": f"id:{job}"}).json()["jobs"]
    whole = api.get(f"/v1/jobs/{job}").json()

    assert (listed["headers"], listed["result"]) == (None, None)
    assert (listed["headers_size"], listed["result_size"]) == (5009, 5002)
    assert listed["result_preview"].startswith('"yyy')
    assert (len(whole["headers"]["h"]), len(whole["result"])) == (5000, 5000)


# Memory.


def test_nothing_is_kept_of_queues_that_nobody_waits_for(
    api: Api, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "FORGOTTEN", 10, raising=False)
    for nth in range(50):
        api.post("/v1/claims", json={"worker": "w", "queues": [f"q{nth}"]})

    [live] = server.server._live.values()
    assert len(live.waits._looked) <= 11


def test_a_settled_claim_is_forgotten(api: Api, server: Serving, client: Client) -> None:
    client.enqueue_many([NewJob(kind="send")] * 5)
    leases = api.post("/v1/claims", json={"worker": "w", "limit": 5}).json()["leases"]
    for lease in leases:
        api.post(f"/v1/jobs/{lease['id']}/ack", json={"token": lease["token"]})

    [live] = server.server._live.values()
    assert len(live.consumers._holders) == 0


def test_a_suggestion_is_quoted_for_the_shell(api: Api) -> None:
    name = "a; touch $(pwned) '`x`"

    answer = api.get(f"/v1/queues/{quote(name, safe='')}")

    assert (
        "holdfast queue set 'a; touch $(pwned) '\"'\"'`x`' max_attempts=3" in answer.json()["fix"]
    )


def test_the_server_answers_after_all_that(api: httpx.Client) -> None:
    assert api.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("whole", "half"),
    [(b"", b""), (b"", HEAD[:-10]), (HEAD, HEAD[:-10])],
    ids=["nothing", "half a head", "half a head after a whole one"],
)
def test_a_head_that_does_not_arrive_is_not_waited_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, whole: bytes, half: bytes
) -> None:
    server = serve()
    with ExitStack() as stack:
        if whole:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(whole)
            assert connection.recv(12) == b"HTTP/1.1 200"
        monkeypatch.setattr("holdfast.server.serve.HEADERS_WITHIN", 0.2)
        if not whole:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        connection.settimeout(30)
        connection.sendall(half)

        with suppress(ConnectionResetError):
            while connection.recv(65536):
                pass
