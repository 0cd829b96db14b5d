"""The shop after a deploy."""

import asyncio

from holdfast import App
from tests.chaos.releases.ledger import inside, outside, produce

RELEASE = "new"

app = App()


@app.task
def same(n: int) -> None:
    outside(RELEASE)


@app.task
def added(n: int, region: str = "eu") -> None:
    outside(RELEASE)
    inside(RELEASE)


@app.task(old_arguments={"note": None})
def removed(n: int) -> None:
    outside(RELEASE)


@app.task(old_arguments={"user": "user_id"})
async def renamed(n: int, user_id: int) -> None:
    await asyncio.to_thread(outside, RELEASE)


@app.task
def retyped(n: int, amount: int | str) -> None:
    inside(RELEASE, 0.02)


@app.task(aliases=["moved"])
def moved_on(n: int) -> None:
    outside(RELEASE)
    inside(RELEASE)


@app.task
def needs(n: int, region: str) -> None:
    outside(RELEASE)


@app.task
def begun(n: int) -> None:
    outside(RELEASE)


if __name__ == "__main__":
    produce(
        RELEASE,
        {
            "same": lambda conn, n: same.options(conn=conn).enqueue(n),
            "added": lambda conn, n: added.options(conn=conn).enqueue(n, region="us"),
            "removed": lambda conn, n: removed.options(conn=conn).enqueue(n),
            "renamed": lambda conn, n: renamed.options(conn=conn).enqueue(n, user_id=1),
            "retyped": lambda conn, n: retyped.options(conn=conn).enqueue(n, amount="5 EUR"),
            "moved": lambda conn, n: moved_on.options(conn=conn).enqueue(n),
            "needs": lambda conn, n: needs.options(conn=conn).enqueue(n, region="us"),
            "begun": lambda conn, n: begun.options(conn=conn).enqueue(n),
        },
    )
