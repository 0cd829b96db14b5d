"""Telling people what looks wrong: by webhook, each delivery a leased job, and in the log.

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

# Where deliveries wait; detectors tell of it in the log only.
DELIVERIES = "holdfast.alerts"
KIND = "holdfast.webhook"
# Whoever is told has this long to answer.
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
    """A detector of one's own: looks through a connection, and says all that looks wrong."""

    def __call__(self, connection: psycopg.Connection[Any], /) -> Iterable[Finding]:
        """Return what looks wrong now; what was returned before and is no more is over."""
        ...


@dataclass(frozen=True, slots=True)
class OwnDetector:
    """A detector of one's own and how often it looks, in seconds."""

    looks: Looks
    every: float


def deliver(client: Client, holder: str, stopped: Callable[[], bool] = lambda: False) -> int:
    """Deliver what waits, one after the other, until nothing does; returns how many arrived.

    What does not arrive is tried again, ever later, until its attempts are used up.
    """
    arrived = 0
    while not stopped() and (
        leases := client.claim(DELIVERIES, worker=holder, limit=_BATCH, lease=60.0)
    ):
        for nth, lease in enumerate(leases):
            if stopped():
                client.release(leases[nth:])
                return arrived
            # The others wait for this one: their time starts when it is their turn.
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
    """Log what changed, unless it is muted: as gravely as it is, and as a warning what is over."""
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
        # Whoever put it there, it is not ours to sign.
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
        # One delivery that cannot be made must not keep the others.
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
    """Send a delivery; returns what went wrong, or None."""
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
    """Follows no redirect: a signed message is for whom it was signed for."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_StayHere)
