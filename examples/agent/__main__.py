"""Kill an agent in its third turn, twice: once without steps, once with. Wants `holdfast serve`."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

os.environ.setdefault("AGENT_LEASE", "1")

from examples.agent import app as agent
from examples.agent.app import app, refunds, set_up, support, support_without_steps
from examples.agent.model import calls
from holdfast.worker import Worker

TICKET = "My kettle never came."
DIES_IN = 3


def main() -> None:
    """Run the story."""
    parser = argparse.ArgumentParser(prog="python -m examples.agent", description=__doc__)
    parser.add_argument("--by-hand", action="store_true", help="wait until you have answered")
    by_hand = parser.parse_args().by_hand
    check_server()
    with app:
        story(by_hand=by_hand)


def story(*, by_hand: bool = False) -> None:
    """Run both agents, each with a worker that is killed, and count what the model was asked."""
    set_up()
    with tempfile.TemporaryDirectory() as place:
        os.environ["MODEL_CALLS"] = str(Path(place) / "naive")
        naive = support_without_steps.enqueue(TICKET)
        killed_in_turn(DIES_IN)
        work_until(lambda: naive.state() == "done")
        print(f"without steps, killed in turn {DIES_IN}: {calls()} calls of the model")

        os.environ["MODEL_CALLS"] = str(Path(place) / "steps")
        careful = support.enqueue(TICKET)
        killed_in_turn(DIES_IN)
        work_until(lambda: waits(careful.id))
        print(f"with steps, killed in turn {DIES_IN}: {calls()} calls, and it waits:")
        print(app.client.jobs.explain(careful.id).partition(" (")[0])
        if by_hand:
            print(f"answer here: {agent.outbox[-1]}")
        else:
            print(f"a person answers by the link: {answered(agent.outbox[-1], approved='true')}")
        work_until(lambda: careful.state() == "done")
        print(f"{careful.result()}")
        print(f"{calls()} calls in all, {refunds()} refund, {len(agent.outbox)} link")


def killed_in_turn(turn: int) -> None:
    """Start a worker that is killed in the middle of its job, as by `kill -9`."""
    command = [sys.executable, "-m", "holdfast", "worker", "examples.agent.app:app"]
    database = {"HOLDFAST_URL": app.database.url, "DIE_IN_TURN": str(turn)}
    done = subprocess.run(
        command,
        env={**os.environ, **database},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -9, done.stderr


def work_until(ended: Callable[[], bool]) -> None:
    """Work here until something is so; a lease of the killed worker ends first."""
    deadline = time.monotonic() + 120
    while not ended():
        assert time.monotonic() < deadline, "it took too long"
        Worker(app, until_idle=True).run()
        time.sleep(0.1)


def waits(id: UUID) -> bool:
    """Whether the job waits for an event."""
    return any(step.event and not step.ended_at for step in app.client.steps.list(id))


def answered(url: str, **fields: str) -> str:
    """Open the link as a browser does, send its form, and return what the page says then."""
    with urllib.request.urlopen(url, timeout=30) as page:
        assert "<form" in page.read().decode()
    body = urllib.parse.urlencode(fields).encode()
    with urllib.request.urlopen(url, data=body, timeout=30) as page:
        said = re.search(r"<main><h1>.*?</h1><p>(.*?)</p>", page.read().decode())
    return said[1] if said else ""


def check_server() -> None:
    """Leave if there is nobody who shows the page of the link."""
    try:
        urllib.request.urlopen(f"{agent.SERVER}/readyz", timeout=5).close()
    except OSError as error:
        sys.exit(f"no server at {agent.SERVER}: run `holdfast serve` in another terminal ({error})")


if __name__ == "__main__":
    main()
