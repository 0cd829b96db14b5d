"""The response about the nodes of a cluster, as those of `answers`."""

from typing import Annotated

from msgspec import Struct

from holdfast.records.fields import says


class Node(Struct, kw_only=True):
    """A node of the Citus cluster that the database is in."""

    node: Annotated[int, says("its number; the coordinator is 0")]
    here: Annotated[bool, says("the server is connected to this one")]
    address: Annotated[str | None, says("null for a token that is limited to some queues")]
    problem: Annotated[
        str | None, says("why it does not answer: what it has is missing in every list")
    ]


class Nodes(Struct, kw_only=True):
    """The nodes of the cluster; none without Citus."""

    nodes: list[Node]
