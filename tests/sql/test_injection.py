"""Whatever a name or a text says: it is refused with a code, or stored as it is and found again."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Client, HoldfastError, NewJob
from tests.protocol import Protocol

CORPUS = [
    "'; drop table holdfast.job; --",
    '"; drop schema holdfast cascade; --',
    "x'); delete from holdfast.job where ('' = '",
    "' or 1=1 --",
    "a/*b*/--c",
    'say "hi"',
    "\\'\\\\\\",
    "\\N\\.\\t",
    "%s%(name)s%%_",
    "{}{0}{a,b}",
    "$1$$a$$$body$",
    "pg_temp.x",
    "a.b.c",
    "pg_catalog.pg_authid",
    '"Holdfast"."job"',
    "a,b:c -d",
    "ü" * 32,
    "x" + "ü" * 30 + "€",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "\u202eevil\u202c שלום",
    "a\u200bb\ufeff",
    "first\nsecond",
    "a\tb\r\n",
    "\x1b[2J",
    "a\x7f",
    "n" * 121,
    "long " * 101,
    "x" * 100_000,
    "",
    " ",
    "null",
]
NAMES = ["kind", "queue", "lane", "key", "tenant", "subject"]
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
same_database = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

CATALOG = """
select md5(string_agg(entry, ' ' order by entry)) from (
  select concat(oid, relname, relnamespace, relkind, relowner, relacl) from pg_class
  union all
  select concat(oid, proname, pronamespace, prosrc, proconfig, proacl) from pg_proc
  union all
  select concat(oid, nspname, nspowner, nspacl) from pg_namespace
  union all
  select concat(oid, rolname, rolsuper) from pg_roles
) c(entry)
"""


@pytest.fixture(autouse=True)
def unchanged_catalog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing that a test says creates, changes or drops anything."""
    connection = request.getfixturevalue("db").connection
    before = connection.execute(CATALOG).fetchone()
    yield
    assert connection.execute(CATALOG).fetchone() == before


def test_a_change_of_the_catalog_is_noticed(db: Protocol) -> None:
    with db.connection.transaction(force_rollback=True):
        before = db.connection.execute(CATALOG).fetchone()
        db.connection.execute("drop function holdfast.fold()")
        assert db.connection.execute(CATALOG).fetchone() != before


@pytest.mark.parametrize("field", NAMES)
def test_a_name_is_refused_or_stored_as_it_is(db: Protocol, field: str) -> None:
    stored = {}

    for text in CORPUS:
        code = refusal(lambda text=text: db.enqueue({"kind": "k", field: text}))
        found = [getattr(job, field) for job in db.list(f"{field}:{quoted(text)}")]
        stored[text] = (code, found)

    assert {
        text: answer for text, answer in stored.items() if answer not in [(None, [text]), REFUSED]
    } == {}
    assert len(db.list()) == sum(code is None for code, _ in stored.values()) > 15


REFUSED: tuple[str, list[str]] = ("HF202", [])


@same_database
@given(any_text, any_text, any_text, any_text)
def test_any_names_are_refused_or_stored_as_they_are(
    db: Protocol, kind: str, queue: str, lane: str, key: str
) -> None:
    item = {"kind": kind, "queue": queue, "lane": lane, "key": key}

    code = refusal(lambda: db.enqueue(item))

    if code is None:
        [job] = db.list(" ".join(f"{field}:{quoted(text)}" for field, text in item.items()))
        assert {field: getattr(job, field) for field in item} == item
        [leased] = db.claim(queue)
        assert leased.id == job.id
        db.ack(leased)  # and not cancelled: its lane would be taken until the lease ends
    else:
        assert code == "HF202"


def test_the_longest_names_are_refused_or_stored(db: Protocol) -> None:
    # Four bytes each and nothing to compress: the most that an index may have to hold.
    wide = iter(random.Random(0).sample(range(0x20000, 0x2A6D0), 2000))
    sizes = {"kind": 200, "queue": 120, "lane": 200, "key": 500, "tenant": 200, "subject": 500}
    item = {field: "".join(chr(next(wide)) for _ in range(size)) for field, size in sizes.items()}
    db.queue_set(item["queue"], by_kind=True, fair=True)

    code = refusal(lambda: db.enqueue(item))

    assert code in (None, "HF202")
    del item["key"]
    [enqueued] = db.enqueue(item)
    assert [job.id for job in db.claim(item["queue"], kinds=[item["kind"]])] == [enqueued.id]


