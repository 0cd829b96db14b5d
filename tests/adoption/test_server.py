"""An adopted table is a queue like any other over HTTP."""

import psycopg

from holdfast import adopt
from holdfast.server import Server, Settings
from tests.adoption.shapes import REPORTS
from tests.server.serving import serving


def test_rows_are_claimed_seen_and_settled_over_http(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        REPORTS.create(connection, 100)
    adopt.adopt(database, adopt.plan(database, "report_jobs", REPORTS.choices))

    with serving(Server(database, settings=Settings(fresh=0.0))) as served, served.client() as api:
        claimed = api.post("/v1/claims", json={"queues": ["reports"], "worker": "curl"})
        [lease] = claimed.json()["leases"]
        seen = api.get(f"/v1/jobs/{lease['id']}").json()
        listed = api.get("/v1/jobs", params={"q": "queue:reports state:queued"}).json()
        ended = api.post(f"/v1/jobs/{lease['id']}/ack", json={"token": lease["token"]})
        queue = api.get("/v1/queues/reports").json()
        metrics = api.get("/metrics").text

    assert seen["state"] == "leased"
    assert len(listed["jobs"]) == 4
    assert ended.status_code == 200
    assert (queue["queued"], queue["done"]) == (4, 96)
    assert 'holdfast_queue_depth{queue="reports",state="queued"} 4' in metrics
