"""Clients of the protocol: `AsyncClient`, and `Client`, which is generated from it.

`AsyncClusterClient` and `ClusterClient` are those of operators: of all nodes of a Citus cluster.
"""

from holdfast.client.aio.client import AsyncClient
from holdfast.client.aio.cluster_client import AsyncClusterClient
from holdfast.client.sync.client import Client
from holdfast.client.sync.cluster_client import ClusterClient

__all__ = ["AsyncClient", "AsyncClusterClient", "Client", "ClusterClient"]

# For callers whose connection is all that is needed: these clients never connect.
client_on = Client("postgresql://").on
async_client_on = AsyncClient("postgresql://").on
