"""Write into tests/sources.md which tests prove each capability; --check only compares.

Tests name what they prove with `@pytest.mark.proves("S0.4", …)`; marks are read from the source.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PAGE = TESTS / "sources.md"
SHOWN = 2
UNPROVEN = "**no test**"

_ROW = re.compile(r"^\| (S\d+x?\.\d+) \| (.+?) \| (.+?) \|(.*)\|$", re.MULTILINE)


@dataclass(frozen=True)
class Proof:
    """A test that proves something: its file, relative to the repository, and its name."""

    file: str
    test: str


def rows(page: str) -> list[tuple[str, str, str]]:
    """Return the id, the place and the proof of every row."""
    return [(row[1], row[3].strip(), row[4].strip()) for row in _ROW.finditer(page)]


def marks(tests: Path = TESTS) -> dict[str, list[Proof]]:
    """Return the tests that carry each id, in the order of their files."""
    found: dict[str, list[Proof]] = {}
    for file in sorted(tests.rglob("test_*.py")):
        module = ast.parse(file.read_text("utf-8"))
        everywhere = [id for node in module.body for id in _ids_of_pytestmark(node)]
        for test, ids in _tests(module.body, everywhere):
            for id in dict.fromkeys(ids):
                found.setdefault(id, []).append(Proof(file.relative_to(ROOT).as_posix(), test))
    return found


def rewritten(page: str, proofs: dict[str, list[Proof]]) -> str:
    """Return the page with the last column as the marks have it.

    Tests that the page names already stay, so that it changes only when it has to.
    """

    def row(match: re.Match[str]) -> str:
        id, capability, place, named = match.groups()
        found = sorted(proofs.get(id, []), key=lambda proof: _place(f"[{proof.test}]", named))
        return f"| {id} | {capability} | {place} | {_shown(found)} |"

    return _ROW.sub(row, page)


def main(arguments: list[str]) -> int:
    page = PAGE.read_text("utf-8")
    proofs = marks()
    fresh = rewritten(page, proofs)
    known = [id for id, _, _ in rows(page)]
    for id in sorted(proofs.keys() - set(known)):
        print(f"{id} is proven by {proofs[id][0].test} and not on the page", file=sys.stderr)
    unproven = [id for id, _, proof in rows(fresh) if proof == UNPROVEN]
    if unproven:
        print("no test proves:", ", ".join(unproven), file=sys.stderr)
    if "--check" in arguments:
        if page != fresh:
            print("tests/sources.md is outdated: python tools/sources.py", file=sys.stderr)
        return int(page != fresh or bool(unproven) or not proofs.keys() <= set(known))
    PAGE.write_text(fresh, "utf-8")
    return 0


def _place(name: str, named: str) -> int:
    return named.index(name) if name in named else len(named)


def _shown(proofs: list[Proof]) -> str:
    if not proofs:
        return UNPROVEN
    links = [f"[{p.test}]({p.file.removeprefix('tests/')})" for p in proofs[:SHOWN]]
    return ", ".join(links) + (" and more" if len(proofs) > SHOWN else "")


def _tests(body: list[ast.stmt], inherited: list[str]) -> Iterator[tuple[str, list[str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            of_class = [id for part in node.body for id in _ids_of_pytestmark(part)]
            ids = inherited + _ids_of_decorators(node) + of_class
            yield from _tests(node.body, ids)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test"):
                yield node.name, inherited + _ids_of_decorators(node)
        elif ids := _ids_of_machine(node):
            # A Hypothesis machine is a test by assignment: TestQueue = Machine.TestCase
            yield ids


def _ids_of_decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [id for decorator in node.decorator_list for id in _ids(decorator)]


def _ids_of_pytestmark(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    ):
        return _ids(node.value)
    return []


def _ids_of_machine(node: ast.stmt) -> tuple[str, list[str]] | None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
        if name.startswith("Test") and (ids := _ids(node.value)):
            return name, ids
    return None


def _ids(expression: ast.expr) -> list[str]:
    return [
        argument.value
        for call in ast.walk(expression)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "proves"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
