"""`python -m tests.mutants [--jobs N] [--list] [NAME …]`: plant faults and see tests fail.

Each fault is planted in a copy of the tree, never in the tree itself, and the tests named for what
it breaks are run there. A fault that no test notices has survived: a test is missing, or cannot
fail. A name may be a part of one, such as `lane`.
"""

import argparse
import sys

from tests.mutants.catalogue import mutants
from tests.mutants.planting import KILLED, TIMEOUT, Result, run


def main() -> int:
    """Run the faults that were asked for; returns how many the tests did not notice."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--patience", type=float, default=TIMEOUT, help="seconds for each")
    parser.add_argument("--list", action="store_true", help="say what there is, and plant nothing")
    asked = parser.parse_args()
    chosen = [
        one for one in mutants() if not asked.names or any(name in one.name for name in asked.names)
    ]
    if asked.list:
        for one in chosen:
            print(f"{one.name:34} {one.breaks}")
        return 0
    if not chosen:
        parser.error(f"no fault is called {' or '.join(asked.names)}; --list shows them")

    results: list[Result] = []
    for result in run(chosen, jobs=asked.jobs, patience=asked.patience):
        results.append(result)
        print(_line(result, len(results), len(chosen)), flush=True)
        if result.verdict != KILLED and result.told:
            print(result.told, flush=True)
    verdicts = [result.verdict for result in results]
    told = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys([KILLED, *verdicts]))
    print(f"\n{len(results)} planted: {told}")
    for result in results:
        if result.verdict != KILLED:
            print(f"  {result.verdict:9} {result.mutant.name}: {result.mutant.breaks}")
    return int(any(verdict != KILLED for verdict in verdicts))


def _line(result: Result, nth: int, of: int) -> str:
    head = f"{nth:3}/{of} {result.verdict:9} {result.mutant.name:34} {result.seconds:5.1f} s"
    return f"{head}  {result.by}" if result.by else head


if __name__ == "__main__":
    sys.exit(main())
