"""Generated from aio/webhooks.py by tools/generate_sync_client.py: edit that."""

from typing import Any, LiteralString

from holdfast.client import wire
from holdfast.client.statement import Statement
from holdfast.client.sync.noun import Noun
from holdfast.records import Webhook


class Webhooks(Noun):
    """Webhooks by name. Only `target`, for deliveries, returns a secret."""

    def set(self, name: str, *, actor: str | None = None, **settings: Any) -> Webhook:
        """Create or change a webhook: url, secret, severity, codes, queues."""
        source: LiteralString = (
            "holdfast.webhook_set(name => %s, settings => %s::jsonb, actor => %s)"
        )
        return self._one(Webhook, source, [name, wire.settings(settings, "settings"), actor])

    def delete(self, name: str, *, actor: str | None = None) -> bool:
        """Delete a webhook; False if it did not exist."""
        function: LiteralString = "holdfast.webhook_delete(name => %s, actor => %s)"
        return bool(self._value(function, [name, actor]))

    def target(self, name: str) -> tuple[str, str] | None:
        """Return the url and the secret of a webhook, for a delivery; None if it was deleted."""
        sql: LiteralString = "select url, secret from holdfast.webhook_target(name => %s)"
        for url, secret in self._door.run(Statement("webhook_target", sql, [name], reads=True)):
            return url, secret
        return None

    def list(self) -> list[Webhook]:
        """Return the webhooks, by name; without the secrets."""
        return self._all(Webhook, "holdfast.webhooks order by name", reads=True)
