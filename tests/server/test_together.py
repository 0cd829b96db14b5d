"""Requests that share one call of the database: each answer is exactly its own."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from holdfast import AsyncClient, Client
from holdfast.client.aio.together import AsyncTogether
from holdfast.client.statement import Statement
from holdfast.errors import Misuse, Unavailable
from holdfast.records import Claim, Lease
from holdfast.server.live import together
from holdfast.server.live.together import AT_ONCE, Together
from holdfast.server.serve import _Protocol
from tests.conftest import Connect
from tests.server.conftest import Api, Serve
from tests.server.serving import Serving

Gather = Callable[[int], None]
Send = Callable[..., "Future[httpx.Response]"]


class Database:
    """Answers n with -n, when it is let; `bad` ones make a call fail."""

    def __init__(self, bad: Sequence[int] = (), error: Exception | None = None) -> None:
        self.bad = set(bad)
        self.error = error or Misuse("bad")
        self.calls: list[list[int]] = []
        self.unwanted: list[int] = []
        self.open = asyncio.Event()
        self.together: Together[int, int] = Together(
            self.alone, self.many, same=lambda one: one % 100, unwanted=self.forget
        )

    async def alone(self, one: int) -> int:
        return (await self.many([one]))[0]

    async def many(self, some: Sequence[int]) -> list[int]:
        self.calls.append(list(some))
        await self.open.wait()
        if self.bad & set(some):
            raise self.error
        return [-one for one in some]

    async def forget(self, answers: Sequence[int]) -> None:
        self.unwanted += answers

    async def ask(self, *some: int) -> list["asyncio.Task[int]"]:
        """Ask for each, one after the other: none arrives at the same moment as another."""
        asked = []
        for one in some:
            asked.append(asyncio.ensure_future(self.together.ask(one)))
            await turns()
        return asked


async def turns() -> None:
    """Let everything that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_few_requests_make_their_own_calls_at_once() -> None:
    async def scenario() -> None:
        database = Database()

        asked = await database.ask(*range(AT_ONCE))

        assert database.calls == [[n] for n in range(AT_ONCE)]
        database.open.set()
        assert await asyncio.gather(*asked) == [-n for n in range(AT_ONCE)]

    asyncio.run(scenario())


def test_those_that_arrive_meanwhile_share_one_call() -> None:
    async def scenario() -> None:
        database = Database()

        asked = await database.ask(*range(20))
        database.open.set()
        answers = await asyncio.gather(*asked)

        assert answers == [-n for n in range(20)]
        assert database.calls[AT_ONCE:] == [list(range(AT_ONCE, 20))]

    asyncio.run(scenario())


def test_those_that_arrive_at_the_same_moment_share_one_call() -> None:
    async def scenario() -> None:
        database = Database()
        database.open.set()

        answers = await asyncio.gather(*(database.together.ask(n) for n in range(5)))

        assert answers == [0, -1, -2, -3, -4]
        assert database.calls == [[0, 1, 2, 3, 4]]

    asyncio.run(scenario())


def test_an_error_reaches_only_the_request_that_caused_it() -> None:
    async def scenario() -> None:
        database = Database(bad=[11, 17])
        database.open.set()

        asked = (database.together.ask(n) for n in range(20))
        answers = await asyncio.gather(*asked, return_exceptions=True)

        assert [n for n, answer in enumerate(answers) if answer == -n] == [
            n for n in range(20) if n not in database.bad
        ]
        assert [type(answers[n]) for n in (11, 17)] == [Misuse, Misuse]

    asyncio.run(scenario())