def test_a_worker_is_refused_or_known_by_its_name(db: Protocol) -> None:
    for text in CORPUS:
        db.put()
        code = refusal(lambda text=text: db.claim(worker=text))
        holders = [job.worker for job in db.list(f"state:leased worker:{quoted(text)}")]
        assert (code, holders) in [(None, [text]), REFUSED], text


def test_an_idle_worker_is_refused_or_woken_by_its_name(db: Protocol) -> None:
    db.connection.execute("listen holdfast")
    answers = {}

    for text in CORPUS:
        code = refusal(lambda text=text: db.value("await_work", queues=["default"], worker=text))
        db.put()
        woken = [n.payload for n in db.connection.notifies(timeout=0)]
        answers[text] = (code, woken)

    db.connection.execute("unlisten holdfast")
    assert {
        text: answer
        for text, answer in answers.items()
        if answer not in [(None, [f"default\n{text}"]), REFUSED]
    } == {}


def test_an_idle_worker_of_any_queue_is_refused_or_woken(db: Protocol) -> None:
    wide = "".join(map(chr, random.Random(0).sample(range(0x20000, 0x2A6D0), 5000)))

    codes = {
        text[:50]: refusal(lambda text=text: db.value("await_work", queues=[text], worker="ada"))
        for text in [*CORPUS, wide]
    }

    assert {text: code for text, code in codes.items() if code not in (None, "HF202")} == {}
    assert codes[wide[:50]] == "HF202"


def test_an_error_is_kept_as_it_was_told(db: Protocol) -> None:
    for text in CORPUS:
        id = db.put(max_attempts=1)

        db.nack(db.take(), error_kind=text, message=text, traceback=text)

        [attempt] = db.attempts(id)
        error = db.job(id).error or ""
        assert attempt.error_kind == text[:200]
        assert attempt.message == text[:10_000]
        assert attempt.traceback == text[:100_000]
        assert error == f"{text}: {text}"[:2000]
        assert id in db.find(f"error:{quoted(error)}")
        assert id in db.find(f"group:{attempt.fingerprint}")
        assert db.explain(id).endswith(error)


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("reason", ["{}", "{}", "{}"]),
        ("actor", ["cancelled by {}", "retried by {}", "edited by {}"]),
    ],
)
def test_a_reason_is_kept_as_it_was_told(db: Protocol, why: str, told: list[str]) -> None:
    for text in CORPUS:
        id = db.put()
        reasons = []

        for verb in (db.cancel, db.retry, partial(db.edit, changes={"priority": 1})):
            verb(id, **{why: text})
            reasons.append(db.job(id).reason)
        [moved] = db.move(id, queue="elsewhere", **{why: text})

        assert reasons == [sentence.replace("{}", text) for sentence in told]
        assert moved.changed


def test_the_reason_of_a_pause_is_told_as_it_was_given(db: Protocol) -> None:
    id = db.put()

    for text in CORPUS:
        db.pause("default", reason=text, actor=text)
        told = db.connection.execute(
            "select paused_by, paused_reason from holdfast.queues where queue = 'default'"
        ).fetchone()
        assert told == (text, text)
        assert text in db.explain(id)


def test_a_queue_of_any_name_is_refused_or_managed(db: Protocol) -> None:
    id = db.put()
    calls: dict[str, Callable[[str], Any]] = {
        "queue_set": lambda text: db.queue_set(text, limit=1),
        "pause": db.pause,
        "resume": db.resume,
        "claim": db.claim,
        "move": lambda text: db.move(id, queue=text),
        "lane_set in": lambda text: db.lane_set(text, "lane", limit=1),
        "copied": lambda text: db.value("copied", queue=text, kinds=["k"], counts=[0]),
    }

    for text in CORPUS:
        codes = {
            name: refusal(lambda call=call, text=text: call(text)) for name, call in calls.items()
        }
        assert codes in (dict.fromkeys(calls), dict.fromkeys(calls, "HF202")), (text, codes)
    assert db.fold() > 0


