"""Prices of a market, synced from files. What follows from them is done by jobs."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import mean

import psycopg

from holdfast import App, Cancel, current
from holdfast.app import Task
from holdfast.outcome import NEVER

app = App(name="items")
log = logging.getLogger(__name__)

# Up by a half, or down by a third.
UNUSUAL = math.log(1.5)


@dataclass(frozen=True)
class Synced:
    """What a sync found and what it asked for: new items, prices, and jobs of each kind."""

    items: int
    prices: int
    new_item: int
    price_updated: int


def sync(conn: psycopg.Connection, feed: Iterable[tuple[str, Decimal]]) -> Synced:
    """Store the prices of a feed and jobs for what changed, in the caller's transaction."""
    with conn.cursor() as cursor:
        cursor.execute("create temporary table feed (name text, price numeric) on commit drop")
        with cursor.copy("copy feed from stdin") as copy:
            for row in feed:
                copy.write_row(row)
        cursor.execute(
            "insert into item (name) select distinct name from feed on conflict do nothing"
            " returning id"
        )
        new = [id for (id,) in cursor]
        cursor.execute(
            "insert into item_price (item_id, price)"
            " select item.id, feed.price from feed join item using (name) returning item_id"
        )
        priced = [id for (id,) in cursor]
    return Synced(
        items=len(new),
        prices=len(priced),
        new_item=enqueue(conn, new_item, new),
        price_updated=enqueue(conn, price_updated, priced),
    )


def enqueue(conn: psycopg.Connection, task: Task[[int], None, None], ids: Sequence[int]) -> int:
    """Store a job for each item that has none of this kind waiting; returns how many that were.

    The jobs are made where the items are: for a hundred thousand, nothing is sent but their ids.
    """
    row = conn.execute(
        """
        select count(*) filter (where created), count(*) filter (where not created)
        from holdfast.enqueue(items => (
          select coalesce(jsonb_agg(jsonb_build_object(
            'queue', %s::text, 'kind', %s::text, 'key', 'item/' || id, 'subject', 'item/' || id,
            'payload', jsonb_build_object('item_id', id))), '[]')
          from unnest(%s::bigint[]) id))
        """,
        [task.queue, task.kind, ids],
    ).fetchone()
    enqueued, skipped = row or (0, 0)
    if skipped:
        counts = {"kind": task.kind, "skipped": skipped, "enqueued": enqueued}
        log.debug("skipped duplicate jobs", extra=counts)
    return int(enqueued)


def item(item_id: int) -> str:
    """Name an item: the key of its jobs, so that one of a kind waits, and what they are about."""
    return f"item/{item_id}"


@app.task(queue="items", key=item, subject=item, retry={ValueError: NEVER})
def price_updated(item_id: int) -> None:
    """Note where the price is going, and tell people when it leaps."""
    with current().transaction() as conn:
        name = find(conn, item_id)
        latest, *before = newest_prices(conn, item_id)
        if not before:
            return
        usual = mean(before)
        move = math.log(latest / usual)
        conn.execute(
            "insert into item_trend values (%s, %s)"
            " on conflict (item_id) do update set move = excluded.move",
            [item_id, move],
        )
        if abs(move) > UNUSUAL:
            text = f"{name} leapt from {usual:.2f} to {latest:.2f}"
            notify.options(conn=conn, subject=item(item_id)).enqueue(text)


@app.task(queue="items", key=item, subject=item)
def new_item(item_id: int) -> None:
    """Tell people that there is something new."""
    with current().transaction() as conn:
        text = f"{find(conn, item_id)} is new"
        notify.options(conn=conn, subject=item(item_id)).enqueue(text)


@app.task(queue="items", priority=5)
def notify(text: str) -> None:
    """Send a message: the one thing here that may happen twice, if a worker dies right after it."""
    print(text)


def find(conn: psycopg.Connection, item_id: int) -> str:
    """Return the name of an item; without one there is nothing to do."""
    row = conn.execute("select name from item where id = %s", [item_id]).fetchone()
    if row is None:
        raise Cancel(f"item {item_id} is gone")
    return str(row[0])


def newest_prices(conn: psycopg.Connection, item_id: int) -> list[float]:
    """Return the last eight prices of an item, the newest first."""
    rows = conn.execute(
        "select price::float8 from item_price where item_id = %s order by id desc limit 8",
        [item_id],
    )
    return [price for (price,) in rows]


def set_up(conn: psycopg.Connection) -> None:
    """Make the tables."""
    conn.execute(Path(__file__).with_name("schema.sql").read_text("utf-8"))