def test_a_database_that_is_away_is_asked_once_for_all() -> None:
    async def scenario() -> None:
        database = Database(bad=[0], error=Unavailable("away"))
        database.open.set()

        asked = (database.together.ask(n) for n in range(5))
        answers = await asyncio.gather(*asked, return_exceptions=True)

        assert [type(answer) for answer in answers] == [Unavailable] * 5
        assert len(database.calls) == 1

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_takes_no_other_with_it() -> None:
    async def scenario() -> None:
        database = Database()
        asked = await database.ask(*range(AT_ONCE + 3))

        asked[0].cancel()  # its own call is under way
        asked[AT_ONCE].cancel()  # it waits
        await turns()
        asked[AT_ONCE + 1].cancel()  # the shared call is under way
        await turns()
        database.open.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await turns()

        assert database.calls[AT_ONCE:] == [[AT_ONCE + 1, AT_ONCE + 2]]
        assert answers[1:AT_ONCE] == [-n for n in range(1, AT_ONCE)]
        assert answers[-1] == -(AT_ONCE + 2)
        assert database.unwanted == [-(AT_ONCE + 1)]

    asyncio.run(scenario())


def test_the_first_of_several_can_be_cancelled_before_they_start() -> None:
    async def scenario() -> None:
        database = Database()
        database.open.set()
        asked = [asyncio.ensure_future(database.together.ask(n)) for n in range(3)]
        await asyncio.sleep(0)

        asked[0].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)

        assert answers[1:] == [-1, -2]
        assert isinstance(answers[0], asyncio.CancelledError)

    asyncio.run(scenario())


def test_two_about_the_same_never_share_a_call() -> None:
    async def scenario() -> None:
        database = Database()
        database.open.set()

        answers = await asyncio.gather(*(database.together.ask(n) for n in (1, 2, 101, 3)))

        assert answers == [-1, -2, -101, -3]
        assert database.calls == [[1, 2], [101, 3]]

    asyncio.run(scenario())


def test_nobody_waits_for_long_for_a_call_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "PATIENCE", 0.001)

    async def scenario() -> None:
        database = Database()
        hanging = await database.ask(*range(AT_ONCE))
        database.open = asyncio.Event()
        database.open.set()

        assert await database.together.ask(50) == -50
        assert not any(one.done() for one in hanging)
        for one in hanging:
            one.cancel()

    asyncio.run(scenario())


@pytest.fixture
def gather(monkeypatch: pytest.MonkeyPatch) -> Gather:
    """Has requests share a call as soon as a number of them wait, and never before."""
    wanted = 0

    def watch(self: Any, key: Any, line: Any) -> None:
        lines = dict(self._lines)
        if sum(len(line.waiting) for line in lines.values()) == wanted:
            for key, line in lines.items():
                self._start(key, line)

    def gather(many: int) -> None:
        nonlocal wanted
        wanted = many

    monkeypatch.setattr(together, "AT_ONCE", 0)
    monkeypatch.setattr(Together, "_watch", watch)
    return gather


@pytest.fixture
def send(api: Api) -> Iterator[Send]:
    """Sends a request in a thread of its own."""
    with ThreadPoolExecutor(10) as threads:
        yield lambda path, body, to=api, **more: threads.submit(to.post, path, json=body, **more)


def waiting(server: Serving) -> int:
    """Return how many claims wait to share a call."""
    lines = [line for live in server.server._live.values() for line in claims_of(live).values()]
    return sum(len(line.waiting) for line in lines)


def claims_of(live: Any) -> dict[Any, Any]:
    return dict(live.calls._claims._lines)


