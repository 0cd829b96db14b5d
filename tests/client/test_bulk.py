"""Very many jobs: sent by COPY where nothing has to be decided, with the answers of enqueue."""

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast import AsyncClient, Client, InvalidJob, NewJob
from holdfast.client.aio import storing as aio
from holdfast.client.rows import CopySettings, Rows
from holdfast.client.statement import Statement
from holdfast.client.sync import storing as sync
from holdfast.errors import HoldfastError, PayloadTooLarge

MANY = aio._BULK


def jobs(number: int = MANY, **options: Any) -> list[NewJob]:
    return [NewJob(kind="greet", payload={"n": n}, **options) for n in range(number)]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was sent, as `enqueue` or `copied`: the names of the client's statements."""
    names: list[str] = []

    def statement(name: str, *arguments: Any, **more: Any) -> Any:
        names.append(name)
        return Statement(name, *arguments, **more)

    for module in (aio, sync):
        monkeypatch.setattr(module, "Statement", statement)
    return names


def test_many_plain_jobs_are_copied_and_answered_one_by_one(
    client: Client, connect: Any, sent: list[str]
) -> None:
    answers = client.enqueue_many(jobs())

    assert sent[-1] == "copied"
    assert all(one.created and one.behind is None for one in answers)
    stored = dict(connect().execute("select id, (payload ->> 'n')::int from holdfast.job"))
    assert [stored[one.id] for one in answers] == list(range(MANY))
    assert client.queues.get("default").queued == MANY
    assert [one.payload["n"] for one in client.claim(worker="w", limit=3)] == [0, 1, 2]


@pytest.mark.parametrize("options", [{"key": "k"}, {"lane": "l"}, {"delay": 0}, {"lease": 5}])
def test_jobs_that_need_a_decision_are_enqueued(
    client: Client, sent: list[str], options: dict[str, Any]
) -> None:
    client.enqueue_many([*jobs(), NewJob(kind="greet", **options)])

    assert set(sent) == {"enqueue"}


def test_jobs_of_a_queue_at_its_limit_say_what_they_wait_for(client: Client) -> None:
    client.queues.set("default", limit=1)
    client.enqueue("first")
    [held] = client.claim(worker="w")

    answers = client.enqueue_many(jobs())

    assert {one.behind for one in answers} == {held.id}


def test_jobs_of_a_fanned_out_queue_have_the_ids_they_are_stored_under(client: Client) -> None:
    client.queues.set("wide", fanout=4)

    answers = client.enqueue_many(jobs(queue="wide"))

    assert {one.id for one in answers} == {
        one.id for one in client.jobs.list("queue:wide", limit=MANY)
    }


def test_one_bad_job_of_many_stores_none(client: Client) -> None:
    with pytest.raises(PayloadTooLarge, match=r"payload of item 1001 \(greet\) is"):
        client.enqueue_many([*jobs(), NewJob(kind="greet", payload="x" * 300_000)])
    with pytest.raises(InvalidJob, match="priority 11"):
        client.enqueue_many([*jobs(), NewJob(kind="greet", priority=11)])

    assert client.jobs.count("kind:greet").jobs == 0


def test_many_jobs_on_the_callers_connection_leave_its_transaction_whole(
    database: str, connect: Any
) -> None:
    with Client(database) as client:
        with connect(autocommit=False) as connection:
            client.on(connection).enqueue_many(jobs())
            with pytest.raises(InvalidJob), connection.transaction():
                client.on(connection).enqueue_many([*jobs(), NewJob(kind="", payload={})])

        assert client.jobs.count("kind:greet").jobs == MANY


def test_many_jobs_of_several_queues_and_headers_arrive_as_they_were(client: Client) -> None:
    odd = "tab\t, line\n, slash \\ and \u20ac"
    mixed = [
        NewJob(kind=f"k{n % 3}", queue=f"q{n % 2}", payload=[odd], headers={"h": odd}, subject=odd)
        for n in range(MANY)
    ]

    client.enqueue_many(mixed)

    [found] = client.jobs.list("queue:q1", limit=1)
    assert (found.payload, found.headers, found.subject) == ([odd], {"h": odd}, odd)
    assert {one.queue: one.queued for one in client.queues.list()} == {
        "q0": MANY // 2,
        "q1": MANY // 2,
    }


def test_a_role_that_may_only_call_functions_can_store_many(
    client: Client, connect: Any, database: str, make_client: Any
) -> None:
    connection = connect()
    connection.execute("drop role if exists caller_only")
    connection.execute("create role caller_only login")
    connection.execute("grant usage on schema holdfast to caller_only")
    connection.execute("grant execute on function holdfast.enqueue(jsonb, boolean) to caller_only")
    connection.execute("grant select on holdfast.queues to caller_only")
    try:
        url = psycopg.conninfo.make_conninfo(database, user="caller_only")
        assert len(make_client(url).enqueue_many(jobs())) == MANY
        assert client.jobs.count("kind:greet").jobs == MANY
    finally:
        connection.execute("drop owned by caller_only")
        connection.execute("drop role caller_only")


