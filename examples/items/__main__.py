"""Sync two days of prices, work off what follows from them, and delete an item."""

import csv
from decimal import Decimal
from pathlib import Path

import psycopg

from examples.items.app import app, set_up, sync


def main() -> None:
    """Run the story from start to end."""
    with app, psycopg.connect(app.url, autocommit=True) as conn:
        set_up(conn)
        sync_file(conn, "monday.csv")
        sync_file(conn, "monday.csv")  # everything waits already
        work()
        sync_file(conn, "tuesday.csv")
        work()
        sync_file(conn, "tuesday.csv")
        delete(conn, "Sticker | Crown (Foil)")
        work()
        for job in app.client.jobs.list("queue:items state:dead"):
            print(f"for review: {job.kind} {job.payload}: {job.error}")


def sync_file(conn: psycopg.Connection, name: str) -> None:
    """Sync a file in one transaction: its prices and its jobs are stored, or nothing is."""
    with Path(__file__).with_name(name).open(newline="") as file, conn.transaction():
        rows = csv.DictReader(file)
        print(name, sync(conn, ((row["name"], Decimal(row["price"])) for row in rows)))


def work() -> None:
    """Run what waits and leave, as a worker does that cron starts."""
    app.run(until_idle=True)
    queue = app.client.queues.get("items")
    if queue:
        print(f"{queue.done} jobs done so far, {queue.dead} dead, {queue.queued} waiting")


def delete(conn: psycopg.Connection, name: str) -> None:
    """Delete an item; what waited for it is gone with it."""
    with conn.transaction():
        conn.execute("delete from item where name = %s", [name])
    print(f"deleted {name}; waiting: {len(app.client.jobs.find('queue:items state:queued'))}")


if __name__ == "__main__":
    main()
