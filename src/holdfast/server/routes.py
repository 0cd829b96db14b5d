"""Every address of the server, with what it needs: one table."""

from typing import Any

from holdfast.server.api import (
    anomalies,
    consume,
    contract,
    dashboard,
    health,
    look,
    operate,
    produce,
    prometheus,
)
from holdfast.server.doors import sign_in
from holdfast.server.http import inputs
from holdfast.server.http.request import MANY
from holdfast.server.http.route import Entry, get, post
from holdfast.server.live import stream
from holdfast.server.relay.routes import ALIASES, RELAY

# The busiest stand first: they are looked for in this order.
V1: list[Entry] = [
    Entry("POST", "/v1/claims", "consume", consume.claim, body=inputs.NewClaim),
    post("/v1/jobs/{id}/ack", "consume", consume.ack, inputs.Acked),
    post("/v1/jobs", "produce", produce.enqueue, inputs.NewJob),
    post("/v1/settle", "consume", consume.settle, inputs.Settlements),
    Entry("PUT", "/v1/jobs/{id}/touch", "consume", consume.touch, body=inputs.Touched),
    post("/v1/jobs/{id}/nack", "consume", consume.nack, inputs.Nacked),
    post("/v1/jobs/{id}/release", "consume", consume.release, inputs.Released),
    post("/v1/jobs/bulk", "produce", produce.bulk, MANY),
    get("/v1/jobs", "read", look.jobs, inputs.Page),
    post("/v1/jobs/{id}/retry", "operate", operate.retry, inputs.Retried),
    post("/v1/jobs/{id}/cancel", "operate", operate.cancel, inputs.Reason),
    post("/v1/jobs/{id}/archive", "operate", operate.archive, inputs.Reason),
    get("/v1/jobs/{id}", "read", look.job, inputs.OneJob),
    Entry("PATCH", "/v1/jobs/{id}", "operate", operate.edit, body=inputs.Edited),
    Entry("DELETE", "/v1/jobs/{id}", "operate", operate.purge),
    get("/v1/dead/groups", "read", look.dead_groups),
    get("/v1/dead", "read", look.dead, inputs.DeadPage),
    post("/v1/operations:preview", "operate", operate.preview, inputs.Previewed),
    get("/v1/operations", "read", look.operations, inputs.Limit),
    post("/v1/operations", "operate", operate.start, inputs.Started),
    get("/v1/operations/{id}", "read", look.one_operation),
    Entry("DELETE", "/v1/operations/{id}", "operate", operate.stop_operation),
    post("/v1/operations/{id}/undo", "operate", operate.undo_operation, inputs.Undone),
    get("/v1/queues", "read", look.queues),
    post("/v1/queues/{queue:path}/pause", "operate", operate.pause, inputs.Paused),
    post("/v1/queues/{queue:path}/resume", "operate", operate.resume),
    post("/v1/queues/{queue:path}/drain", "operate", operate.drain, inputs.Drained),
    get("/v1/queues/{queue:path}/explain", "read", anomalies.explain_queue),
    get("/v1/queues/{queue:path}/upcoming", "read", look.upcoming, inputs.Upcoming),
    get("/v1/queues/{queue:path}", "read", look.queue),
    Entry("PATCH", "/v1/queues/{queue:path}", "operate", operate.queue_set, body=dict[str, Any]),
    get("/v1/kinds", "read", look.kinds),
    get("/v1/schedules", "read", look.schedules),
    post("/v1/schedules/{name:path}/run", "operate", operate.run_schedule),
    get("/v1/schedules/{name:path}", "read", look.schedule),
    Entry(
        "PUT", "/v1/schedules/{name:path}", "operate", operate.put_schedule, body=inputs.NewSchedule
    ),
    Entry(
        "PATCH",
        "/v1/schedules/{name:path}",
        "operate",
        operate.change_schedule,
        body=inputs.ChangedSchedule,
    ),
    Entry("DELETE", "/v1/schedules/{name:path}", "operate", operate.delete_schedule),
    get("/v1/workers", "read", look.workers),
    post("/v1/workers/{worker:path}/stop", "operate", operate.stop_worker),
    get("/v1/lanes", "read", look.lanes),
    post("/v1/lanes/{lane:path}/release", "admin", operate.release_lane, inputs.LaneOf),
    get("/v1/lanes/{lane:path}/explain", "read", anomalies.explain_lane, inputs.LaneOf),
    get("/v1/anomalies", "read", anomalies.anomalies, inputs.Anomalies),
    post("/v1/anomalies/{id}/ack", "operate", anomalies.ack, inputs.Noted),
    post("/v1/anomalies/{id}/mute", "operate", anomalies.mute, inputs.Muted),
    post("/v1/anomalies/{id}/unmute", "operate", anomalies.unmute, inputs.Unmuted),
    get("/v1/anomalies/{id}", "read", anomalies.anomaly),
    get("/v1/detectors", "read", anomalies.detectors),
    Entry("PATCH", "/v1/detectors/{code}", "operate", anomalies.detector_set, body=inputs.Tuned),
    get("/v1/forecasts", "read", anomalies.forecasts, inputs.Forecast),
    get("/v1/doctor", "operate", anomalies.doctor),
    get("/v1/events/stream", "read", stream.events, inputs.Watch),
    get("/v1/activity", "read", look.activity, inputs.Asked),
    get("/v1/strikes", "read", look.strikes, inputs.Strikes),
    post("/v1/strikes", "operate", operate.strike, inputs.NewStrike),
    Entry("DELETE", "/v1/strikes/{number}", "operate", operate.lift),
    get("/v1/metrics/series", "read", look.series, inputs.Series),
    get("/metrics", "read", prometheus.metrics),
    get("/v1/system", "read", health.system),
    get("/v1/tokens", "admin", sign_in.tokens),
    Entry("POST", "/v1/tokens", "admin", sign_in.create_token, body=inputs.NewToken),
    Entry("DELETE", "/v1/tokens/{id}", "admin", sign_in.revoke_token),
    Entry("POST", "/v1/session", None, sign_in.sign_in, body=inputs.SignIn),
    Entry("DELETE", "/v1/session", None, sign_in.sign_out),
    get("/sign-in", None, sign_in.link_page, inputs.Link),
    Entry("POST", "/sign-in", None, sign_in.sign_in_by_link, query=inputs.Link),
    get("/oidc/sign-in", None, sign_in.oidc_begin, inputs.Begin),
    get("/oidc/callback", None, sign_in.oidc_finish, inputs.Returned),
    get("/v1/me", None, health.me),
    get("/healthz", None, health.healthz),
    get("/readyz", None, health.readyz),
    get("/errors/{code}", None, health.error_page),
    get("/openapi.json", None, contract.openapi),
    get("/docs", None, contract.page),
    get("/docs.css", None, contract.style),
]

# The dashboard's documents and files. What they show they ask for under /v1, as everybody does.
PAGES: list[Entry] = [
    get("/", None, dashboard.page, None),
    get("/assets/{file}", None, dashboard.asset, None),
    *(get(f"/{name}", None, dashboard.page, None) for name in dashboard.PAGES),
    *(get(f"/{name}/{{rest:path}}", None, dashboard.page, None) for name in dashboard.PAGES),
]

# The addresses of a state, whatever it is called, are looked for behind those that are spelt out.
ROUTES = [*V1, *sorted([*RELAY, *ALIASES], key=lambda entry: "{state}" in entry.path), *PAGES]
