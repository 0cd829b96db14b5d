"""The pytest plugin: what it costs a run that does not use it."""

import subprocess
import sys


def test_without_its_fixtures_nothing_of_holdfast_is_imported() -> None:
    program = (
        "import sys, holdfast_pytest\n"
        "print([name for name in sys.modules if name.partition('.')[0] in"
        " ('holdfast', 'psycopg', 'msgspec')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
