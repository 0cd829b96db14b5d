"""The nightly run: `python -m examples.ingredients.nightly scraper`, or without a name for all."""

import os
import sys
from collections.abc import Sequence

from examples.ingredients.app import SOURCES, app

REASON = "Retry requested by nightly workflow"


def nightly(sources: Sequence[str] = SOURCES, *, retry_failed: bool = False) -> None:
    """Match what waits and leave; any number of these may run at once."""
    if retry_failed:
        failed = app.client.jobs.find(
            f"queue:{','.join(sources)} kind:match state:dead", limit=10_000
        )
        app.client.jobs.retry(failed, reason=REASON, actor="nightly")
    app.run(queues=dict.fromkeys(sources, 4), until_idle=True)


if __name__ == "__main__":
    with app:
        nightly(
            sys.argv[1:] or SOURCES, retry_failed=os.environ.get("QUEUE_RETRY_FAILED") == "true"
        )
