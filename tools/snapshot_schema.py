"""Write the net schema to tests/schema.snapshot.txt, for the review of what a migration comes to.

python tools/snapshot_schema.py
"""

from pathlib import Path

from holdfast import embedded, schema

SNAPSHOT = Path(__file__).parents[1] / "tests" / "schema.snapshot.txt"


def main() -> None:
    """Install the schema into a server of its own and describe it."""
    with embedded.start(temporary=True) as server:
        schema.migrate(server.url)
        SNAPSHOT.write_text(schema.describe(server.url), encoding="utf-8")


if __name__ == "__main__":
    main()