def test_a_lane_or_a_kind_of_any_name_is_refused_or_managed(db: Protocol) -> None:
    for text in CORPUS:
        lane = refusal(lambda text=text: db.lane_set("default", text, limit=1))
        kind = refusal(
            lambda text=text: db.value("copied", queue="default", kinds=[text], counts=[0])
        )
        assert {lane, kind} <= {None, "HF202"}, text
    assert db.fold() > 0


def test_unknown_settings_and_fields_are_refused(db: Protocol) -> None:
    id, token = db.put(), uuid4()
    db.claim(token=token)
    item = {"id": id, "token": token}

    for text in CORPUS:
        assert refusal(lambda text=text: db.queue_set("default", **{text: 1})) == "HF221"
        assert refusal(lambda text=text: db.lane_set("default", "l", **{text: 1})) == "HF221"
        assert refusal(lambda text=text: db.enqueue({"kind": "k", text: 1})) == "HF201"
        assert refusal(lambda text=text: db.edit(id, changes={text: 1})) == "HF222"
        assert refusal(lambda text=text: db.settle({**item, "verb": text})) == "HF201"
        assert refusal(lambda text=text: db.settle({**item, "verb": "ack", text: 1})) == "HF201"
    assert db.state(id) == "leased"


@pytest.mark.parametrize(
    "setting",
    [
        *("max_attempts", "lease", "keep_done", "payload_limit", "limit", "rate_limit", "fair"),
        *("rate_period", "by_kind", "lane_limit", "lane_on_failure", "backoff", "backoff_cap"),
        "fanout",
    ],
)
def test_a_setting_that_is_just_any_text_is_refused(db: Protocol, setting: str) -> None:
    codes = {
        text: refusal(lambda text=text: db.queue_set("q", **{setting: text})) for text in CORPUS
    }

    assert {text: code for text, code in codes.items() if code != "HF221"} == {}


@pytest.mark.parametrize("setting", ["limit", "on_failure", "rate_limit", "rate_period"])
def test_a_setting_of_a_lane_that_is_just_any_text_is_refused(db: Protocol, setting: str) -> None:
    codes = {
        text: refusal(lambda text=text: db.lane_set("q", "l", **{setting: text})) for text in CORPUS
    }

    assert {text: code for text, code in codes.items() if code != "HF221"} == {}


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("priority", "HF203"),
        ("max_attempts", "HF204"),
        ("lease", "HF204"),
        ("delay", "HF204"),
        ("run_at", "HF204"),
        ("on_conflict", "HF205"),
        ("id", "HF201"),
        ("headers", "HF201"),
    ],
)
def test_a_field_that_is_just_any_text_is_refused(db: Protocol, field: str, code: str) -> None:
    texts = [*CORPUS, "zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz"]
    codes = {
        text: refusal(lambda text=text: db.enqueue({"kind": "k", field: text})) for text in texts
    }

    assert {text: given for text, given in codes.items() if given != code} == {}
    assert db.list() == []


@pytest.mark.parametrize("field", NAMES)
def test_a_name_that_is_no_text_is_refused(db: Protocol, field: str) -> None:
    values: list[Any] = [[], ["a"], {}, {"a": 1}, True]

    codes = [
        refusal(lambda value=value: db.enqueue({"kind": "k", field: value})) for value in values
    ]

    assert set(codes) <= {"HF201", "HF202"}
    assert db.list() == []


@pytest.mark.parametrize(
    "moment", ["-infinity", "infinity", "0044-03-15 BC", "10000-01-01", "294276-01-01"]
)
def test_a_time_that_no_calendar_has_is_refused(
    db: Protocol, sql_database: str, moment: str
) -> None:
    id = db.put()
    codes = {
        "enqueue": refusal(lambda: db.enqueue({"kind": "k", "run_at": moment})),
        "edit": refusal(lambda: db.edit(id, changes={"run_at": moment})),
        "pause": refusal(lambda: db.value("pause", queue="default", until=moment)),
    }
    db.resume("default")

    assert codes == dict.fromkeys(codes, "HF204")
    with Client(sql_database) as client:
        assert [lease.id for lease in client.claim(worker="ada", limit=10)] == [id]


