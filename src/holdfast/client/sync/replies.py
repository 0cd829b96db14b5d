"""Generated from aio/replies.py by tools/generate_sync_client.py: edit that."""

from typing import Any, LiteralString
from uuid import UUID

from holdfast.client import secret as secrets
from holdfast.client import wire
from holdfast.client.statement import Statement
from holdfast.client.sync.noun import Noun
from holdfast.records import Duration, ReplyAsked, ReplyLink


class Replies(Noun):
    """Links for replies. Only the hash of a secret is stored."""

    def link(
        self,
        job: UUID,
        step: str,
        *,
        question: str | None = None,
        expires: Duration | None = None,
        actor: str | None = None,
    ) -> ReplyLink:
        """Create a link that lets whoever has it answer one wait of a job, once.

        `step` is the name of the wait: `event approved` for `wait_event("approved")` without a name
        of its own. The job need not wait yet. `question` is shown with the form. It expires after
        seven days, if not told otherwise, and opens nothing else.
        """
        id, secret, hash = secrets.make()
        sql: LiteralString = (
            "select holdfast.reply_link(id => %s, hash => %s::bytea, job => %s::uuid, step => %s, "
            "question => %s, expires => %s::interval, actor => %s)"
        )
        given = [id, hash, job, step, question, wire.interval(expires), actor]
        rows = self._door.run(Statement("reply_link", sql, given, repeatable=False))
        return ReplyLink(id, secret, rows[0][0])

    def asked(self, secret: str) -> ReplyAsked | None:
        """Return what a link asks; None if it is wrong, revoked or expired."""
        id = secrets.id_in(secret)
        if id is None:
            return None
        source: LiteralString = "holdfast.reply_asked(id => %s, hash => %s::bytea)"
        return self._first(ReplyAsked, source, [id, secrets.digest(secret)])

    def send(self, secret: str, payload: Any = None) -> str | None:
        """Answer by a link: received, not_yet or closed; None if the link is not valid."""
        id = secrets.id_in(secret)
        if id is None:
            return None
        sql: LiteralString = (
            "select holdfast.reply(id => %s, hash => %s::bytea, payload => %s::jsonb)"
        )
        told = None if payload is None else wire.encoded(payload, "payload of the reply").decode()
        given = [id, secrets.digest(secret), told]
        rows = self._door.run(Statement("reply", sql, given, repeatable=False))
        outcome: str | None = rows[0][0]
        return outcome

    def revoke(self, id: str, *, actor: str | None = None) -> bool:
        """Revoke a link; False if no link has this id."""
        function: LiteralString = "holdfast.reply_link_revoke(id => %s, actor => %s)"
        return bool(self._value(function, [id, actor]))
