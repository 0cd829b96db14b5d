"""Queues that a worker was told to serve and nobody knows."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches

from holdfast.app import App
from holdfast.client import Client
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.worker")


def warn_of_strange_queues(app: App, client: Client, queues: Iterable[str]) -> None:
    """Log which queues a worker would serve for nothing: probably their names are mistyped."""
    of_tasks = {task.queue for task in app.tasks.values()} | app.queues.keys()
    with suppress(HoldfastError):  # what it only warns of must not stop a worker
        for name in queues:
            if name in of_tasks or client.queues.get(name):
                continue
            known = of_tasks | {one.queue for one in client.queues.list()}
            near = get_close_matches(name, sorted(known), n=1)
            log.warning(
                "no queue is named %r yet, and no task of the app goes there%s",
                name,
                f" (did you mean {near[0]!r}?)" if near else "",
            )
