"""Clients of the protocol: `AsyncClient`, and `Client`, which is generated from it."""

from holdfast.client._async import AsyncClient
from holdfast.client._sync import Client

__all__ = ["AsyncClient", "Client"]
