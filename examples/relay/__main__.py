"""A producer in Python and a consumer in bash, which is killed once. Wants `holdfast serve`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError

from examples.relay.producer import look, mend, send

HERE = Path(__file__).parent
MESSAGES = json.loads((HERE / "messages.json").read_text("utf-8"))
QUEUE = "shop"


def main() -> None:
    """Run the story from start to end."""
    ids = send(MESSAGES, QUEUE)
    with consumer() as told:
        listen(told, until="resizing lamp-front.jpg")
    print("the consumer was killed; another one starts")
    with consumer() as told:
        listen(told, until="resized lamp-front.jpg")
        wait_for(ids)
    [dead] = look("dead", QUEUE)
    print(f"{len(ids) - 1} of {len(ids)} done; dead: {dead['payload']}: {dead['last_error']}")
    mend(dead["id"], {**dead["payload"], "to": "grace@example.org"})
    with consumer() as told:
        listen(told, until="sent to grace@example.org")
        wait_for(ids)
    done = look("acknowledged", QUEUE)
    print(f"all {len(done)} done")


@contextmanager
def consumer() -> Iterator[Iterator[str]]:
    """Run the consumer in bash for the time of the block, then kill it; gives what it says."""
    environment = {"HANDLERS": str(HERE / "handlers.sh"), "LEASE": "2", "WAIT": "2"}
    with subprocess.Popen(
        [str(HERE / "consumer.sh"), QUEUE],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr
        try:
            yield iter(process.stderr)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def listen(told: Iterator[str], *, until: str) -> None:
    """Pass on what the consumer says, until it says this."""
    for line in told:
        print(f"  {line.rstrip()}")
        if line.startswith(until):
            return


def wait_for(ids: Sequence[str]) -> None:
    """Wait until none of the messages waits or is worked on."""
    while {one["id"] for state in ("main", "processing") for one in look(state, QUEUE)} & {*ids}:
        time.sleep(0.1)


if __name__ == "__main__":
    try:
        main()
    except URLError as error:
        sys.exit(f"no server answers: run `holdfast serve` in another terminal ({error.reason})")
