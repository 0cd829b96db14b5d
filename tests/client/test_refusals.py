"""What cannot be done is refused with an error that names the value and the remedy."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Client
from holdfast.errors import (
    InvalidFilter,
    InvalidJob,
    InvalidSetting,
    Misuse,
    NotMigrated,
    PayloadTooLarge,
    Refused,
)
from holdfast.records import NewJob


@dataclass
class Point:
    x: float


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"a": [1, {"b": math.nan}]}, r"NaN or an infinity at `\$\.a\[1\]\.b`"),
        ([math.inf], r"NaN or an infinity at `\$\[0\]`"),
        ({"a": Point(math.nan)}, r"NaN or an infinity at `\$\.a\.x`"),
        ({"a": {"b": "x\0y"}}, r"a NUL character at `\$\.a\.b`"),
        ({"a\0": 1}, r"a NUL character in a key of `\$`"),
        ({"a": object()}, r"is not JSON at `\$\.a`"),
        ({"a": "\ud800"}, r"is not JSON at `\$\.a`"),
        (nested(100_000), "nested too deeply"),
    ],
)
def test_a_payload_that_json_or_postgresql_cannot_hold_is_refused(
    client: Any, payload: Any, told: str
) -> None:
    with pytest.raises(InvalidJob, match=told) as refused:
        client.enqueue("greet", payload)

    assert "payload of 'greet'" in str(refused.value)
    assert client.jobs.list() == []


@pytest.mark.parametrize("payload", ["\\u0000", "null", {"a": None}, nested(500), 2**70, "", []])
def test_a_payload_that_only_looks_bad_arrives(client: Any, payload: Any) -> None:
    client.enqueue("greet", payload)

    [lease] = client.claim(worker="ada")
    assert lease.payload == payload


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"priority": 10}, "HF203"),
        ({"priority": "high"}, "HF203"),
        ({"max_attempts": 0}, "HF204"),
        ({"lease": 0}, "HF204"),
        ({"delay": -1}, "HF204"),
        ({"delay": math.inf}, "HF204"),
        ({"lease": math.nan}, "HF204"),
        ({"expires": math.inf}, "HF204"),
        ({"run_at": datetime(2030, 1, 1)}, "HF204"),
        ({"key": "k", "on_conflict": "explode"}, "HF205"),
        ({"queue": ""}, "HF202"),
        ({"queue": "a\nb"}, "HF202"),
        ({"lane": "x" * 300}, "HF202"),
        ({"headers": [1]}, "HF201"),
    ],
)
def test_a_bad_option_is_refused_under_its_code(
    client: Any, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        client.enqueue("greet", **options)

    assert refused.value.code == code
    assert str(refused.value).startswith(code)


def test_a_setting_that_is_not_a_finite_number_does_not_reset_it(client: Any) -> None:
    client.queues.set("mail", backoff=7)

    with pytest.raises(InvalidJob, match="backoff inf is not a finite number"):
        client.queues.set("mail", backoff=math.inf)

    assert client.queues.get("mail").backoff == timedelta(seconds=7)


def test_an_unknown_option_is_refused_with_the_nearest_known_one(client: Any) -> None:
    with pytest.raises(InvalidJob, match=r"unknown option `priorty` \(did you mean `priority`\?\)"):
        client.enqueue("greet", priorty=3)


def test_a_payload_over_the_limit_is_refused_with_both_sizes(client: Any) -> None:
    client.queues.set("small", payload_limit=1000)

    with pytest.raises(PayloadTooLarge, match=r"HF210 .*greet.*small") as by_enqueue:
        client.enqueue("greet", "x" * 2000, queue="small")
    with pytest.raises(PayloadTooLarge, match=r"HF210 .*greet.*small"):
        client.copy([NewJob(kind="greet", payload="x" * 2000, queue="small")])

    assert "payload_limit" in by_enqueue.value.fix
    assert client.jobs.list() == []


@pytest.mark.parametrize(
    "options",
    [{"key": "k"}, {"lane": "l"}, {"delay": 1}, {"lease": 1}, {"priority": 10}, {"queue": "\n"}],
)
def test_a_job_that_cannot_be_copied_is_refused_and_so_are_the_others(
    client: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidJob):
        client.copy([NewJob(kind="greet"), NewJob(kind="greet", **options)])

    assert client.jobs.list() == []


@pytest.mark.parametrize("limit", [0, -1, 2**40])
def test_a_claim_of_no_jobs_or_too_many_is_refused(client: Any, limit: int) -> None:
    with pytest.raises(Misuse):
        client.claim(worker="ada", limit=limit)


def test_a_name_with_a_nul_character_is_refused(client: Any) -> None:
    with pytest.raises(Misuse, match="NUL"):
        client.claim("a\0b", worker="ada")
    with pytest.raises(Misuse, match="NUL"):
        client.claim(worker="a\0b")


def test_a_bad_filter_is_refused_with_its_term(client: Any) -> None:
    with pytest.raises(InvalidFilter, match="colour"):
        client.jobs.list("state:dead colour:red")


def test_unknown_settings_and_changes_are_refused(client: Any) -> None:
    id = client.enqueue("greet").id

    with pytest.raises(InvalidSetting, match=r"HF221 .*colour"):
        client.queues.set("mail", colour="red")
    with pytest.raises(InvalidSetting, match=r"HF222 .*kind"):
        client.jobs.edit([id], kind="other")


def test_a_connection_survives_a_refusal(make_client: Any, connect: Any) -> None:
    client = make_client(pool_size=1, application_name="survivor")
    client.enqueue("greet")
    backends = "select array_agg(pid) from pg_stat_activity where application_name = 'survivor'"
    [before] = connect().execute(backends).fetchone()

    for _ in range(3):
        with pytest.raises(Misuse):
            client.jobs.list("colour:red")

    [after] = connect().execute(backends).fetchone()
    assert after == before


def test_a_database_without_the_schema_says_how_to_make_it(empty_database: str) -> None:
    with Client(empty_database) as client, pytest.raises(NotMigrated, match="holdfast migrate"):
        client.enqueue("greet")


@pytest.mark.direct_only("all users of this pooler are one on the server")
def test_a_user_without_rights_is_refused(connect: Any, database: str) -> None:
    role = f"nobody_{uuid4().hex}"
    connect().execute(f"create role {role} login")
    try:
        with Client(f"{database} user={role}") as client, pytest.raises(Refused, match="denied"):
            client.enqueue("greet")
    finally:
        connect().execute(f"drop role {role}")


def test_a_client_without_an_address_says_where_to_put_one(monkeypatch: Any) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)

    with pytest.raises(Misuse, match="HOLDFAST_URL"):
        Client()


def test_a_closed_client_refuses_calls(make_client: Any) -> None:
    client = make_client()
    client.enqueue("greet")
    client.close()

    with pytest.raises(Misuse, match="closed"):
        client.enqueue("greet")
