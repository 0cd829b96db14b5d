"""`holdfast config`: the settings in force, and where they come from."""

import os
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast.cli import output
from holdfast.cli.grammar import Group
from holdfast.cli.session import SOURCES, Session, pass_session

_SECRET = {"password", "sslpassword"}
_OURS = {"application_name", "autocommit", "prepare_threshold"}
_MASK = "••••••"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force, and where it came from."""

    name: str
    value: str
    source: str


@click.group(
    cls=Group,
    examples=["holdfast config show", "holdfast config show --url postgresql://app@db/shop"],
)
def config() -> None:
    """See which settings are in force."""


@config.command(examples=["holdfast config show", "holdfast config show --json"])
@pass_session
def show(session: Session) -> None:
    """Show each setting and where it came from; connects to nothing."""
    settings = [
        *_database(session.url),
        _listening(),
        _from_environment("HOLDFAST_HOME", ".holdfast"),
        _from_environment("HOLDFAST_PG_BIN", ""),
        _from_environment("HOLDFAST_LOG_FORMAT", "text"),
        _from_environment("HOLDFAST_DEBUG", ""),
        _from_environment("NO_COLOR", ""),
    ]
    rows = [(one.name, one.value or "-", one.source) for one in settings]
    session.answer(settings, lambda: output.table(("setting", "value", "from"), rows))


def _database(url: str | None) -> list[Setting]:
    source = SOURCES["argument"]
    if not url:
        url, source = os.environ.get("HOLDFAST_URL", ""), "HOLDFAST_URL"
    if not url:
        home = Path(os.environ.get("HOLDFAST_HOME") or ".holdfast")
        return [Setting("database", f"embedded PostgreSQL in {home / 'pg'}", "default")]
    from holdfast import conninfo

    standard = conninfo.parameters("", application_name="")
    chosen = conninfo.parameters(url, application_name="")
    return [
        Setting("database", conninfo.server(url), source),
        *(
            Setting(
                f"database.{name}",
                _MASK if name in _SECRET else str(value),
                "default" if standard.get(name) == value else source,
            )
            for name, value in sorted(chosen.items())
            if name not in _OURS
        ),
    ]


def _listening() -> Setting:
    from holdfast import conninfo

    name = conninfo.LISTEN_VARIABLE
    if url := os.environ.get(name):
        return Setting(name, conninfo.server(url), "environment")
    return Setting(name, "", "default")


def _from_environment(name: str, default: str) -> Setting:
    value = os.environ.get(name)
    return Setting(name, value or default, "environment" if value else "default")