def test_whatever_ends_a_copy_is_raised_as_it_is(client: Client) -> None:
    def broken() -> Any:
        yield from jobs(3)
        raise RuntimeError("x" * 100_000)

    with pytest.raises(RuntimeError, match="x" * 100_000):
        client.copy(broken())
    with pytest.raises(InvalidJob, match="is 100000 characters long, the limit is 200"):
        client.copy([*jobs(600), NewJob(kind="x" * 100_000)])

    assert client.jobs.count("kind:greet").jobs == 0


def test_a_queue_with_a_limit_far_behind_plain_ones_leaves_counters_exact(
    client: Client, connect: Any
) -> None:
    client.queues.set("narrow", limit=1)

    answers = client.enqueue_many([*jobs(), NewJob(kind="greet", queue="narrow")])

    assert all(one.created for one in answers)
    assert client.queues.get("default").queued == MANY
    stored = connect().execute("select count(*), count(distinct id) from holdfast.job").fetchone()
    assert stored == (MANY + 1, MANY + 1)
    assert connect().execute("select * from holdfast.recount()").fetchall() == []


def test_what_jobs_have_in_common_is_kept_for_some_shapes_only() -> None:
    rows = Rows("2026-01-01")
    rows.queues["default"] = CopySettings()

    for n in range(5000):
        rows.render([NewJob(kind="greet", subject=f"order {n}")])

    assert rows.counts == {("default", "greet"): 5000}
    assert len(rows._likes) <= 1000


ODD: dict[str, dict[str, Any]] = {
    "JSON over several lines": {"payload": msgspec.Raw(b'{\n"a":\t1,\r\n "b": "x\\ny"}')},
    "JSON that is padded": {"payload": msgspec.Raw(b"[" + b" " * 300_000 + b"]")},
    "two values": {"payload": msgspec.Raw(b"1\t2")},
    "half a value": {"payload": msgspec.Raw(b'{"a":')},
    "not UTF-8": {"payload": msgspec.Raw(b'"\xff"')},
    "very deep": {"payload": msgspec.Raw(b"[" * 20_000 + b"]" * 20_000)},
    "a number of 400 digits": {"payload": [10**400]},
    "close to the limit": {"payload": [1] * 100_000},
    "at the limit": {"payload": "x" * 262_142},
    "headers over several lines": {"headers": msgspec.Raw(b'{\n"a":\t1}')},
    "a list as headers": {"headers": [1]},
    "a subject that is a number": {"subject": 5},
    "a subject that is a list": {"subject": ["x"]},
    "half a character": {"subject": "a\ud800b"},
    "half a character in a name": {"kind": "a\ud800b"},
    "half a character in a queue": {"queue": "a\ud800b"},
    "a queue that is a number": {"queue": 5},
    "NUL": {"subject": "a\0b"},
    "a whole number with a point": {"priority": 3.0, "max_attempts": 2.0},
    "a truth as priority": {"priority": True},
    "a truth as attempts": {"max_attempts": True},
    "no priority": {"priority": None},
    "an unknown policy": {"on_conflict": "bogus"},
    "no kind": {"kind": None},
}


