"""PgBouncer in transaction mode, with two servers for everyone."""

from tests.client.test_pgbouncer import open_directory, pooled

__all__ = ["open_directory", "pooled"]
