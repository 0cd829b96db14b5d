"""An adopted table is a queue like any other over HTTP."""

from typing import Any

import httpx
import psycopg

from holdfast import adopt
from holdfast.server import Server, Settings
from tests.adoption.shapes import REPORTS
from tests.server.serving import serving


def all_jobs(api: httpx.Client, q: str) -> list[Any]:
    """The jobs of all pages: a search ends a page early when its time is up."""
    found, cursor = [], ""
    while cursor is not None:
        page = api.get("/v1/jobs", params={"q": q, "cursor": cursor}).json()
        found += page["jobs"]
        cursor = page["cursor"]
    return found


def test_rows_are_claimed_seen_and_settled_over_http(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        REPORTS.create(connection, 100)
    adopt.adopt(database, adopt.plan(database, "report_jobs", REPORTS.choices))

    with serving(Server(database, settings=Settings(fresh=0.0))) as served, served.client() as api:
        claimed = api.post("/v1/claims", json={"queues": ["reports"], "worker": "curl"})
        [lease] = claimed.json()["leases"]
        seen = api.get(f"/v1/jobs/{lease['id']}").json()
        listed = all_jobs(api, "queue:reports state:queued")
        ended = api.post(f"/v1/jobs/{lease['id']}/ack", json={"token": lease["token"]})
        queue = api.get("/v1/queues/reports").json()
        metrics = api.get("/metrics").text

    assert seen["state"] == "leased"
    assert len(listed) == 4
    assert ended.status_code == 200
    assert (queue["queued"], queue["done"]) == (4, 96)
    assert 'holdfast_queue_depth{queue="reports",state="queued"} 4' in metrics
