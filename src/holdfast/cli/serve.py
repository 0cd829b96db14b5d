"""`holdfast serve`: the HTTP API, for any language and for the dashboard."""

import ipaddress
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.grammar import Command, log_format
from holdfast.cli.session import SOURCES, Session, pass_session
from holdfast.cli.values import size
from holdfast.errors import Misuse, Refused

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.server import Server

PORT = 7717
ROLES = ("viewer", "operator", "admin")
# How long the link that is printed at the start can be followed.
LINK = 600.0


def words(value: str) -> list[str]:
    """Read names with commas between them."""
    return [word for part in value.split(",") if (word := part.strip())]


def roles(value: str) -> dict[str, str]:
    """Read who has which role: ada=admin,*=viewer."""
    found = dict(part.partition("=")[::2] for part in words(value))
    for name, role in found.items():
        if role not in ROLES:
            raise click.BadParameter(f"{name}={role} is not a name and a role: {', '.join(ROLES)}")
    return found


def origins(value: str) -> list[str]:
    """Read origins of pages: https://shop.example.org,http://localhost:3000."""
    for part in words(value):
        if part != "*" and not re.fullmatch(r"https?://[^/\s,*]+", part):
            raise click.BadParameter(
                f"{part!r} is not an origin, such as https://shop.example.org, without a path"
            )
    return words(value)


def networks(value: str) -> list[str]:
    """Read addresses and networks: 10.0.0.0/8,192.168.1.7."""
    for part in words(value):
        try:
            ipaddress.ip_network(part)
        except ValueError:
            raise click.BadParameter(f"{part!r} is not an address or a network") from None
    return words(value)


@click.command(
    cls=Command,
    context_settings={"auto_envvar_prefix": "HOLDFAST_SERVE"},
    short_help="Serve the HTTP API and the dashboard.",
    examples=[
        "holdfast serve",
        "holdfast serve --host 0.0.0.0 --auth token --name prod --color '#c00'",
    ],
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="listen here  [127.0.0.1]")
@click.option("--port", type=int, default=PORT, metavar="N", help=f"on this port  [{PORT}]")
@click.option("--auth", type=words, metavar="WAY,…", help="token, basic, proxy; how to get in")
@click.option("--insecure", is_flag=True, help="let everybody in: a proxy protects it")
@click.option(
    "--proxies", type=networks, metavar="10.0.0.0/8,…", help="whose X-Forwarded-User counts"
)
@click.option("--roles", type=roles, metavar="ada=admin,*=viewer", help="of users a proxy names")
@click.option("--allow-host", type=words, metavar="NAME,…", help="names it answers to")
@click.option("--read-only", is_flag=True, help="let nobody change anything")
@click.option("--read-url", metavar="URL", help="a standby to look at")
@click.option(
    "--pool",
    type=click.IntRange(1),
    default=10,
    metavar="N",
    envvar=["HOLDFAST_SERVE_POOL", "POSTGRES_POOL_SIZE"],
    help="connections  [10]",
)
@click.option("--cors", type=origins, metavar="https://…,…", hidden=True)
@click.option(
    "--ack-timeout",
    type=click.FloatRange(0, 31_536_000, min_open=True),
    metavar="SECONDS",
    envvar=["HOLDFAST_SERVE_ACK_TIMEOUT", "ACK_TIMEOUT_SECONDS"],
    hidden=True,
)
@click.option(
    "--overdue-check",
    type=click.IntRange(100, 60_000),
    metavar="MS",
    envvar=["HOLDFAST_SERVE_OVERDUE_CHECK", "OVERDUE_CHECK_INTERVAL_MS"],
    hidden=True,
)
@click.option("--redact", type=words, metavar="payload.password,…", help="show nobody these values")
@click.option("--max-body", type=size, default="16MB", hidden=True)
@click.option("--no-upkeep", is_flag=True, help="leave housekeeping to others")
@click.option("--name", default="", metavar="NAME", help="of this instance, for people")
@click.option("--color", default="", metavar="'#c00'", help="of this instance")
@log_format
@pass_session
def serve(session: Session, /, host: str, port: int, auth: Sequence[str], **options: Any) -> None:
    """Serve the HTTP API until Ctrl-C; open to this machine, closed to all others."""
    from holdfast import schema
    from holdfast.client import Client
    from holdfast.server import Server, Settings

    with session.database() as database:
        source = SOURCES[database.origin]
        if database.server:
            schema.migrate(database.url)
        else:
            schema.check(database.url, source=source)
        with Client(database.url, application_name="holdfast cli", source=source) as client:
            ways = _ways(client, host, auth or (), insecure=options["insecure"])
            settings = Settings(
                ways=ways,
                basic=_basic(ways),
                insecure=options["insecure"],
                proxies=options["proxies"] or (),
                proxy_roles=options["roles"] or {"*": "viewer"},
                hosts=options["allow_host"] or (),
                read_only=options["read_only"],
                read_url=options["read_url"],
                listen_url=os.environ.get("HOLDFAST_LISTEN_URL"),
                pool_size=options["pool"],
                cors=_cors(options["cors"] or (), ways),
                ack_timeout=options["ack_timeout"],
                # It is idle when nothing happened, and then looks half as often.
                upkeep_every=(options["overdue_check"] or 2000) / 2000,
                redact=options["redact"] or words(os.environ.get("HOLDFAST_REDACT", "")),
                body_limit=options["max_body"],
                upkeep=not options["no_upkeep"],
                name=options["name"],
                color=options["color"],
            )
            server = Server(database.url, settings=settings, source=source)
            _announce(session, client, settings.ways, host, port)
        with _logging(session, options["log_format"]):
            _run(server, host, port)


