"""`python -m tests.model [--long] [pytest's own options]`."""

import argparse
import os
import sys
from pathlib import Path

import pytest


def main() -> int:
    """Run the machines beside their models, short or at full length."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=main.__doc__)
    parser.add_argument("--long", action="store_true", help="over 20,000 steps, some minutes")
    asked, others = parser.parse_known_args()
    if asked.long:
        os.environ["MODEL_LONG"] = "1"
    return pytest.main([str(Path(__file__).parent), "--durations=0", *others])


if __name__ == "__main__":
    sys.exit(main())
