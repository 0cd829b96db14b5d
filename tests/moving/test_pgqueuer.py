"""Jobs that pgqueuer itself stored, in tables that it made itself."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import CronExpressionEntrypoint
from pgqueuer.queries import EntrypointExecutionParameter, Queries

from holdfast import Client
from tests.conftest import Connect
from tests.docs.test_snippets import address
from tests.moving.conftest import Move


async def store(database: str) -> None:
    connection = await asyncpg.connect(address(database))
    try:
        old = Queries(AsyncpgDriver(connection))
        await old.install()
        await old.enqueue("running", b"{}")
        await old.dequeue(
            batch_size=1,
            entrypoints={"running": EntrypointExecutionParameter(0)},  # type: ignore[dict-item]
            queue_manager_id=uuid4(),  # type: ignore[arg-type]
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(minutes=1),
        )
        await old.enqueue("mail", b'{"to": "Ada"}', 5, timedelta(hours=1), "ada", {"trace": "t-1"})
        await old.enqueue("mail", None)
        await old.enqueue("mail", b"\x80 not JSON")
        await old.insert_schedule(
            {CronExpressionEntrypoint("tidy", "30 5 * * *"): timedelta()}  # type: ignore[arg-type]
        )
    finally:
        await connection.close()


def test_what_waits_is_moved_and_the_rest_is_told(
    database: str, move: Move, client: Client, connect: Connect
) -> None:
    asyncio.run(store(database))

    report = move("pgqueuer")

    ada, nobody = sorted(client.jobs.list(""), key=lambda job: -job.priority)
    assert (ada.kind, ada.payload, ada.key) == ("mail", {"to": "Ada"}, "ada")
    assert (ada.priority, ada.run_at > datetime.now(UTC)) == (5, True)
    assert ada.headers == {"trace": "t-1", "imported_from": "pgqueuer 2"}
    assert nobody.payload == {}
    [tidy] = client.schedules.list()
    assert (tidy.kind, tidy.cron, tidy.state) == ("tidy", "30 5 * * *", "active")
    assert [(one.jobs, one.later, one.schedules) for one in report.moved] == [
        (2, 1, 0),
        (0, 0, 1),
    ]
    assert [(one.kind, one.why) for one in report.left] == [("mail", "its payload is not JSON")]
    assert report.running == {"running": 1}
    left = connect().execute("select entrypoint, status::text from pgqueuer order by id").fetchall()
    assert left == [("running", "picked"), ("mail", "queued")]
    assert connect().execute("select from pgqueuer_log where status = 'canceled'").rowcount == 2
    assert move("pgqueuer").moved == []
