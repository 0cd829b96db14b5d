"""Generated from aio/kinds.py by tools/generate_sync_client.py: edit that."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.client import wire
from holdfast.client.sync.noun import Noun
from holdfast.records import Kind


class Kinds(Noun):
    """Kinds by name."""

    def declare(self, kinds: Iterable[Mapping[str, Any]]) -> int:
        """Describe kinds: `{"kind": "invoice", "done_when": True}`, and more about each.

        `done_when`: workers can check whether the work of such a job is done, and do so before a
        job whose worker disappeared runs again. Returns how many were new or changed.
        """
        document = wire.encoded([*kinds], "kinds").decode()
        return int(self._value("holdfast.declare_kinds(kinds => %s::jsonb)", [document]))

    def list(self) -> list[Kind]:
        """Return the kinds that workers declared, by name."""
        return self._all(Kind, "holdfast.kinds order by kind", reads=True)
