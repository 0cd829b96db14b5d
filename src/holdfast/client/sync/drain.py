"""Generated from aio/drain.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Sequence

from holdfast.client import raw, wire
from holdfast.client.sql import SETTLE
from holdfast.client.statement import Row, Statement
from holdfast.client.sync.noun import Noun
from holdfast.records import Claim, Record, Settled, Settlement

# Only what an ack could not end, by its place: nobody has to be told of the others one by one.
_ACK_LOST = (
    "select (a.nth - 1)::int, a.detail "
    "from holdfast.ack(ids => %s::uuid[], tokens => %s::uuid[]) "
    "with ordinality a(id, outcome, detail, nth) "
    "where a.outcome in ('lost', 'unknown')"
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
    """

    lost: dict[int, str]
    settled: Sequence[Settled]
    leased: Sequence[Sequence[Row]]


class Drain(Noun):
    """The worker's own words for settling and claiming: in bulk, and of the rows only the bytes."""

    def exchange(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[bytes],
        settlements: Sequence[Settlement],
        claims: Sequence[Claim],
    ) -> Exchanged:
        """Ack leases by their ids and tokens, settle others and claim the next ones, at once.

        Each call is a transaction of its own: what is settled stays settled whatever becomes of
        the claims. To a server that is far all of them travel in one round trip.
        """
        statements = []
        if ids:
            proofs = tokens if len(set(tokens)) > 1 else tokens[:1]
            parameters = [raw.Ids.of(ids), raw.Ids.of(proofs)]
            statements.append(Statement("ack", _ACK_LOST, parameters, raw=True))
        if settlements:
            statements.append(Statement("settle", SETTLE, [wire.settlements(settlements)]))
        statements += [_claim(claim, self._door.durable) for claim in claims]
        answers = iter(self._door.run_all(statements))
        lost = {nth: detail or "" for nth, detail in next(answers)} if ids else {}
        settled = [Settled(*row) for row in next(answers)] if settlements else []
        leased = list(answers)
        for claim, rows in zip(claims, leased, strict=True):
            assert len(rows) <= claim.limit, f"claimed {len(rows)} jobs, asked for {claim.limit}"
        return Exchanged(lost, settled, leased)

    def held(self, claims: Sequence[Claim]) -> list[tuple[Claim, Row]]:
        """Return the rows that claims have given which are still held, each with its claim."""
        by_token = {claim.token.bytes: claim for claim in claims}
        sql = f"select token, {raw.COLUMNS} from holdfast.held(tokens => %s::uuid[])"
        tokens = raw.Ids.of(list(by_token))
        rows = self._door.run(Statement("held", sql, [tokens], reads=True, raw=True))
        return [(by_token[token], tuple(row)) for token, *row in rows]


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
