"""The vocabulary of fields: types with their limits, each declared once.

A record's field is one of these with a sentence, as in `Annotated[Name, says("…")]`. Everything
else is derived from that: the typed options, the wire, request bodies, OpenAPI, the dashboard's
types, the command line and the tables of the reference pages. SQL has its own checks, and a test
compares them.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Meta, structs

from holdfast.records.ids import UNSEEN

Duration = timedelta | float  # a plain number is seconds

# To the very end: $ would also match before a line break.
PRINTABLE = rf"^[^{UNSEEN}]*\Z"

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
QueueName = Annotated[str, Meta(min_length=1, max_length=120, pattern=PRINTABLE)]
Label = Annotated[str, Meta(min_length=1, max_length=500)]
Text = Annotated[str, Meta(max_length=2000)]
Priority = Annotated[int, Meta(ge=0, le=9)]
Attempts = Annotated[int, Meta(ge=1, le=32767)]
Moment = Annotated[datetime, Meta(tz=True)]
# Up to a hundred years, and up to one.
Wait = Annotated[Duration, Meta(ge=0, le=3_153_600_000)]
Within = Annotated[Duration, Meta(gt=0, le=3_153_600_000)]
Span = Annotated[Duration, Meta(gt=0, le=31_536_000)]


def says(sentence: str) -> Meta:
    """Return the description of a field, as it is shown everywhere."""
    return Meta(description=sentence)


class Field(NamedTuple):
    """A field as its record declares it, for code that derives something from it.

    `type` has neither limits nor null; that of a Duration is timedelta. `default` means nothing
    where the field is `required`.
    """

    name: str
    type: Any
    nullable: bool
    limits: Meta | None
    says: str
    required: bool
    default: Any

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may have, if they are named."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()


@cache
def declared(record: type) -> tuple[Field, ...]:
    """Return the fields of a record in their order."""
    hints = get_type_hints(record, include_extras=True)
    return tuple(
        Field(one.name, *_read(hints[one.name]), one.required, one.default)
        for one in structs.fields(record)
    )


def _read(kind: Any) -> tuple[Any, bool, Meta | None, str]:
    """Return a type without limits and null, whether it may be null, its limits, its sentence."""
    nullable, limits, sentence = False, None, ""
    while True:
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            for note in notes:
                sentence = note.description or sentence
                limits = limits if note.description else note
        elif get_origin(kind) is not Literal and type(None) in get_args(kind):
            nullable = True
            [kind] = [part for part in get_args(kind) if part is not type(None)]
        else:
            return timedelta if kind == Duration else kind, nullable, limits, sentence
