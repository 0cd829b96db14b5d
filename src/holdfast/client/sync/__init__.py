"""Generated from aio/__init__.py by tools/generate_sync_client.py: edit that."""
