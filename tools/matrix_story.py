"""What `make matrix` runs: once around Holdfast, with what is installed and nothing else."""

import asyncio
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import psycopg

from holdfast import App, chain, current, embedded, schema
from holdfast.crypto import Encryption, new_key
from holdfast.stores import ClaimCheck, TableStore


@dataclass
class Order:
    """An argument with a type of its own."""

    id: int
    lines: list[str]


def main() -> None:
    """Go once around."""
    os.chdir(tempfile.mkdtemp(prefix="holdfast-story-"))
    database = embedded.resolve(None)
    try:
        schema.migrate(database.url)
        story(database.url)
    finally:
        database.close()
    versions = f"psycopg {psycopg.__version__}, msgspec {msgspec.__version__}"
    print(f"{sys.version.split()[0]}: {versions}")


def story(url: str) -> None:
    """Enqueue in a transaction, run in every sort of handler, retry, schedule, look, serve."""
    seen: list[object] = []
    app = App(url, encryption=Encryption({"k": new_key()}), large_payloads=ClaimCheck(TableStore()))

    @app.task(keep_result=True, retry=0)
    def ship(order: Order) -> int:
        if current().attempt == 1:
            raise ValueError("once")
        seen.append(current().step("pack", lambda: order.id))
        return order.id

    @app.task
    async def mail(id: int) -> None:
        seen.append(("mail", id))

    app.schedule(every=timedelta(hours=1), name="hourly", payload={"id": 0})(mail)
    with psycopg.connect(url) as conn:
        ship.options(conn=conn).enqueue(Order(0, []))
        conn.rollback()
    handle = ship.enqueue(Order(1, ["x" * 100_000]))
    chain(ship.call(Order(2, [])), mail).enqueue()

    async def produce() -> None:
        async with app:
            await mail.aenqueue(3)
            await app.aenqueue_many(mail.call(10 + n) for n in range(1500))

    asyncio.run(produce())
    app.run(until_idle=True)
    assert handle.result(timeout=10) == 1
    assert {1, 2, ("mail", 2), ("mail", 3)} <= set(seen), seen[:10]
    assert sum(isinstance(one, tuple) for one in seen) == 1502
    app.close()
    for command in (["doctor"], ["queue", "list"], ["job", "list"]):
        holdfast = [sys.executable, "-m", "holdfast", *command]
        subprocess.run(
            holdfast, env={**os.environ, "HOLDFAST_URL": url}, check=True, capture_output=True
        )
    from holdfast.server.asgi import __name__ as served  # needs starlette

    assert served


if __name__ == "__main__":
    main()
