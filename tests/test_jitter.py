"""A program that seeds `random` gets what it expects, whatever runs beside it."""

import random

from holdfast import App
from holdfast.upkeep.loop import Upkeep


def test_nothing_draws_from_the_chance_of_the_program(database: str) -> None:
    with App(database) as app:

        @app.task
        async def work(n: int) -> None: ...

        handle = work.enqueue(1)
        before = random.getstate()
        app.run(until_idle=True)
        Upkeep(app.client, holder="me").turn()
        after = random.getstate()

        assert handle.state() == "done"
        assert after == before
