"""Requests and responses: what requests may contain, and the form of responses and errors."""
