"""What a worker answers to whoever asks whether it lives, while its handlers do what they like."""

import threading
from collections.abc import Callable
from datetime import datetime

import pytest

from holdfast import App
from holdfast.worker.leases import BLOCKED, Keeper
from tests.ports import free_port
from tests.worker.conftest import Running
from tests.worker.handlers import until
from tests.worker.test_fleet import health


def test_a_worker_whose_loop_is_blocked_lives_and_one_that_keeps_no_leases_does_not(
    app: App, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, release, keeps = threading.Event(), threading.Event(), threading.Event()
    keeps.set()
    renew = Keeper._renew

    def renew_unless_hung(self: Keeper, now: float) -> None:
        keeps.wait(60)
        renew(self, now)

    monkeypatch.setattr(Keeper, "_renew", renew_unless_hung)

    @app.task(lease=2.0)
    async def block() -> None:
        blocked.set()
        release.wait(60)

    port = free_port()
    running = start(health=str(port))
    job = block.enqueue()
    try:
        assert blocked.wait(60)
        first = lease_end(app, job.id)
        until(lambda: lease_end(app, job.id) > first and running.worker._watch.lag > BLOCKED)
        assert health(port, "/livez") == (200, "ok")

        keeps.clear()
        monkeypatch.setattr("holdfast.worker.worker.LATE_LEASES", 2.0)
        until(lambda: health(port, "/livez")[0] == 503)
        assert health(port, "/livez")[1].startswith("leases have not been kept for ")

        keeps.set()
        until(lambda: health(port, "/livez") == (200, "ok"))
    finally:
        keeps.set()
        release.set()


def lease_end(app: App, id: str) -> datetime:
    """Return when the lease of a job ends if nobody renews it."""
    job = app.client.jobs.get(id)
    assert job
    assert job.lease_until
    return job.lease_until
