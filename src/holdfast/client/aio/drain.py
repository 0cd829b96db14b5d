"""`client.drain`: what a worker says to the database again and again, with nothing to spare."""

from collections.abc import Sequence
from typing import Any

from holdfast.client import raw, wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.sql import ACK, SETTLE
from holdfast.client.statement import Row, Statement
from holdfast.records import Claim, Done, Record, Settled, Settlement

# Both return only the jobs that could not be acked.
_ACK_LOST = (
    "select id, detail from holdfast.ack("
    "ids => %s::uuid[], tokens => %s::uuid[], recent => %s::int) "
    "where outcome in ('lost', 'unknown')"
)
_ACK_RESULTS = (
    "select id, detail from holdfast.ack("
    "ids => %s::uuid[], tokens => %s::uuid[], recent => %s::int, results => %s::jsonb) "
    "where outcome in ('lost', 'unknown')"
)
_HELD = f"select {raw.COLUMNS} from holdfast.held(tokens => %s::uuid[])"
_CLAIM = (
    f"select {raw.COLUMNS} from holdfast.claim("
    "queue => %s::text, worker => %s::text, token => %s::uuid, max_jobs => %s::int, "
    "lease => %s::interval, kinds => %s::text[], durable => %s::bool)"
)


class Exchanged(Record, frozen=True):
    """What came of an exchange.

    `lost` are the acks whose leases were not held any more, by their places, and why; `settled`
    answers the settlements, and `leased` has the rows of each claim, to be read with `leased`.
    `repeated`: a claim may have been sent twice, and hold more than its rows: ask `held` later.
    """

    lost: dict[int, str]
    settled: Sequence[Settled]
    leased: Sequence[Sequence[Row]]
    repeated: bool = False


class AsyncDrain(AsyncNoun):
    """The worker's own words for settling and claiming: in bulk, and of the rows only the bytes."""

    async def exchange(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[bytes],
        settlements: Sequence[Settlement],
        claims: Sequence[Claim],
        *,
        results: bytes | None = None,
        recent: int = 0,
    ) -> Exchanged:
        """Ack leases by their ids and tokens, settle others and claim the next ones, at once.

        `results` is a JSON array with one value for each id, or None if none has a result. So many
        as `recent` of those that are done are kept for a day, if their queues keep recent jobs.
        Each call is a transaction of its own: what is settled stays settled whatever becomes of
        the claims. To a server that is far all of them travel in one round trip.
        """
        statements = []
        if ids:
            proofs = tokens if len(set(tokens)) > 1 else tokens[:1]
            kept = min(recent, len(ids))
            parameters: list[Any] = [raw.Ids.of(ids), raw.Ids.of(proofs), kept]
            if results is None:
                statements.append(Statement("ack", _ACK_LOST, parameters, raw=True))
            else:
                parameters.append(results.decode())
                statements.append(Statement("ack", _ACK_RESULTS, parameters, raw=True))
        # Results go by an ack of their own: it takes them as one array, and checks no item.
        returned = [one for one in settlements if type(one) is Done and not one.keep]
        others = [one for one in settlements if type(one) is not Done or one.keep]
        if returned:
            leases = wire.held_arrays([one.lease for one in returned])
            values = wire.results([one.result for one in returned])
            kept = max(recent - len(ids), 0)
            statements.append(Statement("ack", ACK, [*leases, values, "false", str(kept)]))
        if others:
            statements.append(Statement("settle", SETTLE, [wire.settlements(others)]))
        statements += [_claim(claim, self._door.durable) for claim in claims]
        rows, repeated = await self._door.run_all(statements)
        answers = iter(rows)
        lost = _places(next(answers), ids) if ids else {}
        acked = iter(next(answers) if returned else ())
        rest = iter(next(answers) if others else ())
        settled = [
            Settled(*next(acked if type(one) is Done and not one.keep else rest))
            for one in settlements
        ]
        # A claim that was sent twice may have given more than it asked for: all of them are held.
        return Exchanged(lost, settled, list(answers), repeated)

    async def held(self, claims: Sequence[Claim]) -> list[tuple[Claim, Row]]:
        """Return the rows that claims have given which are still held, each with its claim."""
        if not claims:
            return []
        by_token = {claim.token.bytes: claim for claim in claims}
        sql = f"select token, {raw.COLUMNS} from holdfast.held(tokens => %s::uuid[])"
        tokens = raw.Ids.of(list(by_token))
        rows = await self._door.run(Statement("held", sql, [tokens], reads=True, raw=True))
        return [(by_token[token], tuple(row)) for token, *row in rows]


def _places(lost: Sequence[Row], ids: Sequence[bytes]) -> dict[int, str]:
    """Return what could not be ended, by its place."""
    if not lost:
        return {}
    places: dict[bytes, list[int]] = {}
    for nth, id in enumerate(ids):
        places.setdefault(id, []).append(nth)
    # One id twice: a worker has lost a job and claimed it again. The earlier lease is the lost one.
    return {places[id].pop(0): detail or "" for id, detail in lost}


def _claim(claim: Claim, durable: bool) -> Statement:
    kinds = None if claim.kinds is None else [*claim.kinds]
    lease = wire.interval(claim.lease)
    return Statement(
        "claim",
        _CLAIM,
        [claim.queue, claim.worker, claim.token, claim.limit, lease, kinds, durable],
        again=Statement("held", _HELD, [[claim.token]], raw=True),
        raw=True,
    )
