"""PgBouncer in transaction mode, with two servers for everyone."""

from tests.client.test_pgbouncer import pooled

__all__ = ["pooled"]
