"""`python -m tests.mutants [--jobs N] [--list | --marks] [NAME …]`: plant faults, see tests fail.

Each fault is planted in a copy of the tree, never in the tree itself, and the tests named for what
it breaks are run there. A fault that no test notices has survived: a test is missing, or cannot
fail. A name may be a part of one, such as `lane`.

--marks asks it the other way round: of each item of sources.md that faults break, every test which
is marked to prove it must fail under one of them at least.
"""

import argparse
import sys
from dataclasses import replace

from tests.mutants.catalogue import Mutant, mutants
from tests.mutants.planting import KILLED, TIMEOUT, Result, failing, run
from tools import sources

# What needs a browser, or the machine for itself, is left out where all marked tests are run.
SLOW = ("tests/browser/", "tests/chaos/")


def main() -> int:
    """Run the faults that were asked for; returns how many the tests did not notice."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--patience", type=float, default=TIMEOUT, help="seconds for each")
    parser.add_argument("--list", action="store_true", help="say what there is, and plant nothing")
    parser.add_argument("--marks", action="store_true", help="see marked tests fail, each")
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

    if asked.marks:
        return _marks(chosen, asked.jobs)

    results: list[Result] = []
    for result in run(chosen, jobs=asked.jobs, patience=asked.patience):
        results.append(result)
        print(_line(result, len(results), len(chosen)), flush=True)
        if result.verdict != KILLED and result.told:
            print(result.told, flush=True)
    # A test that fails anyway has noticed nothing.
    noticed = [result.by.partition("[")[0] for result in results if result.verdict == KILLED]
    unsound = failing(noticed, patience=30 * 60.0) if noticed else []
    verdicts = [result.verdict for result in results]
    told = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys([KILLED, *verdicts]))
    print(f"\n{len(results)} planted: {told}")
    for result in results:
        if result.verdict != KILLED:
            print(f"  {result.verdict:9} {result.mutant.name}: {result.mutant.breaks}")
    for test in unsound:
        print(f"  fails without any fault: {test}")
    return int(bool(unsound) or any(verdict != KILLED for verdict in verdicts))


def _marks(chosen: list[Mutant], jobs: int) -> int:
    marked = {
        id: {f"{proof.file}::{proof.test}" for proof in proofs if not proof.file.startswith(SLOW)}
        for id, proofs in sources.marks().items()
    }
    faults = [
        replace(one, tests=tuple(sorted(set().union(*(marked[id] for id in one.proves)))))
        for one in chosen
        if one.proves
    ]
    idle = {id: set(marked[id]) for one in faults for id in one.proves}
    for result in run(faults, jobs=jobs, patience=20 * 60.0, thorough=True):
        failed = {test.partition("[")[0] for test in result.failed}
        print(
            f"{result.mutant.name:34} {len(failed)} of {len(result.mutant.tests)} fail", flush=True
        )
        for id in result.mutant.proves:
            idle[id] -= failed
    for id, tests in sorted(idle.items()):
        for test in sorted(tests):
            print(f"  {id} is marked on {test}, which fails under none of its faults")
    print(f"{len(idle)} items, {sum(map(len, idle.values()))} marks on tests that do not fail")
    return int(any(idle.values()))


def _line(result: Result, nth: int, of: int) -> str:
    head = f"{nth:3}/{of} {result.verdict:9} {result.mutant.name:34} {result.seconds:5.1f} s"
    return f"{head}  {result.by}" if result.by else head


if __name__ == "__main__":
    sys.exit(main())
