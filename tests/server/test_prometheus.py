"""What the server tells Prometheus."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from holdfast import Client
from holdfast.records import NewJob
from holdfast.server.api.prometheus import Totals
from holdfast.server.doors.access import User
from holdfast.watch.labels import MOST_KINDS, MOST_QUEUES
from tests import promtext
from tests.conftest import Clock
from tests.promtext import values
from tests.server.conftest import Api, Serve

ODD = 'a "quoted" \\ one\nin two lines {x="y"} é'


def test_queues_and_jobs_are_told_as_promtool_wants_them(
    api: Api, client: Client, clock: Clock
) -> None:
    promtext.check(api.get("/metrics").text)
    client.enqueue_many(NewJob(kind="send", queue="mail", max_attempts=1) for _ in range(5))
    done, dies, cancelled = client.claim("mail", worker="w", limit=3)
    client.ack([done])
    client.nack([dies], error_kind="SMTPTimeout", message="late")
    client.jobs.cancel([cancelled.id])
    client.claim("mail", worker="w")
    client.upkeep.run()
    clock.advance(minutes=3)

    told = promtext.check(api.get("/metrics").text)

    assert values(told, "holdfast_queue_depth", "queue", "state") == {
        ("mail", "queued"): 1,
        ("mail", "leased"): 1,
        ("mail", "dead"): 1,
    }
    assert 180 <= values(told, "holdfast_queue_oldest_seconds", "queue")["mail"] < 240
    assert 180 <= values(told, "holdfast_dead_oldest_seconds", "queue")["mail"] < 240
    assert values(told, "holdfast_jobs_enqueued_total", "queue", "kind") == {("mail", "send"): 5}
    assert values(told, "holdfast_jobs_finished_total", "queue", "kind", "outcome") == {
        ("mail", "send", "done"): 1,
        ("mail", "send", "dead"): 1,
        ("mail", "send", "cancelled"): 1,
    }
    assert values(told, "holdfast_queue_paused", "queue") == {"mail": 0}
    assert told["holdfast_listen_up"].samples[0].value in (0, 1)


def test_counters_do_not_go_back_when_jobs_are_deleted_or_retried(api: Api, client: Client) -> None:
    api.get("/metrics")
    client.enqueue_many(NewJob(kind="send", max_attempts=1) for _ in range(2))
    leases = client.claim(worker="w", limit=2)
    client.nack(leases, error_kind="ValueError", message="no")
    before = promtext.check(api.get("/metrics").text)
    client.jobs.delete([leases[0].id])
    client.jobs.retry([leases[1].id])

    after = promtext.check(api.get("/metrics").text)

    assert values(after, "holdfast_queue_depth", "queue", "state")["default", "dead"] == 0
    for name in ("holdfast_jobs_enqueued", "holdfast_jobs_finished"):
        assert after[name].samples == before[name].samples
    assert (
        values(after, "holdfast_jobs_finished_total", "queue", "kind", "outcome")[
            "default", "send", "dead"
        ]
        == 2
    )


def test_workers_are_told_with_their_slots(api: Api, client: Client) -> None:
    client.workers.beat("one", slots=8, busy=3)
    client.workers.beat("two", slots=4, busy=4)

    told = promtext.check(api.get("/metrics").text)

    assert values(told, "holdfast_worker_slots", "use") == {"used": 7, "total": 12}
    assert values(told, "holdfast_workers") == {(): 2}


def test_names_that_need_escapes_come_back_whole(api: Api, client: Client) -> None:
    odd = ODD.replace("\n", " ")
    client.enqueue(odd, queue=odd)
    client.upkeep.run()

    told = promtext.check(api.get("/metrics").text)

    assert (odd, "queued") in values(told, "holdfast_queue_depth", "queue", "state")
    assert (odd, odd) in values(told, "holdfast_jobs_enqueued_total", "queue", "kind")


def test_a_thousand_kinds_share_a_hundred_labels_and_other(api: Api, client: Client) -> None:
    api.get("/metrics")
    kinds = MOST_KINDS + 900
    client.enqueue_many(NewJob(kind=f"k{number}") for number in range(kinds))
    client.enqueue_many(NewJob(kind="busy") for _ in range(50))

    told = promtext.check(api.get("/metrics").text)

    counts = values(told, "holdfast_jobs_enqueued_total", "queue", "kind")
    assert len(counts) == MOST_KINDS + 1
    assert counts["default", "busy"] == 50
    assert counts["default", "other"] == kinds + 1 - MOST_KINDS
    assert sum(counts.values()) == kinds + 50


def test_ten_thousand_queues_share_five_hundred_labels_and_other() -> None:
    totals = Totals()

    labels = {totals.queues.label(f"q{number}") for number in range(10_000)}

    assert len(labels) == MOST_QUEUES + 1
    assert totals.queues.label("q7") == "q7"


def test_who_sees_one_queue_is_told_of_no_other(serve: Serve, client: Client) -> None:
    client.enqueue("send", queue="mail")
    client.enqueue("pay", queue="money")
    mail = serve(auth=lambda request: User("php", frozenset({"read"}), frozenset({"mail"})))

    with mail.client() as api:
        told = promtext.check(api.get("/metrics").text)

    assert {labels[0] for labels in values(told, "holdfast_queue_depth", "queue", "state")} == {
        "mail"
    }
    assert {
        labels[0] for labels in values(told, "holdfast_jobs_enqueued_total", "queue", "kind")
    } == {"mail"}


def test_workflows_are_told_by_name_and_how_they_ended_to_whoever_may_use_all_queues(
    api: Api, client: Client, serve: Serve, clock: Clock
) -> None:
    client.workflows.start("live", [NewJob(kind="x", queue="mail")])
    ended = [
        client.workflows.start("nightly", [NewJob(kind="x", max_attempts=1)]).id for _ in range(4)
    ]
    client.ack(client.claim(worker="w", limit=2))
    client.nack(client.claim(worker="w"), error_kind="x", message="m")
    client.workflows.cancel(ended[3])
    while ("nightly", "live") in {(one.name, one.state) for one in client.workflows.tally()}:
        clock.advance(seconds=10)  # a turn of upkeep sees what has ended
        client.operations.step()
        client.upkeep.run()
    mail = serve(auth=lambda request: User("php", frozenset({"read"}), frozenset({"mail"})))

    told = promtext.check(api.get("/metrics").text)
    with mail.client() as of_mail:
        hidden = promtext.check(of_mail.get("/metrics").text)
    clock.advance(hours=2)
    later = promtext.check(api.get("/metrics").text)

    assert values(told, "holdfast_workflows", "name", "state") == {
        ("live", "live"): 1,
        ("nightly", "done"): 2,
        ("nightly", "failed"): 1,
        ("nightly", "cancelled"): 1,
    }
    assert "holdfast_workflows" not in hidden
    assert values(later, "holdfast_workflows", "name", "state") == {("live", "live"): 1}


def test_open_metrics_are_for_whoever_asks(api: Api, client: Client) -> None:
    client.enqueue("send")

    answer = api.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = [family.name for family in text_string_to_metric_families(answer.text)]
    assert "holdfast_queue_depth" in names


@pytest.mark.parametrize(
    "text",
    [
        "holdfast_a 1\n",
        "# HELP holdfast_a x\n# TYPE holdfast_a counter\nholdfast_a 1\n",
        "# HELP holdfast_a x\n# TYPE holdfast_a gauge\nholdfast_a 1\nholdfast_a 2\n",
        "# HELP holdfast_a_ms x\n# TYPE holdfast_a_ms gauge\nholdfast_a_ms 1\n",
        "# TYPE holdfast_a gauge\nholdfast_a 1\n",
        '# HELP holdfast_a x\n# TYPE holdfast_a gauge\nholdfast_a{b="\n"} 1\n',
        "# HELP holdfast_a x\n# TYPE holdfast_a gauge\nholdfast_a 1",
    ],
)
def test_the_check_finds_what_promtool_finds(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        promtext.check(text)
