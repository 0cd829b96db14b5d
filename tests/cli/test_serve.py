"""`holdfast serve`, `holdfast token` and `holdfast op`."""

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from holdfast import schema
from holdfast.client import Client
from holdfast.errors import Misuse
from holdfast.records import NewJob
from tests.cli.conftest import PROGRAM, Run
from tests.conftest import Connect
from tests.plain import NO_TLS
from tests.ports import free_port


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the program until the end of the context; returns its address."""
    import os

    port = free_port()
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--port", str(port), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _until_it_answers(url, process)
        yield url, process
    finally:
        process.terminate()
        process.communicate(timeout=100)


def _until_it_answers(url: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/healthz", verify=NO_TLS, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
    raise AssertionError("it did not answer")


def test_it_serves_this_machine_and_ends_quickly_with_streams_and_claims_open(
    database: str, client: Client
) -> None:
    client.queues.set("mail")

    # Without it, it would take five seconds each time; a busy machine may do so once.
    assert any(_ends_after(database) < 4.5 for _ in range(3))


def _ends_after(database: str) -> float:
    """Run a server with a stream and a claim open; returns how long it takes to end."""
    with serving("--url", database, "--name", "prod", "--color", "#c00") as (url, process):
        me = httpx.get(f"{url}/v1/me", verify=NO_TLS).json()
        waiting = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        waiting.sendall(b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        body = b'{"worker": "w", "queues": ["mail"], "wait": 60}'
        claiming = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        claiming.sendall(
            b"POST /v1/claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert b"200" in waiting.recv(100)
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
        took = time.monotonic() - started
        waiting.close()
        claiming.close()

    assert (me["name"], me["color"], me["user"]) == ("prod", "#c00", "local")
    assert process.returncode == 0
    assert out == ""
    assert err == f"serving {url}   (this machine only)\n"
    return took


def test_it_looks_at_the_standby_and_has_the_pool_that_it_is_told(
    database: str, empty_database: str, client: Client, connect: Connect
) -> None:
    schema.migrate(empty_database)
    with Client(empty_database) as standby:
        standby.enqueue("a", queue="there")
    first = connect(autocommit=False)
    first.execute("""select holdfast.enqueue('{"kind": "a", "key": "k"}')""")
    waiting = (
        "select count(*) from pg_stat_activity"
        " where application_name = 'holdfast server' and wait_event_type = 'Lock'"
    )
    options = ("--url", database, "--read-url", empty_database, "--pool", "2", "--no-upkeep")
    with serving(*options) as (url, _), ThreadPoolExecutor(4) as threads:
        [queue] = httpx.get(f"{url}/v1/queues", verify=NO_TLS).json()["queues"]
        # All of them wait for the one that has their key and is not committed.
        job = {"kind": "a", "key": "k"}
        asked = [
            threads.submit(httpx.post, f"{url}/v1/jobs", json=job, timeout=30) for _ in range(4)
        ]
        watcher, end = connect(), time.monotonic() + 120
        while (used := watcher.execute(waiting).fetchone()) != (2,) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)  # as long as it takes for one more, if there were room
        more = watcher.execute(waiting).fetchone()
        first.commit()
        answers = [one.result().status_code for one in asked]

    assert queue["queue"] == "there"
    assert (used, more) == ((2,), (2,))
    assert answers == [200] * 4


def test_it_logs_as_json_if_asked(database: str) -> None:
    with serving("--url", database, "--log-format", "json") as (url, process):
        httpx.post(f"{url}/v1/jobs", verify=NO_TLS, json={"kind": "greet"}).raise_for_status()
        process.terminate()
        _, said = process.communicate(timeout=100)

    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    [changed] = (line for line in told if line["event"] == "changed")
    assert (changed["logger"], changed["request"]) == ("holdfast.server", "POST /v1/jobs")


def test_a_public_address_without_authentication_is_refused(holdfast: Run) -> None:
    refused = holdfast("serve", "--host", "0.0.0.0")

    assert refused.code == 5
    assert refused.err.startswith(
        "HF400 refusing to listen on 0.0.0.0 without authentication\n"
        "      holdfast token create --scope admin     or   --auth basic"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--auth", "nonsense"], "--auth nonsense is unknown"),
        (["--auth", "basic"], "--auth basic needs users"),
        (["--roles", "ada=king"], "ada=king is not a name and a role"),
        (["--proxies", "home"], "'home' is not an address"),
        (["--redact", "nonsense"], "'nonsense' is not a path to redact"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    holdfast: Run, arguments: list[str], told: str
) -> None:
    refused = holdfast("serve", *arguments)

    assert refused.code == 2
    assert told in refused.err


def test_a_port_that_is_taken_is_told(holdfast: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = holdfast("serve", "--port", taken.getsockname()[1])

    assert refused.code == 1
    assert "HF405 cannot listen on 127.0.0.1:" in refused.err


@pytest.mark.proves("S4.29", "S4.30", "S4.35")
def test_the_environment_names_of_relay_are_understood(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from holdfast import server
    from holdfast.cli import main

    made: list[server.Settings] = []

    def seen(url: str, *, settings: server.Settings, source: str) -> None:
        made.append(settings)
        raise Misuse("seen")

    monkeypatch.setattr(server, "Server", seen)
    names = {
        "OVERDUE_CHECK_INTERVAL_MS": "5000",
        "ACK_TIMEOUT_SECONDS": "45",
        "POSTGRES_POOL_SIZE": "7",
    }
    arguments = ["serve", "--url", database]
    CliRunner().invoke(main, arguments)
    CliRunner().invoke(main, arguments, env=names)
    wrong = CliRunner().invoke(main, arguments, env={"POSTGRES_POOL_SIZE": "x"})

    told = [(one.upkeep_every, one.ack_timeout, one.pool_size) for one in made]
    assert told == [(1.0, None, 10), (2.5, 45.0, 7)]
    assert wrong.exit_code == 2
    assert "POSTGRES_POOL_SIZE" in wrong.output


def test_an_old_database_is_not_served(run: Run, empty_database: str) -> None:
    refused = run("serve", "--url", empty_database)

    assert refused.code == 4
    assert refused.err.startswith("HF110")


def test_where_tokens_exist_a_public_address_asks_for_one(
    database: str, client: Client, program: Run
) -> None:
    secret = client.tokens.create("php", ["read"]).secret
    with serving("--url", database, "--host", "0.0.0.0") as (url, process):
        nobody = httpx.get(f"{url}/v1/queues", verify=NO_TLS)
        somebody = httpx.get(
            f"{url}/v1/queues", verify=NO_TLS, headers={"Authorization": f"Bearer {secret}"}
        )
        process.terminate()
        _, err = process.communicate(timeout=100)

    [link] = re.findall(r"\S+/sign-in\?link=\S+", err)
    assert (nobody.status_code, somebody.status_code) == (401, 200)
    assert link.startswith("http://0.0.0.0:")


def test_the_printed_link_signs_in(database: str) -> None:
    with serving("--url", database, "--auth", "token") as (url, process):
        # What was said so far is read without waiting for the end.
        assert process.stderr is not None
        process.stderr.readline()
        link = process.stderr.readline().split()[-1]
        with httpx.Client(follow_redirects=False) as browser:
            signed_in = browser.post(link)
            inside = browser.get(f"{url}/v1/queues")

    assert (signed_in.status_code, inside.status_code) == (303, 200)


@pytest.mark.proves("S4x.7")
def test_options_come_from_the_environment_and_are_named_when_they_are_wrong(
    database: str, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"HOLDFAST_SERVE_READ_ONLY": "1", "HOLDFAST_SERVE_NAME": "prod"}
    with serving("--url", database, **told) as (url, _):
        me = httpx.get(f"{url}/v1/me", verify=NO_TLS).json()
    monkeypatch.setenv("HOLDFAST_SERVE_PORT", "many")
    monkeypatch.setenv("HOLDFAST_WORKER_GRACE", "soon")
    refused = holdfast("serve")
    refused_worker = holdfast("worker", "app.py")

    assert (me["name"], me["read_only"]) == ("prod", True)
    assert refused.code == 2
    assert "'many'" in refused.err
    assert "HOLDFAST_SERVE_PORT" in refused.err
    assert refused_worker.code == 2
    assert "'soon'" in refused_worker.err
    assert "HOLDFAST_WORKER_GRACE" in refused_worker.err


@pytest.mark.proves("S4x.7")
def test_names_and_passwords_come_from_the_environment(database: str) -> None:
    users = "ada:secret:admin,bob:pass:word:viewer"
    with serving("--url", database, "--auth", "basic", HOLDFAST_BASIC=users) as (url, _):
        answers = [
            httpx.get(f"{url}/v1/me", verify=NO_TLS, auth=auth).json()
            for auth in (("ada", "secret"), ("bob", "pass:word"))
        ]

    assert [(one["user"], "admin" in one["scopes"]) for one in answers] == [
        ("ada", True),
        ("bob", False),
    ]


def test_a_token_is_made_listed_and_revoked(holdfast: Run, client: Client) -> None:
    made = holdfast(
        "token", "create", "--scope", "produce,consume", "--queue", "mail", "--expires", "90d",
        "--name", "php",
    )  # fmt: skip
    by_role = holdfast("token", "create", "--role", "viewer", "--json")
    listed = holdfast("token", "list")
    found = client.tokens.check(made.out.strip())
    assert found is not None
    revoked = holdfast("token", "revoke", found.id)
    unknown = holdfast("token", "revoke", "nosuch")
    after = holdfast("token", "list", "--json")

    assert (found.name, found.scopes, found.queues) == ("php", ["produce", "consume"], ["mail"])
    assert by_role.json["scopes"] == ["read"]
    assert "php" in listed.out
    assert made.out.strip() not in listed.out
    assert revoked.out == f"{found.id} revoked\n"
    assert (unknown.code, unknown.err.split()[0]) == (1, "HF315")
    assert [one["revoked_at"] is None for one in after.json] == [True, False]
    assert client.tokens.check(made.out.strip()) is None


@pytest.mark.parametrize(
    "arguments", [[], ["--scope", "nonsense"], ["--scope", "read", "--role", "viewer"]]
)
def test_a_token_needs_known_scopes_or_a_role(holdfast: Run, arguments: list[str]) -> None:
    assert holdfast("token", "create", *arguments).code == 2


@pytest.fixture
def dead(client: Client) -> None:
    client.enqueue_many(NewJob(kind="send", queue="mail", max_attempts=1) for _ in range(30))
    client.nack(client.claim("mail", worker="w", limit=100), message="boom")


def test_an_operation_is_previewed_started_and_followed(
    holdfast: Run, client: Client, dead: Any
) -> None:
    preview = holdfast("op", "start", "retry", "kind:send", "--preview")
    unasked = holdfast("op", "start", "retry", "kind:send")
    canary = holdfast("op", "start", "retry", "kind:send", "--limit", 10, "--yes", "--wait")
    rest = holdfast("op", "start", "retry", "kind:send", "--yes")
    shown = holdfast("op", "show", 5, "--wait")
    listed = holdfast("op", "list", "--json")

    assert preview.out == "30 jobs matching kind:send state:dead,cancelled\n"
    assert (unasked.code, unasked.err.split()[0]) == (5, "HF401")
    assert canary.out == "operation 3  retry  done  10/10 jobs\n"
    assert rest.out == "operation 4  retry  running  0/20 jobs\n"
    assert (shown.code, shown.err.split()[0]) == (1, "HF314")
    assert [one["id"] for one in listed.json] == [4, 3]
    assert holdfast("op", "show", 4, "--wait").out == "operation 4  retry  done  20/20 jobs\n"
    assert client.queues.get("mail").queued == 30


def test_an_operation_is_undone(holdfast: Run, client: Client, dead: Any) -> None:
    done = holdfast("op", "start", "retry", "kind:send", "--yes", "--wait", "--json").json
    id = done["id"]

    unasked = holdfast("op", "undo", id)
    undone = holdfast("op", "undo", id, "--yes", "--wait", "--reason", "wrong group")
    again = holdfast("op", "undo", id, "--yes")
    unknown = holdfast("op", "undo", 4711)

    assert done["undoable"] == 30
    assert unasked.code == 5
    assert "this would undo retry of 30 jobs matching kind:send state:dead,cancelled" in unasked.err
    assert undone.out == f"operation {id + 1}  undo  done  30/30 jobs\n"
    assert client.queues.get("mail").dead == 30
    assert again.code == 2
    assert f"HF409 operation {id} cannot be undone: it was already undone" in again.err
    assert unknown.code == 1


def test_an_operation_is_stopped(holdfast: Run, client: Client, dead: Any) -> None:
    started = holdfast("op", "start", "retry", "state:dead", "--rate", 1, "--yes", "--json").json
    client.operations.step()

    stopped = holdfast("op", "cancel", started["id"])
    again = holdfast("op", "cancel", started["id"])

    assert stopped.out == f"operation {started['id']}  retry  cancelled  1/30 jobs\n"
    assert again.code == 0
    assert client.queues.get("mail").dead == 29
