"""A shop's queues on an ordinary morning: what pages and pictures show."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any

import psycopg
from msgspec import Meta

from holdfast.arguments import Arguments
from holdfast.client import Client
from holdfast.records import Lease, NewJob, NewSchedule

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/.venv/lib/python3.13/site-packages/httpx/_sync/default.py", line 101, in map
    yield
  File "/srv/shop/.venv/lib/python3.13/site-packages/httpcore/_sync/pool.py", line 256, in send
    raise exc from None
  File "/srv/shop/shop/mail.py", line 42, in send_email
    server.sendmail(sender, [to], message.as_string())
  File "/usr/lib/python3.13/smtplib.py", line 904, in sendmail
    raise SMTPDataError(code, resp)
TimeoutError: 30 s waiting for smtp.example.org
"""


class Template(Enum):
    """What a message is made from."""

    WELCOME = "welcome"
    RECEIPT = "receipt"
    REMINDER = "reminder"


@dataclass
class Sender:
    """Who a message comes from."""

    name: str
    address: str = "shop@example.org"


def send_email(
    to: Annotated[str, Meta(extra_json_schema={"format": "email"})],
    template: Template,
    user_id: int | None = None,
    sender: Sender | None = None,
    urgent: bool = False,
    tags: Sequence[str] = (),
) -> None:
    """Send one message through the relay."""


# What a worker that has the function declares of it.
KINDS: list[dict[str, Any]] = [
    {
        "kind": "send_email",
        "queue": "mail",
        "doc": send_email.__doc__,
        "schema": Arguments(send_email, "send_email").schema(),
    },
    {"kind": "resize_image", "queue": "images"},
    {"kind": "price_run", "queue": "axiom"},
    {"kind": "nightly_report", "queue": "reports"},
    {"kind": "fetch_rates", "queue": "default"},
]


def set_stage(url: str, *, scale: int = 1) -> None:
    """Fill an empty database with work in every state; `scale` multiplies the dead and waiting."""
    with Client(url) as client:
        _queues(client)
        _kinds_and_workers(client)
        _done(client)
        _dead(client, url, scale)
        _lanes(client)
        _running(client)
        _waiting(client, url, scale)
        client.queues.set("mail", limit=40, actor="ada")
        _schedules(client)
        client.upkeep.fold()
        client.detectors.run()


def _queues(client: Client) -> None:
    client.queues.set("mail", max_attempts=3, keep_done=timedelta(days=1))
    client.queues.set(
        "axiom",
        max_attempts=3,
        lease=timedelta(minutes=3),
        keep_done=timedelta(days=7),
        activity="all",
    )
    client.queues.set("images", keep_done=timedelta(hours=6))
    client.queues.set("reports", rate_limit=100, rate_period=timedelta(minutes=1))
    client.queues.set("default", keep_done=timedelta(days=1))


def _kinds_and_workers(client: Client) -> None:
    client.kinds.declare(KINDS)
    now = datetime.now(UTC)
    web = {"queues": ["mail", "default"], "kinds": ["send_email", "fetch_rates"], "slots": 16}
    images = {"queues": ["images"], "kinds": ["resize_image"], "slots": 8}
    axiom = {"queues": ["axiom"], "kinds": ["price_run"], "slots": 2}
    beats: Sequence[tuple[str, dict[str, Any]]] = [
        ("web1-3f2c91d0", {**web, "busy": 6, "acked": 18421, "failed": 212}),
        ("web2-77a01be4", {**web, "busy": 5, "acked": 18066, "failed": 198}),
        ("img1-90aa12cd", {**images, "busy": 4, "acked": 4120, "failed": 3}),
        ("axiom-02c7d9f1", {**axiom, "busy": 1, "acked": 96, "failed": 13}),
    ]
    for number, (worker, facts) in enumerate(beats):
        client.workers.beat(
            worker,
            host=worker.split("-")[0],
            pid=4100 + number,
            version="0.1.0",
            python="3.13.2",
            started_at=(now - timedelta(hours=7, minutes=number * 9)).isoformat(),
            rss=(112 + 31 * number) * 1_000_000,
            loop_lag=0.004 + number / 1000,
            claimed=facts["acked"] + facts["failed"],
            lost=number % 2,
            **facts,
        )
    client.workers.beat(
        "php-importer", host="10.0.4.9", version="guzzle/7.9", queues=["images"], kinds=[]
    )


