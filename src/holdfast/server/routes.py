"""Every address of the server, with what it needs: one table."""

from dataclasses import dataclass, replace
from typing import Any

from holdfast.server import (
    about,
    anomalies,
    bodies,
    consume,
    contract,
    dashboard,
    look,
    operate,
    people,
    produce,
    prometheus,
    relay,
    relay_look,
    relay_operate,
    stream,
)
from holdfast.server.call import MANY, Handler


@dataclass(frozen=True, slots=True)
class Entry:
    """One method of one address: who may call it, what it takes, and what answers.

    `scope` None is for everybody, even unknown callers. `once`: an `Idempotency-Key` makes a repeat
    answer the same and do nothing again. `programs`: at the same address is a page, which is what
    a browser gets.
    """

    method: str
    path: str
    scope: str | None
    handler: Handler
    body: Any = None
    query: Any = None
    once: bool = False
    programs: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes something; the other dialect even leases by GET."""
        return self.method != "GET" or self.scope == "consume"


def get(path: str, scope: str | None, handler: Handler, query: Any = bodies.Empty) -> Entry:
    """Make an entry that only looks."""
    return Entry("GET", path, scope, handler, query=query)


def post(path: str, scope: str, handler: Handler, body: Any = bodies.Nothing) -> Entry:
    """Make an entry that changes something, once."""
    return Entry("POST", path, scope, handler, body=body, once=True)


def for_programs(path: str, handler: Handler, query: Any = bodies.Empty) -> Entry:
    """Make an entry that only looks, at the address of a page."""
    return Entry("GET", path, "read", handler, query=query, programs=True)


# The busiest stand first: they are looked for in this order.
OURS: list[Entry] = [
    Entry("POST", "/v1/claims", "consume", consume.claim, body=bodies.NewClaim),
    post("/v1/jobs/{id}/ack", "consume", consume.ack, bodies.Acked),
    post("/v1/jobs", "produce", produce.enqueue, bodies.NewJob),
    post("/v1/settle", "consume", consume.settle, bodies.Settlements),
    Entry("PUT", "/v1/jobs/{id}/touch", "consume", consume.touch, body=bodies.Touched),
    post("/v1/jobs/{id}/nack", "consume", consume.nack, bodies.Nacked),
    post("/v1/jobs/{id}/release", "consume", consume.release, bodies.Released),
    post("/v1/jobs/bulk", "produce", produce.bulk, MANY),
    get("/v1/jobs", "read", look.jobs, bodies.Page),
    post("/v1/jobs/{id}/retry", "operate", operate.retry, bodies.Retried),
    post("/v1/jobs/{id}/cancel", "operate", operate.cancel, bodies.Reason),
    post("/v1/jobs/{id}/archive", "operate", operate.archive, bodies.Reason),
    get("/v1/jobs/{id}", "read", look.job, bodies.OneJob),
    Entry("PATCH", "/v1/jobs/{id}", "operate", operate.edit, body=bodies.Edited),
    Entry("DELETE", "/v1/jobs/{id}", "operate", operate.purge),
    get("/v1/dead/groups", "read", look.dead_groups),
    get("/v1/dead", "read", look.dead, bodies.DeadPage),
    post("/v1/operations:preview", "operate", operate.preview, bodies.Previewed),
    get("/v1/operations", "read", look.operations, bodies.Limit),
    post("/v1/operations", "operate", operate.start, bodies.Started),
    get("/v1/operations/{id}", "read", look.one_operation),
    Entry("DELETE", "/v1/operations/{id}", "operate", operate.stop_operation),
    post("/v1/operations/{id}/undo", "operate", operate.undo_operation, bodies.Undone),
    get("/v1/queues", "read", look.queues),
    post("/v1/queues/{queue:path}/pause", "operate", operate.pause, bodies.Paused),
    post("/v1/queues/{queue:path}/resume", "operate", operate.resume),
    post("/v1/queues/{queue:path}/drain", "operate", operate.drain, bodies.Drained),
    get("/v1/queues/{queue:path}/explain", "read", anomalies.explain_queue),
    get("/v1/queues/{queue:path}/upcoming", "read", look.upcoming, bodies.Upcoming),
    get("/v1/queues/{queue:path}", "read", look.queue),
    Entry("PATCH", "/v1/queues/{queue:path}", "operate", operate.queue_set, body=dict[str, Any]),
    get("/v1/kinds", "read", look.kinds),
    get("/v1/schedules", "read", look.schedules),
    post("/v1/schedules/{name:path}/run", "operate", operate.run_schedule),
    get("/v1/schedules/{name:path}", "read", look.schedule),
    Entry(
        "PUT", "/v1/schedules/{name:path}", "operate", operate.put_schedule, body=bodies.NewSchedule
    ),
    Entry(
        "PATCH",
        "/v1/schedules/{name:path}",
        "operate",
        operate.change_schedule,
        body=bodies.ChangedSchedule,
    ),
    Entry("DELETE", "/v1/schedules/{name:path}", "operate", operate.delete_schedule),
    get("/v1/workers", "read", look.workers),
    post("/v1/workers/{worker:path}/stop", "operate", operate.stop_worker),
    get("/v1/lanes", "read", look.lanes),
    post("/v1/lanes/{lane:path}/release", "admin", operate.release_lane, bodies.LaneOf),
    get("/v1/lanes/{lane:path}/explain", "read", anomalies.explain_lane, bodies.LaneOf),
    get("/v1/anomalies", "read", anomalies.anomalies, bodies.Anomalies),
    post("/v1/anomalies/{id}/ack", "operate", anomalies.ack, bodies.Noted),
    post("/v1/anomalies/{id}/mute", "operate", anomalies.mute, bodies.Muted),
    post("/v1/anomalies/{id}/unmute", "operate", anomalies.unmute, bodies.Unmuted),
    get("/v1/anomalies/{id}", "read", anomalies.anomaly),
    get("/v1/detectors", "read", anomalies.detectors),
    Entry("PATCH", "/v1/detectors/{code}", "operate", anomalies.detector_set, body=bodies.Tuned),
    get("/v1/forecasts", "read", anomalies.forecasts, bodies.Forecast),
    get("/v1/doctor", "operate", anomalies.doctor),
    get("/v1/events/stream", "read", stream.events, bodies.Watch),
    get("/v1/activity", "read", look.activity, bodies.Asked),
    get("/v1/strikes", "read", look.strikes, bodies.Strikes),
    post("/v1/strikes", "operate", operate.strike, bodies.NewStrike),
    Entry("DELETE", "/v1/strikes/{number}", "operate", operate.lift),
    get("/v1/metrics/series", "read", look.series, bodies.Series),
    get("/metrics", "read", prometheus.metrics),
    get("/v1/system", "read", about.system),
    get("/v1/tokens", "admin", people.tokens),
    Entry("POST", "/v1/tokens", "admin", people.create_token, body=bodies.NewToken),
    Entry("DELETE", "/v1/tokens/{id}", "admin", people.revoke_token),
    Entry("POST", "/v1/session", None, people.sign_in, body=bodies.SignIn),
    Entry("DELETE", "/v1/session", None, people.sign_out),
    get("/sign-in", None, people.link_page, bodies.Link),
    Entry("POST", "/sign-in", None, people.sign_in_by_link, query=bodies.Link),
    get("/oidc/sign-in", None, people.oidc_begin, bodies.Begin),
    get("/oidc/callback", None, people.oidc_finish, bodies.Returned),
    get("/v1/me", None, about.me),
    get("/healthz", None, about.healthz),
    get("/readyz", None, about.readyz),
    get("/errors/{code}", None, about.error_page),
    get("/openapi.json", None, contract.openapi),
    get("/docs", None, contract.page),
    get("/docs.css", None, contract.style),
]

# The other dialect: names for the same handlers, whose refusals say their code in its words.
THEIRS: list[Entry] = [
    replace(entry, handler=relay.worded(entry.handler))
    for entry in (
        post("/queue/message", "produce", relay.enqueue, relay.Message),
        Entry("GET", "/queue/message", "consume", relay.dequeue, query=relay.Dequeue),
        post("/queue/ack", "consume", relay.ack, relay.AcknowledgedById),
        post("/queue/message/{id}/ack", "consume", relay.ack, relay.Acknowledged),
        Entry(
            "GET", "/queue/messages/batch", "consume", relay.dequeue_many, query=relay.DequeueMany
        ),
        post("/queue/batch", "produce", relay.batch, relay.Batch),
        post("/queue/ack/batch", "consume", relay.ack_many, relay.Settlements),
        post("/queue/nack/batch", "consume", relay.nack_many, relay.Settlements),
        post("/queue/message/{id}/nack", "consume", relay.nack, relay.NotAcknowledged),
        Entry(
            "PUT", "/queue/message/{id}/touch", "consume", relay.touch, body=relay.TouchedMessage
        ),
        get("/queue/status", "read", relay_look.status, relay_look.Included),
        get("/queue/metrics", "read", relay_look.metrics),
        get("/queue/events", "read", stream.plain_events, bodies.Told),
        get("/queue/config", "read", relay_look.config),
        get("/health", None, about.readyz),
        get("/queue/messages", "read", relay_look.messages, relay_look.RangePage),
        Entry(
            "DELETE",
            "/queue/messages",
            "operate",
            relay_operate.delete_range,
            query=relay_look.Range,
        ),
        post("/queue/messages/delete", "operate", relay_operate.delete_many, relay_operate.Deleted),
        post("/queue/import", "produce", relay.restore, relay.Batch),
        post("/queue/move", "operate", relay_operate.move, relay_operate.Moved),
        Entry(
            "PUT",
            "/queue/message/{id}",
            "operate",
            relay_operate.edit,
            body=relay_operate.EditedMessage,
        ),
        Entry("DELETE", "/queue/message/{id}", "operate", relay_operate.delete),
        Entry("DELETE", "/queue/clear", "admin", relay_operate.clear, query=relay_operate.OfQueue),
        get("/queue/activity", "read", relay_look.activity, bodies.Asked),
        get("/queue/{state}/messages", "read", relay_look.listed, relay_look.Listed),
        get("/queue/{state}/export", "read", relay_look.export, relay_look.Exported),
        Entry(
            "DELETE",
            "/queue/{state}/clear",
            "operate",
            relay_operate.clear_state,
            query=relay_operate.OfQueue,
        ),
        for_programs("/activity/message/{id}", relay_look.message_activity),
        for_programs("/activity/anomalies", anomalies.anomalies, bodies.Anomalies),
        for_programs("/activity/consumers", relay_look.consumers),
        Entry("DELETE", "/activity/clear", "admin", relay_operate.clear_activity),
        for_programs("/queues", relay_look.queues),
        post("/queues", "operate", relay_operate.make_queue, relay_operate.NewQueue),
        for_programs("/queues/{queue:path}", relay_look.queue),
        Entry(
            "PUT",
            "/queues/{queue:path}",
            "operate",
            relay_operate.change_queue,
            body=relay_operate.ChangedQueue,
        ),
        Entry("DELETE", "/queues/{queue:path}", "admin", relay_operate.delete_queue),
    )
]
# Where else they are: all behind /api, activity also among what is of the queue.
ALSO = [
    *(replace(entry, path=f"/api{entry.path}", programs=False) for entry in THEIRS),
    *(
        replace(entry, path=f"{prefix}{entry.path}", programs=False)
        for prefix in ("/queue", "/api/queue")
        for entry in THEIRS
        if entry.path.startswith("/activity/")
    ),
]

# The dashboard's documents and files. What they show they ask for under /v1, as everybody does.
PAGES: list[Entry] = [
    get("/", None, dashboard.page, None),
    get("/assets/{file}", None, dashboard.asset, None),
    *(get(f"/{name}", None, dashboard.page, None) for name in dashboard.PAGES),
    *(get(f"/{name}/{{rest:path}}", None, dashboard.page, None) for name in dashboard.PAGES),
]

# The addresses of a state, whatever it is called, are looked for behind those that are spelt out.
ROUTES = [*OURS, *sorted([*THEIRS, *ALSO], key=lambda entry: "{state}" in entry.path), *PAGES]
