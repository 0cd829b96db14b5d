"""What is said to a caller whose object cannot carry a statement."""

from typing import Any

from holdfast.callsite import caller
from holdfast.errors import Misuse

TAKEN = (
    "Give a connection of psycopg 3, psycopg2 or asyncpg; a Session or Connection of SQLAlchemy 2, "
    "asynchronous or not; or Django's connection."
)


def not_a_connection(conn: Any, more: str = "", fix: str = "") -> Misuse:
    """Return the error for what is not a connection; `more` says what is wrong with it."""
    return Misuse(f"conn is {named(conn)}{more}", why=caller(), fix=fix or _fix(conn))


def closed(conn: Any) -> Misuse:
    """Return the error for a connection that its owner has closed."""
    return not_a_connection(conn, ", which is closed", fix="Give an open one.")


def asynchronous(conn: Any) -> Misuse:
    """Return the error for a connection that cannot be used without await."""
    return Misuse(
        f"enqueue cannot use an asynchronous connection: conn is {named(conn)}",
        why=caller(),
        fix="Use  await ….aenqueue(…), or AsyncClient.on(connection).",
    )


def synchronous(conn: Any) -> Misuse:
    """Return the error for a connection that would block the event loop."""
    fix = "It would block the event loop. Use  ….enqueue(…), or Client.on(connection)."
    if conn.__class__.__module__.startswith("django."):
        fix = "Call it in a thread, with the rest of the transaction:  await sync_to_async(…)(…)"
    return Misuse(
        f"aenqueue cannot use a synchronous connection: conn is {named(conn)}",
        why=caller(),
        fix=fix,
    )


def named(value: Any) -> str:
    """Name the type of a value, with its article."""
    name = f"{value.__class__.__module__}.{value.__class__.__qualname__}".removeprefix("builtins.")
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def _fix(conn: Any) -> str:
    name = conn.__class__.__name__.lower()
    if isinstance(conn, str):
        return f"An address has no transaction. {TAKEN}"
    if name.endswith(("pool", "engine", "sessionmaker")):
        return f"It makes connections, and is not in a transaction itself. {TAKEN}"
    if name.endswith("cursor"):
        return f"Give the connection of the cursor. {TAKEN}"
    return TAKEN
