"""`python -m tests.chaos [--long] [--seed N] [FILE …] [pytest's own options]`.

At full length times are measured: on a machine with other work, `chrt -r 1 python -m tests.chaos …`
keeps what it waits for out of them (it needs root).
"""

import argparse
import os
import sys
from pathlib import Path

import pytest


def main() -> int:
    """Run the scenarios, short or at full length."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=main.__doc__)
    parser.add_argument("files", nargs="*", default=[str(Path(__file__).parent)])
    parser.add_argument("--long", action="store_true", help="at full length, about half an hour")
    parser.add_argument("--seed", type=int, help="the seed a failed run has printed")
    asked, others = parser.parse_known_args()
    if asked.long:
        os.environ["CHAOS_LONG"] = "1"
        others += ["--timeout=1800"]
    if asked.seed:
        os.environ["CHAOS_SEED"] = str(asked.seed)
    return pytest.main([*asked.files, "--durations=0", *others])


if __name__ == "__main__":
    sys.exit(main())
