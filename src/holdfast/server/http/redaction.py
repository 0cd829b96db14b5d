"""Redaction: masks values at chosen paths of payloads, results and headers."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.errors import Misuse
from holdfast.records import Attempt, Job, Line, Schedule, Step
from holdfast.server.http import render
from holdfast.server.http.problems import Problem

MASK = "•••"
# A shorter value would match unrelated texts.
SHORTEST = 4
# Where the texts of attempts are cut: at the end of a line, and in the middle of a long text.
_CUT = re.compile(r"(\n?… \d+ (?:bytes|lines?) left out …\n?|…(?=\n|\Z))")
_ROOTS = ("payload", "result", "headers")
# Numbers stay as they were, digit for digit.
_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


class Redaction:
    """Rules such as `payload.password`, or `send_sms:payload.to` for one kind alone."""

    def __init__(self, rules: Sequence[str]) -> None:
        self._rules = [_rule(text) for text in rules]

    def record(self, job: Job) -> dict[str, Any]:
        """Return a job as JSON, redacted."""
        told = render.record(job)
        hidden = self._hidden(job)
        for name in ("error", "reason"):
            if told[name]:
                told[name] = _hide(told[name], hidden)
        for root, path in self._paths(job.kind):
            if told[root] is not None:
                told[root] = _masked(told[root], path)
        return told

    def text(self, job: Job, text: str) -> str:
        """Return a text about a job, which may quote its error, with its redacted values masked."""
        return _hide(text, self._hidden(job))

    def schedule(self, one: Schedule) -> dict[str, Any]:
        """Return a schedule as JSON, redacted like its jobs."""
        told = render.record(one)
        # For all kinds: a value hidden for one kind must not appear when the schedule gets another.
        for root, path in self._paths(None):
            if root == "payload":
                told["payload"] = _masked(told["payload"], path)
            else:
                told["options"] = _masked(told["options"], [root, *path])
            if told["declared"] is not None:
                told["declared"] = _masked(told["declared"], [root, *path])
                told["declared"] = _masked(told["declared"], ["options", root, *path])
        return told

    def attempt(self, job: Job, one: Attempt) -> dict[str, Any]:
        """Return an attempt at a job; redacted values of the job are masked in its texts too."""
        told = render.record(one)
        hidden = self._hidden(job)
        for name in ("message", "traceback", "log"):
            if told[name]:
                told[name] = _hide(told[name], hidden)
        return told

    def lines(self, job: Job, lines: Sequence[Line]) -> list[dict[str, Any]]:
        """Return what the handlers of a job logged, with its redacted values masked."""
        hidden = self._hidden(job)
        told = [render.record(one) for one in lines]
        for one in told:
            one["text"] = _hide(one["text"], hidden)
        return told

    def step(self, job: Job, one: Step) -> dict[str, Any]:
        """Return a step of a job; what is redacted in payloads and results is in its result too."""
        told = render.record(one)
        for _, path in self._paths(job.kind):
            if told["result"] is not None:
                told["result"] = _masked(told["result"], path)
        return told

    def payload(self, kind: str | None, raw: msgspec.Raw | None) -> msgspec.Raw | None:
        """Return a payload, or a part of one, redacted; for any kind if it is unknown."""
        for only, root, path in self._rules:
            if raw is not None and root == "payload" and (kind is None or only in ("", kind)):
                raw = _masked(raw, path)
        return raw

    def detail(self, kind: str | None, raw: msgspec.Raw | None) -> msgspec.Raw | None:
        """Return the detail of an event, redacted."""
        for only, root, path in self._rules:
            if raw is not None and (kind is None or only in ("", kind)):
                for place in ([], ["was"], ["options"], ["settings"], ["settings", "options"]):
                    raw = _masked(raw, [*place, root, *path])
        return raw

    def _hidden(self, job: Job) -> list[str]:
        """Return the redacted values of a job that are long enough to search for in texts."""
        found: list[str] = []
        roots = {
            "payload": job.payload_json,
            "result": job.result_json,
            "headers": job.headers_json,
        }
        for root, path in self._paths(job.kind):
            text = roots[root]
            if text is not None:
                with suppress(ValueError, RecursionError):
                    found += _texts(_at(_decode(text), path))
        # A value of several lines is logged line by line.
        parts = {part for text in found for part in (text, *text.splitlines())}
        return sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True)

    def check_filter(self, filter: str) -> None:
        """Refuse a filter that could reveal a redacted value."""
        for found in re.finditer(r"payload\.([^:\s\"]+):", filter):
            asked = _names(found[1].split("."))
            for _, root, path in self._rules:
                hidden = _names(path)
                shared = min(len(asked), len(hidden))
                if root == "payload" and asked[:shared] == hidden[:shared]:
                    raise Problem(
                        403, "HF401", f"payload.{found[1]} is redacted and cannot be searched"
                    )

    def check_payload(self, payload: Mapping[str, Any] | None) -> None:
        """Refuse a condition that could reveal a redacted value."""
        for _, root, path in self._rules:
            if payload is not None and root == "payload" and (not path or path[0] in payload):
                told = ".".join([root, *path])
                raise Problem(403, "HF401", f"{told} is redacted and cannot be used as a condition")

    def restored(
        self, kind: str | None, changes: Mapping[str, Any], stored: Mapping[str, str | None]
    ) -> dict[str, Any]:
        """Return the changes that contain a mask, with the stored values in its place.

        None means any kind.
        """
        found: dict[str, Any] = {}
        for root, path in self._paths(kind):
            old, new = stored.get(root), found.get(root, changes.get(root))
            if old is not None and new is not None:
                value = _restore(_decode(_encode(new)), _decode(old), path)
                found[root] = msgspec.Raw(_encode(value)) if root == "payload" else value
        return found

    def _paths(self, kind: str | None) -> list[tuple[str, list[str]]]:
        """Return what is hidden for a kind; None: for any."""
        return [
            (root, path) for only, root, path in self._rules if kind is None or only in ("", kind)
        ]


def _hide(text: str, hidden: Sequence[str]) -> str:
    """Mask values in a text, and what is left of them where it was cut."""
    for value in hidden:
        text = text.replace(value, MASK)
    if not hidden:
        return text
    pieces = _CUT.split(text)
    for nth in range(0, len(pieces), 2):
        # The text may end anywhere, without a mark: some are cut in the database.
        least = 1 if nth + 1 < len(pieces) else SHORTEST
        pieces[nth] = _without_end(pieces[nth], hidden, least)
        if nth:
            pieces[nth] = _without_beginning(pieces[nth], hidden)
    return "".join(pieces)


def _without_end(text: str, hidden: Sequence[str], least: int) -> str:
    """Mask the beginning of a value at the end of a text, if it is so long at least."""
    for value in hidden:
        at = max(0, len(text) - len(value) + 1)
        while (at := text.find(value[:least], at)) >= 0:
            if value.startswith(text[at:]):
                return text[:at] + MASK
            at += 1
    return text


def _without_beginning(text: str, hidden: Sequence[str]) -> str:
    for value in hidden:
        at = min(len(text), len(value) - 1)
        while (at := text.rfind(value[-1], 0, at)) >= 0:
            if value.endswith(text[: at + 1]):
                return MASK + text[at + 1 :]
    return text


def _rule(text: str) -> tuple[str, str, list[str]]:
    kind, _, path = text.rpartition(":")
    root, *rest = path.split(".")
    if root not in _ROOTS or not all(rest):
        raise Misuse(
            f"{text!r} is not a path to redact",
            fix="Write it as payload.password, or send_sms:payload.to for one kind.",
        )
    return kind, root, rest


def _masked(raw: msgspec.Raw, path: Sequence[str]) -> msgspec.Raw:
    try:
        return msgspec.Raw(_encode(_mask(_decode(raw), path)))
    except (ValueError, RecursionError):
        # If it cannot be decoded, hidden values cannot be found in it, so all of it is hidden.
        return msgspec.Raw(_encode(MASK))


def _mask(value: Any, path: Sequence[str]) -> Any:
    if not path:
        return MASK
    if isinstance(value, dict) and path[0] in value:
        return {**value, path[0]: _mask(value[path[0]], path[1:])}
    if isinstance(value, list):
        return [_mask(part, path[1:] if path[0] == "*" else path) for part in value]
    return value


def _at(value: Any, path: Sequence[str]) -> list[Any]:
    if not path:
        return [value]
    if isinstance(value, dict):
        return _at(value[path[0]], path[1:]) if path[0] in value else []
    if isinstance(value, list):
        rest = path[1:] if path[0] == "*" else path
        return [found for part in value for found in _at(part, rest)]
    return []


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [] if value is None or isinstance(value, bool) else [str(value)]


def _restore(value: Any, old: Any, path: Sequence[str]) -> Any:
    if value == MASK and not path:
        return old
    if isinstance(value, dict) and isinstance(old, dict) and path and path[0] in value:
        name = path[0]
        return {**value, name: _restore(value[name], old.get(name), path[1:])}
    if isinstance(value, list) and isinstance(old, list) and path:
        rest = path[1:] if path[0] == "*" else path
        pairs = zip(value, [*old, *[None] * len(value)], strict=False)
        return [_restore(new, was, rest) for new, was in pairs]
    return value


def _names(path: Sequence[str]) -> list[str]:
    """Leave out list indices, from either end: a rule applies to all items."""
    return [name for name in path if name != "*" and not re.fullmatch(r"[+-]?\d+", name)]
