"""The shop before a deploy."""

import asyncio

from holdfast import App
from tests.chaos.releases.ledger import inside, outside, produce

RELEASE = "old"

app = App()


@app.task
def same(n: int) -> None:
    outside(RELEASE)


@app.task
def added(n: int) -> None:
    outside(RELEASE)
    inside(RELEASE)


@app.task
def removed(n: int, note: str) -> None:
    outside(RELEASE)


@app.task
async def renamed(n: int, user: int) -> None:
    await asyncio.to_thread(outside, RELEASE)


@app.task
def retyped(n: int, amount: int) -> None:
    inside(RELEASE, 0.02)


@app.task
def moved(n: int) -> None:
    outside(RELEASE)
    inside(RELEASE)


@app.task
def needs(n: int) -> None:
    outside(RELEASE)


@app.task
def withdrawn(n: int) -> None:
    outside(RELEASE)


if __name__ == "__main__":
    produce(
        RELEASE,
        {
            "same": lambda conn, n: same.options(conn=conn).enqueue(n),
            "added": lambda conn, n: added.options(conn=conn).enqueue(n),
            "removed": lambda conn, n: removed.options(conn=conn).enqueue(n, note="x"),
            "renamed": lambda conn, n: renamed.options(conn=conn).enqueue(n, user=1),
            "retyped": lambda conn, n: retyped.options(conn=conn).enqueue(n, amount=5),
            "moved": lambda conn, n: moved.options(conn=conn).enqueue(n),
            "needs": lambda conn, n: needs.options(conn=conn).enqueue(n),
            "withdrawn": lambda conn, n: withdrawn.options(conn=conn).enqueue(n),
        },
    )
