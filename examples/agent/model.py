"""The model: where a real client goes, and a stand-in with a script, which counts its calls."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Message:
    """One message of the conversation; `tool` is set on what a tool returned."""

    role: str
    text: str
    tool: str | None = None


@dataclass
class Reply:
    """What the model says: a tool to call, or the last word."""

    text: str = ""
    tool: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


def complete(messages: list[Message]) -> Reply:
    """Ask the model for its next turn.

    This is the seam: call your provider's client here, with `messages` and the tools of app.py, and
    return its answer as a Reply. Each call costs money and seconds, which is why app.py calls it in
    a step.
    """
    note_call()
    done = [message.tool for message in messages if message.tool]
    return SCRIPT[len(done)] if len(done) < len(SCRIPT) else Reply("I have done what I could.")


SCRIPT = [
    Reply(tool="find_order", arguments={"number": 7}),
    Reply(tool="find_parcel", arguments={"number": 7}),
    Reply(tool="read_policy", arguments={"about": "lost parcels"}),
    Reply(tool="refund", arguments={"number": 7, "amount": 42}),
    Reply(tool="write_to_customer", arguments={"number": 7, "text": "We refunded 42 €."}),
    Reply("The parcel was lost. The customer has 42 € back, and knows."),
]


def note_call() -> None:
    """Count a call in a file, which outlives the process."""
    if counted := os.environ.get("MODEL_CALLS"):
        with Path(counted).open("a") as file:
            file.write(".")


def calls() -> int:
    """Return how often the model was called."""
    counted = Path(os.environ.get("MODEL_CALLS", "/nonexistent"))
    return len(counted.read_text()) if counted.exists() else 0
