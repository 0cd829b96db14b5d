"""Holdfast, measured: `python -m bench` starts a PostgreSQL of its own and prints one table."""
