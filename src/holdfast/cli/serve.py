"""`holdfast serve`: the HTTP API, for any language and for the dashboard."""

import ipaddress
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.grammar import Command, log_format, unseen
from holdfast.cli.session import SOURCES, Session, pass_session
from holdfast.cli.values import size
from holdfast.errors import Misuse, Refused
from holdfast.records import ROLES

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.server import Server
    from holdfast.server.settings import Grant, Oidc

PORT = 7717
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
@click.option("--auth", type=words, metavar="WAY,…", help="token, basic, proxy or oidc")
@click.option("--insecure", is_flag=True, help="no authentication: a proxy protects it")
@click.option(
    "--proxies", type=networks, metavar="10.0.0.0/8,…", help="whose X-Forwarded-User to trust"
)
@click.option("--roles", type=roles, metavar="ada=admin,*=viewer", help="of users named by a proxy")
# Not on the screen of --help: an error says what `--auth oidc` needs besides.
@click.option("--oidc-issuer", default="", metavar="URL", hidden=True)
@click.option("--oidc-client", default="", metavar="ID", hidden=True)
@click.option("--oidc-secret-file", default="", metavar="FILE", hidden=True)
@click.option("--oidc-group", "oidc_groups", multiple=True, metavar="ops=operate", hidden=True)
@click.option("--oidc-claim", default="groups", metavar="NAME", hidden=True)
@click.option("--oidc-scope", type=words, metavar="groups,…", hidden=True)
@click.option("--oidc-name", default="single sign-on", metavar="NAME", hidden=True)
@click.option("--oidc-ca", default="", metavar="FILE", hidden=True)
@click.option("--public-url", default="", metavar="URL", hidden=True)
@click.option("--allow-host", type=words, metavar="NAME,…", help="host names to accept")
@click.option("--read-only", is_flag=True, help="refuse all changes")
@click.option("--read-url", metavar="URL", help="a standby for reading")
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
@click.option("--redact", type=words, metavar="payload.password,…", help="mask these values")
@click.option("--max-body", type=size, default="16MB", hidden=True)
@click.option("--no-upkeep", is_flag=True, help="do not run upkeep")
@click.option("--name", default="", metavar="NAME", help="display name of this instance")
@click.option("--color", default="", metavar="'#c00'", help="display color of this instance")
@log_format
@pass_session
def serve(session: Session, /, host: str, port: int, auth: Sequence[str], **options: Any) -> None:
    """Serve the HTTP API until Ctrl-C; by default to this machine only."""
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
                oidc=_oidc(ways, options),
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
    """Decide how users sign in; refuse a public address without sign-in."""
    for way in auth:
        if way not in ("token", "basic", "proxy", "oidc"):
            raise Misuse(f"--auth {way} is unknown", fix="Ways are: token, basic, proxy, oidc.")
    if auth:
        return auth
    if insecure:
        return ("open",)
    # If tokens exist, every caller needs one.
    if any(token.revoked_at is None for token in client.tokens.list()):
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
    """Refuse to allow pages of all sites if callers do not need a token."""
    if "*" in origins and "open" in ways:
        raise Refused(
            "refusing --cors '*' without authentication: any web page could change jobs",
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


def _oidc(ways: Sequence[str], options: Mapping[str, Any]) -> "Oidc | None":
    """Read the settings of an identity provider; refuse invalid ones before serving."""
    if "oidc" not in ways:
        if options["oidc_issuer"]:
            raise Misuse("--oidc-issuer is not used", fix="Add  --auth oidc")
        return None
    from holdfast.server.settings import Oidc

    try:
        from holdfast.server.doors.oidc import is_safe
    except ImportError as error:
        raise Misuse(
            f"--auth oidc needs {error.name}", fix='pip install "holdfast[oidc]"'
        ) from None
    file: str = options["oidc_secret_file"]
    named = file if file == "-" else f"@{file}"
    secret = unseen(named) if file else os.environ.get("HOLDFAST_OIDC_SECRET", "").strip()
    needed = {
        "--oidc-issuer URL": options["oidc_issuer"],
        "--oidc-client ID": options["oidc_client"],
        "--oidc-secret-file FILE (or HOLDFAST_OIDC_SECRET)": secret,
        "--oidc-group GROUP=ROLE": options["oidc_groups"],
        "--public-url URL": options["public_url"],
    }
    if missing := [name for name, value in needed.items() if not value]:
        raise Misuse(f"--auth oidc needs {missing[0]}", fix=f"Add  {'   '.join(missing)}")
    for name in ("oidc_issuer", "public_url"):
        if not is_safe(options[name]):
            told = f"--{name.replace('_', '-')} {options[name]} is not an https address"
            raise Misuse(told, fix="http is allowed only for this machine.")
    if options["oidc_ca"] and not Path(options["oidc_ca"]).is_file():
        raise Misuse(f"--oidc-ca {options['oidc_ca']} is not a file", fix="Name a PEM file.")
    asked = ("openid", "profile", "email", *(options["oidc_scope"] or ()))
    return Oidc(
        issuer=options["oidc_issuer"],
        client_id=options["oidc_client"],
        client_secret=secret,
        public_url=options["public_url"],
        groups=[grant(one) for one in options["oidc_groups"]],
        claim=options["oidc_claim"],
        scopes=tuple(dict.fromkeys(asked)),
        name=options["oidc_name"],
        ca=options["oidc_ca"],
    )


def grant(value: str) -> "tuple[str, Grant]":
    """Read what a group may do: admins=admin, ops=operate:mail,billing, dev=produce+consume:test.

    Groups may be such as cn=ops,dc=example: the last equals sign counts. Everybody may look.
    """
    from holdfast.server.doors.access import User
    from holdfast.server.settings import Grant

    group, _, rest = value.rpartition("=")
    told, colon, names = rest.partition(":")
    scopes: set[Any] = {"read"}
    for word in told.split("+"):
        if word in ROLES:
            scopes |= ROLES[word]
        elif word in ROLES["admin"]:
            scopes.add(word)
        else:
            group = ""
    if not group or (colon and not words(names)):
        raise Misuse(
            f"--oidc-group {value} cannot be read",
            fix="Write  GROUP=ROLE  or  GROUP=SCOPE+SCOPE:QUEUE,QUEUE  with the roles "
            f"{', '.join(ROLES)} and the scopes read, produce, consume, operate, admin.",
        )
    made = Grant(frozenset(scopes), tuple(words(names)) if colon else None)
    # Refuses names of queues that no user can have.
    User(group, made.scopes, made.queues)
    return group, made


def _announce(
    session: Session, client: "Client", ways: Sequence[str], host: str, port: int
) -> None:
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if "open" in ways:
        session.say(f"serving {place}" + ("   (this machine only)" if _is_loopback(host) else ""))
        return
    session.say(f"serving {place}   sign in: {', '.join(ways)}")
    if "token" in ways:
        made = client.tokens.create(
            "sign-in link", ["admin"], expires=LINK, sort="link", actor="holdfast serve"
        )
        session.say(f"once, within 10 minutes:  {place}/sign-in?link={made.secret}")


def _logging(session: Session, format: str) -> AbstractContextManager[None]:
    from holdfast.watch.logs import json_lines

    quiet = logging.WARNING if session.quiet else logging.INFO
    return json_lines(quiet) if format == "json" else nullcontext()


def _run(server: "Server", host: str, port: int) -> None:
    from holdfast.server import serve

    with suppress(KeyboardInterrupt):
        serve.run(server, host=host, port=port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
