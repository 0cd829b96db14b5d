"""Clients of the protocol: `AsyncClient`, and `Client`, which is generated from it."""

from holdfast.client.aio.client import AsyncClient
from holdfast.client.sync.client import Client

__all__ = ["AsyncClient", "Client"]
