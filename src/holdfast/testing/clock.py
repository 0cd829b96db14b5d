"""A clock that tests can move: only databases that the test kit has made have one."""

from datetime import datetime, timedelta
from typing import Any

import psycopg

from holdfast import conninfo
from holdfast.client import Client
from holdfast.client.statement import Statement
from holdfast.errors import Misuse, NotMigrated

INSTALL = """
create schema if not exists holdfast_testing;
create table if not exists holdfast_testing.clock (ahead interval not null);
delete from holdfast_testing.clock;
insert into holdfast_testing.clock values ('0');
grant usage on schema holdfast_testing to public;
grant select on holdfast_testing.clock to public;
create or replace function holdfast.now() returns timestamptz
language sql stable parallel safe
as 'select statement_timestamp() + (select ahead from holdfast_testing.clock)';
"""


def install(template: str) -> None:
    """Make the time of a database movable, and with it that of every copy; it begins as it is."""
    with psycopg.connect(template) as connection:
        connection.execute(INSTALL)


class Clock:
    """Moves the time that all sessions of a test's database see."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def now(self) -> datetime:
        """Return the time of the database."""
        return self._client.now()

    def advance(self, by: timedelta) -> None:
        """Move the time."""
        self._run("update holdfast_testing.clock set ahead = ahead + %s::interval", by)

    def set(self, at: datetime) -> None:
        """Move to a time, from which the clock runs on."""
        if at.tzinfo is None:
            raise Misuse(
                f"travel_to({at!r}) has no time zone",
                fix="Give it one:  datetime(2030, 1, 31, 12, 0, tzinfo=UTC)",
            )
        self._run(
            "update holdfast_testing.clock set ahead = %s::timestamptz - statement_timestamp()", at
        )

    def _run(self, change: Any, value: Any) -> None:
        try:
            self._client._door.run(Statement("travel", f"{change} returning 1", [value]))
        except NotMigrated:
            raise Misuse(
                f"database {conninfo.database(self._client.url)!r} was not made by the test kit",
                why="Only there the time can be moved, so that it never is in production.",
                fix="Use the fixture `holdfast`, or holdfast.testing.WithHoldfast.",
            ) from None
