"""The addresses of Relay."""

from dataclasses import replace

from holdfast.server.api import anomalies, health
from holdfast.server.http import inputs
from holdfast.server.http.route import Entry, for_programs, get, post
from holdfast.server.live import stream
from holdfast.server.relay import look, messages, operate

# Names for the handlers of /v1, whose refusals have the codes of Relay.
RELAY: list[Entry] = [
    replace(entry, handler=messages.worded(entry.handler))
    for entry in (
        post("/queue/message", "produce", messages.enqueue, messages.Message),
        Entry("GET", "/queue/message", "consume", messages.dequeue, query=messages.Dequeue),
        post("/queue/ack", "consume", messages.ack, messages.AcknowledgedById),
        post("/queue/message/{id}/ack", "consume", messages.ack, messages.Acknowledged),
        Entry(
            "GET",
            "/queue/messages/batch",
            "consume",
            messages.dequeue_many,
            query=messages.DequeueMany,
        ),
        post("/queue/batch", "produce", messages.batch, messages.Batch),
        post("/queue/ack/batch", "consume", messages.ack_many, messages.Settlements),
        post("/queue/nack/batch", "consume", messages.nack_many, messages.Settlements),
        post("/queue/message/{id}/nack", "consume", messages.nack, messages.NotAcknowledged),
        Entry(
            "PUT",
            "/queue/message/{id}/touch",
            "consume",
            messages.touch,
            body=messages.TouchedMessage,
        ),
        get("/queue/status", "read", look.status, look.Included),
        get("/queue/metrics", "read", look.metrics),
        get("/queue/events", "read", stream.plain_events, inputs.Told),
        get("/queue/config", "read", look.config),
        get("/health", None, health.readyz),
        get("/queue/messages", "read", look.messages, look.RangePage),
        Entry(
            "DELETE",
            "/queue/messages",
            "operate",
            operate.delete_range,
            query=look.Range,
        ),
        post("/queue/messages/delete", "operate", operate.delete_many, operate.Deleted),
        post("/queue/import", "produce", messages.restore, messages.Batch),
        post("/queue/move", "operate", operate.move, operate.Moved),
        Entry(
            "PUT",
            "/queue/message/{id}",
            "operate",
            operate.edit,
            body=operate.EditedMessage,
        ),
        Entry("DELETE", "/queue/message/{id}", "operate", operate.delete),
        Entry("DELETE", "/queue/clear", "admin", operate.clear, query=operate.OfQueue),
        get("/queue/activity", "read", look.activity, inputs.Asked),
        get("/queue/{state}/messages", "read", look.listed, look.Listed),
        get("/queue/{state}/export", "read", look.export, look.Exported),
        Entry(
            "DELETE",
            "/queue/{state}/clear",
            "operate",
            operate.clear_state,
            query=operate.OfQueue,
        ),
        for_programs("/activity/message/{id}", look.message_activity),
        for_programs("/activity/anomalies", anomalies.anomalies, inputs.Anomalies),
        for_programs("/activity/consumers", look.consumers),
        Entry("DELETE", "/activity/clear", "admin", operate.clear_activity),
        for_programs("/queues", look.queues),
        post("/queues", "operate", operate.make_queue, operate.NewQueue),
        for_programs("/queues/{queue:path}", look.queue),
        Entry(
            "PUT",
            "/queues/{queue:path}",
            "operate",
            operate.change_queue,
            body=operate.ChangedQueue,
        ),
        Entry("DELETE", "/queues/{queue:path}", "admin", operate.delete_queue),
    )
]
# The same below /api; activity also below /queue.
ALIASES = [
    *(replace(entry, path=f"/api{entry.path}", programs=False) for entry in RELAY),
    *(
        replace(entry, path=f"{prefix}{entry.path}", programs=False)
        for prefix in ("/queue", "/api/queue")
        for entry in RELAY
        if entry.path.startswith("/activity/")
    ),
]