def eventually(true: Callable[[], Any]) -> Any:
    """Return what is true as soon as it is."""
    until = time.monotonic() + 30
    while not (found := true()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def one_lease(client: Client, queue: str = "default") -> tuple[UUID, UUID]:
    client.enqueue("a", queue=queue)
    [lease] = client.claim(queue, worker="w")
    return lease.id, lease.token


def test_one_bad_ack_among_good_ones_is_the_only_one_refused(
    gather: Gather, send: Send, client: Client
) -> None:
    held = [one_lease(client) for _ in range(4)]
    client.ack([held[2]])
    gather(5)

    def ack(id: UUID, token: UUID) -> "Future[httpx.Response]":
        return send(f"/v1/jobs/{id}/ack", {"token": str(token)})

    good = ack(*held[0])
    lost = ack(held[1][0], uuid4())
    again = ack(*held[2])
    unknown = ack(uuid4(), uuid4())
    garbled = send(f"/v1/jobs/{held[3][0]}/ack", {"token": "x"})
    answers = [sent.result(30) for sent in (good, lost, again, garbled)]

    assert [answer.status_code for answer in answers] == [200, 409, 200, 409]
    assert answers[0].json() == {"id": str(held[0][0]), "state": "done"}
    assert answers[2].json() == {"id": str(held[2][0]), "state": "done", "already": True}
    assert unknown.result(30).status_code == 404
    assert client.jobs.get(held[1][0]).state == "leased"


def test_jobs_that_are_acked_in_a_shared_call_are_found_when_they_are_done(
    gather: Gather, send: Send, client: Client
) -> None:
    held = [one_lease(client) for _ in range(3)]
    gather(3)

    sent = [send(f"/v1/jobs/{id}/ack", {"token": str(token)}) for id, token in held]
    answers = [one.result(30).json()["state"] for one in sent]

    assert answers == ["done"] * 3
    assert sorted(client.jobs.find("state:done")) == sorted(id for id, _ in held)


def test_one_bad_job_among_good_ones_is_the_only_one_refused(
    gather: Gather, send: Send, client: Client
) -> None:
    client.queues.set("small", payload_limit=100)
    gather(3)

    sent = [
        send("/v1/jobs", {"kind": "a", "queue": "small", "payload": {"text": "x" * size}})
        for size in (10, 1000, 20)
    ]
    answers = [one.result(30) for one in sent]

    assert [answer.status_code for answer in answers] == [201, 413, 201]
    stored = {str(job.id): len(job.payload["text"]) for job in client.jobs.list("queue:small")}
    assert stored == {answers[0].json()["id"]: 10, answers[2].json()["id"]: 20}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many claims shared each call, for servers that start after it."""
    made: list[int] = []
    claim = AsyncTogether.claim

    async def counted(self: AsyncTogether, claims: Sequence[Any]) -> Any:
        made.append(len(claims))
        return await claim(self, claims)

    monkeypatch.setattr(AsyncTogether, "claim", counted)
    return made


def test_claims_together_give_each_worker_its_own_lease(
    made: list[int], gather: Gather, send: Send, client: Client
) -> None:
    for _ in range(2):
        client.enqueue("a")
    gather(3)

    sent = {name: send("/v1/claims", {"worker": name}) for name in ("ada", "bob", "cyd")}
    leases = {name: one.result(30).json()["leases"] for name, one in sent.items()}

    assert made == [3]
    assert sorted(len(some) for some in leases.values()) == [0, 1, 1]
    told = [(lease["worker"], name) for name, some in leases.items() for lease in some]
    assert all(worker == name for worker, name in told)
    assert len({lease["token"] for some in leases.values() for lease in some}) == 2


def test_a_claim_that_was_made_twice_gets_all_that_its_token_holds(
    client: Client, database: str
) -> None:
    """Its first reply was lost, and it was sent again before the first was committed."""
    twice, other = Claim("default", "ada"), Claim("default", "bob")
    jobs = [client.enqueue("a").id for _ in range(2)]
    for _ in jobs:
        client.claim(worker="ada", token=twice.token)

    async def scenario() -> list[list[Lease]]:
        async with AsyncClient(database) as own:
            door = own.together._door

            class Cut:
                durable = False

                async def run(self, statement: Statement) -> Any:
                    assert statement.again is not None
                    return await door.run(statement.again)

            return await AsyncTogether(Cut()).claim([twice, other])  # type: ignore[arg-type]

    leases = asyncio.run(scenario())

    assert [[lease.id for lease in some] for some in leases] == [jobs, []]


def test_claims_for_other_jobs_or_times_never_share_a_call(
    gather: Gather, send: Send, client: Client
) -> None:
    client.enqueue("a")
    client.enqueue("b")
    gather(2)

    a = send("/v1/claims", {"worker": "ada", "kinds": ["a"], "lease": 60})
    b = send("/v1/claims", {"worker": "bob", "kinds": ["b"], "lease": 90})

    assert [(x["kind"], x["length"]) for x in a.result(30).json()["leases"]] == [("a", 60)]
    assert [(x["kind"], x["length"]) for x in b.result(30).json()["leases"]] == [("b", 90)]


def test_a_shared_call_does_only_what_each_caller_may(
    gather: Gather, serve: Serve, client: Client
) -> None:
    server = serve(fresh=0.0, ways=("token",), hosts=("*",))
    every = client.tokens.create("all", scopes=["consume", "produce"])
    mail = client.tokens.create("mail", scopes=["consume", "produce"], queues=["mail"])
    theirs, own = one_lease(client, "other"), one_lease(client, "mail")
    gather(2)

    def ack(secret: str, held: tuple[UUID, UUID]) -> httpx.Response:
        with server.client(headers={"Authorization": f"Bearer {secret}"}) as api:
            return api.post(f"/v1/jobs/{held[0]}/ack", json={"token": str(held[1])})

    refused = ack(mail.secret, theirs)
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(ack, mail.secret, own), threads.submit(ack, every.secret, theirs)]
        answers = [one.result(30).status_code for one in sent]

    assert refused.status_code == 404
    assert answers == [200, 200]


def test_a_job_that_is_locked_holds_up_nobody_else(
    gather: Gather, send: Send, client: Client, connect: Connect
) -> None:
    locked, free = one_lease(client), one_lease(client)
    gather(2)
    with connect() as holder:
        holder.execute("begin")
        holder.execute("select from holdfast.job where id = %s for update", [locked[0]])

        waits = send(f"/v1/jobs/{locked[0]}/ack", {"token": str(locked[1])})
        goes = send(f"/v1/jobs/{free[0]}/ack", {"token": str(free[1])})

        assert goes.result(30).json()["state"] == "done"
        assert not waits.done()
        holder.rollback()
    assert waits.result(30).json()["state"] == "done"


def test_the_jobs_of_a_client_that_hung_up_go_back(
    gather: Gather, send: Send, server: Serving, client: Client
) -> None:
    jobs = {client.enqueue("a").id, client.enqueue("a").id}
    gather(2)
    body = b'{"worker": "gone"}'
    with socket.create_connection(("127.0.0.1", server.port)) as hung:
        hung.sendall(
            b"POST /v1/claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        eventually(lambda: waiting(server) == 1)
    eventually(lambda: _Protocol.near.total() == 0)

    [lease] = send("/v1/claims", {"worker": "stays"}).result(30).json()["leases"]

    [back] = jobs - {UUID(lease["id"])}
    [again] = eventually(lambda: client.claim(worker="next"))
    assert (again.id, again.attempt) == (back, 1)


def test_a_hundred_clients_at_once_each_do_their_own_jobs(server: Serving, client: Client) -> None:
    many = 100
    sent = [client.enqueue("a", {"n": n}).id for n in range(many)]

    async def one(api: httpx.AsyncClient, n: int) -> tuple[str, str]:
        answer = await api.post("/v1/claims", json={"worker": f"w{n}"})
        [lease] = answer.json()["leases"]
        assert lease["worker"] == f"w{n}"
        acked = await api.post(f"/v1/jobs/{lease['id']}/ack", json={"token": lease["token"]})
        assert acked.json() == {"id": lease["id"], "state": "done"}
        stored = await api.post("/v1/jobs", json={"kind": "b", "payload": {"n": n}})
        assert stored.status_code == 201
        return lease["id"], stored.json()["id"]

    async def all_of_them() -> list[tuple[str, str]]:
        limits = httpx.Limits(max_connections=many)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as api:
            return await asyncio.gather(*(one(api, n) for n in range(many)))

    done = asyncio.run(all_of_them())

    assert sorted(id for id, _ in done) == sorted(map(str, sent))
    left = {str(job.id): job.payload["n"] for job in client.jobs.list("state:queued", limit=500)}
    assert left == {id: n for n, (_, id) in enumerate(done)}