def test_many_jobs_are_judged_as_few_are(
    client: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (aio, sync):
        monkeypatch.setattr(module, "_BULK", 3)
    connection = connect()

    def stored(number: int, options: dict[str, Any]) -> Any:
        try:
            client.enqueue_many([NewJob(**{"kind": "greet", **options})] * number)
            answer = "stored"
        except HoldfastError as error:
            answer = f"{type(error).__name__} {error.code}"
        rows = connection.execute(
            "select distinct queue, kind, md5(payload::text), headers, subject, priority,"
            " max_attempts from holdfast.job"
        ).fetchall()
        connection.execute("delete from holdfast.job")
        return answer, rows

    few = {name: stored(1, options) for name, options in ODD.items()}
    many = {name: stored(3, options) for name, options in ODD.items()}

    assert many == few
    assert len({answer for answer, _ in few.values()}) > 4


@pytest.mark.parametrize("way", ["copy", "enqueue_many"])
def test_who_catches_an_error_and_commits_has_stored_nothing_of_the_bulk(
    database: str, connect: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(sync, "_MANY", 500)
    bad = [*jobs(), NewJob(kind="greet", payload=object())]
    connection = connect(autocommit=False)
    with Client(database) as client:
        client.on(connection).enqueue("first")
        with pytest.raises(InvalidJob, match="object"):
            getattr(client.on(connection), way)(bad)
        client.on(connection).enqueue("last")
        connection.commit()
        with pytest.raises(InvalidJob, match="object"):  # with no transaction under way
            getattr(client.on(connection), way)(bad)
        connection.commit()

        assert client.jobs.count("kind:greet").jobs == 0
        assert client.queues.get("default").queued == 2
        assert connect().execute("select * from holdfast.recount()").fetchall() == []


def test_a_bulk_joins_a_transaction_in_two_phases(database: str, connect: Any) -> None:
    connection = connect(autocommit=False)
    with Client(database) as client:
        connection.tpc_begin("bulk")
        client.on(connection).copy(jobs(3))
        connection.tpc_prepare()
        connection.tpc_commit()

        assert client.queues.get("default").queued == 3


def test_a_bulk_on_a_pipelined_connection_is_stored(
    database: str, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_MANY", 500)
    connection = connect()
    with Client(database) as client:
        with connection.pipeline(), connection.transaction():
            answers = client.on(connection).enqueue_many(jobs())
        with connection.pipeline():
            client.on(connection).enqueue_many(jobs(3))

        assert len(answers) == MANY
        assert client.queues.get("default").queued == MANY + 3


def test_many_jobs_wait_out_a_server_that_is_read_only_for_a_moment(
    client: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As few do: the other server of a pair is not promoted at once."""
    client.enqueue("warm")
    refused = psycopg.errors.ReadOnlySqlTransaction("cannot execute COPY FROM")

    def copy(*_: Any) -> Any:
        raise refused

    async def acopy(*_: Any) -> Any:
        raise refused

    monkeypatch.setattr(sync, "copy", copy)
    monkeypatch.setattr(aio, "copy", acopy)

    assert len(client.enqueue_many(jobs())) == MANY
    assert client.queues.get("default").queued == MANY + 1


def test_a_cancelled_bulk_stores_nothing_and_leaves_its_connection_usable(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        written = asyncio.Event()
        write = psycopg.AsyncCopy.write

        async def slow(copy: Any, text: Any) -> None:
            await write(copy, text)
            written.set()
            await asyncio.sleep(60)

        monkeypatch.setattr(psycopg.AsyncCopy, "write", slow)
        async with AsyncClient(database, pool_size=1) as client:
            bulk = asyncio.create_task(client.enqueue_many(jobs()))
            await written.wait()
            bulk.cancel()
            with pytest.raises(asyncio.CancelledError):
                await bulk
            await client.enqueue("after")
            assert [one.kind for one in await client.jobs.list("")] == ["after"]

    asyncio.run(story())


def test_texts_travel_whatever_the_environment_says_about_them(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    with Client(database) as client:
        client.enqueue("greet", "20 €")
        client.enqueue_many(jobs(subject="20 €"))

        assert client.claim(worker="w")[0].payload == "20 €"
        assert client.claim(worker="w")[0].subject == "20 €"


def test_json_over_several_lines_is_copied_as_one_row(client: Any) -> None:
    lines = [b'{\n"a": 1}', b'{\t"a": 1}', b'{\r"a": 1}', b'{\n"a":\t1}\r\n']
    odd = msgspec.Raw(b'["x\\\\y",\n"\\t"]')
    mixed = [
        NewJob(kind="greet", payload="plain"),
        *(NewJob(kind="greet", payload=msgspec.Raw(line)) for line in lines),
        NewJob(kind="greet", payload=odd, headers=msgspec.Raw(lines[0]), subject="a\nb"),
        NewJob(kind="greet", payload="last", headers=msgspec.Raw(lines[3])),
    ]

    assert client.copy(mixed) == 7

    found = client.claim(worker="w", limit=10)
    assert [(one.payload, one.headers, one.subject) for one in found] == [
        ("plain", {}, None),
        *[({"a": 1}, {}, None)] * 4,
        (["x\\y", "\t"], {"a": 1}, "a\nb"),
        ("last", {"a": 1}, None),
    ]


@pytest.mark.parametrize("number", [1, 3, 3000])
@pytest.mark.parametrize(
    "payload",
    [
        msgspec.Raw(b'1},{"kind":"grant","payload":1'),
        msgspec.Raw(b'1,"priority":9'),
        {"note": msgspec.Raw(b'1}},{"kind":"grant","payload":{"a":1')},
        [msgspec.Raw(b'{"a":')],
    ],
    ids=["another job", "another field", "another job, from within", "half"],
)
def test_json_that_is_given_as_it_is_cannot_become_more_than_the_payload(
    client: Client, payload: Any, number: int
) -> None:
    jobs = [NewJob(kind="greet", payload=payload) for _ in range(number)]

    with pytest.raises(InvalidJob, match="is not JSON") as caught:
        client.enqueue_many(jobs)

    assert caught.value.code == "HF204"
    assert client.jobs.list() == []
