"""The vocabulary of fields: types with their limits, each declared once.

A record's field is one of these with a sentence, as in `Annotated[Name, says("…")]`. Every door is
derived from that: the typed options, the wire, request bodies, OpenAPI, the dashboard's types, the
command line and the tables of the reference pages. SQL has checks of its own, and a test compares.
"""

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta

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
Span = Annotated[Duration, Meta(gt=0, le=31_536_000)]


def says(sentence: str) -> Meta:
    """Return what a field means, as every door shows it."""
    return Meta(description=sentence)
