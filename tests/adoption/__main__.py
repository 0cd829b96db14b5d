"""`python -m tests.adoption [--long]`: adopt four tables while their application writes them.

With --long they have 1,000,000 rows each, of which one in twenty waits: some ten minutes.
"""

import sys

from holdfast import embedded, schema
from tests.adoption import busy
from tests.adoption.shapes import SHAPES


def main() -> int:
    rows = 1_000_000 if "--long" in sys.argv else 20_000
    failed = False
    for shape in SHAPES:
        with embedded.start(temporary=True, settings={"max_connections": "50"}) as server:
            schema.migrate(server.url)
            figures = busy.run(server.url, shape, rows)
        failed = failed or bool(figures["blocked"]) or not figures["equal"]
        for name, value in figures.items():
            shown = f"{value:.1f} s" if isinstance(value, float) else value
            print(f"{name:14} {shown}", flush=True)
        print(flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
