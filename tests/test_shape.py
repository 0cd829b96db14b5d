"""The shape of the source: files, classes and functions that fit into a head."""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if "sync" not in path.parts]


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        one for one in ast.walk(node) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_has_at_most_600_lines_and_a_class_40_methods(file: Path) -> None:
    text = file.read_text("utf-8")

    assert text.count("\n") <= 600
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            own = [
                one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            assert len([one for one in own if not one.name.startswith("_")]) <= 40, node.name


def test_functions_are_short() -> None:
    lengths = [
        length(one) for file in FILES for one in functions(ast.parse(file.read_text("utf-8")))
    ]

    assert median(lengths) <= 8
    assert max(lengths) <= 100
