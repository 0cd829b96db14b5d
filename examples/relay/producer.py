"""The shop's side, in Python, with nothing but the standard library."""

import json
import os
import urllib.request
from collections.abc import Sequence
from typing import Any


def send(messages: Sequence[dict[str, Any]], queue: str) -> list[str]:
    """Send messages in the words of Relay, all in one request; returns their ids."""
    batch = {"messages": [{**message, "queue": queue} for message in messages]}
    return [message["id"] for message in call("POST", "/queue/batch", batch)["messages"]]


def look(state: str, queue: str) -> list[dict[str, Any]]:
    """Return the messages of a state: main, processing, acknowledged, dead or archived."""
    found: list[dict[str, Any]] = call("GET", f"/queue/{state}/messages?queue={queue}")["messages"]
    return found


def mend(id: str, payload: dict[str, Any]) -> None:
    """Give a dead message another payload and another life."""
    call("PUT", f"/queue/message/{id}", {"payload": payload})
    reason = "the address was wrong"
    call("POST", "/queue/move", {"ids": [id], "from": "dead", "to": "main", "reason": reason})


def call(method: str, path: str, body: Any = None) -> Any:
    """Speak to the server; raises for every answer that is no success."""
    url = os.environ.get("HOLDFAST_API", "http://127.0.0.1:7717") + path
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("HOLDFAST_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
