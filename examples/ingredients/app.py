"""Lines of recipes, to be matched to ingredients."""

import csv
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import psycopg

from holdfast import App, current
from holdfast.outcome import NEVER

app = App(name="ingredients")
HERE = Path(__file__).parent
SOURCES = ("scraper", "pantry")


# What matches nothing tonight matches nothing in a minute: it waits for a person.
@app.task(lease=180, max_attempts=5, retry={LookupError: NEVER})
def match(line_id: int) -> None:
    """Find the ingredient of a line: the longest name that occurs in it."""
    with current().transaction() as conn:
        [(line,)] = conn.execute("select line from recipe_line where id = %s", [line_id])
        found = conn.execute(
            "select ingredient from ingredient_name where strpos(lower(%s), name) > 0"
            " order by length(name) desc limit 1",
            [line],
        ).fetchone()
        if found is None:
            raise LookupError(f"no ingredient in {line!r}")
        conn.execute("update recipe_line set ingredient = %s where id = %s", [*found, line_id])


def add(conn: psycopg.Connection, lines: Iterable[tuple[str, str]]) -> None:
    """Store lines of recipes, and a job for each in its source's queue, in the same transaction."""
    calls = []
    for source, line in lines:
        [(id,)] = conn.execute(
            "insert into recipe_line (source, line) values (%s, %s) returning id", [source, line]
        )
        calls.append(match.options(queue=source).call(id))
    app.enqueue_many(calls, conn=conn)


def set_up(conn: psycopg.Connection) -> None:
    """Make the tables and fill in the names; keep for a month who matched what, and when."""
    conn.execute((HERE / "schema.sql").read_text("utf-8"))
    for name, ingredient in rows("names.csv"):
        learn(conn, name, ingredient)
    for source in SOURCES:
        app.client.queues.set(source, keep_done=timedelta(days=30))


def learn(conn: psycopg.Connection, name: str, ingredient: str) -> None:
    """Add a name of an ingredient."""
    conn.execute(
        "insert into ingredient_name values (%s, %s) on conflict do nothing", [name, ingredient]
    )


def rows(file: str) -> list[tuple[str, str]]:
    """Return the rows of a file beside this one, without its head."""
    with (HERE / file).open(newline="", encoding="utf-8") as opened:
        return [(first, second) for first, second in list(csv.reader(opened))[1:]]
