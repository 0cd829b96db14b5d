"""Holdfast inside a web application: FastAPI, Starlette, Litestar, and all that have a lifespan."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib import import_module
from typing import Any

from holdfast.app import App
from holdfast.errors import HoldfastError

__all__ = ["lifespan"]

log = logging.getLogger("holdfast.worker")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(
    app: App, *, worker: bool | Mapping[str, Any] = False, also: Lifespan | None = None
) -> Lifespan:
    """Return the lifespan of a web application: `FastAPI(lifespan=lifespan(app, worker=True))`.

    At the end it closes the connections of `app`. With a `worker`, True or the options of `Worker`,
    jobs run in this process, on the event loop of the web application. `also` is your own lifespan:
    it begins before the worker and ends after it, so handlers can use what it opens.
    """

    @asynccontextmanager
    async def run(host: Any) -> AsyncIterator[Any]:
        options = worker if isinstance(worker, Mapping) else {}
        async with (
            app,
            also(host) if also else nullcontext() as state,
            _working(app, options) if worker or options else nullcontext(),
        ):
            yield state

    return run


@asynccontextmanager
async def _working(app: App, options: Mapping[str, Any]) -> AsyncIterator[None]:
    # Not before the web application starts: tasks may be declared after the lifespan.
    worker = import_module("holdfast.worker").Worker(app, **options)
    working = asyncio.create_task(worker.run_async(), name="holdfast-worker")
    working.add_done_callback(_report)
    try:
        yield
    finally:
        worker.stop()
        await working


def _report(working: "asyncio.Task[None]") -> None:
    # The web application goes on without its worker, and must say so.
    if not working.cancelled() and (error := working.exception()):
        if isinstance(error, HoldfastError):  # it says what to type; where it was raised does not
            log.critical("worker failed: %s", error)
        else:
            log.critical("worker failed", exc_info=error)
