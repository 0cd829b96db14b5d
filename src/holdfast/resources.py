"""Parameters of handlers that are not arguments of the job: the worker takes them by type.

`async def pay(order: int, db: AsyncEngine = resource)` is enqueued with an order alone. Its `db`
is the AsyncEngine among what the lifespan of the app yields.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from holdfast.callsite import declared_at
from holdfast.errors import InvalidTask, Misuse


class Resource:
    """The default of a parameter that the worker gives; of no use by itself."""

    def __call__(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Misuse(
            f"a parameter with the default `resource` was not given (its {name!r} was asked for)",
            why="A worker gives it. Nothing does where the function is called directly.",
            fix="Pass it by name:  pay(7, db=engine)",
        )

    def __repr__(self) -> str:
        return "resource"


# The default of a parameter that a worker takes from the lifespan, by its type. If the lifespan
# yields several of that type, it is the one of the parameter's name.
resource: Any = Resource()


def wanted(
    fn: Callable[..., Any], kind: str, hints: Callable[[], Mapping[str, Any]]
) -> "Wanted | None":
    """Return which parameters of a function a worker gives; None if there are none."""
    parameters = inspect.signature(fn).parameters.values()
    names = [one.name for one in parameters if isinstance(one.default, Resource)]
    return Wanted(names, fn, kind, hints) if names else None


class Wanted:
    """The parameters of one function that are given by the worker."""

    def __init__(
        self,
        names: Sequence[str],
        fn: Callable[..., Any],
        kind: str,
        hints: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._names = names
        self._fn = fn
        self._kind = kind
        self._hints = hints
        self._types: dict[str, tuple[type, ...]] = {}

    def given(self, resources: Any) -> dict[str, Any]:
        """Return them by name, from what the lifespan yielded; raises InvalidTask."""
        if not self._types:
            hints = self._hints()
            self._types = {name: _classes(hints.get(name, object)) for name in self._names}
        found = dict(_parts(resources))
        return {name: self._chosen(name, kind, found) for name, kind in self._types.items()}

    def _chosen(self, name: str, kind: tuple[type, ...], found: Mapping[str, Any]) -> Any:
        fits = {place: value for place, value in found.items() if _is(value, kind)}
        if name in fits:
            return fits[name]
        # One value may be found in two places: as it is, and as an attribute of itself.
        different = {id(value): value for value in fits.values()}
        if len(different) == 1:
            return next(iter(different.values()))
        wanted = " or ".join(one.__name__ for one in kind)
        there = ", ".join(f"{place} ({type(v).__name__})" for place, v in found.items() if place)
        raise InvalidTask(
            f"{self._kind}{declared_at(self._fn)}: the lifespan yields "
            f"{len(different) or 'no'} {wanted} for the parameter `{name}`",
            why=f"It yields: {there}." if there else "It yields nothing that has a name.",
            fix="Let @app.lifespan yield it, by that name if there are several of the type.",
        )


def _parts(resources: Any) -> Iterator[tuple[str, Any]]:
    """What a lifespan yields may be the one resource, or hold several by name."""
    yield "", resources
    if isinstance(resources, Mapping):
        yield from ((str(name), value) for name, value in resources.items())
    elif is_dataclass(resources):
        yield from ((field.name, getattr(resources, field.name)) for field in fields(resources))
    elif isinstance(resources, tuple) and hasattr(resources, "_fields"):
        yield from zip(resources._fields, resources, strict=True)
    elif isinstance(resources, tuple | list):
        yield from ((f"[{nth}]", value) for nth, value in enumerate(resources))
    elif hasattr(resources, "__dict__"):
        yield from vars(resources).items()


def _classes(hint: Any) -> tuple[type, ...]:
    origin = get_origin(hint)
    if origin is Annotated:
        return _classes(get_args(hint)[0])
    if origin in (Union, UnionType):
        return tuple(
            one for part in get_args(hint) if part is not NoneType for one in _classes(part)
        )
    return (origin or hint,) if isinstance(origin or hint, type) else (object,)


def _is(value: Any, kind: tuple[type, ...]) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be asked at run time: the name decides
        return True
