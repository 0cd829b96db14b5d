"""Arguments and results as JSON, by parameter name, checked by type.

Enqueued arguments are decoded at once as a worker will decode them, so that a mistake shows in the
caller's traceback, and a handler always gets values of its declared types.
"""

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from hashlib import sha1
from inspect import Parameter
from types import FunctionType
from typing import Any, cast, get_type_hints

import msgspec
from msgspec import UNSET

from holdfast import jsonb, synonyms
from holdfast.callsite import caller, declared_at, outside
from holdfast.codec import MARK, Codec, Elsewhere, is_coded
from holdfast.crypto import CannotOpen
from holdfast.errors import InvalidArguments, InvalidPayload, InvalidResult, InvalidTask
from holdfast.records.options import JobOptions
from holdfast.resources import Resource

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Arguments:
    """The parameters of one function, as an object of JSON.

    A default is stored only if it is given, so waiting jobs still work after a parameter with a
    default is added.
    """

    def __init__(
        self, fn: Callable[..., Any], name: str, old: Mapping[str, str | None] | None = None
    ) -> None:
        self.name = name
        self._fn = fn
        self._parameters = _parameters(fn, name)
        self._old = _old_names(old or {}, self)
        self._coder: _Coder | None = None
        # A type that is not defined yet is looked up again when the first job comes.
        self._known = _hints(fn)
        if self._known is not None:
            self._coder = _Coder(fn, self._parameters, self._known, name)

    def encode(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], verb: str = "enqueue"
    ) -> jsonb.Encoded:
        """Return the payload of a call, as JSON that is ready to be sent.

        Raises InvalidArguments, which names the argument and the caller's line.
        """
        coder = self._coder or self._late_coder()
        try:
            return coder.encode(args, kwargs)
        except _Wrong as wrong:
            raise self._invalid(verb, str(wrong), "HF201", self._option(wrong, verb)) from None
        except jsonb.Unfit as unfit:
            raise self._invalid(verb, f"the payload {unfit}", "HF204", unfit.fix) from None
        except msgspec.ValidationError as error:
            raise self._invalid(verb, str(error), "HF200") from None

    def checked(self, payload: Any) -> jsonb.Encoded:
        """Return a payload as JSON that is ready to be sent, if the function takes it."""
        coder = self._coder or self._late_coder()
        try:
            text = jsonb.encode(payload)
            coder.decode(text)
        except jsonb.Unfit as unfit:
            raise self._invalid("enqueue", f"the payload {unfit}", "HF204", unfit.fix) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._invalid("enqueue", _told(error), "HF200") from None
        return text

    def decode(self, payload_json: str | bytes) -> Call:
        """Return the positional and the named arguments of a payload.

        Raises InvalidPayload if the function does not take them (any more).
        """
        coder = self._coder or self._late_coder()
        try:
            if coder.is_open:  # all names fit: no error would tell
                self._refuse_coded(payload_json)
                if self._old:
                    payload_json = self._renamed(payload_json)
            return coder.decode(payload_json)
        except (msgspec.DecodeError, RecursionError) as error:
            problem = error
        if self._old and not coder.is_open:
            try:
                return coder.decode(self._renamed(payload_json))
            except (msgspec.DecodeError, RecursionError) as error:
                problem = error
        raise self._unfit(problem)

    def decode_row(self, payload_json: str | bytes) -> Call:
        """Like `decode`, for a row of an adopted table: other columns do not matter.

        The table is the application's, which adds columns when it wants some.
        """
        coder = self._coder or self._late_coder()
        try:
            columns = _OBJECT.decode(payload_json)
            wanted = {name: text for name, text in columns.items() if self.takes(name)}
            return coder.decode(msgspec.json.encode(wanted))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unfit(error) from None

    @cached_property
    def shape(self) -> str:
        """A fingerprint of what payloads the function takes."""
        told = msgspec.json.encode([self.schema(), self._old], order="sorted")
        return sha1(told, usedforsecurity=False).hexdigest()[:12]

    def opened(self, payload_json: str | bytes) -> str | bytes:
        """Return a stored payload as it was enqueued; raises InvalidPayload if that cannot be."""
        return payload_json

    def _refuse_coded(self, payload_json: str | bytes) -> None:
        if is_coded(payload_json) and MARK in _OBJECT.decode(payload_json):
            raise self._coded()

    def _coded(self) -> InvalidPayload:
        return InvalidPayload(
            f"the payload cannot be read: it is encrypted or in a store, and {self.name}"
            f"{declared_at(self._fn)} is declared without encryption and large_payloads",
            fix="Start a worker that declares them:  @app.task(encryption=…)",
        )

    def _renamed(self, payload_json: str | bytes) -> bytes:
        """Return a payload with the arguments under the names they have today."""
        given = _OBJECT.decode(payload_json)
        for old, new in self._old.items():
            if old in given:
                value = given.pop(old)
                if new is not None:
                    given.setdefault(new, value)
        return msgspec.json.encode(given)

    def _unfit(self, error: Exception) -> InvalidPayload:
        fix = "Start a worker whose function takes it, or edit the payload."
        if unknown := _UNKNOWN.match(str(error)):
            name = unknown[1]
            if name == MARK:
                return self._coded()
            fix = (
                "Start a worker whose function takes it. If it was renamed or is not needed any "
                f'more:  @app.task(old_arguments={{"{name}": "its new name, or None"}})'
            )
        elif missing := _MISSING.match(str(error)):
            fix = f"Give `{missing[1]}` a default, or edit the payload."
        return InvalidPayload(
            f"the payload does not fit {self.name}{declared_at(self._fn)}: {_told(error)}",
            why="The function changed since the job was enqueued, or another program wrote it.",
            fix=fix,
        )

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by the names of their parameters."""
        given = dict(inspect.signature(self._fn).bind(*args, **kwargs).arguments)
        for parameter in self._parameters:
            if parameter.kind is Parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
        return given

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the payload."""
        return (self._coder or self._late_coder()).schema()

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [parameter.name for parameter in self._parameters]

    @property
    def first(self) -> str | None:
        """The name of the first argument, which a result can be; None if there is none."""
        places = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        return next((p.name for p in self._parameters if p.kind in places), None)

    def check_rest(self, first: str) -> None:
        """Refuse a call that gives nothing but the first argument, if it needs others."""
        coder = self._coder or self._late_coder()
        if missing := coder.required - {first}:
            told = ", ".join(f"`{name}`" for name in sorted(missing))
            raise self._invalid(
                "then", f"missing {told}", "HF201", "Give these a default: only one is a result."
            )

    def takes(self, name: str) -> bool:
        """Whether a payload may have an argument of this name."""
        return any(p.kind is Parameter.VAR_KEYWORD or p.name == name for p in self._parameters)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the parameters that have one, as they would be stored."""
        given = {p.name: p.default for p in self._parameters if p.default is not Parameter.empty}
        return cast("dict[str, Any]", jsonb.plain(given))

    def hints(self) -> Mapping[str, Any]:
        """Return the annotations of the function; raises InvalidTask if a type is unknown."""
        if self._known is None:
            try:
                self._known = get_type_hints(_annotated(self._fn), include_extras=True)
            except NameError as error:
                raise InvalidTask(
                    f"{self.name}{declared_at(self._fn)}: the argument type {error.name!r} is "
                    "unknown",
                    fix="Import it where it can be found at run time, not only for type checkers.",
                ) from None
        return self._known

    def _late_coder(self) -> "_Coder":
        self._coder = _Coder(self._fn, self._parameters, self.hints(), self.name)
        return self._coder

    def _option(self, wrong: "_Wrong", verb: str) -> str:
        """Say how to give what was meant as an option of the job, not as an argument."""
        option = synonyms.OPTIONS.get(wrong.unknown, wrong.unknown)
        if option != "conn" and option not in JobOptions.__annotations__:
            return ""
        return f"For the option of the job:  {self.name}.options({option}=…).{verb}(…)"

    def _invalid(self, verb: str, what: str, code: str, fix: str = "") -> InvalidArguments:
        return InvalidArguments(f"{self.name}.{verb}: {what}", where=caller(), fix=fix, code=code)


class CodedArguments(Arguments):
    """The parameters of a function whose payloads are not stored as they are enqueued."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        old: Mapping[str, str | None] | None,
        codec: Codec,
    ) -> None:
        super().__init__(fn, name, old)
        self._codec = codec

    def decode(self, payload_json: str | bytes) -> Call:
        """Return the arguments of a payload, as they were enqueued.

        Raises Elsewhere on an event loop, if it has to be fetched: `opened` does, in a thread.
        """
        if asyncio._get_running_loop() is not None and self._codec.is_elsewhere(payload_json):
            raise Elsewhere
        return super().decode(self.opened(payload_json))

    def decode_opened(self, payload_json: str | bytes) -> Call:
        """Return the arguments of a payload that was opened."""
        return super().decode(payload_json)

    def opened(self, payload_json: str | bytes) -> str | bytes:
        """Return a stored payload as it was enqueued."""
        return self._codec.opened(payload_json, self._old)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the payload, which says that it is encrypted."""
        told = super().schema()
        return {**told, "x-encrypted": True} if self._codec.encryption else told

    @cached_property
    def shape(self) -> str:
        """A fingerprint of what payloads the function takes, and of the keys it has."""
        told = msgspec.json.encode([super().shape, self._codec.shape])
        return sha1(told, usedforsecurity=False).hexdigest()[:12]


class Result:
    """What one function returns, as JSON; only of interest to a task that keeps its results."""

    def __init__(self, fn: Callable[..., Any], name: str, codec: Codec | None = None) -> None:
        self.name = name
        self._fn = fn
        self._codec = codec
        self._decoder: msgspec.json.Decoder[Any] | None = None
        hints = _hints(fn)
        if hints is not None:
            self._decoder = self._made(hints)

    def encode(self, value: Any) -> jsonb.Encoded:
        """Return a result as JSON that is ready to be sent; raise InvalidResult if it cannot be."""
        try:
            text = jsonb.encode(value)
        except jsonb.Unfit as unfit:
            raise InvalidResult(f"the result of {self.name} {unfit}", fix=unfit.fix) from None
        return self._codec.result(text) if self._codec else text

    def decode(self, result_json: str | None) -> Any:
        """Return a kept result in the return type of the function."""
        if self._decoder is None:
            self._decoder = self._made(get_type_hints(_annotated(self._fn), include_extras=True))
        text: str | bytes = result_json or "null"
        if self._codec is not None and result_json is not None:
            try:
                text = self._codec.opened_result(result_json)
            except CannotOpen as problem:
                raise msgspec.DecodeError(f"{problem.what}. {problem.fix}") from None
        return self._decoder.decode(text)

    def _made(self, hints: Mapping[str, Any]) -> "msgspec.json.Decoder[Any]":
        wanted = _wanted(hints.get("return", Any))
        if why := jsonb.unsupported(wanted):
            raise InvalidTask(
                f"{self.name}{declared_at(self._fn)}: its result cannot be kept: {why}",
                fix="Return JSON values, a dataclass or a model; or remove keep_result.",
            )
        return jsonb.decoder(wanted)


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """Arguments that no call of the function could take; `unknown` is one it does not have."""

    def __init__(self, told: str, unknown: str = "") -> None:
        super().__init__(told)
        self.unknown = unknown


class _Coder:
    def __init__(
        self,
        fn: Callable[..., Any],
        parameters: Sequence[Parameter],
        hints: Mapping[str, Any],
        name: str,
    ) -> None:
        by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = [p for p in parameters if p.kind in by_place]
        self._order = [p.name for p in self._positional]
        self._only_by_place = {p.name for p in parameters if p.kind is Parameter.POSITIONAL_ONLY}
        self._rest = _name_of(parameters, Parameter.VAR_POSITIONAL)
        self._open = _name_of(parameters, Parameter.VAR_KEYWORD)
        variadic = (self._rest, self._open)
        self._named = {p.name for p in parameters if p.name not in variadic}
        self._required = [
            p.name for p in parameters if p.name in self._named and p.default is Parameter.empty
        ]
        self.is_open = self._open is not None
        self._plain = not (self._only_by_place or self._rest or self._open)
        # Passed by place they need no names: half the time of a call. A function around another one
        # may take names alone.
        needs_all = len(self._required) == len(self._order) == len(parameters)
        self._in_order = needs_all and type(fn) is FunctionType and not vars(fn)

        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        self._names: list[str] = []
        self._extra: msgspec.json.Decoder[Any] | None = None
        for parameter in parameters:
            wanted = _type_of(parameter, hints, name)
            if parameter.kind is Parameter.VAR_KEYWORD:
                self._extra = jsonb.decoder(wanted)
                continue
            if parameter.kind is Parameter.VAR_POSITIONAL:
                wanted = list[wanted]  # type: ignore[valid-type]
            # Fields have names of their own: a parameter may be called anything.
            field = f"p{len(fields)}"
            optional = parameter.name not in self._required
            fields.append((field, wanted, UNSET) if optional else (field, wanted))
            self._names.append(parameter.name)
        self._type = msgspec.defstruct(
            re.sub(r"\W", "_", name),
            fields,
            kw_only=True,
            rename={f"p{nth}": given for nth, given in enumerate(self._names)},
            forbid_unknown_fields=self._open is None,
        )
        self._decoder = jsonb.decoder(self._type)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> jsonb.Encoded:
        text = jsonb.encode(self._bound(args, kwargs))
        if self._open:
            self.decode(text)
        else:
            self._decoder.decode(text)
        return text

    def decode(self, text: str | bytes) -> Call:
        values = msgspec.structs.astuple(self._decoder.decode(text))
        if self._in_order:
            return values, {}
        given = {n: v for n, v in zip(self._names, values, strict=True) if v is not UNSET}
        if self._plain:
            return (), given
        rest = given.pop(self._rest, []) if self._rest else []
        args = self._by_place(given, every=bool(rest))
        if self._open:
            given.update(self._extras(text))
        return (*args, *rest), given

    def schema(self) -> dict[str, Any]:
        return jsonb.schema(self._type)

    @property
    def required(self) -> set[str]:
        return set(self._required)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(zip(self._order, args, strict=False))
        if len(args) > len(self._order):
            if self._rest is None:
                takes = len(self._order)
                raise _Wrong(f"takes {takes} positional arguments, got {len(args)}")
            given[self._rest] = args[len(self._order) :]
        for name, value in kwargs.items():
            if name in given:
                raise _Wrong(f"got two values for the argument `{name}`")
            if name not in self._named or name in self._only_by_place:
                self._refuse_unless_open(name)
            given[name] = value
        if len(given) < len(self._required) or not given.keys() >= set(self._required):
            missing = [f"`{name}`" for name in self._required if name not in given]
            raise _Wrong(f"missing {', '.join(missing)}")
        return given

    def _refuse_unless_open(self, name: str) -> None:
        if name in self._only_by_place:
            raise _Wrong(f"the argument `{name}` can only be given by its place")
        if name == self._rest:
            raise _Wrong(f"`{name}` is given by places, not by name")
        if self._open is None:
            near = get_close_matches(name, self._named, n=1)
            meant = f" (did you mean `{near[0]}`?)" if near else ""
            raise _Wrong(f"unknown argument `{name}`{meant}", unknown=name)

    def _by_place(self, given: dict[str, Any], *, every: bool) -> list[Any]:
        """Take out of `given` what can only be passed by its place, defaults before it included."""
        bound = self._only_by_place & given.keys()
        places = [nth for nth, name in enumerate(self._order) if name in bound]
        count = len(self._order) if every else max(places, default=-1) + 1
        return [given.pop(p.name, p.default) for p in self._positional[:count]]

    def _extras(self, text: str | bytes) -> dict[str, Any]:
        assert self._extra
        extras = {}
        for name, value in _OBJECT.decode(text).items():
            if name not in self._names:
                try:
                    extras[name] = self._extra.decode(value)
                except msgspec.ValidationError as error:
                    raise msgspec.ValidationError(_inside(str(error), name)) from None
        return extras


def _parameters(fn: Callable[..., Any], name: str) -> list[Parameter]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidTask(f"{name}: {error}", fix="A task is a function.") from None
    return [one for one in parameters if not _is_given(one, name)]


def _is_given(parameter: Parameter, name: str) -> bool:
    """Whether the worker gives it, so that it is not an argument of the job."""
    if not isinstance(parameter.default, Resource):
        return False
    if parameter.kind is Parameter.POSITIONAL_ONLY:
        raise InvalidTask(
            f"{name}: the resource `{parameter.name}` can only be given by its place",
            fix="Write it behind the `/`.",
        )
    return True


def _type_of(parameter: Parameter, hints: Mapping[str, Any], name: str) -> Any:
    wanted = _wanted(hints.get(parameter.name, Any))
    if parameter.default is None:
        wanted = wanted | None if wanted is not Any else Any
    if why := jsonb.unsupported(wanted):
        raise InvalidTask(
            f"{name}: the argument `{parameter.name}` can't be serialised to JSON: {why}",
            why=caller(),
            fix="Take numbers, strings, lists, dicts, dates, enums, dataclasses or models. If the "
            f"lifespan opens it:  {parameter.name}: … = resource",
        )
    return wanted


def _wanted(hint: Any) -> Any:
    return Any if hint is object else hint


def _hints(fn: Callable[..., Any]) -> dict[str, Any] | None:
    try:
        return get_type_hints(_annotated(fn), include_extras=True)
    except NameError:
        pass
    # Types of the function around the task are found where it is declared, and only then.
    frame = outside()
    try:
        names = dict(frame.f_locals) if frame else {}
        return get_type_hints(_annotated(fn), localns=names, include_extras=True)
    except NameError:
        return None


def _annotated(fn: Any) -> Any:
    while isinstance(fn, partial):
        fn = fn.func
    return fn if hasattr(fn, "__annotations__") else type(fn).__call__


def _told(error: Exception) -> str:
    """Translate msgspec's message about fields of an object into one about arguments."""
    told = _UNKNOWN.sub(r"there is no argument `\1`", str(error))
    return _MISSING.sub(r"the argument `\1` is missing", told)


def _old_names(old: Mapping[str, str | None], arguments: Arguments) -> dict[str, str | None]:
    for name, new in old.items():
        problem = ""
        if any(parameter.name == name for parameter in arguments._parameters):
            problem = f"`{name}` is an argument of today"
        elif new is not None and not arguments.takes(new):
            problem = f"there is no argument `{new}`"
        if problem:
            raise InvalidTask(
                f"{arguments.name}: old_arguments: {problem}",
                why=caller(),
                fix='Say the old name and the new one:  old_arguments={"user": "user_id"}',
            )
    return dict(old)


def _inside(told: str, name: str) -> str:
    if "`$" in told:
        return told.replace("`$", f"`$.{name}", 1)
    return f"{told} - at `$.{name}`"


def _name_of(parameters: Sequence[Parameter], kind: Any) -> str | None:
    return next((parameter.name for parameter in parameters if parameter.kind is kind), None)


_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$")
_MISSING = re.compile(r"^Object missing required field `(.*)`$")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
