"""The system user PostgreSQL runs as: the caller, or another user if the caller is root."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import EmbeddedUnavailable


@dataclass(frozen=True)
class Account:
    """A system user; `switch` means that root has to change to this user."""

    name: str
    uid: int
    gid: int
    switch: bool

    def run(
        self, command: Sequence[str | Path], *, cwd: Path = Path("/"), timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, out of reach of the terminal's Ctrl-C.

        Raises OSError when it cannot be executed and TimeoutExpired when it does not end.
        """
        switch: dict[str, Any] = (
            {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}
        )
        return subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
            cwd=cwd,
            env=_environment(),
            umask=0o077,
            start_new_session=True,
            **switch,
        )

    def can_enter(self, directory: Path) -> bool:
        """Whether this user may go into a directory, which 0700 parents such as /root forbid."""
        return self.run(["/bin/sh", "-c", 'cd "$1"', "sh", directory]).returncode == 0


def account_for(directory: Path) -> Account:
    """Choose who runs the server whose files are in this directory."""
    if os.geteuid() != 0:
        return Account(name_of(os.geteuid()), os.geteuid(), os.getegid(), switch=False)
    if directory.is_dir() and not directory.is_symlink():
        owner = directory.stat()
        if owner.st_uid != 0:
            return Account(name_of(owner.st_uid), owner.st_uid, owner.st_gid, switch=True)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid, switch=True)
    raise EmbeddedUnavailable(
        "PostgreSQL does not run as root, and this system has no user postgres or nobody to run it",
        fix="Run as another user, or set HOLDFAST_URL.",
    )


def name_of(uid: int) -> str:
    """The name of a system user, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _environment() -> dict[str, str]:
    # PG* would redirect the tools; the locale and zone of the caller would end up in the cluster.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "LANG"))
    }
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
