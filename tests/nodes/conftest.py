"""Two databases that take each other for the nodes of a cluster, without Citus.

Of Citus only the catalogue is asked who the nodes are: here a function of the same name answers.
What goes from node to node inside a transaction is in tests/citus.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import Client, embedded, schema
from holdfast.client import ClusterClient
from tests.conftest import SETTINGS, memory
from tests.protocol import Protocol

MEMBERS = """
create or replace function holdfast.here() returns integer language sql stable as $$ select {here} $$;
create or replace function holdfast.members()
returns table (node integer, host text, port integer, here boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select n, h, p, n = {here} from (values {nodes}) v(n, h, p) $$;
"""  # noqa: E501
PLACE = """
insert into holdfast.queue
select d.* from jsonb_populate_record(holdfast.unset_queue({queue}),
  jsonb_build_object('set_at', holdfast.now(), 'node', {node}::integer)) d
on conflict (name) do update set node = excluded.node
"""


@dataclass(frozen=True)
class Twins:
    """The addresses of the two, and who tells them about each other."""

    urls: list[str]

    def know(self, *addresses: tuple[str, int]) -> None:
        """Tell each where the two listen."""
        nodes = sql.SQL(", ").join(
            sql.SQL("({}, {}, {})").format(sql.Literal(node), sql.Literal(host), sql.Literal(port))
            for node, (host, port) in enumerate(addresses)
        )
        for here, url in enumerate(self.urls):
            with psycopg.connect(url, autocommit=True) as connection:
                told = sql.SQL(MEMBERS).format(here=sql.Literal(here), nodes=nodes)
                connection.execute(told)

    def addresses(self) -> list[tuple[str, int]]:
        """Where the two listen."""
        found = [conninfo_to_dict(url) for url in self.urls]
        return [(str(one["host"]), int(one.get("port") or 5432)) for one in found]

    def lose(self, node: int, *, host: str = "127.0.0.1", port: int = 1) -> None:
        """Have one of them be where nobody answers."""
        addresses = self.addresses()
        addresses[node] = (host, port)
        self.know(*addresses)

    def place(self, queue: str, node: int) -> None:
        """Have a queue live on one of them."""
        for here, url in enumerate(self.urls):
            with psycopg.connect(url, autocommit=True) as connection:
                at = sql.Literal(None if here == node else node)
                connection.execute(sql.SQL(PLACE).format(queue=sql.Literal(queue), node=at))

    @contextmanager
    def protocols(self) -> Iterator[list[Protocol]]:
        """Speak SQL to each."""
        with ExitStack() as stack:
            yield [
                Protocol(stack.enter_context(psycopg.connect(url, autocommit=True)))
                for url in self.urls
            ]


@pytest.fixture(scope="session")
def second_server(binaries: Path) -> Iterator[str]:
    """The address of another server, with a migrated database to copy."""
    settings = {**SETTINGS, "max_connections": "60"}
    with embedded.start(memory(), temporary=True, settings=settings, binaries=binaries) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create database holdfast_template")
        schema.migrate(make_conninfo(server.url, dbname="holdfast_template"))
        yield server.url


@pytest.fixture
def twins(direct: str, second_server: str) -> Iterator[Twins]:
    """Two empty databases, of one name on two servers; `mail` lives on the second."""
    name = str(conninfo_to_dict(direct)["dbname"])
    made = sql.SQL("create database {} template holdfast_template").format(sql.Identifier(name))
    with psycopg.connect(second_server, autocommit=True) as connection:
        connection.execute(made)
        connection.execute(
            sql.SQL("alter database {} set holdfast.unplaced = '0'").format(sql.Identifier(name))
        )
        found = Twins([direct, make_conninfo(second_server, dbname=name)])
        found.know(*found.addresses())
        found.place("mail", 1)
        yield found
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def dbs(twins: Twins) -> Iterator[list[Protocol]]:
    with twins.protocols() as found:
        yield found


Joined = Callable[[int], ClusterClient]


@pytest.fixture
def joined(twins: Twins) -> Iterator[Joined]:
    """Makes operators' clients that are connected to one of the two."""
    with ExitStack() as stack:

        def join(node: int = 0) -> ClusterClient:
            return stack.enter_context(ClusterClient(Client(twins.urls[node])))

        yield join


@pytest.fixture
def cluster(joined: Joined) -> ClusterClient:
    """An operator's client that is connected to the first."""
    return joined(0)
