"""Clients of the protocol: `AsyncClient`, and `Client`, which is generated from it."""

from holdfast.client.aio.client import AsyncClient
from holdfast.client.sync.client import Client

__all__ = ["AsyncClient", "Client"]

# For callers whose connection is all that is needed: these clients never connect.
client_on = Client("postgresql://").on
async_client_on = AsyncClient("postgresql://").on
