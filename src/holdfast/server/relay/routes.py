"""The addresses of Relay."""

from dataclasses import replace
from typing import Annotated, Any

from holdfast.records.fields import says
from holdfast.server.api import anomalies, health
from holdfast.server.http import answers as ours
from holdfast.server.http import inputs
from holdfast.server.http.refusals import GONE, LEASE_LOST, NOT_THERE, WRONG_STATE
from holdfast.server.http.route import STREAM, Entry, Told, for_programs, get, ok, post, text, to
from holdfast.server.relay import answers, events, look, messages, operate

TAG = "Relay"
# Path parameters that only Relay has.
PARTS: dict[str, Any] = {"state": Annotated[messages.State, says("where the messages are")]}

_LOCK = {"lock_token": "/lock_token"}
_SETTLED: Any = {"answers": ok(answers.MessageSettled), "refuses": (NOT_THERE, LEASE_LOST)}
_CARRIED_OUT = {
    200: Told(answers.CarriedOut),
    202: Told(answers.CarriedOut, "It continues as an operation."),
}
_QUEUE = ok(answers.MessageQueue, "The queue.")

# Names for the handlers of /v1, whose refusals have the codes of Relay.
RELAY: list[Entry] = [
    replace(entry, handler=messages.worded(entry.handler), tag=TAG)
    for entry in (
        post(
            "/queue/message",
            "produce",
            messages.enqueue,
            messages.NewMessage,
            id="enqueueMessage",
            answers=ok(answers.EnqueuedMessage, status=201),
            example={"type": "email", "payload": {"to": "a@example.org"}, "priority": 5},
        ),
        Entry(
            "GET",
            "/queue/message",
            "consume",
            messages.dequeue,
            query=messages.Dequeue,
            id="dequeueMessage",
            answers=ok(
                answers.LockedMessage,
                links={
                    "ackMessage": to("ackMessage", id="/id", body=_LOCK),
                    "nackMessage": to("nackMessage", id="/id", body=_LOCK),
                },
            ),
            refuses=(NOT_THERE,),
        ),
        post(
            "/queue/ack",
            "consume",
            messages.ack,
            messages.AcknowledgedById,
            id="ackMessageById",
            **_SETTLED,
        ),
        post(
            "/queue/message/{id}/ack",
            "consume",
            messages.ack,
            messages.Acknowledged,
            id="ackMessage",
            **_SETTLED,
        ),
        Entry(
            "GET",
            "/queue/messages/batch",
            "consume",
            messages.dequeue_many,
            query=messages.DequeueMany,
            id="dequeueMessages",
            answers=ok(answers.LockedMessages),
            refuses=(NOT_THERE,),
        ),
        post(
            "/queue/batch",
            "produce",
            messages.batch,
            messages.Batch,
            items=messages.NewMessage,
            id="enqueueMessages",
            answers=ok(answers.StoredMessages, status=201),
        ),
        post(
            "/queue/ack/batch",
            "consume",
            messages.ack_many,
            messages.MessageSettlements,
            items=messages.AcknowledgedById,
            id="ackMessages",
            answers=ok(answers.AcknowledgedMessages),
        ),
        post(
            "/queue/nack/batch",
            "consume",
            messages.nack_many,
            messages.MessageSettlements,
            items=messages.NotAcknowledgedById,
            id="nackMessages",
            answers=ok(answers.RejectedMessages),
        ),
        post(
            "/queue/message/{id}/nack",
            "consume",
            messages.nack,
            messages.NotAcknowledged,
            id="nackMessage",
            **_SETTLED,
        ),
        Entry(
            "PUT",
            "/queue/message/{id}/touch",
            "consume",
            messages.touch,
            body=messages.TouchedMessage,
            id="touchMessage",
            answers=ok(answers.MessageTouched),
            refuses=(LEASE_LOST,),
        ),
        get(
            "/queue/status",
            "read",
            look.status,
            look.Included,
            id="getStatus",
            answers=ok(answers.MessageCounts),
        ),
        get(
            "/queue/metrics",
            "read",
            look.metrics,
            id="getQueueMetrics",
            answers=ok(answers.QueueMetrics),
        ),
        get(
            "/queue/events",
            "read",
            events.stream,
            events.OfQueue,
            id="streamMessages",
            answers=text("A stream that does not end.", STREAM),
        ),
        get(
            "/queue/config",
            "read",
            look.config,
            id="getQueueConfig",
            answers=ok(answers.QueueConfig),
        ),
        get("/health", None, health.readyz, id="getHealth", answers=ok(ours.Well)),
        get(
            "/queue/messages",
            "read",
            look.messages,
            look.RangePage,
            id="listMessagesByDate",
            answers=ok(answers.ListedMessages),
        ),
        Entry(
            "DELETE",
            "/queue/messages",
            "operate",
            operate.delete_range,
            query=look.Range,
            id="deleteMessagesByDate",
            answers=_CARRIED_OUT,
        ),
        post(
            "/queue/messages/delete",
            "operate",
            operate.delete_many,
            operate.Deleted,
            id="deleteMessages",
            answers=ok(answers.DeletedMessages),
        ),
        post(
            "/queue/import",
            "produce",
            messages.restore,
            messages.Batch,
            items=messages.Imported,
            id="importMessages",
            answers=ok(answers.StoredMessages, status=201),
        ),
        post(
            "/queue/move",
            "operate",
            operate.move,
            operate.Moved,
            id="moveMessages",
            answers=_CARRIED_OUT,
            refuses=(WRONG_STATE,),
            example={"from": "dead", "to": "main"},
        ),
        Entry(
            "PUT",
            "/queue/message/{id}",
            "operate",
            operate.edit,
            body=operate.EditedMessage,
            id="editMessage",
            answers=ok(answers.MessageChanged),
            refuses=(WRONG_STATE,),
        ),
        Entry(
            "DELETE",
            "/queue/message/{id}",
            "operate",
            operate.delete,
            id="deleteMessage",
            answers=ok(answers.MessageDeleted),
            refuses=(WRONG_STATE,),
        ),
        Entry(
            "DELETE",
            "/queue/clear",
            "admin",
            operate.clear,
            query=operate.OfQueue,
            id="clearMessages",
            answers=_CARRIED_OUT,
        ),
        get(
            "/queue/activity",
            "read",
            look.activity,
            inputs.Asked,
            id="listMessagesActivity",
            answers=ok(answers.Activities),
            refuses=(NOT_THERE,),
        ),
        get(
            "/queue/{state}/messages",
            "read",
            look.listed,
            look.Listed,
            id="listMessages",
            answers=ok(answers.MessagePage),
        ),
        get(
            "/queue/{state}/export",
            "read",
            look.export,
            look.Exported,
            id="exportMessages",
            answers=ok(answers.ExportedMessages),
        ),
        Entry(
            "DELETE",
            "/queue/{state}/clear",
            "operate",
            operate.clear_state,
            query=operate.OfQueue,
            id="clearState",
            answers=_CARRIED_OUT,
            refuses=(WRONG_STATE,),
        ),
        for_programs(
            "/activity/message/{id}",
            look.message_activity,
            id="getMessageActivity",
            answers=ok(answers.MessageActivities),
            refuses=(GONE,),
        ),
        for_programs(
            "/activity/anomalies",
            anomalies.anomalies,
            inputs.Anomalies,
            id="listMessageAnomalies",
            answers=ok(ours.AnomalyPage),
        ),
        for_programs(
            "/activity/consumers", look.consumers, id="listConsumers", answers=ok(answers.Consumers)
        ),
        Entry(
            "DELETE",
            "/activity/clear",
            "admin",
            operate.clear_activity,
            id="clearActivity",
            answers=ok(answers.ActivityCleared),
        ),
        for_programs(
            "/queues", look.queues, id="listMessageQueues", answers=ok(answers.MessageQueues)
        ),
        post(
            "/queues",
            "operate",
            operate.make_queue,
            operate.NewQueue,
            id="createMessageQueue",
            answers=ok(answers.MessageQueue, "The queue is created.", status=201),
            refuses=(WRONG_STATE,),
        ),
        for_programs("/queues/{queue:path}", look.queue, id="getMessageQueue", answers=_QUEUE),
        Entry(
            "PUT",
            "/queues/{queue:path}",
            "operate",
            operate.change_queue,
            body=operate.ChangedQueue,
            id="changeMessageQueue",
            answers=_QUEUE,
        ),
        Entry(
            "DELETE",
            "/queues/{queue:path}",
            "admin",
            operate.delete_queue,
            id="deleteMessageQueue",
            answers=_CARRIED_OUT,
        ),
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