def test_a_length_of_time_that_nobody_can_wait_for_is_refused(db: Protocol) -> None:
    id = db.put()
    leased = db.take()
    held = "ids => %(ids)s, tokens => %(tokens)s"
    calls = {
        "claim": "claim(queue => 'default', worker => 'ada', token => %(token)s, lease => %(for)s)",
        "touch": f"touch({held}, lease => %(for)s)",
        "release": f"release({held}, delay => %(for)s)",
        "nack": f"nack({held}, delay => %(for)s)",
        "retry": "retry(ids => %(ids)s, delay => %(for)s)",
        "hand_over": "hand_over(id => %(id)s, token => %(token)s, new_token => %(other)s,"
        " timeout => %(for)s)",
    }
    arguments = {"ids": [id], "tokens": [leased.token], "token": uuid4(), "for": "9000 years"}
    arguments |= {"id": id, "other": uuid4()}

    codes = {
        verb: refusal(
            lambda call=call: db.connection.execute(f"select from holdfast.{call}", arguments)
        )
        for verb, call in calls.items()
    }

    assert codes == dict.fromkeys(calls, "HF204")


def test_a_filter_is_refused_or_reads(db: Protocol) -> None:
    db.put(payload={"a": 1})
    shapes = [
        "{}",
        "-{}",
        "kind:{}",
        "state:{}",
        "id:{}",
        "attempt:{}",
        "age:{}",
        "created:{}",
        "created:>{}",
        "{}:x",
        "payload.{}:x",
        "payload.a:{}",
        'kind:"{}"',
        '"{}"',
    ]

    for shape in shapes:
        for text in CORPUS:
            code = refusal(lambda text=text, shape=shape: db.find(shape.replace("{}", text)))
            assert code in (None, "HF220"), (shape, text)


@same_database
@given(any_text | st.text("ab*:.,-\"'\\%$(){}<>= 1"))
def test_any_filter_is_refused_or_reads(db: Protocol, text: str) -> None:
    assert refusal(lambda: db.find(text)) in (None, "HF220")


def test_a_payload_is_found_by_what_it_says(db: Protocol) -> None:
    ids = {text: db.put(payload={"deep": {"er": text}}) for text in CORPUS}

    found = {text: db.find(f"payload.deep.er:{quoted(text)}") for text in CORPUS}

    assert found == {text: [id] for text, id in ids.items()}


@same_database
@given(
    st.text(
        st.characters(exclude_categories=["Cs", "Z", "C"], exclude_characters='.:"'), min_size=1
    )
)
def test_a_payload_is_found_by_a_path_of_any_name(db: Protocol, text: str) -> None:
    id = db.put(payload={"deep": {text: "x"}})

    assert db.find(f"payload.deep.{text}:x id:{id}") == [id]


def test_copied_names_are_refused_or_stored_as_they_are(db: Protocol, sql_database: str) -> None:
    with Client(sql_database) as client:
        for field in ("kind", "queue", "tenant", "subject"):
            for text in CORPUS:
                job = NewJob(**{"kind": "k", "payload": text, field: text})
                code = refusal(lambda job=job: client.copy([job]))
                found = [
                    (getattr(job, field), job.payload) for job in db.list(f"{field}:{quoted(text)}")
                ]
                assert (code, found) in [(None, [(text, text)]), REFUSED], (field, text)
                db.delete(*db.find())


@pytest.mark.parametrize("field", NAMES)
def test_a_name_with_a_nul_is_refused(db: Protocol, sql_database: str, field: str) -> None:
    with Client(sql_database) as client:
        by_client = refusal(lambda: client.enqueue_many([NewJob(**{"kind": "k", field: "a\0b"})]))

    assert by_client is not None
    assert by_client.startswith("HF2")
    # It is PostgreSQL that refuses it: no such text can exist there.
    assert refusal(lambda: db.enqueue({"kind": "k", field: "a\0b"})) == "22P05"
    assert db.list() == []


def test_an_error_with_a_nul_never_keeps_a_job_from_being_settled(
    db: Protocol, sql_database: str
) -> None:
    id = db.put()

    with Client(sql_database) as client:
        [answer] = client.nack(
            client.claim(worker="ada"), error_kind="a\0b", message="c\0d", traceback="e\0f"
        )

    assert answer.outcome == "queued"
    assert len(db.attempts(id)) == 1


def quoted(text: str) -> str:
    """The text as a value of the filter language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def refusal(call: Callable[[], Any]) -> str | None:
    """The code a call was refused with, or None."""
    try:
        call()
    except psycopg.Error as error:
        return error.sqlstate or type(error).__name__
    except HoldfastError as error:
        return error.code
    return None
