"""The client for asyncio, written by hand; `sync` is generated from it."""
