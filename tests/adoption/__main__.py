"""`python -m tests.adoption`: adopt tables while their application writes them, or random ones.

python -m tests.adoption [--long]           four tables, 20,000 rows each; 1,000,000 with --long
python -m tests.adoption --generated 3000   so many generated tables, from --first SEED (0)
python -m tests.adoption --seed 17          one of them, and its DDL
"""

import argparse
import sys
import time

from holdfast import embedded, schema
from tests.adoption import busy, generated
from tests.adoption.generator import table
from tests.adoption.shapes import SHAPES


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--generated", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    if given.seed is not None:
        print(table(given.seed).told, flush=True)
        return adopt_generated(given.seed, 1)
    if given.generated is not None:
        return adopt_generated(given.first, given.generated)
    return adopt_busy(1_000_000 if given.long else 20_000)


def adopt_busy(rows: int) -> int:
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


def adopt_generated(first: int, number: int) -> int:
    """Check that many tables; a server for each thousand, and every harm is told with its DDL."""
    total, harmed = generated.Result(), 0
    began = time.monotonic()
    for start in range(first, first + number, 1000):
        settings = {"max_connections": "50", "fsync": "off"}
        with embedded.start(temporary=True, settings=settings) as server:
            schema.migrate(server.url)
            for seed in range(start, min(start + 1000, first + number)):
                try:
                    total += generated.run(server.url, [seed])
                except generated.Harm as harm:
                    harmed += 1
                    print(f"{harm}\n", flush=True)
                if (seed + 1 - first) % 250 == 0:
                    print(
                        f"{seed + 1 - first} tables, {time.monotonic() - began:.0f} s: "
                        f"{total.worked} worked, {total.hostile} hostile ones harmed nobody, "
                        f"{total.refused} refused with a reason, {harmed} failed",
                        flush=True,
                    )
    for trait, tables in total.traits.most_common():
        print(f"{tables:6} {trait.strip()}")
    print(
        f"{total.tables + harmed} tables in {time.monotonic() - began:.0f} s: "
        f"{total.worked} worked, "
        f"{total.hostile} hostile, {total.refused} refused, {harmed} failed"
    )
    return int(harmed > 0)


if __name__ == "__main__":
    sys.exit(main())
