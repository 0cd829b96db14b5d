"""The lives of messages: every server hears them, whoever caused them, and says what it missed."""

import json
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from holdfast import Client, NewJob
from holdfast.server.live import job_log
from tests.conftest import Clock, Connect
from tests.server.conftest import Serve
from tests.server.serving import Serving
from tests.server.test_stream import Watcher, watching

Told = dict[str, Any]


@pytest.fixture
def servers(serve: Serve) -> tuple[Serving, Serving]:
    """Two servers on one database, neither of which takes back what is overdue by itself."""
    return serve(fresh=0.0, upkeep=False), serve(fresh=0.0, upkeep=False)


@contextmanager
def listening(server: Serving, path: str = "/queue/events", **headers: str) -> Iterator[Watcher]:
    """Watch a server, from when everything is noted."""
    with watching(server, path, **headers) as watcher:
        watcher.next("hello")
        yield watcher


def life(watcher: Watcher, until: Callable[[list[Told]], bool], within: float = 20) -> list[Told]:
    """What is told of single messages, up to when it is enough."""
    told: list[Told] = []
    end = time.monotonic() + within
    while not until(told):
        try:
            event = watcher.next("message", max(end - time.monotonic(), 0.01))
        except queue.Empty:
            pytest.fail(f"after {within} s: {[(e['type'], e['payload']) for e in told][-20:]}")
        if event["data"]["type"] != "queue_update":
            told.append(event["data"] | {"at": event["id"]})
    return told


def heard(watcher: Watcher, count: int) -> list[tuple[str, str]]:
    """The next so many events of messages."""
    told = life(watcher, lambda told: len(told) >= count)
    return [(one["type"], one["payload"].get("id")) for one in told]


def of(messages: list[Told], action: str) -> set[str]:
    return {one["payload"]["id"] for one in messages if one["type"] == action}


@pytest.mark.proves("S4.25", "S4.26")
def test_both_servers_hear_each_message_whoever_caused_what_happened(
    servers: tuple[Serving, Serving], client: Client, connect: Connect
) -> None:
    first, second = servers
    with listening(first) as one, listening(second) as two, first.client() as api:
        by_python = str(client.enqueue("a", queue="mail").id)
        items = json.dumps([{"kind": "b", "queue": "mail", "max_attempts": 1}])
        [(sql_id,)] = connect().execute("select id from holdfast.enqueue(%s)", [items]).fetchall()
        by_sql = str(sql_id)
        assert heard(one, 2) == heard(two, 2) == [("enqueue", by_python), ("enqueue", by_sql)]

        # a verb on the other server
        with second.client() as other:
            message = other.get("/queue/message?queue=mail&type=a&consumerId=ada").json()
            nacked = {"lock_token": message["lock_token"], "error": "no", "retry_in": 0}
            other.post(f"/queue/message/{by_python}/nack", json=nacked)
        expected = [("dequeue", by_python), ("nack", by_python)]
        assert heard(one, 2) == heard(two, 2) == expected

        # a timeout, to death, by whoever takes back what is overdue
        client.claim("mail", worker="bob", kinds=["b"], lease=0.001)
        while not client.upkeep.reap():
            time.sleep(0.001)
        expected = [("dequeue", by_sql), ("timeout", by_sql), ("dlq", by_sql)]
        assert heard(one, 3) == heard(two, 3) == expected

        # a batch of 300
        batch = {"messages": [{"payload": {"n": n}, "queue": "bulk"} for n in range(300)]}
        ids = {each["id"] for each in api.post("/queue/batch", json=batch).json()["messages"]}
        for _ in range(3):
            got = api.get("/queue/messages/batch?queue=bulk&count=100").json()["messages"]
            acks = [{"id": each["id"], "lock_token": each["lock_token"]} for each in got]
            api.post("/queue/ack/batch", json={"messages": acks})
        for watcher in (one, two):
            told = life(watcher, lambda told: len(told) >= 900)
            assert of(told, "enqueue") == of(told, "dequeue") == of(told, "ack") == ids
            assert Counter(each["type"] for each in told) == dict.fromkeys(
                ("enqueue", "dequeue", "ack"), 300
            )