def _ways(client: "Client", host: str, auth: Sequence[str], *, insecure: bool) -> Sequence[str]:
    """Decide how to get in; refuse to let the world in without asking who it is."""
    for way in auth:
        if way not in ("token", "basic", "proxy"):
            raise Misuse(f"--auth {way} is unknown", fix="Ways are: token, basic, proxy.")
    if auth:
        return auth
    if insecure:
        return ("open",)
    # Whoever made tokens wants callers to have one, wherever they call from.
    if any(token.revoked_at is None for token in client.tokens()):
        return ("token",)
    if _is_loopback(host):
        return ("open",)
    raise Refused(
        f"refusing to listen on {host} without authentication",
        fix="holdfast token create --scope admin     or   --auth basic   "
        "or   --insecure if a proxy already protects it",
        code="HF400",
    )


def _cors(origins: Sequence[str], ways: Sequence[str]) -> Sequence[str]:
    """Refuse to let the pages of all sites in where callers need not show a token."""
    if "*" in origins and "open" in ways:
        raise Refused(
            "refusing --cors '*' without authentication: any page could do anything here",
            fix="Name the origins:  --cors https://shop.example.org   or add  --auth token",
            code="HF400",
        )
    return origins


def _basic(ways: Sequence[str]) -> Mapping[str, tuple[str, str]]:
    if "basic" not in ways:
        return {}
    users = {}
    for line in words(os.environ.get("HOLDFAST_BASIC", "")):
        name, _, rest = line.partition(":")
        password, _, role = rest.rpartition(":")
        if not name or not password or role not in ROLES:
            raise Misuse(
                "HOLDFAST_BASIC cannot be read",
                fix="Write it as  HOLDFAST_BASIC=ada:password:admin,bob:password:viewer",
            )
        users[name] = (password, role)
    if not users:
        raise Misuse(
            "--auth basic needs users",
            fix="Name them:  export HOLDFAST_BASIC=ada:password:admin",
        )
    return users


def _announce(
    session: Session, client: "Client", ways: Sequence[str], host: str, port: int
) -> None:
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if "open" in ways:
        session.say(f"serving {place}" + ("   (this machine only)" if _is_loopback(host) else ""))
        return
    session.say(f"serving {place}   sign in: {', '.join(ways)}")
    if "token" in ways:
        made = client.token_create(
            "sign-in link", ["admin"], expires=LINK, sort="link", actor="holdfast serve"
        )
        session.say(f"once, within 10 minutes:  {place}/sign-in?link={made.secret}")


def _logging(session: Session, format: str) -> AbstractContextManager[None]:
    from holdfast.logs import json_lines

    quiet = logging.WARNING if session.quiet else logging.INFO
    return json_lines(quiet) if format == "json" else nullcontext()


def _run(server: "Server", host: str, port: int) -> None:
    from holdfast.server import listen

    with suppress(KeyboardInterrupt):
        listen.run(server, host=host, port=port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
