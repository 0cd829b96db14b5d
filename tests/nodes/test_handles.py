"""The handle of a job whose queue lives on another node than the one where it was enqueued."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast import App
from holdfast.errors import ResultTimeout
from holdfast.handle import Handle
from holdfast.records import Enqueued
from tests.nodes.conftest import Twins
from tests.protocol import Protocol


@pytest.fixture
def handle(twins: Twins, dbs: list[Protocol]) -> Iterator[Handle[int]]:
    """A handle on the first node of a job on the second."""
    with ExitStack() as stack:
        app = stack.enter_context(App(twins.urls[0]))

        @app.task(queue="mail", kind="work", keep_result=True)
        def work() -> int:
            return 4

        told = Enqueued(dbs[1].put(queue="mail"), created=True)
        yield Handle(work, told, on_conn=False)


def end(db: Protocol) -> None:
    db.ack(db.take("mail"), results=[4], keep=True)


def test_its_state_and_result_are_those_of_its_node(
    handle: Handle[int], dbs: list[Protocol]
) -> None:
    assert handle.state() == "queued"
    with pytest.raises(ResultTimeout):
        handle.result(timeout=0.2)
    end(dbs[1])
    assert handle.state() == "done"
    assert handle.result(timeout=20) == 4


def test_the_same_in_an_event_loop(handle: Handle[int], dbs: list[Protocol]) -> None:
    async def ask() -> None:
        assert await handle.astate() == "queued"
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout=0.2)
        end(dbs[1])
        assert await handle.aresult(timeout=20) == 4
        assert not await handle.acancel()
        await handle.task.app.aclose()

    asyncio.run(ask())


def test_it_is_cancelled_there(handle: Handle[int], dbs: list[Protocol]) -> None:
    assert handle.cancel("ada")
    assert dbs[1].state(handle.id) == "cancelled"
