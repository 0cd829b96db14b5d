"""The nodes of a Citus cluster: a Holdfast on each, and a queue on one of them.

The coordinator's address is enough: the others are in its catalogue, and are reached with the same
user, password and database.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row

from holdfast import conninfo, schema
from holdfast.client import statement
from holdfast.errors import Refused

NEEDED = 12  # tables without a distribution column came with it


class Node(NamedTuple):
    """What a node has; `problem` says why it could not be asked."""

    node: int
    address: str
    release: str | None
    placed: int
    queued: int | None
    leased: int | None
    dead: int | None
    strays: int | None
    workers: int | None
    problem: str | None


class _Member(NamedTuple):
    node: int
    host: str
    port: int


def shard(url: str, *, source: str = "") -> list[str]:
    """Install Holdfast on every node and have each reach the others; returns what was done.

    It does nothing that is done already, so it is run again after a node was added, after Citus has
    moved what it made, and for an upgrade.
    """
    done = [f"coordinator: {name}" for name in schema.migrate(url, source=source)]
    with _coordinator(url, source) as connection:
        members = _members(connection)
        for member in members[1:]:
            at = f"node {member.node} ({member.host}:{member.port})"
            done += [f"{at}: {name}" for name in _install(_address(url, member), at)]
        for member in members:
            done += _reach(connection, member)
        with connection.transaction():
            connection.execute("select holdfast.point_all()")
        for found in _nodes(connection):
            if found.problem:
                raise Refused(
                    f"node {found.node} ({found.address}) does not answer: {found.problem}",
                    fix="Nodes of a cluster must be able to connect to each other as this user.",
                    code="HF415",
                )
    return done


def is_sharded(url: str, *, source: str = "") -> bool:
    """Return whether `shard` has set this database up."""
    with _connection(url, source) as connection:
        query = "select to_regnamespace('holdfast_nodes') is not null"
        return connection.execute(query).fetchone() == (True,)


def nodes(url: str, *, source: str = "") -> list[Node]:
    """Return the nodes of the cluster, and what each has; none without Citus."""
    with _connection(url, source) as connection:
        return _nodes(connection)


def place(url: str, queue: str, node: int, *, actor: str = "", source: str = "") -> None:
    """Have a queue live on a node."""
    with _connection(url, source) as connection:
        connection.execute("select holdfast.place(%s, %s, %s)", [queue, node, actor or None])


def home(url: str, queue: str, *, source: str = "") -> int:
    """Return the number of the node on which a queue lives."""
    with _connection(url, source) as connection:
        found = connection.execute(_HOME, [queue]).fetchone()
        if found is None or found[0] is None:
            raise _refused(
                f'database "{connection.info.dbname}" is not in a Citus cluster',
                "Every queue lives in it.",
            )
        return int(found[0])


def address(url: str, node: int, *, source: str = "") -> str:
    """Return the address of a node, with the user, password and database of `url`."""
    with _connection(url, source) as connection:
        found = {one.node: one.address for one in _nodes(connection)}
    if node not in found:
        numbers = ", ".join(map(str, found)) or "none"
        raise _refused(f"no node has the number {node}", f"Nodes are: {numbers}.")
    host, _, port = found[node].rpartition(":")
    return _address(url, _Member(node, host, int(port)))


def _nodes(connection: psycopg.Connection) -> list[Node]:
    return connection.cursor(row_factory=class_row(Node)).execute(_NODES).fetchall()


@contextmanager
def _connection(url: str, source: str) -> Iterator[psycopg.Connection]:
    try:
        connection = psycopg.connect(**conninfo.parameters(url, application_name="holdfast nodes"))
    except psycopg.OperationalError as error:
        raise conninfo.cannot_connect(url, error, source=source) from error
    with connection:
        try:
            yield connection
        except psycopg.Error as error:
            raise statement.translate(error, connection.info.dbname) or error from error


@contextmanager
def _coordinator(url: str, source: str) -> Iterator[psycopg.Connection]:
    with _connection(url, source) as connection:
        version = connection.execute(_VERSION).fetchone()
        if version is None:
            raise _refused(
                f'database "{connection.info.dbname}" is not in a Citus cluster',
                "Install the extension: create extension citus",
            )
        if int(version[0].split(".")[0]) < NEEDED:
            raise _refused(f"Citus {version[0]} is too old", f"Version {NEEDED} or newer works.")
        if connection.execute("select groupid from pg_dist_local_group").fetchone() != (0,):
            raise _refused(
                "this is not the coordinator of the cluster", "Use the coordinator's address."
            )
        yield connection


def _members(connection: psycopg.Connection) -> list[_Member]:
    rows = connection.execute(_MEMBERS).fetchall()
    if not rows or rows[0][0] != 0:
        raise _refused(
            "the coordinator is not among the nodes of its cluster",
            "Add it: select citus_set_coordinator_host('host', 5432)",
        )
    if len(rows) == 1:
        raise _refused("the cluster has no other node", "Add one: select citus_add_node(…)")
    for node, host, port, active, synced in rows:
        if not active or not synced:
            raise _refused(
                f"node {node} ({host}:{port}) is not active or does not know the others",
                "select citus_activate_node(…); select start_metadata_sync_to_all_nodes()",
            )
    return [_Member(*row[:3]) for row in rows]


def _install(url: str, at: str) -> list[str]:
    applied = schema.migrate(url, source=f"the catalogue of the coordinator, for {at}")
    with _connection(url, at) as connection:
        if connection.execute("show max_prepared_transactions").fetchone() == ("0",):
            raise _refused(
                f"{at} cannot commit in two phases",
                "Set max_prepared_transactions to 200 there, and restart it.",
            )
        connection.execute("set citus.enable_ddl_propagation = off")
        # Sessions that begin from now on: a queue that nobody placed lives on the coordinator.
        connection.execute(
            sql.SQL("alter database {} set holdfast.unplaced = '0'").format(
                sql.Identifier(connection.info.dbname)
            )
        )
    return applied


def _reach(connection: psycopg.Connection, member: _Member) -> list[str]:
    """Make the table through which a node is reached, or bring it back to its node."""
    table = sql.Identifier("holdfast_nodes", f"node_{member.node}")
    name = f"holdfast_nodes.node_{member.node}"
    done = []
    with connection.transaction():
        connection.execute("set local client_min_messages = warning")
        connection.execute("create schema if not exists holdfast_nodes")
        if connection.execute("select to_regclass(%s)", [name]).fetchone() == (None,):
            connection.execute(sql.SQL("create table {} (never boolean not null)").format(table))
            connection.execute(_DISTRIBUTE if member.node else _KEEP, [name])
            connection.execute(sql.SQL("insert into {} values (false)").format(table))
            done = [f"node {member.node} ({member.host}:{member.port}) can be reached"]
    placed = connection.execute(_PLACED, [name]).fetchone()
    assert placed is not None
    shard, group, host, port = placed
    if group != member.node:
        connection.execute(
            "select citus_move_shard_placement(%s, %s, %s, %s, %s, 'block_writes')",
            [shard, host, port, member.host, member.port],
        )
    return done


def _address(url: str, member: _Member) -> str:
    return make_conninfo(url, host=member.host, port=member.port, hostaddr="")


def _refused(told: str, fix: str) -> Refused:
    return Refused(told, fix=fix, code="HF415")


_VERSION: LiteralString = "select extversion from pg_extension where extname = 'citus'"
_MEMBERS: LiteralString = """
select groupid, nodename, nodeport, isactive, groupid = 0 or metadatasynced
from pg_dist_node
where noderole = 'primary'
order by groupid
"""
_DISTRIBUTE: LiteralString = "select create_distributed_table(%s, null, colocate_with => 'none')"
_KEEP: LiteralString = "select citus_add_local_table_to_metadata(%s)"
_PLACED: LiteralString = """
select p.shardid, n.groupid, n.nodename, n.nodeport
from pg_dist_shard s
join pg_dist_placement p on p.shardid = s.shardid
join pg_dist_node n on n.groupid = p.groupid and n.noderole = 'primary'
where s.logicalrelid = %s::regclass
"""
_HOME: LiteralString = "select coalesce((holdfast.settings_of(%s)).node, holdfast.here())"
_NODES: LiteralString = """
select node, address, release, placed, queued, leased, dead, strays, workers, problem
from holdfast.nodes()
"""
