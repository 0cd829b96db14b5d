"""What any driver can carry: statements with text in and text out.

Drivers differ in the types they send and return, and users change that with codecs of their own.
So parameters are sent as text and cast in SQL, and each row comes back as one text: its binary form
in hex, which names the type of every column. psycopg's adapters convert both, as on its own
connections.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Literal

from psycopg import adapters, postgres
from psycopg.adapt import AdaptersMap, Loader, PyFormat, Transformer
from psycopg.pq import Format

from holdfast.client.statement import Row, Statement

# How parameters are marked: %s, or $1.
Style = Literal["format", "numeric"]


def question(statement: Statement, style: Style) -> tuple[str, list[str | None]]:
    """Return the text of a statement whose rows have one column, and its parameters as text."""
    converter = Transformer(_ADAPTERS)
    given = statement.parameters
    dumped = converter.dump_sequence(given, [PyFormat.TEXT] * len(given))
    sql = _marked(statement.sql, converter.types or (), style)
    return sql, [None if one is None else str(one, "utf-8") for one in dumped]


def rows(answers: Iterable[str | bytes]) -> list[Row]:
    """Return the rows of a question's answers."""
    record = Transformer(_ADAPTERS).get_loader(postgres.types["record"].oid, Format.BINARY)
    # A database in SQL_ASCII has text that some drivers return as bytes.
    texts = (one if isinstance(one, str) else str(one, "ascii") for one in answers)
    return [record.load(bytes.fromhex(one)) for one in texts]


@lru_cache(maxsize=256)
def _marked(sql: str, types: Sequence[int], style: Style) -> str:
    numbers = count()

    def mark(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%%" if style == "format" else "%"
        nth = next(numbers)
        mark = "%s" if style == "format" else f"${nth + 1}"
        type = postgres.types.get(types[nth])
        cast = f"::{type.regtype}" if type and not sql.startswith("::", found.end()) else ""
        return f"{mark}::text{cast}"

    asked = re.sub("%[s%]", mark, sql)
    # The rows of a subquery keep their order.
    return f"select pg_catalog.encode(pg_catalog.record_send(answer), 'hex') from ({asked}) answer"


class _JsonText(Loader):
    """Leaves JSON as the text it is, as the client's own connections do."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        return str(data, "utf-8")


class _JsonbText(_JsonText):
    def load(self, data: Any) -> str:
        return str(bytes(data[1:]), "utf-8")  # without the number of its version


_ADAPTERS = AdaptersMap(adapters)
_ADAPTERS.register_loader("json", _JsonText)
_ADAPTERS.register_loader("jsonb", _JsonbText)
