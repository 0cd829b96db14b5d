"""One database for all examples of the machine, wiped between them; its time stands still."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.protocol import Protocol, shared_database

CLOCK = """
create or replace function holdfast.now() returns timestamptz
language sql stable parallel safe
as $$ select current_setting('holdfast_test.now')::timestamptz $$;
create or replace function holdfast.clock() returns timestamptz
language sql volatile parallel safe
as $$ select current_setting('holdfast_test.now')::timestamptz $$;
"""


@pytest.fixture
def db(postgres: Any, template: str) -> Iterator[Protocol]:
    with (
        shared_database(postgres.url, template) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        connection.execute(CLOCK)
        yield Protocol(connection)
