"""Daily rates from a pricing robot that does one run at a time, often fails, and answers later."""

import json
import os
import urllib.error
import urllib.request
from datetime import timedelta
from typing import Any

from holdfast import App, current

app = App(name="pricing")


@app.schedule(
    "0 5 * * MON-FRI",
    tz="America/New_York",
    name="rates-30-year",
    payload={"scenario": "30-year fixed"},
)
@app.schedule(
    "30 5 * * MON-FRI",
    tz="America/New_York",
    name="rates-15-year",
    payload={"scenario": "15-year fixed"},
)
@app.task(queue="pricing", lane="axiom", max_attempts=4)
def price(scenario: str) -> None:
    """Have Axiom price a scenario; it ends the job itself, at the job's own address.

    Until then the lane is taken. When Axiom stays silent the attempt fails, and the lane goes on.
    """
    ticket = current().hand_over(timeout=float(os.environ.get("STUCK_AFTER", "180")))
    job = f"{api()}/v1/jobs/{ticket.id}"
    run = {
        "scenario": scenario,
        "token": str(ticket.token),
        "on_success": f"{job}/ack",
        "on_failure": f"{job}/nack",
    }
    post(f"{os.environ['AXIOM_URL']}/runs", run)


def api() -> str:
    """Return the address of `holdfast serve`."""
    return os.environ.get("HOLDFAST_API", "http://127.0.0.1:7717")


async def set_up() -> None:
    """Keep rates for a week: they are the results of the jobs."""
    await app.aclient.queues.set("pricing", keep_done=timedelta(days=7))


def post(url: str, body: dict[str, Any]) -> None:
    """Send JSON; raises if it is refused."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as refused:
        refused.close()
        raise
