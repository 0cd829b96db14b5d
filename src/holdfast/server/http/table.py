"""Finding the routes of an address, without a look at all of them."""

from collections.abc import Iterable, Iterator
from typing import Any

from starlette.routing import compile_path

from holdfast.server.http.route import Entry

# Shapes of addresses whose routes are remembered; there are many more for whoever invents some.
REMEMBERED = 1000


class Table:
    """The routes of a server, in their order: of several that fit, the first counts."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        by_path: dict[tuple[str, bool], dict[str, Entry]] = {}
        for entry in entries:
            # One address may have both a route for programs and a page.
            by_path.setdefault((entry.path, entry.programs), {})[entry.method] = entry
        self._rows = [(*_compiled(path), methods) for (path, _), methods in by_path.items()]
        self._words = {
            part for parts, _, _ in self._rows for part in parts or () if part is not None
        }
        self._known: dict[tuple[str | None, ...], list[tuple[Any, dict[str, Entry]]]] = {}

    def fits(self, path: str) -> Iterator[tuple[dict[str, Entry], dict[str, str]]]:
        """Yield the routes that a path fits, by method, and the parts of the path by name."""
        words = self._words
        shape = tuple([part if part in words else None for part in path.split("/")])
        rows = self._known.get(shape)
        if rows is None:
            rows = [(regex, methods) for parts, regex, methods in self._rows if _may(parts, shape)]
            if len(self._known) < REMEMBERED:
                self._known[shape] = rows
        for regex, methods in rows:
            if found := regex.match(path):
                yield methods, found.groupdict()


def _compiled(path: str) -> tuple[list[str | None] | None, Any]:
    """Return the parts of a path, None where anything fits, and its pattern.

    A path whose last part may have slashes has no parts.
    """
    regex, _, kinds = compile_path(path)
    if ":path}" in path:
        return None, regex
    assert all(type(kind).__name__ == "StringConvertor" for kind in kinds.values()), path
    return [None if "{" in part else part for part in path.split("/")], regex


def _may(parts: list[str | None] | None, shape: tuple[str | None, ...]) -> bool:
    """Whether an address of this shape may fit: the pattern decides."""
    if parts is None:
        return True
    return len(parts) == len(shape) and all(
        part is None or part == given for part, given in zip(parts, shape, strict=True)
    )
