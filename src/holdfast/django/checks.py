"""Checks of `manage.py check --database default`."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as Warned
from django.db import DatabaseError

from holdfast.django.schema import is_wanted_in, status
from holdfast.errors import HoldfastError


@register(Tags.database)
def check_schema(databases: Sequence[str] | None = None, **_: Any) -> Iterator[CheckMessage]:
    """Say if the schema of a database is missing, or not that of this program."""
    if sys.argv[1:2] == ["migrate"]:
        return  # which will mend it
    for database in databases or ():
        try:
            problem = status(database).problem if is_wanted_in(database) else None
        except (HoldfastError, DatabaseError):
            continue  # Django itself says that a database cannot be reached
        if problem:
            hint = "Run:  python manage.py migrate"
            yield Warned(f"DATABASES[{database!r}]: {problem.what}", hint, id="holdfast.W001")
