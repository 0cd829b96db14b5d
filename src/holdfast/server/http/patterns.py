"""Matches texts against the patterns of JSON schemas, in a time that has a limit.

`re` tries one way after the other, and holds the whole process meanwhile: for a pattern such as
`^(a+)+$` and forty letters, for hours. Here all ways are followed at once, letter by letter. That
cannot be done with references to groups and with lookarounds: those patterns are not judged.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

# Larger patterns are not judged: each letter of a text may cost as many steps.
MOST_STATES = 4000
_DEEPEST = 40
_MOST_REPEATS = 1000
# Numbers of states that are remembered: a few megabytes.
_MOST_KEPT = 50_000


class TooMuch(Exception):  # noqa: N818 - caught by whoever knows what was too much
    """There is no effort left."""


class Effort:
    """How many steps may be spent on one request, whatever is compared with whatever."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count steps; raises TooMuch if there are none left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch


def fits(pattern: str, text: str, effort: Effort) -> bool | None:
    """Whether a pattern is found in a text; None if the pattern cannot be judged here.

    `^` and `$` are the ends of the text, as JSON schema has it: a line feed at the end counts.
    """
    program = _program(pattern)
    if program is None:
        return None
    return _Run(*program, effort).finds(text)


class _Unknown(Exception):  # noqa: N818 - never leaves this module
    """A pattern that is wrong, or that other languages read in another way."""


Fits = Callable[[str], bool]
# ("set", fits, cost), ("at", where), ("all", nodes), ("any", nodes), ("repeat", node, least, most).
Node = tuple[Any, ...]
# ("set", fits, cost, next), ("at", where, next), ("split", next, next), ("end",).
State = tuple[Any, ...]


@lru_cache(maxsize=100)
def _program(pattern: str) -> tuple[list[State], int] | None:
    """Return the states of a pattern, and the first of them; None if it cannot be judged."""
    try:
        made = _Maker()
        return made.states, made.put(_Reader(pattern).read(), made.end)
    except _Unknown:
        return None


