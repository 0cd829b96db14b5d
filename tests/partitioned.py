"""The schema with its hot table split by `part`, as a sharded cluster has it."""

import psycopg

from holdfast import schema

SPLIT = 8


def script() -> str:
    """Return the installation with `holdfast.job` hash-partitioned on plain PostgreSQL.

    The address of a row, its ctid, is then unique within a partition only.
    """
    before, table = schema.sql().split("create table holdfast.job (", 1)
    columns, options = table.split("\n) with (", 1)
    settings, after = options.split(");", 1)
    partitions = [
        f"create table holdfast.job_{nth} partition of holdfast.job "
        f"for values with (modulus {SPLIT}, remainder {nth}) with ({settings});"
        for nth in range(SPLIT)
    ]
    whole = f"create table holdfast.job ({columns}\n) partition by hash (part);"
    return "\n".join([f"{before}{whole}", *partitions, after])


def install(url: str) -> None:
    """Install it in a database that has no schema."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script())
