"""The documentation as data: its pages, their fenced blocks, and what a block is expected to print.

A `text` block right under a block that runs is its output. In it `…` stands for anything on that
line, a line of `…` alone for any lines; ids, times and widths of columns need not agree.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Every fence says what it is, so that no snippet escapes being run by mistake.
RUNS = ("sql", "python", "console")
# `py` is the program of another library, on the pages that move from it.
SHOWS = ("text", "py", "pgsql", "nginx", "haproxy")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the output shown under it."""

    line: int
    language: str
    text: str
    output: str | None = None


def pages() -> list[Path]:
    """Return every page a reader may follow."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "src" / "holdfast" / "sql" / "README.md",
        *sorted((ROOT / "examples").rglob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def name_of(page: Path) -> str:
    """Return a page's path as the repository knows it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page; outputs are joined to the blocks that print them."""
    found: list[Block] = []
    last_end = 0
    text = page.read_text("utf-8")
    for fence in re.finditer(r"^```(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        language, body = fence.groups()
        between = text[last_end : fence.start()]
        last_end = fence.end()
        above = found[-1] if found else None
        joined = above and above.output is None and above.language in RUNS
        if language == "text" and joined and above and not between.strip():
            found[-1] = Block(above.line, above.language, above.text, body)
        else:
            found.append(Block(text.count("\n", 0, fence.start()) + 1, language, body))
    return found


def headings(page: Path) -> list[str]:
    """Return the headings of a page, without those inside blocks."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", prose, re.MULTILINE)


def agrees(expected: str, actual: str) -> bool:
    """Whether an output is what a page shows, up to what differs from run to run."""
    return _agree(_plain(expected), _plain(actual))


def _agree(expected: list[str], actual: list[str]) -> bool:
    if not expected:
        return not actual
    first, *rest = expected
    if first == "…":
        return any(_agree(rest, actual[taken:]) for taken in range(len(actual) + 1))
    pattern = re.escape(first).replace("…", ".*?")
    return bool(actual and re.fullmatch(pattern, actual[0])) and _agree(rest, actual[1:])


def _plain(text: str) -> list[str]:
    text = _ID.sub("<id>", text)
    text = _TIME.sub("<time>", text)
    text = re.sub(r"-{2,}", "--", re.sub(r"[ \t]+", " ", text))
    return [line.strip() for line in text.strip().splitlines()]


_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME = re.compile(
    r"(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| ?[+-]\d\d(?::?\d\d)?| UTC\b)"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?"
)
