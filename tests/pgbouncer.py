"""PgBouncer in transaction mode before the server of the tests, with few connections to it."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.ports import free_port

BINARY = (
    os.environ.get("HOLDFAST_TEST_PGBOUNCER")
    or shutil.which("pgbouncer")
    or shutil.which("pgbouncer", path="/usr/sbin")
)
# Every address that a test is given goes through a pooler.
POOLED = bool(os.environ.get("HOLDFAST_TEST_POOLED"))

Pooled = Callable[[str], str]


@contextmanager
def pooler(server_url: str, *, pool: int = 2) -> Iterator[Pooled]:
    """Run one; yields what turns the address of a database into one that goes through it."""
    server = conninfo_to_dict(server_url)
    host, port = str(server["host"]), free_port()
    # PgBouncer refuses to be root, and must be able to enter the server's directory.
    account = Path(host).stat().st_uid if host.startswith("/") else 65534
    password = f"password={server['password']}" if server.get("password") else ""
    assert BINARY is not None, "pgbouncer is not installed"
    with TemporaryDirectory() as place:
        # Another account reads it, unlike the directories of pytest.
        Path(place).chmod(0o755)
        config = Path(place) / "pgbouncer.ini"
        config.write_text(
            f"""
            [databases]
            * = host={host} port={server.get("port") or 5432} user={server["user"]} {password}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {port}
            unix_socket_dir =
            auth_type = any
            pool_mode = transaction
            default_pool_size = {pool}
            max_client_conn = 1000
            """
        )
        config.chmod(0o644)
        process = subprocess.Popen(
            [BINARY, "-q", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=account if os.geteuid() == 0 else None,
        )
        try:
            _await_port(port)
            yield lambda url: make_conninfo(
                "", host="127.0.0.1", port=port, user="app", dbname=conninfo_to_dict(url)["dbname"]
            )
        finally:
            process.terminate()
            process.wait()


def _await_port(port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "pgbouncer did not start"
            time.sleep(0.02)
        else:
            return
