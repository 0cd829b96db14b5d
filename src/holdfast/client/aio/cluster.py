"""The nodes of a Citus cluster, seen from the one that a client is connected to."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from functools import partial
from time import monotonic
from typing import LiteralString, Self, TypeVar
from uuid import UUID

from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from holdfast.client import wire
from holdfast.client.aio.client import AsyncClient
from holdfast.client.asking import AsyncAsking
from holdfast.client.statement import Statement
from holdfast.errors import CannotConnect, HoldfastError, Misuse, Unavailable
from holdfast.records import Member

T = TypeVar("T")

log = logging.getLogger("holdfast")

# A node that does not answer holds up no page for longer, and is then left alone for a while.
PATIENCE = 2.0
REST = 5.0
# What changes something may have to count or wait first.
CHANGING = 10.0
# Nodes are seldom added. A database that is in no cluster is asked only once.
KNOWN = 30.0
# For so long it is believed where a job was: what a page shows of it is asked in several calls.
SEEN = 1.0
REMEMBERED = 1000

_MEMBERS: LiteralString = "select node, host, port, here from holdfast.members()"
_HOMES: LiteralString = "select queue, node from holdfast.homes(queues => %s::text[])"
_HAS: LiteralString = (
    "select u.id from unnest(%s::uuid[]) u(id) where exists (select from holdfast.get(u.id))"
)


class _Node:
    """A node that is not this one, and the connections to it, opened when needed.

    Reads give up soon. What changes something has the time that every call has.
    """

    def __init__(self, member: Member, url: str, *, pool_size: int, name: str) -> None:
        self.member = member
        self.reads = AsyncClient(url, pool_size=pool_size, timeout=PATIENCE, application_name=name)
        self.writes = AsyncClient(url, pool_size=1, application_name=name)
        self.problem: str | None = None
        self.rests_until = 0.0

    def failed(self, error: Exception, patience: float) -> None:
        reason = _reason(error, patience)
        if self.problem is None:
            facts = {"node": self.member.node, "server": self.member.address, "reason": reason}
            log.info("node does not answer", extra=facts)
        self.problem = reason
        self.rests_until = monotonic() + REST

    def answered(self) -> None:
        if self.problem is not None:
            log.info("node answers again", extra={"node": self.member.node})
        self.problem = None
        self.rests_until = 0.0


class _Known:
    def __init__(self) -> None:
        self.until = 0.0
        self.here = 0
        self.others: list[_Node] = []
        self.places: dict[UUID, tuple[float, int]] = {}


class AsyncCluster:
    """Asks every node, or the one that has what is meant; without Citus, only its own database."""

    def __init__(self, home: AsyncClient, *, pool_size: int, application_name: str) -> None:
        self.home = home
        self._origin = home
        self._pool_size = pool_size
        self._name = application_name
        self._known = _Known()

    def beside(self, home: AsyncClient) -> Self:
        """Return the same cluster for a client that is bound to a transaction on this node."""
        bound = copy(self)
        bound.home = home
        return bound

    async def members(self) -> list[Member]:
        """Return the nodes, and which did not answer last time; none without Citus."""
        others = await self._others()
        if not others:
            return []
        rows = await self._origin._door.run(Statement("members", _MEMBERS, reads=True))
        problems = {one.member.node: one.problem for one in others}
        found = [Member(*row) for row in rows]
        return [replace(one, problem=problems.get(one.node)) for one in found]

    def silent(self) -> list[Member]:
        """Return the nodes that did not answer when they were asked last."""
        return [
            replace(one.member, problem=one.problem)
            for one in self._known.others
            if one.problem is not None
        ]

    async def ask(
        self, call: Callable[[AsyncClient], Awaitable[T]], *, changes: bool = False
    ) -> dict[int, T]:
        """Return what each node answers, this one first; those that do not answer are left out.

        `changes`: the call changes something, and each node has more time for it.
        """
        others = await self._others()
        if not others:
            return {self._known.here: await call(self.home)}
        awake = [one for one in others if one.rests_until < monotonic()]
        patience = CHANGING if changes else PATIENCE
        calls = [partial(call, one.writes if changes else one.reads) for one in awake]
        first, answers = await AsyncAsking.all(lambda: call(self.home), calls, patience)
        found = {self._known.here: first}
        for node, answer in zip(awake, answers, strict=True):
            if isinstance(answer, Misuse):
                raise answer  # it has answered: the caller is mistaken
            if isinstance(answer, HoldfastError | TimeoutError):
                node.failed(answer, patience)
            elif isinstance(answer, Exception):
                raise answer
            else:
                node.answered()
                found[node.member.node] = answer
        return found

    async def find(
        self,
        call: Callable[[AsyncClient], Awaitable[T]],
        what: str,
        *,
        changes: bool = False,
    ) -> tuple[int, T | None]:
        """Return the node that knows something and its answer; this one and None if none does.

        Refused if a node does not answer that may know it.
        """
        for node, found in (await self.ask(call, changes=changes)).items():
            if found is not None:
                return node, found
        self.raise_if_silent(what)
        return self.here, None

    async def has(self, node: int) -> bool:
        """Whether a node has this number."""
        others = await self._others()
        return node == self._known.here or any(one.member.node == node for one in others)

    async def is_alone(self) -> bool:
        """Whether this database is in no cluster."""
        return not await self._others()

    @property
    def here(self) -> int:
        """The number of this node."""
        return self._known.here

    async def homes(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the nodes on which queues live."""
        rows = await self._origin._door.run(
            Statement("homes", _HOMES, [list(dict.fromkeys(queues))], reads=True)
        )
        return {name: self._known.here if node is None else node for name, node in rows}

    async def home_of(self, queue: str) -> int:
        """Return the node on which a queue lives."""
        if await self.is_alone():
            return self._known.here
        return (await self.homes([queue]))[queue]

    async def where(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """Return the nodes on which jobs are; those that no node knows are left out."""
        statement = Statement("where", _HAS, [wire.array(ids)], reads=True)
        found: dict[UUID, int] = {}
        for node, rows in (await self.ask(lambda one: one._door.run(statement))).items():
            for (id,) in rows:
                found.setdefault(id, node)
        return found

    async def place_of(self, id: UUID) -> int:
        """Return the node on which a job is, or was a moment ago; this one if none knows it."""
        if await self.is_alone():
            return self._known.here
        until, node = self._known.places.get(id, (0.0, self._known.here))
        if until < monotonic():
            node = (await self.where([id])).get(id, self._known.here)
            self.remember(id, node)
        return node

    def remember(self, id: UUID, node: int) -> None:
        """Note where a job is, for what is asked about it next."""
        if len(self._known.places) >= REMEMBERED:
            self._known.places.clear()
        self._known.places[id] = (monotonic() + SEEN, node)

    async def reader(self, node: int) -> AsyncClient:
        """Return the client for reading on a node; refuse one that does not answer."""
        return self.home if node == self._known.here else (await self._node(node)).reads

    async def writer(self, node: int) -> AsyncClient:
        """Return the client for changes on a node; refuse one that does not answer."""
        return self.home if node == self._known.here else (await self._node(node)).writes

    def raise_if_silent(self, what: str) -> None:
        """Raise Unavailable if a node does not answer that may have what was not found."""
        if silent := self.silent():
            raise Unavailable(
                f"{what} is not on the nodes that answer",
                why="; ".join(map(told, silent)),
                fix="Try again when all nodes answer:  holdfast node list",
            )

    async def close(self) -> None:
        """Close the connections to the other nodes."""
        for node in self._known.others:
            await node.reads.close()
            await node.writes.close()

    def abandon(self) -> None:
        """Drop the connections to the other nodes."""
        for node in self._known.others:
            node.reads.abandon()
            node.writes.abandon()

    async def _node(self, number: int) -> _Node:
        for one in await self._others():
            if one.member.node == number:
                if one.rests_until >= monotonic():
                    break
                return one
        raise Unavailable(
            f"node {number} of the cluster does not answer",
            why="; ".join(map(told, self.silent())),
            fix="Look:  holdfast node list",
        )

    async def _others(self) -> list[_Node]:
        known = self._known
        if known.until > monotonic():
            return known.others
        rows = await self._origin._door.run(Statement("members", _MEMBERS, reads=True))
        found = [Member(*row) for row in rows]
        if len(found) < 2:
            known.until = float("inf")
            return known.others
        known.until = monotonic() + KNOWN
        known.here = next((one.node for one in found if one.here), 0)
        kept = {one.member: one for one in known.others}
        wanted = [one for one in found if not one.here]
        known.others = [kept[one] if one in kept else self._made(one) for one in wanted]
        for member, gone in kept.items():
            if member not in wanted:
                await gone.reads.close()
                await gone.writes.close()
        return known.others

    def _made(self, member: Member) -> _Node:
        url = make_conninfo(self._origin.url, host=member.host, port=member.port, hostaddr="")
        return _Node(member, url, pool_size=self._pool_size, name=self._name)


def _reason(error: Exception, patience: float) -> str:
    if isinstance(error, CannotConnect):
        return error.reason  # the address is named beside it
    return error.what if isinstance(error, HoldfastError) else f"no answer within {patience:g} s"


def told(silent: Member) -> str:
    """Say that a node does not answer, and why."""
    return f"node {silent.node} ({silent.address}) does not answer: {silent.problem}"
