"""An agent: a model decides, tools act, and a person approves what costs money."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from examples.agent.model import Message, Reply, complete
from holdfast import App, current

app = App()

# An agent that never comes to an end is stopped here, and not by the bill.
MOST_TURNS = 20
# Seconds until another worker takes over from one that was killed.
LEASE = float(os.environ.get("AGENT_LEASE", "30"))
# What would be in somebody's mail.
outbox: list[str] = []
SERVER = os.environ.get("HOLDFAST_API", "http://127.0.0.1:7717")


@dataclass
class Approval:
    """What the person is asked, and so the fields of the form."""

    approved: bool
    note: str = ""


@app.task(max_attempts=5, retry=0, lease=LEASE, keep_result=True)
def support(ticket: str) -> str:
    """Answer a ticket; each call of the model and of a tool is a step, and happens once."""
    job = current()
    messages = [Message("user", ticket)]
    for turn in range(1, MOST_TURNS + 1):
        reply = job.step(f"model-{turn}", complete, messages)
        if reply.tool is None:
            return reply.text
        die_if_told(turn)
        messages.append(Message("tool", use(turn, reply), reply.tool))
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


@app.task(max_attempts=5, retry=0, lease=LEASE, keep_result=True)
def support_without_steps(ticket: str) -> str:
    """The same loop as most agents are written: a crash begins it anew, and pays for it anew."""
    messages = [Message("user", ticket)]
    for turn in range(1, MOST_TURNS + 1):
        reply = complete(messages)
        if reply.tool is None:
            return reply.text
        die_if_told(turn)
        messages.append(Message("tool", "done", reply.tool))
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


def use(turn: int, reply: Reply) -> str:
    """Use a tool once; what costs money, after somebody has approved it."""
    job = current()
    assert reply.tool is not None
    if reply.tool not in COSTLY:
        return job.step(f"{reply.tool}-{turn}", TOOLS[reply.tool], **reply.arguments)
    wanted = f"{reply.tool}({', '.join(f'{k}={v}' for k, v in reply.arguments.items())})"
    job.step(f"ask-{turn}", ask, turn, wanted)
    answer = job.wait_event(
        "approved", key=f"{job.id}-{turn}", name=f"approval-{turn}", type=Approval
    )
    if not answer.approved:
        return f"refused: {answer.note}"
    # In the application's own database: the refund and its record are one commit.
    return job.atomic_step(f"{reply.tool}-{turn}", COSTLY[reply.tool], **reply.arguments)


def ask(turn: int, wanted: str) -> None:
    """Send somebody a link by which they answer."""
    question = f"The agent wants to call {wanted}.\nMay it?"
    link = current().reply_link(
        "approved", name=f"approval-{turn}", question=question, expires=86400
    )
    send(link.url(SERVER))


def send(url: str) -> None:
    """Keep the link for the story; a program would mail it."""
    outbox.append(url)


def find_order(number: int) -> str:
    return f"order {number}: a kettle, 42 €, paid"


def find_parcel(number: int) -> str:
    return f"the parcel of order {number} was last seen three weeks ago"


def read_policy(about: str) -> str:
    return f"{about}: refund the price after two weeks"


def write_to_customer(number: int, text: str) -> str:
    return f"sent for order {number}: {text}"


def refund(connection: Connection[Any], number: int, amount: int) -> str:
    connection.execute("insert into refund (number, amount) values (%s, %s)", [number, amount])
    return f"refunded {amount} €"


TOOLS: dict[str, Callable[..., str]] = {
    tool.__name__: tool for tool in (find_order, find_parcel, read_policy, write_to_customer)
}
COSTLY: dict[str, Callable[..., str]] = {"refund": refund}


def set_up() -> None:
    """Make the table that the application itself would have."""
    with app.client.steps.transaction() as connection:
        connection.execute("create table if not exists refund (number int, amount int)")


def refunds() -> int:
    """Return how many refunds were made."""
    with app.client.steps.transaction() as connection:
        return int(connection.execute("select count(*) from refund").fetchone()[0])  # type: ignore[index]


def die_if_told(turn: int) -> None:
    """Be killed in the middle, as by a machine that runs out of memory, for the story."""
    if current().attempt == 1 and os.environ.get("DIE_IN_TURN") == str(turn):
        os.kill(os.getpid(), signal.SIGKILL)
