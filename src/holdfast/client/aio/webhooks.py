"""`client.webhooks`: where anomalies are sent by HTTP."""

from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.aio.noun import AsyncNoun
from holdfast.client.statement import Statement
from holdfast.records import Webhook


class AsyncWebhooks(AsyncNoun):
    """Webhooks by name. Only `target`, for deliveries, returns a secret."""

    async def set(self, name: str, *, actor: str | None = None, **settings: Any) -> Webhook:
        """Create or change a webhook: url, secret, severity, codes, queues."""
        source: LiteralString = (
            "holdfast.webhook_set(name => %s, settings => %s::jsonb, actor => %s)"
        )
        return await self._one(Webhook, source, [name, wire.settings(settings, "settings"), actor])

    async def delete(self, name: str, *, actor: str | None = None) -> bool:
        """Delete a webhook; False if it did not exist."""
        function: LiteralString = "holdfast.webhook_delete(name => %s, actor => %s)"
        return bool(await self._value(function, [name, actor]))

    async def target(self, name: str) -> tuple[str, str] | None:
        """Return the url and the secret of a webhook, for a delivery; None if it was deleted."""
        sql: LiteralString = "select url, secret from holdfast.webhook_target(name => %s)"
        for url, secret in await self._door.run(
            Statement("webhook_target", sql, [name], reads=True)
        ):
            return url, secret
        return None

    async def list(self) -> list[Webhook]:
        """Return the webhooks, by name; without the secrets."""
        return await self._all(Webhook, "holdfast.webhooks order by name", reads=True)
