"""Three nights: some lines find no ingredient, the cook is asked, and they are tried again."""

import psycopg

from examples.ingredients.app import add, app, learn, rows, set_up
from examples.ingredients.nightly import nightly

BRITISH = {"aubergine": "eggplant", "courgette": "zucchini", "rocket": "arugula"}


def main() -> None:
    """Run the story from start to end."""
    with app, psycopg.connect(app.url, autocommit=True) as conn:
        set_up(conn)
        with conn.transaction():
            add(conn, rows("lines.csv"))
        nightly()
        report("first")

        for name, ingredient in BRITISH.items():
            learn(conn, name, ingredient)
        nightly()
        report("second")

        nightly(retry_failed=True)
        report("third")


def report(night: str) -> None:
    """Say what was matched, what needed a second life, and what waits for a person."""
    done = app.client.jobs.list("kind:match state:done", limit=1000)
    print(f"after the {night} night: {len(done)} matched")
    for job in done:
        if job.reason:
            print(f"  {job.reason}: line {job.payload['line_id']}, by {job.worker}")
    for error in sorted(job.error or "" for job in app.client.jobs.list("kind:match state:dead")):
        print(f"  failed: {error}")


if __name__ == "__main__":
    main()
