"""Which primary answers, so that one that another has taken over from is not waited for."""

from typing import LiteralString, NamedTuple

# Only a primary writes to a timeline: that of a standby is null.
WHO: LiteralString = """
select pg_backend_pid(), (select system_identifier from pg_control_system()),
  case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end
"""


class Primary(NamedTuple):
    """A primary: the cluster whose data it has, and how often a standby has taken over before."""

    cluster: int
    timeline: int

    def is_followed_by(self, other: "Primary | None") -> bool:
        """Whether the other has the same data and took over later."""
        return other is not None and other.cluster == self.cluster and other > self


def primary_of(cluster: int | None, timeline: str | None) -> Primary | None:
    """Return who answered, from what WHO returns; None if that is a standby, or does not tell."""
    if cluster is None or timeline is None:
        return None
    return Primary(cluster, int(timeline, 16))
