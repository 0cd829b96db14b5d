"""How Holdfast connects: settings that survive poolers, dead peers and failovers.

Nothing here needs a session of its own: no `options`, no SET; statements are prepared only where
the server itself answers (client/aio/pool.py).
"""

import os
import re
from datetime import timedelta
from math import inf
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from holdfast.errors import CannotConnect, Misuse
from holdfast.records import Duration

VARIABLE = "HOLDFAST_URL"
LISTEN_VARIABLE = "HOLDFAST_LISTEN_URL"
TIMEOUT_VARIABLE = "HOLDFAST_TIMEOUT"
# A call outlives a failover: Patroni's takes up to 33 seconds with its own settings, and a call
# that waits for a server that stands still notices a few seconds later.
TIMEOUT = 60.0

# A dead peer is noticed in seconds, not in the kernel's two hours.
_NETWORK = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,
}


def locate(url: str | None, source: str = "") -> tuple[str, str]:
    """Return the address to connect to, and where it came from."""
    if url:
        return url, source
    if url := os.environ.get(VARIABLE):
        return url, f"{VARIABLE} in the environment"
    raise Misuse("no database address", fix=f"Pass a url, or set {VARIABLE}=postgresql://…")


def timeout(given: Duration | None = None) -> float:
    """Return the seconds that a call may take: as given, or HOLDFAST_TIMEOUT, or the default."""
    if given is None:
        told = os.environ.get(TIMEOUT_VARIABLE, "").strip() or TIMEOUT
        try:
            given = float(str(told).removesuffix("s"))
        except ValueError:
            given = 0.0
        wrong = f"{TIMEOUT_VARIABLE} is {told!r}"
    else:
        wrong = f"the timeout is {given!r}"
    seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
    if not 0 < seconds < inf:
        raise Misuse(f"{wrong}, which is not a number of seconds above zero", fix="Usual is 60.")
    return seconds


def parameters(url: str, *, application_name: str) -> dict[str, Any]:
    """Return psycopg's connection arguments for a url; values in the url take precedence."""
    scheme = re.match(r"([a-z][\w.+-]*)://", url)
    if scheme and scheme[1] not in ("postgresql", "postgres"):
        raise Misuse(
            f"the database address cannot be read: it begins with {scheme[0]}",
            why="That of SQLAlchemy names a driver, which is not for libpq." * ("+" in scheme[1]),
            fix="An address looks like postgresql://user@host:5432/database",
        )
    if scheme and _is_cut(url[scheme.end() :]):
        # Not what libpq makes of it: the rest of the password would be the name of a host.
        raise Misuse(
            "the database address cannot be read: it has a second @, or one after a /",
            fix="Write these in a password as  @ %40  / %2F  : %3A  ? %3F  % %25",
        )
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # libpq quotes the part it stumbled over, which may hold the password, and in that a quote.
        told = re.sub(r'("=")|".*"', lambda m: m[1] or '"…"', str(error).strip(), flags=re.DOTALL)
        raise Misuse(
            f"the database address cannot be read: {told}",
            fix="An address looks like postgresql://user@host:5432/database",
        ) from None
    chosen: dict[str, Any] = {**_NETWORK, "application_name": application_name, **given}
    if "," in str(given.get("host", "")) + str(given.get("hostaddr", "")):
        chosen.setdefault("target_session_attrs", "read-write")
    # JSON is UTF-8, whatever the session's environment says.
    return {**chosen, "client_encoding": "utf8", "autocommit": True, "prepare_threshold": None}


def server(url: str) -> str:
    """Name the server, user and database of a url, and never the password."""
    info = _resolved(url)
    hosts = (info.get("host") or info.get("hostaddr") or "localhost").split(",")
    ports = info.get("port", "5432").split(",")
    if len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)
    places = ", ".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
    return f"{places} (user {info.get('user', '')}, database {database(url)})"


def database(url: str) -> str:
    """Return the name of the database of a url."""
    info = _resolved(url)
    return info.get("dbname") or info.get("user", "")


def cannot_connect(
    url: str, error: BaseException | str, *, source: str = "", tries: int = 1, seconds: float = 0.0
) -> CannotConnect:
    """Return the error with the unreachable server, the reason, and where its address came from."""
    return CannotConnect(server(url), _sentence(error), source=source, tries=tries, seconds=seconds)


def _is_cut(address: str) -> bool:
    """Whether a password ends too early: libpq ends it at the first @, and its host at a /."""
    server, _, path = address.partition("?")[0].partition("/")
    return server.count("@") > 1 or "@" in path


def _resolved(url: str) -> dict[str, str]:
    info = {d.keyword.decode(): d.val.decode() for d in Conninfo.get_defaults() if d.val}
    given = conninfo_to_dict(url).items()
    return {**info, **{key: str(value) for key, value in given if value}}


def _sentence(error: BaseException | str) -> str:
    # libpq says "connection to server at …, port … failed: reason", a line for each address.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "failed: " in line), lines[0] if lines else "no answer")
    reason = told.rpartition("failed: ")[2].removeprefix("FATAL:  ").removeprefix("FATAL: ").strip()
    return reason[:1].lower() + reason[1:] if reason[:2].istitle() else reason
