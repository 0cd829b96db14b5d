"""What the caller's own statements leave in the session of a connection that others use next."""

from typing import Any

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

# What a session may keep beyond a transaction: settings, the role, channels, temporary tables, open
# cursors and locks. What it has prepared stays: it changes no other statement, and most is ours.
_TIDY = (
    b"reset session authorization; reset role; unlisten *; close all; discard temp; "
    b"select pg_advisory_unlock_all(); "
)
_TIDY_AND_COMMIT = b"reset all; " + _TIDY + b"COMMIT"
# A pooler keeps account of settings that it has made itself, such as application_name.
_TIDY_AND_COMMIT_POOLED = b"reset search_path; " + _TIDY + b"COMMIT"
# A rollback undoes all of this but locks.
_ROLLBACK_AND_TIDY = b"ROLLBACK; select pg_advisory_unlock_all()"


class Lent:
    """Part of a connection of the pool: while it is `lent`, a transaction ends with a tidy session.

    `direct` is whether the server itself answers, and not a pooler.
    """

    pgconn: Any
    lent = False
    direct = False

    def _exec_command(self, command: Any, *args: Any, **kwargs: Any) -> PQGen[PGresult | None]:
        # What the caller has set, held or created for the session must not meet the next caller.
        # In the same round trip as the commit: it costs the server some microseconds.
        if self.lent and command == b"COMMIT":
            return self._exec_all(_TIDY_AND_COMMIT if self.direct else _TIDY_AND_COMMIT_POOLED)
        if self.lent and command == b"ROLLBACK":
            return self._exec_all(_ROLLBACK_AND_TIDY)
        own: PQGen[PGresult | None] = super()._exec_command(  # type: ignore[misc]
            command, *args, **kwargs
        )
        return own

    def _exec_all(self, commands: bytes) -> PQGen[PGresult | None]:
        self.pgconn.send_query(commands)
        results: list[PGresult] = yield from generators.execute(self.pgconn)
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
        return results[-1]
