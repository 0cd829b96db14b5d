"""Planted faults: what they change, what that breaks, and the tests that must notice.

Each is one edit of one file, kept as data in `catalogue.toml`:

    name    what the fault is called
    file    where it is planted
    within  the head of the function, if the old text occurs elsewhere as well
    old     the text that is replaced; it occurs exactly once
    new     what it is replaced by
    breaks  the capability that is then broken, as a sentence that no longer holds
    tests   the tests named for that capability: files, or single tests
    proves  what it breaks of tests/sources.md, if anything
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.toml")

# Where the next function begins, in SQL and in Python.
_NEXT = re.compile(
    r"^\s*(?:create or replace function|create function|(?:async )?def|class)\b", re.MULTILINE
)


class Stale(Exception):  # noqa: N818 - named for what happened
    """A fault cannot be planted: the code it was written for has changed."""


@dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    within: str = ""
    proves: tuple[str, ...] = ()

    def planted(self, text: str) -> str:
        """Return a file's text with the fault in it; raises Stale if it does not fit."""
        start, end = self._place(text)
        found = text.count(self.old, start, end)
        if found != 1:
            where = f"{self.file}, {self.within}" if self.within else self.file
            raise Stale(f"{self.name}: {self.old!r} occurs {found} times in {where}, not once")
        at = text.index(self.old, start, end)
        return text[:at] + self.new + text[at + len(self.old) :]

    def _place(self, text: str) -> tuple[int, int]:
        if not self.within:
            return 0, len(text)
        if (found := text.count(self.within)) != 1:
            raise Stale(
                f"{self.name}: {self.within!r} occurs {found} times in {self.file}, not once"
            )
        start = text.index(self.within)
        following = _NEXT.search(text, start + len(self.within))
        return start, following.start() if following else len(text)


def mutants(catalogue: Path = CATALOGUE) -> list[Mutant]:
    """Return all planted faults, in the order of the catalogue."""
    read = tomllib.loads(catalogue.read_text("utf-8"))
    lists = ("tests", "proves")
    return [
        Mutant(**{**one, **{name: tuple(one.get(name, ())) for name in lists}})
        for one in read["mutant"]
    ]


def missing_tests(mutant: Mutant, root: Path = ROOT) -> Iterator[str]:
    """Yield those of its tests that do not exist."""
    for test in mutant.tests:
        file, _, name = test.partition("::")
        path = root / file
        if not path.exists() or (name and name.partition("[")[0] not in _names(path)):
            yield test


def _names(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
