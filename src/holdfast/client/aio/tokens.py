"""`client.tokens`: secrets with which programs and users call the server."""

from collections.abc import Sequence
from typing import LiteralString

from holdfast.client import secret as secrets
from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import ApiToken, Caller, Duration, NewToken, Scope


class AsyncTokens(AsyncNoun):
    """Tokens by id. Only the hash of a secret is stored."""

    async def create(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        queues: Sequence[str] | None = None,
        expires: Duration | None = None,
        sort: str = "token",
        parent: str | None = None,
        actor: str | None = None,
    ) -> NewToken:
        """Create a secret with which a program may call the server; it is returned only here.

        `sort` is token, session (of a browser) or link (signs in once); `parent` is the id of the
        token it was created with, and it ends with that one.
        """
        id, secret, hash = secrets.make()
        source: LiteralString = (
            "holdfast.token_create(id => %s, hash => %s::bytea, name => %s, scopes => %s::text[], "
            "queues => %s::text[], expires => %s::interval, sort => %s, parent => %s, actor => %s)"
        )
        limits = [None if queues is None else [*queues], wire.interval(expires)]
        parameters = [id, hash, name, [*scopes], *limits, sort, parent, actor]
        token = await self._one(ApiToken, source, parameters, repeatable=False)
        return NewToken(token, secret)

    async def check(self, secret: str) -> Caller | None:
        """Return the caller a secret belongs to; None if it is wrong, revoked or expired."""
        id = secrets.id_in(secret)
        if id is None:
            return None
        sql: LiteralString = (
            "select name, scopes, queues, sort, expires_at, hash from holdfast.token_find(id => %s)"
        )
        rows = await self._door.run(Statement("token_check", sql, [id]))
        if not rows or not secrets.fits(secret, rows[0][-1]):
            return None
        return Caller(id, *rows[0][:-1])

    async def spend_link(self, secret: str) -> Caller | None:
        """Use the secret of a sign-in link; None if it is wrong, used or expired."""
        id = secrets.id_in(secret)
        if id is None:
            return None
        sql: LiteralString = (
            "select name, scopes, queues from holdfast.link_spend(id => %s, hash => %s::bytea)"
        )
        statement = Statement("link_spend", sql, [id, secrets.digest(secret)], repeatable=False)
        for name, scopes, queues in await self._door.run(statement):
            return Caller(id, name, scopes, queues, "link")
        return None

    async def revoke(self, id: str, *, actor: str | None = None) -> bool:
        """Revoke a token; False if no token has this id."""
        function: LiteralString = "holdfast.token_revoke(id => %s, actor => %s)"
        return bool(await self._value(function, [id, actor]))

    async def list(self) -> Sequence[ApiToken]:
        """Return the tokens of programs, newest first."""
        source: LiteralString = (
            "holdfast.api_tokens where sort = 'token' order by created_at desc, id"
        )
        return await self._all(ApiToken, source, reads=True)
