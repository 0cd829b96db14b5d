"""A real nginx and a real HAProxy in front, set up as docs/how-to/serve.md says."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from holdfast import Client
from holdfast.server import Server, Settings
from tests.ports import free_port
from tests.server.serving import Serving, serving

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
HOST = "jobs.example.com"
NOBODY = 65534
ADA, BOB = ("ada", "one"), ("bob", "two")
Start = Callable[..., httpx.Client]


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt install {name})")
    return found


def documented(language: str) -> str:
    """The set-up on the page, which has one of each."""
    [text] = re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return str(text)


def swapped(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, f"the page does not say {old!r}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def nginx(here: Path, port: int, behind: int, *, bare: bool) -> list[str]:
    text = swapped(
        documented("nginx"),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/jobs.pem", f"{here}/jobs.pem"),
        ("/etc/ssl/jobs.key", f"{here}/jobs.pem"),
        ("/etc/nginx/people", f"{here}/people"),
        ("127.0.0.1:7717", f"127.0.0.1:{behind}"),
    )
    if bare:
        text = re.sub(
            r"^ +(proxy_set_header|proxy_http_version|auth_basic).*\n", "", text, flags=re.MULTILINE
        )
    (here / "people").write_text("".join(f"{name}:{{PLAIN}}{word}\n" for name, word in (ADA, BOB)))
    paths = "".join(
        f"{kind}_temp_path {here}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (here / "conf").write_text(
        f"daemon off; master_process off; pid {here}/pid; error_log {here}/log;\n"
        f"events {{}}\nhttp {{ access_log off;\n{paths}{text}}}\n"
    )
    return [program("nginx"), "-p", str(here), "-c", str(here / "conf"), "-e", str(here / "log")]


def haproxy(here: Path, port: int, behind: int, *, bare: bool) -> list[str]:
    people = "".join(f"    user {name} insecure-password {word}\n" for name, word in (ADA, BOB))
    text = swapped(
        documented("haproxy"),
        ("bind :443", f"bind 127.0.0.1:{port}"),
        ("/etc/ssl/jobs.pem", f"{here}/jobs.pem"),
        ("    user ada insecure-password change-me\n", people),
        ("127.0.0.1:7717", f"127.0.0.1:{behind}"),
    )
    if bare:
        text = re.sub(r"^ +(http-request|option forwardfor).*\n", "", text, flags=re.MULTILINE)
    (here / "conf").write_text(text)
    return [program("haproxy"), "-db", "-q", "-f", str(here / "conf")]


@pytest.fixture(params=[nginx, haproxy], ids=["nginx", "haproxy"])
def start(request: pytest.FixtureRequest, authority: trustme.CA, database: str) -> Iterator[Start]:
    """Puts a proxy in front of a server, and returns a client of the proxy."""
    program(request.param.__name__)
    with ExitStack() as stack:

        def started(
            *, bare: bool = False, host: str = HOST, user: int | None = None, **settings: Any
        ) -> httpx.Client:
            if user is not None and os.geteuid() != 0:
                pytest.skip("only root can run a proxy as another user")
            # Not pytest's directory, which other users cannot enter.
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = Server(database, settings=Settings(**settings))
            behind: Serving = stack.enter_context(serving(server))
            authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
                place / "jobs.pem"
            )
            port = free_port()
            command = request.param(place, port, behind.port, bare=bare)
            for path in (place, *place.rglob("*")):
                os.chown(path, -1 if user is None else user, -1)
            running = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, user=user
            )
            stack.callback(lambda: (running.terminate(), running.communicate(timeout=100)))
            context = ssl.create_default_context()
            authority.configure_trust(context)
            until = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert running.poll() is None, running.communicate()
                    assert time.monotonic() < until
                    time.sleep(0.02)
            return stack.enter_context(
                httpx.Client(
                    base_url=f"https://localhost:{port}",
                    headers={"Host": host},
                    verify=context,
                    timeout=100,
                )
            )

        yield started


@pytest.fixture
def proxied(start: Start) -> httpx.Client:
    """The set-up of the page."""
    return start(
        ways=("proxy", "token"),
        proxies=("127.0.0.1",),
        proxy_roles={"ada": "admin", "*": "viewer"},
        hosts=(HOST,),
        fresh=0.0,
    )


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


def test_the_proxy_names_people_and_nobody_names_themselves(
    proxied: httpx.Client, client: Client
) -> None:
    forged = {"X-Forwarded-User": "ada"}
    token = client.tokens.create("php", ["read"], queues=["mail"])
    bearer = {"Authorization": f"Bearer {token.secret}"}

    def me(**options: Any) -> tuple[str, str, bool]:
        found = proxied.get("/v1/me", **options).json()
        return found["user"], found["via"], "admin" in found["scopes"]

    assert me(auth=ADA) == ("ada", "proxy", True)
    assert me(auth=BOB) == ("bob", "proxy", False)
    assert me(auth=BOB, headers=forged) == ("bob", "proxy", False)
    assert me(headers=bearer) == ("php", "token", False)
    assert me(headers=bearer | forged) == ("php", "token", False)
    wrong = {"Authorization": "Bearer hf_wrong"}
    for options in ({}, {"headers": forged}, {"auth": ("ada", "x")}, {"headers": wrong | forged}):
        assert proxied.get("/v1/queues", **options).status_code == 401
    assert proxied.post("/v1/jobs", json={"kind": "a"}, auth=BOB).status_code == 403
    assert proxied.post("/v1/jobs", json={"kind": "a"}, auth=ADA).status_code == 201


def test_tls_ends_at_the_proxy_and_cookies_know_it(proxied: httpx.Client, client: Client) -> None:
    token = client.tokens.create("ada", ["read"])
    bearer = {"Authorization": f"Bearer {token.secret}"}

    signed_in = proxied.post("/v1/session", json={"token": token.secret}, auth=BOB)
    foreign = proxied.get("/v1/queues", headers=bearer | {"Host": "evil.example"})
    with httpx.Client(base_url=proxied.base_url.copy_with(scheme="http")) as plain:
        try:
            served = plain.get("/v1/me", auth=ADA).status_code == 200
        except httpx.HTTPError:
            served = False

    assert signed_in.status_code == 200
    assert "secure" in signed_in.headers["set-cookie"].lower().split("; ")
    assert foreign.status_code == 421
    assert not served


def test_a_stream_tells_what_happens_when_it_happens(proxied: httpx.Client, client: Client) -> None:
    client.queues.set("mail")
    with proxied.stream("GET", "/v1/events/stream", auth=ADA) as stream:
        lines = stream.iter_lines()
        assert "hello" in next(line for line in lines if line.startswith("event:"))
        client.enqueue("a", queue="mail")
        # A proxy that held it back would give it only with what comes after.
        assert "tick" in next(line for line in lines if line.startswith("event: tick"))


def test_a_claim_waits_behind_the_proxy_and_the_proxy_for_the_claim(
    proxied: httpx.Client, client: Client
) -> None:
    asked = {"queues": ["mail"], "worker": "w", "wait": 50}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(proxied.post, "/v1/claims", json=asked, auth=ADA)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        job = client.enqueue("a", queue="mail")
        claimed = waiting.result(45).json()

    assert [lease["id"] for lease in claimed["leases"]] == [str(job.id)]
    # The longest wait of a claim is 60 s.
    for language in ("nginx", "haproxy"):
        told = re.findall(
            r"(?:read_timeout|timeout client|timeout server) (\d+)s", documented(language)
        )
        assert told
        assert all(int(seconds) > 60 for seconds in told)


def is_closed(through: httpx.Client) -> bool:
    answers = [
        through.get(path, auth=auth).status_code
        for path in ("/v1/queues", "/v1/tokens")
        for auth in (None, ADA)
    ]
    return set(answers) <= {401, 403, 421}


@pytest.mark.parametrize("host", [HOST, "localhost", "127.0.0.1"])
def test_an_open_server_is_closed_to_whoever_comes_through_a_proxy(start: Start, host: str) -> None:
    assert is_closed(start(host=host))


def test_an_open_server_is_closed_to_whoever_comes_through_a_proxy_that_adds_nothing(
    start: Start,
) -> None:
    assert is_closed(start(bare=True))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_proxy_of_another_user_shows_by_its_user_whatever_it_forwards(
    start: Start, host: str
) -> None:
    assert is_closed(start(bare=True, host=host, user=NOBODY))


@pytest.mark.parametrize("start", [nginx], ids=["nginx"], indirect=True)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_nginx_that_adds_nothing_shows_by_its_version_of_http(start: Start, host: str) -> None:
    assert is_closed(start(bare=True, host=host))
