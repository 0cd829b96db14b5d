"""Encrypted payloads: only tasks with the key read them, whatever way the job takes."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast import App, Client, NewJob, chain, current, group
from holdfast.codec import Codec, told
from holdfast.crypto import CannotOpen, Encryption, new_key
from holdfast.errors import (
    InvalidFilter,
    InvalidPayload,
    InvalidSetting,
    InvalidTask,
    Misuse,
    ResultUnreadable,
)
from holdfast.jsonb import Encoded, encode
from holdfast.stores import ClaimCheck, DirectoryStore
from holdfast.worker import Worker

Drain = Callable[..., Worker]

OLD, NEW = new_key(), new_key()
SECRET = "the card is 4111 1111"


def sealed(app: App, encryption: Encryption | None, seen: list[Any], **settings: Any) -> Any:
    """Declare the same task again, as a program with other keys would."""

    @app.task(kind="pay", encryption=encryption, **settings)
    def pay(card: str, times: int = 1) -> str:
        seen.append((card, times, current().payload))
        return card[::-1]

    return pay


def stored(client: Client, id: Any) -> Any:
    job = client.jobs.get(id)
    assert job is not None
    return job


def test_the_database_never_sees_the_arguments_and_the_handler_does(
    app: App, drain: Drain, database: str
) -> None:
    seen: list[Any] = []
    pay = sealed(app, Encryption({"2026-11": NEW}), seen)
    handle = pay.enqueue(SECRET, times=2)

    text = stored(app.client, handle.id).payload_json
    assert "4111" not in text
    assert told(text) == "encrypted with the key '2026-11', 42 bytes"

    drain()
    assert seen == [(SECRET, 2, {"card": SECRET, "times": 2})]
    with psycopg.connect(database) as conn:
        for table in ("job", "ended", "attempt", "event", "step"):
            found = conn.execute(f"select count(*) from holdfast.{table} t where t::text ~ '4111'")
            assert found.fetchone() == (0,), table


def test_the_newest_key_encrypts_and_all_of_them_decrypt(app: App, drain: Drain) -> None:
    seen: list[Any] = []
    before = sealed(app, Encryption({"old": OLD}), seen).enqueue("a")
    after = sealed(app, Encryption({"new": NEW, "old": OLD}), seen).enqueue("b")

    keys = [stored(app.client, one.id).payload["$holdfast"]["key"] for one in (before, after)]
    drain()

    assert keys == ["old", "new"]
    assert sorted(card for card, _, _ in seen) == ["a", "b"]


@pytest.mark.parametrize("keys", [None, {"other": NEW}, {"2026-11": OLD}])
def test_a_worker_without_the_key_gives_the_job_back_uncounted_and_explain_says_so(
    app: App, drain: Drain, keys: dict[str, str] | None
) -> None:
    seen: list[Any] = []
    handle = sealed(app, Encryption({"2026-11": NEW}), seen, max_attempts=1).enqueue(SECRET)
    sealed(app, Encryption(keys) if keys else None, seen)
    drain()

    job = stored(app.client, handle.id)
    assert (job.state, job.attempt, seen) == ("queued", 0, [])
    why = app.client.jobs.explain(handle.id)
    assert "No running worker can read it" in why or "could not read it" in why
    assert "edit the payload" not in why
    assert {None: "without encryption", "other": "key '2026-11'", "2026-11": "is not a payload"}[
        next(iter(keys)) if keys else None
    ] in why

    sealed(app, Encryption({"2026-11": NEW}), seen)
    drain()
    assert seen[0][0] == SECRET


def test_a_payload_of_another_kind_is_not_read(app: App, drain: Drain) -> None:
    seen: list[Any] = []
    encryption = Encryption({"k": NEW})
    pay = sealed(app, encryption, seen)

    @app.task(encryption=encryption)
    def refund(card: str) -> None:
        seen.append(card)

    handle = pay.enqueue(SECRET)
    payload = stored(app.client, handle.id).payload
    app.client.jobs.cancel([handle.id])
    swapped = app.client.enqueue("refund", payload)
    drain()

    assert seen == []
    assert "not a payload of refund" in app.client.jobs.explain(swapped.id)


def test_what_was_encrypted_under_an_old_name_is_the_tasks_own(app: App, drain: Drain) -> None:
    seen: list[Any] = []
    encryption = Encryption({"k": NEW})
    sealed(app, encryption, seen).enqueue(SECRET)
    app.tasks.clear()
    app.handlers.clear()

    @app.task(encryption=encryption, aliases=["pay"])
    def charge(card: str) -> None:
        seen.append(card)

    drain()
    assert seen == [SECRET]


def test_a_plain_payload_runs_unless_encryption_is_required(app: App, drain: Drain) -> None:
    seen: list[Any] = []
    sealed(app, Encryption({"k": NEW}), seen)
    app.client.enqueue("pay", {"card": "from before"})
    drain()
    assert len(seen) == 1

    sealed(app, Encryption({"k": NEW}, required=True), seen)
    refused = app.client.enqueue("pay", {"card": "injected"})
    drain()

    assert len(seen) == 1
    assert "not encrypted" in app.client.jobs.explain(refused.id)


def test_results_and_steps_are_encrypted_and_read_back(app: App, drain: Drain) -> None:
    encryption = Encryption({"k": NEW})
    calls: list[str] = []

    def ask(card: str) -> str:
        calls.append(card)
        return f"token of {card}"

    @app.task(encryption=encryption, keep_result=True, retry=0)
    def pay(card: str) -> str:
        token = current().step("ask", ask, card)
        if current().attempt == 1:
            raise ValueError("once")
        return token

    handle = pay.enqueue(SECRET)
    drain()

    assert calls == [SECRET]
    job = stored(app.client, handle.id)
    assert "4111" not in str(job)
    assert told(job.result_json)
    [step] = app.client.steps.list(handle.id)
    assert told(step.result_json)
    assert handle.result() == f"token of {SECRET}"

    app.tasks["pay"].codec = None
    unkeyed = Codec(Encryption({"other": OLD}), ["pay"])
    app.tasks["pay"]._result._codec = unkeyed
    with pytest.raises(ResultUnreadable, match="encrypted with the key 'k'"):
        handle.result()


def test_a_step_that_this_worker_cannot_read_is_left_to_one_that_can(
    app: App, drain: Drain
) -> None:
    calls: list[str] = []

    def declare(keys: dict[str, str]) -> None:
        @app.task(kind="pay", encryption=Encryption(keys), max_attempts=1)
        def pay(card: str) -> None:
            current().step("ask", lambda: calls.append("asked") or "x")
            current().wait_event("paid")
            calls.append("went on")

    both = {"new": NEW, "old": OLD}
    declare(both)
    # The payload is of the old key, the step of the new one.
    payload = Codec(Encryption({"old": OLD}), ["pay"]).payload(encode({"card": "x"}))
    id = app.client.enqueue("pay", payload).id
    drain()
    app.client.send_event("paid")
    declare({"old": OLD})
    drain()

    assert (stored(app.client, id).state, stored(app.client, id).attempt) == ("queued", 0)
    assert "step 'ask' cannot be read" in app.client.jobs.explain(id)
    declare(both)
    drain()
    assert calls == ["asked", "went on"]


def test_a_chain_of_encrypted_tasks_passes_results_that_only_they_can_read(
    app: App, drain: Drain, database: str
) -> None:
    encryption = Encryption({"k": NEW}, required=True)
    seen: list[Any] = []

    @app.task(encryption=encryption)
    def ask(card: str) -> str:
        return f"4111 {card}"

    @app.task(encryption=encryption)
    def both(tokens: list[str]) -> str:
        seen.append(tokens)
        return " and ".join(tokens)

    @app.task(encryption=encryption)
    def book(told: str) -> None:
        seen.append(told)
        with psycopg.connect(database) as conn:
            found = conn.execute("select count(*) from holdfast.job t where t::text ~ '4111'")
            assert found.fetchone() == (0,)

    group(ask.call("a"), ask.call("b")).then(both).then(book).enqueue()
    drain()

    assert seen == [["4111 a", "4111 b"], "4111 a and 4111 b"]


def test_what_follows_jobs_that_failed_still_runs_where_encryption_is_required(
    app: App, drain: Drain
) -> None:
    encryption = Encryption({"k": NEW}, required=True)
    seen: list[Any] = []

    @app.task(encryption=encryption, max_attempts=1)
    def ask(card: str) -> str:
        if card == "fails":
            raise ValueError(card)
        return card

    @app.task(encryption=encryption)
    def all_of(told: list[str | None]) -> None:
        seen.append(told)

    @app.task(encryption=encryption)
    def one(told: str | None) -> None:
        seen.append(told)

    group(ask.call("fails"), ask.call("fails")).then(all_of, if_failed="run").enqueue()
    group(ask.call("fails"), ask.call("a")).then(all_of, if_failed="run").enqueue()
    ask.call("fails").then(one, if_failed="run").enqueue()
    drain()

    assert sorted(map(str, seen)) == ["None", "[None, 'a']", "[None, None]"]


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("beside", ["limit", "maximum"])
def test_nothing_takes_the_place_of_an_argument_that_is_sealed(required: bool, beside: str) -> None:
    encryption = Encryption({"k": NEW}, required=required)
    codec = Codec(encryption, ["pay"])
    payload = json.loads(codec.payload(encode({"limit": 100})))
    result = json.loads(Codec(encryption, ["quote"]).result(encode(9999)))

    for value in (None, [], result, [result]):
        with pytest.raises(InvalidPayload, match=f"`{beside}` is encrypted, and another one is"):
            codec.opened(json.dumps({**payload, beside: value}), {"limit": "maximum"})
    opened = codec.opened(json.dumps({**payload, "quote": result}), {"limit": "maximum"})
    assert json.loads(opened) == {"limit": 100, "quote": 9999}


@pytest.mark.parametrize("value", ["x", 0, False, "", {}, [None, 1], [[]], {"a": "$holdfast"}])
def test_nothing_in_clear_stands_beside_what_is_sealed_if_that_is_required(value: Any) -> None:
    key = {"k": NEW}
    codec, lax = Codec(Encryption(key, required=True), ["pay"]), Codec(Encryption(key), ["pay"])
    payload = json.loads(codec.payload(encode({"card": "x"})))

    for stored in ({**payload, "note": value}, {"note": value}, {}):
        with pytest.raises(InvalidPayload, match="not encrypted"):
            codec.opened(json.dumps(stored))
    assert json.loads(lax.opened(json.dumps({**payload, "note": value})))["note"] == value


@pytest.mark.parametrize("step", ["", "charge"])
@pytest.mark.parametrize("text", ["null", "true", '{"paid": true}', '{"a": "$holdfast"}'])
def test_a_result_in_clear_is_not_read_if_encryption_is_required(step: str, text: str) -> None:
    with pytest.raises(CannotOpen, match="not encrypted"):
        Codec(Encryption({"k": NEW}, required=True), ["pay"]).opened_result(text, step)
    assert Codec(Encryption({"k": NEW}), ["pay"]).opened_result(text, step) == text


@pytest.mark.parametrize("put", ["'\"free\"'", "null"])
def test_a_step_that_somebody_changed_in_the_database_is_not_believed(
    app: App, drain: Drain, database: str, put: str
) -> None:
    seen: list[Any] = []

    @app.task(encryption=Encryption({"k": NEW}, required=True), max_attempts=1)
    def pay(card: str) -> None:
        seen.append(current().step("price", lambda: "1000"))
        current().wait_event("paid")

    id = pay.enqueue("x").id
    drain()
    with psycopg.connect(database) as conn:
        conn.execute(f"update holdfast.step set result = {put} where name = 'price'")  # type: ignore[arg-type]
    app.client.send_event("paid")
    drain()

    assert seen == ["1000"]
    assert (stored(app.client, id).state, stored(app.client, id).attempt) == ("queued", 0)
    assert "step 'price' cannot be read: it is not encrypted" in app.client.jobs.explain(id)


def test_a_result_that_somebody_changed_in_the_database_is_not_believed(
    app: App, drain: Drain, database: str
) -> None:
    pay = sealed(app, Encryption({"k": NEW}, required=True), [], keep_result=True)
    handle = pay.enqueue("abc")
    drain()
    assert handle.result() == "cba"

    with psycopg.connect(database) as conn:
        conn.execute("update holdfast.ended set result = '\"free\"'")
    with pytest.raises(ResultUnreadable, match="not encrypted"):
        handle.result()


def test_what_was_sealed_as_one_thing_is_not_read_as_another() -> None:
    encryption = Encryption({"k": NEW})
    codec, other = Codec(encryption, ["pay"]), Codec(encryption, ["refund"])
    text = encode({"card": "x"})
    payload, result = codec.payload(text).decode(), codec.result(text).decode()
    step = codec.result(text, "ask").decode()

    assert codec.opened_result(result) == codec.opened_result(step, "ask") == text
    for wrong in (payload, step, other.result(text).decode()):
        with pytest.raises(CannotOpen):
            codec.opened_result(wrong)
        if wrong is not payload:
            with pytest.raises(InvalidPayload):
                codec.opened(wrong)
    for wrong in (payload, result, codec.result(text, "answer").decode()):
        with pytest.raises(CannotOpen):
            codec.opened_result(wrong, "ask")
    for wrong in (payload, step):
        with pytest.raises(InvalidPayload):
            codec.opened(f'{{"told": {wrong}}}')


def test_a_chain_in_which_only_one_is_encrypted_is_refused(app: App) -> None:
    @app.task(encryption=Encryption({"k": NEW}))
    def ask(card: str) -> str:
        return card

    @app.task
    def book(token: str) -> str:
        return token

    with pytest.raises(InvalidTask, match="only ask is encrypted"):
        chain(ask.call("x"), book)
    with pytest.raises(InvalidTask, match="Declare book with the same encryption"):
        book.call("x").then(ask)


def test_a_schedule_is_encrypted_and_declared_the_same_every_time(app: App, drain: Drain) -> None:
    seen: list[Any] = []
    pay = sealed(app, Encryption({"k": NEW}), seen)
    declared = [
        app.schedule(every=3600, name=f"s{n}", payload={"card": SECRET})(pay) for n in (1, 2)
    ]
    assert declared
    first, second = app.schedules

    assert first.payload == second.payload
    assert "4111" not in json.dumps(first.payload)
    drain()
    app.client.schedules.run("s1")
    drain()
    assert seen[0][0] == SECRET


def test_many_go_by_copy_and_each_caller_stores_them_encrypted(
    app: App, drain: Drain, database: str
) -> None:
    seen: list[Any] = []
    pay = sealed(app, Encryption({"k": NEW}), seen)
    app.enqueue_many(pay.call(f"4111 {n}") for n in range(1200))
    drain(concurrency=2)
    assert sorted(card for card, _, _ in seen) == sorted(f"4111 {n}" for n in range(1200))


def test_a_middleware_sees_and_changes_what_was_enqueued(database: str) -> None:
    class Upper:
        def enqueue(self, job: NewJob) -> Any:
            given = msgspec.json.decode(job.payload)
            yield msgspec.structs.replace(job, payload={"card": given["card"].upper()})

    with App(database, middleware=[Upper()]) as app:
        seen: list[Any] = []
        handle = sealed(app, Encryption({"k": NEW}), seen).enqueue("abc")
        assert told(stored(app.client, handle.id).payload_json)
        Worker(app, until_idle=True).run()
        assert seen[0][0] == "ABC"


def test_an_edit_of_the_payload_is_refused_and_a_retry_works(app: App, drain: Drain) -> None:
    seen: list[Any] = []

    @app.task(encryption=Encryption({"k": NEW}), max_attempts=1)
    def pay(card: str) -> None:
        seen.append(card)
        if len(seen) == 1:
            raise ValueError("once")

    handle = pay.enqueue(SECRET)
    with pytest.raises(InvalidSetting, match="encrypted and cannot be edited"):
        app.client.jobs.edit([handle.id], payload={"card": "other"})
    [changed] = app.client.jobs.edit([handle.id], priority=3)
    assert changed.changed
    drain()
    assert stored(app.client, handle.id).state == "dead"
    with pytest.raises(InvalidSetting, match="encrypted and cannot be edited"):
        app.client.jobs.edit([handle.id], payload={"card": "other"})

    app.client.jobs.retry([handle.id])
    drain()
    assert seen == [SECRET, SECRET]


def test_a_filter_into_an_encrypted_payload_is_refused(app: App, drain: Drain) -> None:
    sealed(app, Encryption({"k": NEW}), [])
    drain()  # a worker says what its kinds are

    with pytest.raises(InvalidFilter, match="payloads of kind 'pay' are encrypted"):
        app.client.jobs.list("kind:pay payload.card:4111")
    assert app.client.jobs.list("kind:pay") == []
    assert app.client.jobs.list("-kind:pay payload.card:4111") == []
    with pytest.raises(Misuse, match="payloads of kind 'pay' are encrypted"):
        app.client.strikes.add(kind="pay", payload={"card": "x"})


def test_a_check_of_done_work_gets_the_arguments(app: App) -> None:
    from holdfast.worker.worker import _checks

    asked: list[Any] = []
    pay = sealed(app, Encryption({"k": NEW}), [])
    pay.done_when(lambda conn, job: asked.append(job.payload) or True)
    handle = pay.enqueue(SECRET)
    [lease] = app.client.claim(worker="w")
    assert lease.id == handle.id

    assert _checks(app)["pay"](None, lease)  # type: ignore[arg-type]
    assert asked == [{"card": SECRET}]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "without a key"),
        ({"k": "short"}, "is not 32 bytes"),
        ({"k": b"x" * 31}, "it is 31 bytes"),
        ({"k": "no base64!"}, "not base64"),
        ({"": NEW}, "'' cannot be the name of a key"),
        ({"a:b": NEW}, "'a:b' cannot be the name"),
        ({"k": None}, "not base64"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(keys: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        Encryption(keys)
    assert "no base64!" not in str(caught.value)


def test_keys_come_from_the_environment_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"new:{NEW}, old:{OLD}")
    assert repr(Encryption.from_env()) == "Encryption(new, old)"
    for text, says in {"": "has no keys", "new": "is not name:key"}.items():
        monkeypatch.setenv("HOLDFAST_KEYS", text)
        with pytest.raises(Misuse, match=says):
            Encryption.from_env()
    monkeypatch.setenv("HOLDFAST_KEYS", f"new:{NEW},new:{OLD}")
    with pytest.raises(Misuse, match="two keys of the same name"):
        Encryption.from_env()


def test_every_byte_counts() -> None:
    encryption = Encryption({"k": NEW})
    name, text = encryption.seal(b'{"a":1}', "payload", "pay")
    assert encryption.open(name, text, "payload", "pay") == b'{"a":1}'
    for place in range(len(text)):
        altered = bytearray(text)
        altered[place] ^= 1
        with pytest.raises(CannotOpen):
            encryption.open(name, bytes(altered), "payload", "pay")
    for what, kind, cut in (
        ("result", "pay", None),
        ("payload", "pays", None),
        ("payload", "pay", 5),
    ):
        with pytest.raises(CannotOpen):
            encryption.open(name, text[:cut], what, kind)


def test_two_of_the_same_are_encrypted_differently() -> None:
    codec = Codec(Encryption({"k": NEW}), ["pay"])
    text = encode({"card": SECRET})
    assert codec.payload(text) != codec.payload(text)
    assert codec.payload(text, fixed=True) == codec.payload(text, fixed=True)


@pytest.mark.parametrize(
    "payload",
    [
        {"$holdfast": None},
        {"$holdfast": 1},
        {"$holdfast": {"v": 2, "key": "k", "data": ""}},
        {"$holdfast": {"v": 1, "key": "k"}},
        {"$holdfast": {"v": 1, "key": "k", "data": "=not base64="}},
        {"$holdfast": {"v": 1, "key": "k", "data": "é"}},
        {"$holdfast": {"v": 1, "key": "k", "data": ""}},
        {"$holdfast": {"v": 1, "key": "k", "data": "AAAA"}},
        {"$holdfast": {"v": 1, "key": ["k"], "data": "AAAA"}},
        {"$holdfast": {"v": 1, "key": "k", "data": "AAAA", "store": "files", "address": "a"}},
        {"$holdfast": {"v": 1, "store": "other", "address": "a"}},
        {"$holdfast": "x"},
        ["$holdfast"],
        "$holdfast",
        {"card": {"$holdfast": None}},
        {"card": [{"$holdfast": 1}]},
        {"card": {"$holdfast": {"v": 1, "key": "k", "of": "pay", "data": ""}}},
        {"card": {"$holdfast": {"v": 1, "key": "k", "of": "pay", "data": "é"}}},
        {"card": {"$holdfast": {"v": 1, "store": "files", "address": "a"}}},
    ],
)
def test_a_mark_that_nobody_made_is_not_read(payload: Any, tmp_path: Path) -> None:
    large = ClaimCheck(DirectoryStore(tmp_path))
    for codec in (Codec(Encryption({"k": NEW}), ["pay"]), Codec(None, ["pay"], large)):
        codec.is_elsewhere(json.dumps(payload))
        with pytest.raises(InvalidPayload, match="the payload cannot be read"):
            codec.opened(json.dumps(payload))


@pytest.mark.parametrize("mark", [None, 1, "x", {"v": 1, "key": "k", "data": "é"}, {"v": "1"}])
def test_a_result_with_a_mark_that_nobody_made_is_not_read(mark: Any) -> None:
    codec = Codec(Encryption({"k": NEW}), ["pay"])
    for step in ("", "ask"):
        with pytest.raises(CannotOpen, match="marked as encrypted, and is not"):
            codec.opened_result(json.dumps({"$holdfast": mark}), step)
    assert told(json.dumps({"$holdfast": mark})) is None or "key" in mark


@pytest.mark.parametrize("payload", [{"$holdfast": 1}, {"$holdfast": None}, ["$holdfast"]])
def test_a_job_with_a_mark_that_nobody_made_waits_and_explain_says_so(
    app: App, drain: Drain, tmp_path: Path, payload: Any
) -> None:
    @app.task(large_payloads=ClaimCheck(DirectoryStore(tmp_path)), max_attempts=1)
    async def pay(card: str) -> None:
        raise AssertionError

    id = app.client.enqueue("pay", payload).id
    drain()

    assert (stored(app.client, id).state, stored(app.client, id).attempt) == ("queued", 0)
    assert "marked as encrypted, and is not" in app.client.jobs.explain(id)


@pytest.mark.parametrize("payload", [{"card": "$holdfast"}, {"card": ["$holdfast", {"a": 1}]}])
def test_the_word_of_the_mark_may_be_a_value(payload: Any) -> None:
    codec = Codec(Encryption({"k": NEW}), ["pay"])
    assert json.loads(codec.opened(codec.payload(encode(payload)))) == payload
    assert json.loads(codec.opened(json.dumps(payload))) == payload


def test_the_vector_of_the_reference_can_be_read() -> None:
    page = Path("docs/reference/encryption.md").read_text(encoding="utf-8")
    [vector] = [line.strip() for line in page.splitlines() if line.startswith('    {"$holdfast"')][
        :1
    ]
    codec = Codec(Encryption({"2026-11": bytes(range(32))}), ["pay"])

    assert codec.opened(vector) == b'{"card":"4111"}'
    assert codec.payload(Encoded(b'{"card":"4111"}'), fixed=True).decode() == vector.replace(
        '": ', '":'
    ).replace(", ", ",")


def test_an_async_enqueue_is_encrypted(app: App) -> None:
    async def run() -> Any:
        async with app:
            return await sealed(app, Encryption({"k": NEW}), []).aenqueue(SECRET)

    handle = asyncio.run(run())
    assert told(stored(app.client, handle.id).payload_json)
