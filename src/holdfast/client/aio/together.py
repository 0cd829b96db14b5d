"""`client.together`: what a server does for several callers in one statement."""

from collections.abc import Sequence
from uuid import UUID

from holdfast.client import raw, wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.sql import ACK_TOGETHER
from holdfast.client.statement import Statement
from holdfast.records import Claim, Held, Lease, Settled

_COLUMNS = wire.columns(Lease, without=("token", "queue", "worker"), names={"lease": "lease_for"})
_CLAIM = (
    f"select {_COLUMNS}, token from holdfast.claim_each(queue => %s::text, workers => %s::text[], "
    "tokens => %s::uuid[], numbers => %s::int[], lease => %s::interval, kinds => %s::text[], "
    "durable => %s::boolean)"
)
_ACK_OTHERS = (
    "select (a.nth - 1)::int, a.outcome, a.detail "
    "from holdfast.ack(ids => %s::uuid[], tokens => %s::uuid[], recent => %s::int) "
    "with ordinality a(id, outcome, detail, nth) "
    "where a.outcome <> 'done'"
)
_HELD = f"select {_COLUMNS}, token from holdfast.held(tokens => %s::uuid[])"


class AsyncTogether(AsyncNoun):
    """Calls of several callers at once; each gets the answer that it would have got alone."""

    async def ack(self, leases: Sequence[Held], *, recent: int = 0) -> list[Settled]:
        """End leases of several callers with success; no lease may be given twice.

        So many as `recent`, from the first, are kept for a day. It fails, with nothing changed, if
        one of the jobs is locked for a while: the others must not wait for it.
        """
        ids, tokens = wire.held_arrays(leases)
        rows = await self._door.run(Statement("ack", ACK_TOGETHER, [ids, tokens, recent]))
        return [Settled(*row) for row in rows]

    async def ack_all(
        self, leases: Sequence[tuple[UUID, UUID]], *, recent: int = 0
    ) -> dict[int, Settled]:
        """End many leases with success; returns those with another outcome, by their places.

        So many as `recent`, from the first, are kept for a day.
        """
        if not leases:
            return {}
        ids = raw.Ids.of([id.bytes for id, _ in leases])
        tokens = {token: None for _, token in leases}
        proofs = tokens if len(tokens) == 1 else [token for _, token in leases]
        parameters = [ids, raw.Ids.of([token.bytes for token in proofs]), recent]
        rows = await self._door.run(Statement("ack", _ACK_OTHERS, parameters, raw=True))
        return {nth: Settled(leases[nth][0], outcome, detail) for nth, outcome, detail in rows}

    async def claim(self, claims: Sequence[Claim]) -> list[list[Lease]]:
        """Lease jobs for several callers who want the same: queue, kinds and length.

        Returns the leases of each claim, in order.
        """
        one = claims[0]
        by_token = {claim.token: claim for claim in claims}
        parameters = [
            one.queue,
            [claim.worker for claim in claims],
            list(by_token),
            [claim.limit for claim in claims],
            wire.interval(one.lease),
            None if one.kinds is None else list(one.kinds),
            self._door.durable,
        ]
        again = Statement("held", _HELD, [list(by_token)])
        rows = await self._door.run(Statement("claim", _CLAIM, parameters, again=again))
        leased: dict[UUID, list[Lease]] = {token: [] for token in by_token}
        for *row, token in rows:
            claim = by_token[token]
            leased[token].append(Lease(*(*row, token, claim.queue, claim.worker)))
        return list(leased.values())
