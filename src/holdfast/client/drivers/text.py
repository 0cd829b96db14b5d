"""What any driver can carry: statements with text in and text out.

Drivers differ in the types they send and return, and users change that with codecs of their own.
So parameters are sent as text and cast in SQL, and each row comes back as one text: its binary form
in hex, which names the type of every column. psycopg's adapters convert both, as on its own
connections.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Literal

from psycopg import adapters, postgres
from psycopg._encodings import pg2pyenc
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader, PyFormat, Transformer
from psycopg.pq import Format

from holdfast.client.statement import Row, Statement

# How parameters are marked: %s, or $1.
Style = Literal["format", "numeric"]


def question(statement: Statement, style: Style) -> tuple[str, list[str | None]]:
    """Return the text of a statement whose rows have one column, and its parameters as text."""
    converter = Transformer()
    given = statement.parameters
    dumped = converter.dump_sequence(given, [PyFormat.TEXT] * len(given))
    sql = _marked(statement.sql, converter.types or (), style)
    return sql, [None if one is None else str(one, "utf-8") for one in dumped]


def rows(answers: Sequence[str | bytes]) -> list[Row]:
    """Return the rows of a question's answers."""
    # A database in SQL_ASCII has text that some drivers return as bytes.
    texts = [one if isinstance(one, str) else str(one, "ascii") for one in answers]
    if not texts:
        return []
    # Made for each call, because it remembers the types of the last row.
    converter = Transformer(_adapters(texts[0].partition(" ")[0]))
    record = converter.get_loader(postgres.types["record"].oid, Format.BINARY)
    return [record.load(bytes.fromhex(one.partition(" ")[2])) for one in texts]


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
    # The binary form has text in the encoding of the connection. Rows of a subquery keep their
    # order.
    return (
        "select pg_catalog.pg_client_encoding() || ' ' || "
        f"pg_catalog.encode(pg_catalog.record_send(answer), 'hex') from ({asked}) answer"
    )


@lru_cache
def _adapters(encoding: str) -> AdaptersMap:
    """Return what reads values; text, and JSON as text, in this encoding."""
    codec = "utf-8" if encoding == "SQL_ASCII" else pg2pyenc(encoding.encode())

    class Text(Loader):
        format = Format.BINARY

        def load(self, data: Buffer) -> str:
            return str(data, codec)

    class Jsonb(Text):
        def load(self, data: Buffer) -> str:
            return str(data, codec)[1:]  # without the number of its version

    own = AdaptersMap(adapters)
    for type in ("text", "varchar", "name", "bpchar", "json"):
        own.register_loader(type, Text)
    own.register_loader("jsonb", Jsonb)
    return own