def _done(client: Client) -> None:
    for queue, kind, number in (("mail", "send_email", 40), ("images", "resize_image", 24)):
        client.enqueue_many(
            [
                NewJob(kind=kind, queue=queue, payload=_payload(kind, index))
                for index in range(number)
            ]
        )
        leases = client.claim(queue, worker="web1-3f2c91d0", limit=number)
        client.ack(leases, [{"message_id": f"<{index}@shop>"} for index in range(len(leases))])


def _dead(client: Client, url: str, scale: int) -> None:
    client.enqueue_many(
        [
            NewJob(
                kind="send_email",
                queue="mail",
                payload=_payload("send_email", 100 + index),
                priority=5,
                key=f"welcome-{index}",
                tenant="acme",
            )
            for index in range(120 * scale)
        ]
    )
    for attempt in range(3):
        leases = client.claim("mail", worker=f"web{attempt % 2 + 1}-3f2c91d0", limit=1000)
        for host in range(3):
            mine = [lease for lease in leases if lease.id.int % 3 == host]
            message = f"30 s waiting for smtp{host}.example.org"
            _fail(client, mine, "TimeoutError", message, TRACEBACK)
    client.enqueue_many(
        [
            NewJob(
                kind="send_email",
                queue="mail",
                payload=_payload("send_email", 900 + index),
                max_attempts=1,
            )
            for index in range(4)
        ]
    )
    refused = client.claim("mail", worker="web2-77a01be4", limit=4)
    _fail(client, refused, "SMTPRecipientsRefused", "550 no such user user1@example.org")
    client.enqueue_many(
        [
            NewJob(
                kind="resize_image",
                queue="images",
                payload={"image": f"p/{index}.heic"},
                max_attempts=1,
            )
            for index in range(17)
        ]
    )
    upright = client.claim("images", worker="img1-90aa12cd", limit=17)
    _fail(client, upright, "KeyError", "'orientation'")
    # Half a minute each, over the night.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            """
            update holdfast.dead set ended_at = ended_at - random() * interval '9 hours'
            where error like 'Timeout%';
            update holdfast.dead set created_at = ended_at - interval '111 seconds'
            where error like 'Timeout%';
            update holdfast.attempt a
            set ended_at = d.ended_at - step.ago,
                started_at = d.ended_at - step.ago - interval '30 s'
            from holdfast.dead d, (values
              (1, interval '79 s'), (2, interval '45 s'), (3, interval '0')) step(attempt, ago)
            where d.id = a.id and step.attempt = a.attempt and d.error like 'Timeout%';
            """
        )


def _fail(
    client: Client, leases: Sequence[Lease], kind: str, message: str, traceback: str = ""
) -> None:
    client.nack(leases, error_kind=kind, message=message, traceback=traceback, delay=0)


def _lanes(client: Client) -> None:
    for scenario in ("base", "stress", "rates-up", "rates-down", "fx", "credit"):
        client.enqueue(
            "price_run", {"scenario": scenario, "as_of": "2026-11-15"}, queue="axiom", lane="axiom"
        )
    for account in ("a-7", "a-9"):
        for month in (9, 10):
            client.enqueue(
                "price_run",
                {"account": account, "month": month},
                queue="axiom",
                lane=f"account {account}",
            )
    held = client.claim("axiom", worker="axiom-02c7d9f1", limit=2, lease=timedelta(minutes=30))
    client.touch(held, progress=[{"done": 12, "total": 20, "note": "curve 12 of 20"}] * len(held))


def _running(client: Client) -> None:
    client.enqueue_many(
        [
            NewJob(kind="send_email", queue="mail", payload=_payload("send_email", 500 + index))
            for index in range(11)
        ]
    )
    client.claim("mail", worker="web1-3f2c91d0", limit=6, lease=timedelta(minutes=30))
    client.claim("mail", worker="web2-77a01be4", limit=5, lease=timedelta(minutes=30))
    client.enqueue_many(
        [
            NewJob(
                kind="resize_image",
                queue="images",
                payload={"image": f"p/{index}.png", "width": 640},
            )
            for index in range(4)
        ]
    )
    held = client.claim("images", worker="img1-90aa12cd", limit=4, lease=timedelta(minutes=30))
    client.touch(held, progress=[{"done": 3 + 2 * index, "total": 9} for index in range(len(held))])


def _waiting(client: Client, url: str, scale: int) -> None:
    client.enqueue_many(
        [
            NewJob(
                kind="send_email",
                queue="mail",
                payload=_payload("send_email", 700 + index),
                priority=index % 3,
            )
            for index in range(60 * scale)
        ]
    )
    client.enqueue_many(
        [
            NewJob(
                kind="send_email",
                queue="mail",
                payload=_payload("send_email", 800 + index),
                delay=600 + 60 * index,
            )
            for index in range(14)
        ]
    )
    client.enqueue_many(
        [
            NewJob(
                kind="nightly_report", queue="reports", payload={"day": "2026-11-14", "part": index}
            )
            for index in range(88)
        ]
    )
    client.queues.pause("reports", reason="warehouse is being reloaded", actor="ada")
    client.enqueue_many(
        [
            NewJob(
                kind="send_sms",
                queue="default",
                payload={"to": "+33 6 00 00 00 00"},
                subject=f"user/{index}",
            )
            for index in range(21)
        ]
    )
    # Long enough for detectors to tell.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            """
            update holdfast.job set run_at = run_at - interval '4 minutes' where kind = 'send_sms';
            update holdfast.queue set paused_at = paused_at - interval '26 hours'
            where name = 'reports';
            """
        )
    cancelled = client.enqueue("fetch_rates", {"currency": "CHF"})
    client.jobs.cancel([cancelled.id], reason="duplicate of the nightly run", actor="ada")


def _schedules(client: Client) -> None:
    client.schedules.declare(
        [
            NewSchedule(
                name="fetch_rates", kind="fetch_rates", cron="30 5 * * MON-FRI", tz="Europe/Paris"
            ),
            NewSchedule(
                name="price_runs",
                kind="price_run",
                cron="*/15 * * * *",
                queue="axiom",
                overlap="skip",
                options={"lane": "axiom"},
            ),
            NewSchedule(
                name="nightly_report",
                kind="nightly_report",
                cron="15 2 * * *",
                tz="America/New_York",
                queue="reports",
                missed="all",
            ),
            NewSchedule(name="sweep_uploads", kind="resize_image", every=600, queue="images"),
        ],
        owner="shop",
    )
    client.schedules.pause("sweep_uploads", reason="bucket is being moved", actor="grace")
    client.schedules.run("fetch_rates", actor="ada")


def _payload(kind: str, index: int) -> dict[str, Any]:
    if kind == "resize_image":
        return {
            "image": f"products/{index:05}.jpg",
            "width": random.Random(index).choice([320, 640, 1280]),
        }
    return {
        "to": f"user{index}@example.org",
        "template": ("welcome", "receipt", "reminder")[index % 3],
        "user_id": 9007199254740000 + index,
        "items": [{"sku": f"SKU-{index % 97:03}", "quantity": index % 4 + 1}],
    }


def live_on(url: str, stop: Callable[[], bool], *, pause: float = 0.25) -> None:
    """Let the shop work until told to stop: jobs come and are done, workers beat."""
    workers = ("web1-3f2c91d0", "web2-77a01be4", "img1-90aa12cd", "axiom-02c7d9f1")
    turn = 0
    with Client(url) as client:
        while not stop():
            turn += 1
            swell = 3 + int(2.5 * math.sin(turn / 30))
            client.enqueue_many(
                NewJob(
                    kind="send_email", queue="mail", payload=_payload("send_email", turn + index)
                )
                for index in range(swell)
            )
            client.enqueue("resize_image", {"image": f"n/{turn}.jpg"}, queue="images")
            for queue, worker, most in (("mail", workers[turn % 2], 4), ("images", workers[2], 1)):
                client.ack(client.claim(queue, worker=worker, limit=most))
            for worker in workers:
                client.workers.beat(worker)
            time.sleep(pause)
