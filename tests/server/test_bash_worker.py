"""A worker in bash, with curl: jobs are done through kill and restart, and none is lost."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

import pytest

from holdfast import Client
from tests.server.conftest import Serve
from tests.server.serving import Serving

WORKER = Path(__file__).parents[2] / "examples" / "bash-worker" / "worker.sh"

pytestmark = pytest.mark.skipif(not (which("curl") and which("jq")), reason="needs curl and jq")

# Notes that it began before it works, and that it ended after: a kill falls in between.
HANDLERS = """
handle() {
  local n=$(jq -r .n <<<"$2")
  echo "$n" >>"$BEGUN"
  sleep 0.2
  [ "$n" = 3 ] && [ ! -e "$FAILED" ] && touch "$FAILED" && return 7
  echo "$n" >>"$DONE"
  echo "result of $n"
}
"""


@contextmanager
def working(server: Serving, home: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the worker in a process group of its own."""
    (home / "handlers.sh").write_text(HANDLERS)
    process = subprocess.Popen(
        [str(WORKER), "mail"],
        env={
            **os.environ,
            "HOLDFAST_API": server.url,
            "HANDLERS": str(home / "handlers.sh"),
            "BEGUN": str(home / "begun"),
            "DONE": str(home / "done"),
            "FAILED": str(home / "failed"),
            "LEASE": "2",
            "WAIT": "2",
            **environment,
        },
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_jobs_are_done_through_kill_and_restart_and_none_is_lost(
    serve: Serve, client: Client, tmp_path: Path
) -> None:
    secret = client.tokens.create("bash", ["consume"], queues=["mail"]).secret
    server = serve(ways=["token"])
    client.queues.set("mail", max_attempts=10, backoff=0.1)
    jobs = [client.enqueue("work", {"n": n}, queue="mail") for n in range(12)]
    kills = 0

    end = time.monotonic() + 90
    while (
        client.queues.get("mail").queued + client.queues.get("mail").leased
        and time.monotonic() < end
    ):
        with working(server, tmp_path, HOLDFAST_TOKEN=secret) as worker:
            begun = len(lines(tmp_path / "begun"))
            # In the middle of a job, three times; then it is left to finish.
            while worker.poll() is None and time.monotonic() < end:
                found = client.queues.get("mail")
                if not found.queued + found.leased:
                    break
                if kills < 3 and len(lines(tmp_path / "begun")) > begun + 1:
                    kills += 1
                    break
                time.sleep(0.02)

    found = client.queues.get("mail")
    assert kills == 3
    assert (found.queued, found.leased, found.dead, found.done) == (0, 0, 0, len(jobs))
    assert set(lines(tmp_path / "done")) == {str(n) for n in range(12)}
    assert len(lines(tmp_path / "begun")) > len(jobs)


@pytest.mark.parametrize("ends", ["while it works", "while it waits"])
def test_a_job_longer_than_its_lease_is_held_and_the_worker_ends_when_told(
    serve: Serve, client: Client, tmp_path: Path, ends: str
) -> None:
    server = serve()
    client.queues.set("mail", keep_done=3600)
    job = client.enqueue("sleep", {"n": 1, "seconds": 4}, queue="mail")
    with working(server, tmp_path, HANDLERS="") as worker:
        end = time.monotonic() + 120
        until = "leased" if ends == "while it works" else "done"
        while client.jobs.get(job.id).state != until and time.monotonic() < end:
            time.sleep(0.1)
        worker.terminate()
        ended = worker.wait(100)

    done = client.jobs.get(job.id)
    assert (done.state, done.attempt) == ("done", 1)
    assert ended == 0
