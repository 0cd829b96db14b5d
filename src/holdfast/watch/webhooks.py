"""Notifications of anomalies: by webhook, each delivery a leased job, and in the log.

Requests are signed as Standard Webhooks has it: `webhook-signature` is an HMAC-SHA256, in base64,
of `webhook-id`, `webhook-timestamp` and the body, joined by dots.
"""

import base64
import hashlib
import hmac
import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import psycopg

from holdfast.client import Client
from holdfast.records import AnomalyChange, Finding, Lease

__all__ = ["DELIVERIES", "Looks", "OwnDetector", "deliver", "signature", "tell_log"]

log = logging.getLogger("holdfast.anomalies")

# The queue of deliveries; problems in it are only logged.
DELIVERIES = "holdfast.alerts"
KIND = "holdfast.webhook"
# How long a receiver may take to respond.
PATIENCE = 10.0
_BATCH = 10


class _Delivery(msgspec.Struct):
    webhook: str
    event: str
    at: str
    anomaly: msgspec.Raw


_DELIVERY = msgspec.json.Decoder(_Delivery)
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}


class Looks(Protocol):
    """A user's own detector: reads through a connection, and returns all problems it finds."""

    def __call__(self, connection: psycopg.Connection[Any], /) -> Iterable[Finding]:
        """Return the current problems; those that are no longer returned are resolved."""
        ...


@dataclass(frozen=True, slots=True)
class OwnDetector:
    """A user's own detector and how often it runs, in seconds."""

    looks: Looks
    every: float


def deliver(client: Client, holder: str, stopped: Callable[[], bool] = lambda: False) -> int:
    """Deliver waiting jobs, one after the other; returns how many arrived.

    A delivery that fails is retried with increasing delays, until its attempts are used up.
    """
    arrived = 0
    while not stopped() and (
        leases := client.claim(DELIVERIES, worker=holder, limit=_BATCH, lease=60.0)
    ):
        for nth, lease in enumerate(leases):
            if stopped():
                client.release(leases[nth:])
                return arrived
            # Others wait for this one: their timeout starts when it is their turn.
            client.touch(leases[nth:], lease=60.0)
            arrived += _deliver_one(client, lease)
    return arrived


def signature(secret: str, id: str, timestamp: str, body: bytes) -> str:
    """Return the signature header of a delivery; a secret may be whsec_ and base64."""
    coded = secret.removeprefix("whsec_")
    key = base64.b64decode(coded) if coded != secret else secret.encode()
    signed = hmac.new(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"


def tell_log(changes: Iterable[AnomalyChange]) -> None:
    """Log what changed, unless it is muted, by its severity; resolved ones as a warning."""
    for one in changes:
        if one.muted:
            continue
        level = _LEVELS[one.severity]
        log.log(
            min(level, logging.WARNING) if one.change == "resolved" else level,
            "detector failed" if one.change == "failed" else f"anomaly {one.change}: {one.title}",
            extra={
                "anomaly": one.id,
                "code": one.code,
                "severity": one.severity,
                "queue": one.queue,
                "subject": one.subject,
                "title": one.title,
            },
        )


def _deliver_one(client: Client, lease: Lease) -> bool:
    try:
        said = _DELIVERY.decode(lease.payload_json)
    except (ValueError, RecursionError):
        said = None
    if said is None or lease.kind != KIND:
        # It was not enqueued by Holdfast, so it is not signed.
        client.nack([lease], error_kind="NotADelivery", message="not made by holdfast", final=True)
        return False
    target = client.webhooks.target(said.webhook)
    if target is None:
        client.nack([lease], error_kind="Gone", message="the webhook was deleted", final=True)
        return False
    document = {"type": said.event, "timestamp": said.at, "data": said.anomaly}
    try:
        problem = _post(*target, str(lease.id), msgspec.json.encode(document))
    except Exception as error:
        # One failing delivery must not block the others.
        log.exception("delivery failed", extra={"job": str(lease.id), "webhook": said.webhook})
        problem = type(error).__name__
    if problem is None:
        client.ack([lease])
        return True
    client.nack([lease], error_kind="DeliveryFailed", message=problem, delay=_wait(lease.attempt))
    return False


def _wait(attempt: int) -> float:
    return float(min(5 * 3 ** (attempt - 1), 3600))


def _post(url: str, secret: str, id: str, body: bytes) -> str | None:
    """Send a delivery; returns the error, or None."""
    timestamp = str(int(time.time()))
    request = urllib.request.Request(
        url,
        data=body,
        method="POST",
        headers={
            "content-type": "application/json",
            "user-agent": "holdfast",
            "webhook-id": id,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(secret, id, timestamp, body),
        },
    )
    try:
        with _OPENER.open(request, timeout=PATIENCE) as answer:
            return None if 200 <= answer.status < 300 else f"HTTP {answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(getattr(error, "reason", None) or error) or type(error).__name__


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: a signed message is for one receiver."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_StayHere)