def test_an_event_tells_the_message_and_its_place_in_the_log(
    servers: tuple[Serving, Serving], client: Client
) -> None:
    with listening(servers[0]) as watcher:
        job = client.enqueue("a", queue="mail")
        [lease] = client.claim("mail", worker="ada")
        client.nack([lease], message="no route")
        told = life(watcher, lambda told: len(told) == 3)

    [page] = [client.activity.list(job=job.id)]
    logged = {event.seq: event for event in page.events}
    assert [one["payload"].pop("event_id") for one in told] == [str(seq) for seq in sorted(logged)]
    for one, seq in zip(told, sorted(logged), strict=True):
        assert one["payload"].pop("at")
        assert one["at"].endswith(f"@{seq}")
    about = {"id": str(job.id), "type": "a", "queue": "mail"}
    by = {"consumer_id": "ada", "attempt_count": 1}
    assert [one["payload"] for one in told] == [
        about | {"status": "queued"},
        about | {"status": "processing"} | by,
        about | {"status": "queued", "last_error": "no route"} | by,
    ]


def test_our_own_stream_tells_the_activity_if_asked(
    servers: tuple[Serving, Serving], client: Client
) -> None:
    path = "/v1/events/stream?activity=true&queue=mail"
    with listening(servers[0], path) as watcher:
        client.enqueue("x", queue="other")
        job = client.enqueue("a", queue="mail")
        told = watcher.next("activity")["data"]

    assert (told["event"], told["job"], told["state"]) == ("enqueued", str(job.id), "queued")
    with listening(servers[0], "/v1/events/stream") as watcher:
        client.enqueue("a", queue="mail")
        assert watcher.next("tick")
        with pytest.raises(queue.Empty):
            watcher.next("activity", 0.6)


def test_a_user_of_some_queues_hears_of_those_alone(
    servers: tuple[Serving, Serving], client: Client
) -> None:
    token = client.tokens.create("eve", scopes=["read"], queues=["mail"]).secret
    with listening(servers[0], Authorization=f"Bearer {token}") as watcher:
        client.enqueue("x", queue="other")
        job = client.enqueue("a", queue="mail")
        assert heard(watcher, 1) == [("enqueue", str(job.id))]

    # and nobody else is noted for their sake
    assert client.activity.list(queues=["other"], event="enqueued").events == []


def test_when_nobody_watches_nothing_is_noted(
    servers: tuple[Serving, Serving], client: Client, clock: Clock
) -> None:
    client.enqueue("a", queue="mail")
    with listening(servers[0]) as watcher:
        job = client.enqueue("a", queue="mail")
        assert heard(watcher, 1) == [("enqueue", str(job.id))]
    clock.advance(seconds=job_log.LASTS + 1)
    client.enqueue("a", queue="mail")

    events = client.activity.list(queues=["mail"], event="enqueued").events
    assert [event.job for event in events] == [job.id]


def test_what_commits_late_is_told_late_and_not_lost(
    servers: tuple[Serving, Serving], client: Client, database: str
) -> None:
    with (
        listening(servers[0]) as watcher,
        psycopg.connect(database) as late,
        psycopg.connect(database) as never,
    ):
        begun = client.on(late).enqueue("late", queue="mail")
        client.on(never).enqueue("never", queue="mail")
        soon = client.enqueue("soon", queue="mail")
        [told] = life(watcher, lambda told: len(told) == 1)
        assert told["payload"]["id"] == str(soon.id)
        # Whoever comes back with this place is told what was missing before it.
        assert int(told["at"].partition("@")[2]) == int(told["payload"]["event_id"]) - 3
        late.commit()
        [told] = life(watcher, lambda told: len(told) == 1)
        assert told["payload"]["id"] == str(begun.id)
        never.rollback()
        last = client.enqueue("last", queue="mail")
        [told] = life(watcher, lambda told: len(told) == 1)
        assert told["payload"]["id"] == str(last.id)
        # What was rolled back is not waited for.
        while not told["at"].endswith(f"@{told['payload']['event_id']}"):
            client.enqueue("more", queue="mail")
            [told] = life(watcher, lambda told: len(told) == 1)


def test_whoever_comes_back_to_another_server_is_told_what_happened_meanwhile(
    servers: tuple[Serving, Serving], client: Client
) -> None:
    first, second = servers
    with listening(first) as watcher:
        client.enqueue("a", queue="mail")
        [last] = life(watcher, lambda told: len(told) == 1)
    ids = [str(one.id) for one in client.enqueue_many([NewJob(kind="b", queue="mail")] * 40)]
    with listening(second, Last_Event_ID=last["at"]) as watcher:
        after = str(client.enqueue("c", queue="mail").id)
        told = heard(watcher, 41)

    assert told == [("enqueue", id) for id in [*ids, after]]