class _Reader:
    """Reads what patterns of Python and of JavaScript have in common, and nothing else."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0

    def read(self) -> Node:
        node = self._any(0)
        if self._at < len(self._text):  # a bracket that nothing opened
            raise _Unknown
        return node

    def _next(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise _Unknown
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, wanted: str) -> bool:
        if not self._text.startswith(wanted, self._at):
            return False
        self._at += len(wanted)
        return True

    def _any(self, depth: int) -> Node:
        if depth > _DEEPEST:
            raise _Unknown
        ways = [self._all(depth)]
        while self._takes("|"):
            ways.append(self._all(depth))
        return ways[0] if len(ways) == 1 else ("any", ways)

    def _all(self, depth: int) -> Node:
        nodes = []
        while self._next() not in ("", "|", ")"):
            node = self._one(depth)
            nodes.append(self._repeated(node))
        return ("all", nodes)

    def _one(self, depth: int) -> Node:
        match letter := self._take():
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case ".":
                return ("set", lambda one: one != "\n", 1)
            case "^" | "$":
                return ("at", letter)
            case "*" | "+" | "?" | "{" | "}" | "]":  # wrong, or a letter in some languages only
                raise _Unknown
            case "\\":
                if self._next() in ("b", "B"):
                    return ("at", self._take())
                return _set(self._escaped())
        return _set(letter)

    def _group(self, depth: int) -> Node:
        if self._takes("?"):
            if self._takes("<") or self._takes("P<"):
                name, closed, _ = self._text[self._at :].partition(">")
                if not closed or not name.isidentifier():  # also what looks behind
                    raise _Unknown
                self._at += len(name) + 1
            elif not self._takes(":"):
                raise _Unknown
        node = self._any(depth + 1)
        if not self._takes(")"):
            raise _Unknown
        return node

    def _repeated(self, node: Node) -> Node:
        least, most = 0, None
        match self._next():
            case "*":
                pass
            case "+":
                least = 1
            case "?":
                most = 1
            case "{":
                least, most = self._counts()
            case _:
                return node
        self._take()
        self._takes("?")  # as few as possible: it is found or not, all the same
        if node[0] == "at" or self._next() in ("*", "+", "?", "{"):
            raise _Unknown
        return ("repeat", node, least, most)

    def _counts(self) -> tuple[int, int | None]:
        """Read {2}, {2,} or {2,3} up to its bracket."""
        told, closed, _ = self._text[self._at + 1 :].partition("}")
        least, comma, most = told.partition(",")
        self._at += len(told) + 1
        if not closed or not _is_count(least) or (most and not _is_count(most)):
            raise _Unknown
        if not comma:
            return int(least), int(least)
        if most and int(most) < int(least):
            raise _Unknown
        return int(least), int(most) if most else None

    def _class(self) -> Node:
        negated = self._takes("^")
        if self._next() == "]":  # nothing, or the bracket itself
            raise _Unknown
        ranges: list[tuple[str, str]] = []
        sorts: list[Fits] = []
        while not self._takes("]"):
            first = self._in_class()
            if self._next() == "-" and self._next(2) != "-]":
                self._take()
                last = self._in_class()
                if not isinstance(first, str) or not isinstance(last, str) or last < first:
                    raise _Unknown
                ranges.append((first, last))
            elif isinstance(first, str):
                ranges.append((first, first))
            else:
                sorts.append(first)

        def fits(one: str) -> bool:
            found = any(a <= one <= z for a, z in ranges) or any(sort(one) for sort in sorts)
            return found is not negated

        return ("set", fits, 1 + len(ranges) + len(sorts))

    def _in_class(self) -> "str | Fits":
        letter = self._take()
        if letter != "\\":
            return letter
        return "\b" if self._takes("b") else self._escaped()

    def _escaped(self) -> "str | Fits":
        letter = self._take()
        if letter in _SORTS:
            return _SORTS[letter]
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter in _DIGITS:
            told = self._next(_DIGITS[letter])
            self._at += _DIGITS[letter]
            try:
                found = chr(int(told, 16)) if told.isascii() and told.isalnum() else ""
            except ValueError:
                found = ""
            if not found or len(told) < _DIGITS[letter] or "\ud800" <= found <= "\udfff":
                raise _Unknown
            return found
        if letter.isalnum():  # a reference, a property, or what only one language has
            raise _Unknown
        return letter


class _Maker:
    """Makes states of nodes, from the end to the beginning."""

    def __init__(self) -> None:
        self.states: list[State] = [("end",)]
        self.end = 0
        self._left = MOST_STATES

    def put(self, node: Node, then: int) -> int:
        """Add the states of a node that go on with another; return the first of them."""
        # What repeats nothing makes no states, and takes time all the same.
        self._left -= 1
        if self._left < 0:
            raise _Unknown
        match node:
            case ("set", fits, cost):
                return self._add(("set", fits, cost, then))
            case ("at", where):
                return self._add(("at", where, then))
            case ("all", nodes):
                for one in reversed(nodes):
                    then = self.put(one, then)
                return then
            case ("any", nodes):
                first = self.put(nodes[-1], then)
                for one in reversed(nodes[:-1]):
                    first = self._add(("split", self.put(one, then), first))
                return first
        _, inner, least, most = node
        first = then
        if most is None:
            first = self._add(("split", then, then))
            body = self.put(inner, first)
            self.states[first] = ("split", body, then)
            if least:
                first, least = body, least - 1
        else:
            for _ in range(most - least):
                first = self._add(("split", self.put(inner, first), then))
        for _ in range(least):
            first = self.put(inner, first)
        return first

    def _add(self, state: State) -> int:
        self.states.append(state)
        return len(self.states) - 1


class _Run:
    """One text: which states it can be in after each letter."""

    def __init__(self, states: list[State], first: int, effort: Effort) -> None:
        self._states = states
        self._first = first
        self._effort = effort

    def finds(self, text: str) -> bool:
        nothing: frozenset[int] = frozenset()
        here, before = nothing, ""
        # Most texts come to the same few places again and again.
        known: dict[tuple[frozenset[int], str, str], frozenset[int] | None] = {}
        kept = 0
        for letter in [*text, ""]:
            place = (here, before and ("a" if _is_word(before) else " "), letter)
            if place in known:
                self._effort.spend(1)
                after = known[place]
            else:
                after = known[place] = self._after(here, before, letter)
                kept += 1 + len(after or ())
            if after is None:
                return True
            if kept > _MOST_KEPT:
                known.clear()
                kept = 0
            here, before = after, letter
        return False

    def _after(self, here: frozenset[int], before: str, letter: str) -> frozenset[int] | None:
        """Return the states behind a letter; None if the pattern is found in front of it."""
        after: set[int] = set()
        seen = {*here, self._first}
        stack = list(seen)
        self._effort.spend(1 + len(seen))
        while stack:
            state = self._states[stack.pop()]
            match state[0]:
                case "end":
                    return None
                case "set":
                    self._effort.spend(state[2])
                    if letter and state[1](letter):
                        after.add(state[3])
                    continue
                case "at":
                    goes_on = [state[2]] if _is_at(state[1], before, letter) else []
                case _:
                    goes_on = [state[1], state[2]]
            for one in goes_on:
                if one not in seen:
                    self._effort.spend(1)
                    seen.add(one)
                    stack.append(one)
        return frozenset(after)


def _is_at(where: str, before: str, letter: str) -> bool:
    match where:
        case "^":
            return not before
        case "$":
            return not letter
    return (_is_word(before) != _is_word(letter)) is (where == "b")


def _is_count(told: str) -> bool:
    return told.isascii() and told.isdigit() and len(told) <= 4 and int(told) <= _MOST_REPEATS


def _set(one: "str | Fits") -> Node:
    return ("set", one.__eq__ if isinstance(one, str) else one, 1)


# Those of Unicode, as a worker in Python reads them: a name with an accent is one.
def _is_word(one: str) -> bool:
    return one.isalnum() or one == "_"


def _not(sort: Fits) -> Fits:
    return lambda one: not sort(one)


_SORTS: dict[str, Fits] = {
    "d": str.isdecimal,
    "D": _not(str.isdecimal),
    "w": _is_word,
    "W": _not(_is_word),
    "s": str.isspace,
    "S": _not(str.isspace),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
# How many hexadecimal digits follow.
_DIGITS = {"x": 2, "u": 4}
