"""Starting PostgreSQL: create its data once, write its settings, wait until it is ready."""

import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from subprocess import TimeoutExpired

from holdfast.embedded import _users
from holdfast.embedded._account import Account
from holdfast.embedded._binaries import Binaries, find
from holdfast.errors import EmbeddedUnavailable


class Launch:
    """One start of the server in a directory, made within a turn."""

    def __init__(
        self, directory: Path, shown: str, account: Account, temporary: bool, tcp: bool
    ) -> None:
        self.directory = directory
        self.shown = shown
        self.account = account
        self.temporary = temporary
        self.tcp = tcp
        self.data = directory / "data"
        self.log = directory / "log"

    def run(self, settings: Mapping[str, str], chosen: Path | str | None) -> None:
        """Create the data if there is none, and return when the server accepts connections."""
        binaries = find(
            self.account,
            chosen=Path(chosen).absolute() if chosen else None,
            major=self._major(),
            data=self.shown,
        )
        _users.forget(self.directory)
        if not self.data.exists():
            self._initialise(binaries)
        if self.log.exists() and self.log.stat().st_size > 1_000_000:
            self.log.unlink()
        launch = secrets.token_hex(8)
        self._configure(binaries, settings, launch)
        # Before the server, so that there is no moment in which a killed caller leaves it alone.
        _users.start_watcher(self.directory, launch)
        self._start(binaries)

    def _major(self) -> int | None:
        try:
            return int((self.data / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def _initialise(self, binaries: Binaries) -> None:
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._write(self.directory / "password", secrets.token_urlsafe(24) + "\n")
        locale = ["--locale=C"]
        if binaries.major >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._call(
            [
                binaries.directory / "initdb",
                "--pgdata=data.new",
                "--username=postgres",
                "--encoding=UTF8",
                *locale,
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--pwfile=password",
                "--no-instructions",
                "--no-sync",
            ],
            f"PostgreSQL {binaries.version} cannot create its files in {self.shown}",
        )
        with (fresh / "postgresql.conf").open("a") as configuration:
            configuration.write("include_if_exists = 'holdfast.conf'\n")
        # The rename makes it whole or absent, whenever this process is killed.
        fresh.rename(self.data)

    def _configure(self, binaries: Binaries, settings: Mapping[str, str], launch: str) -> None:
        port = _free_port() if self.tcp else 5432
        sockets = self._socket_directory()
        every = {
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            "port": str(port),
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
            **settings,
        }
        for name in every:
            if not re.fullmatch(r"[a-z_][a-z0-9_.]*", name, re.IGNORECASE):
                raise EmbeddedUnavailable(
                    f"{name!r} cannot be a setting of PostgreSQL",
                    fix="A setting is named by letters, digits, underscores and dots.",
                )
        lines = (f"{name} = '{_quoted(value)}'\n" for name, value in every.items())
        self._write(self.data / "holdfast.conf", "".join(lines))
        about = {
            "launch": launch,
            "version": binaries.version,
            "source": binaries.source,
            "socket": str(sockets),
            "port": port,
            "tcp": self.tcp,
            "temporary": self.temporary,
        }
        self._write(self.directory / "server.json", json.dumps(about))

    def _socket_directory(self) -> Path:
        # A socket's path has about 100 bytes, and the setting is a list with its own quoting.
        if re.fullmatch(r"[\w/.+-]{1,85}", str(self.directory), re.ASCII):
            return self.directory
        sockets = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/tmp"))
        if self.account.switch:
            os.chown(sockets, self.account.uid, self.account.gid)
        return sockets

    def _start(self, binaries: Binaries) -> None:
        logged = self.log.stat().st_size if self.log.exists() else 0
        what = f"PostgreSQL {binaries.version} did not start in {self.shown}"
        patience = time.monotonic() + 10
        while True:
            try:
                self._call(
                    [
                        binaries.directory / "pg_ctl",
                        "start",
                        "--pgdata=data",
                        "--log=log",
                        "--silent",
                        "--wait",
                        "--timeout=60",
                    ],
                    what,
                    logged,
                )
            except EmbeddedUnavailable as error:
                # A killed server and its backends need a moment to be gone.
                lingers = re.search("shared memory block|lock file .* already exists", str(error))
                if not lingers or time.monotonic() > patience:
                    raise
                time.sleep(0.1)
            else:
                return

    def _call(self, command: list[str | Path], what: str, logged: int | None = None) -> None:
        try:
            # Paths are relative to it: pg_ctl pastes them into a shell command.
            done = self.account.run(command, cwd=self.directory, timeout=75)
        except TimeoutExpired as error:
            raise EmbeddedUnavailable(what, tried=[str(error)], fix=self._fix()) from error
        if done.returncode != 0:
            said = [done.stdout]
            if logged is not None and self.log.exists():
                said.append(self.log.read_bytes()[logged:].decode(errors="replace"))
            lines = [line for text in said for line in text.splitlines() if line.strip()]
            raise EmbeddedUnavailable(what, tried=lines[-15:], fix=self._fix())

    def _fix(self) -> str:
        return (
            f"The server's log is {self.log}. Name another PostgreSQL in HOLDFAST_PG_BIN, "
            "another directory in HOLDFAST_HOME, or a server in HOLDFAST_URL."
        )

    def _write(self, path: Path, text: str) -> None:
        fresh = path.with_name(path.name + ".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        if self.account.switch:
            os.chown(fresh, self.account.uid, self.account.gid)
        fresh.rename(path)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''").replace("\n", " ")