def test_a_slow_reader_reads_on_in_the_log(
    servers: tuple[Serving, Serving], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "PAGE", 100)
    with listening(servers[0]) as watcher:
        [live] = servers[0].server._live.values()
        live.feed.lives._ring = type(live.feed.lives._ring)(maxlen=20)
        ids = [str(one.id) for one in client.enqueue_many([NewJob(kind="b", queue="mail")] * 250)]
        told = life(watcher, lambda told: len(of(told, "enqueue")) == 250)

    assert of(told, "enqueue") == set(ids)
    assert {one["type"] for one in told} == {"enqueue"}


def test_a_gap_is_announced_and_can_be_caught_up_from_the_log(
    servers: tuple[Serving, Serving], client: Client, connect: Connect
) -> None:
    first, _ = servers
    client.queues.set("kept", activity="all")
    with listening(first) as watcher, first.client() as api:
        client.enqueue("a", queue="mail")
        heard(watcher, 1)
        # The server is away for longer than its word holds: nobody notes for it.
        [live] = first.server._live.values()
        live.feed.lives._said_at = float("inf")
        lost = "update holdfast.watched set until = holdfast.now() - interval '1 second'"
        connect().execute(lost)
        unheard = str(client.enqueue("unheard", queue="mail").id)
        kept = client.enqueue("a", queue="kept")
        live.feed.lives._said_at = 0.0
        told = life(watcher, lambda told: told and told[-1]["type"] == "gap")
        gap = told[-1]["payload"]
        after = client.enqueue("a", queue="mail")
        rest = life(watcher, lambda told: str(after.id) in of(told, "enqueue"))
        caught_up = api.get(gap["catch_up"]).json()["activities"]

    assert gap["after"].isdecimal()
    assert "was away" in gap["reason"]
    assert of(told + rest, "enqueue") == {str(kept.id), str(after.id)}
    noted = [one["message_id"] for one in caught_up if one["action"] == "enqueue"]
    assert str(kept.id) in noted
    assert unheard not in noted


def test_a_server_that_is_far_behind_goes_to_the_end_and_says_where_to_catch_up(
    servers: tuple[Serving, Serving], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "PAGE", 20)
    monkeypatch.setattr(job_log, "BEHIND", 100)
    with listening(servers[0]) as watcher, servers[0].client() as api:
        ids = [str(one.id) for one in client.enqueue_many([NewJob(kind="b")] * 300)]
        told = life(watcher, lambda told: told and told[-1]["type"] == "gap")
        gap = told[-1]["payload"]
        caught_up = api.get(f"{gap['catch_up']}&limit=500").json()["activities"]
        last = client.enqueue("b")
        rest = life(watcher, lambda told: str(last.id) in of(told, "enqueue"))

    assert len(told) < 300
    assert of(told + rest, "enqueue") - {str(last.id)} < set(ids)
    missed = {one["message_id"] for one in caught_up if one["action"] == "enqueue"}
    heard = of([*told[:-1], *rest], "enqueue") | missed
    assert heard - {str(last.id)} == set(ids)


def test_who_comes_back_after_nobody_watched_is_told_that_something_is_missing(
    servers: tuple[Serving, Serving], client: Client, clock: Clock
) -> None:
    with listening(servers[0]) as watcher:
        client.enqueue("a", queue="mail")
        [last] = life(watcher, lambda told: len(told) == 1)
    clock.advance(seconds=job_log.LASTS + 1)
    client.enqueue("unheard", queue="mail")
    with listening(servers[1], Last_Event_ID=last["at"]) as watcher:
        [gap] = life(watcher, lambda told: len(told) == 1)

    assert (gap["type"], gap["payload"]["after"]) == ("gap", last["at"].partition("@")[2])
    assert "no client watched" in gap["payload"]["reason"]


def test_a_place_the_log_no_longer_has_is_told_as_a_gap(
    servers: tuple[Serving, Serving], client: Client, connect: Connect
) -> None:
    client.queues.set("mail", activity="all")
    with listening(servers[0]) as watcher:
        client.enqueue("a", queue="mail")
        [last] = life(watcher, lambda told: len(told) == 1)
    client.enqueue_many([NewJob(kind="b", queue="mail")] * 3)
    connect().execute("truncate holdfast.event")
    client.enqueue("c", queue="mail")
    with listening(servers[0], Last_Event_ID=last["at"]) as watcher:
        told = life(watcher, lambda told: len(told) == 2)

    assert [one["type"] for one in told] == ["gap", "enqueue"]
    place = int(last["at"].partition("@")[2])
    assert told[0]["payload"]["after"] == str(place)
    assert told[0]["payload"]["until"] == str(place + 3)
