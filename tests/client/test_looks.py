"""A look that takes too long is ended, here and in the server."""

import inspect
import time
from typing import Any

import pytest

from holdfast import NewJob, __version__
from holdfast.client.statement import Statement
from holdfast.errors import Unavailable
from holdfast.records import Count
from tests.client.conftest import MakeClient

BUSY = "select count(*) from pg_stat_activity where query ~ '^select pg_sleep' and state = 'active'"


def look_for_long(client: Any) -> None:
    looking = client._door.run(Statement("look", "select pg_sleep(30)", reads=True))
    if inspect.iscoroutine(looking):
        client._runner.run(looking)


def test_a_look_past_its_deadline_keeps_the_server_busy_no_longer(
    make_client: MakeClient, connect: Any
) -> None:
    client = make_client(timeout=1.5)
    client.queues.list()

    with pytest.raises(Unavailable):
        look_for_long(client)

    watcher, end = connect(), time.monotonic() + 120
    while (busy := watcher.execute(BUSY).fetchone()) != (0,) and time.monotonic() < end:
        time.sleep(0.05)
    assert busy == (0,)
    assert client.queues.list() == []


def test_a_count_says_whether_there_may_be_more(make_client: MakeClient) -> None:
    client = make_client()
    client.enqueue_many(NewJob(kind="a") for _ in range(5))

    assert client.jobs.count("kind:a") == Count(5, capped=False)
    assert client.jobs.count("kind:a", most=3) == Count(3, capped=True)
    assert client.jobs.count("state:dead") == Count(0, capped=False)


def test_the_system_is_told_with_its_tables_the_largest_first(make_client: MakeClient) -> None:
    found = make_client().system()

    sizes = [one.size for one in found.relations]
    assert found.schema >= 4
    assert found.release == __version__
    assert 0 < found.connections <= found.max_connections
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) < found.size
    names = [one.name for one in found.relations]
    assert {"event", "attempt", "history"} <= set(names)
    assert [name for name in names if name[-1].isdigit() or name.endswith("_rest")] == []
