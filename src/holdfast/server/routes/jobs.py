"""The addresses of jobs: storing, leasing, looking, changing one or many."""

from typing import Any

from holdfast.server.api import (
    consume,
    look,
    operate,
    produce,
)
from holdfast.server.doors import replies
from holdfast.server.http import answers, inputs, reply_answers
from holdfast.server.http.refusals import GONE, LEASE_LOST, NOT_THERE, PREVIEW_TOO_OLD, WRONG_STATE
from holdfast.server.http.request import MANY
from holdfast.server.http.route import Entry, Told, get, ok, post, to
from holdfast.server.routes.tags import (
    CONSUME,
    JOBS,
    OPERATIONS,
    PRODUCE,
)

_TOKEN = "0d5c1f1e-3c1f-4f5e-8f0e-2b7a5c9d1e11"
_OF_JOB = {
    name: to(operation, id="/id")
    for name, operation in {
        "job": "getJob",
        "cancel": "cancelJob",
        "edit": "editJob",
        "delete": "deleteJob",
    }.items()
}
_OF_LEASE = {
    verb: to(verb, id="/leases/0/id", body={"token": "/leases/0/token"})
    for verb in ("ack", "nack", "release", "touch")
}
_CHANGE: Any = {"tag": JOBS, "answers": ok(answers.Changed), "refuses": (WRONG_STATE,)}
# The response of a started operation.
BEGUN = ok(
    answers.Operation,
    "The operation has started, and continues in the background.",
    status=202,
    headers={"Location": "Where to follow it."},
    links={
        "operation": to("getOperation", id="/id"),
        "stop": to("cancelOperation", id="/id"),
    },
)

# The busiest come first: routes are matched in this order.
ROUTES: list[Entry] = [
    Entry(
        "POST",
        "/v1/claims",
        "consume",
        consume.claim,
        body=inputs.NewClaim,
        id="claim",
        tag=CONSUME,
        answers=ok(answers.Leases, links=_OF_LEASE),
        refuses=(NOT_THERE,),
        example={
            "worker": "php-7",
            "queues": ["mail"],
            "kinds": ["send_email"],
            "limit": 10,
            "lease": 60,
            "wait": 20,
        },
        takes_key=True,
    ),
    post(
        "/v1/jobs/{id}/ack",
        "consume",
        consume.ack,
        inputs.Acked,
        id="ack",
        tag=CONSUME,
        answers=ok(answers.Settled),
        refuses=(LEASE_LOST,),
        example={"token": _TOKEN, "result": {"sent": True}},
    ),
    post(
        "/v1/jobs",
        "produce",
        produce.enqueue,
        inputs.NewJob,
        id="enqueue",
        tag=PRODUCE,
        answers={
            201: Told(answers.Enqueued, "The job is stored.", _OF_JOB),
            200: Told(answers.Enqueued, "A live job has its key; `id` is that job's.", _OF_JOB),
        },
        example={
            "kind": "send_email",
            "payload": {"to": "a@example.org"},
            "queue": "mail",
            "priority": 5,
            "key": "welcome-17",
        },
    ),
    post(
        "/v1/events",
        "produce",
        produce.send_event,
        inputs.NewEvent,
        id="sendEvent",
        tag=PRODUCE,
        answers=ok(answers.Sent, "The event is sent.", status=202),
        example={"name": "approved", "key": "42", "payload": {"by": "Ada"}},
    ),
    # Not for an Idempotency-Key: what it answers is a secret, and would be stored.
    Entry(
        "POST",
        "/v1/jobs/{id}/reply-links",
        "produce",
        replies.create_link,
        body=inputs.NewReplyLink,
        id="createReplyLink",
        tag=PRODUCE,
        answers=ok(
            reply_answers.ReplyLinkMade,
            "The link, which is shown only here.",
            status=201,
            links={"revoke": to("revokeReplyLink", id="/id")},
        ),
        example={"step": "event approved", "question": "Refund 42 €?", "expires": 86400},
    ),
    Entry(
        "DELETE",
        "/v1/reply-links/{id}",
        "operate",
        replies.revoke_link,
        id="revokeReplyLink",
        tag=PRODUCE,
        answers=ok(reply_answers.ReplyLinkRevoked),
    ),
    post(
        "/v1/settle",
        "consume",
        consume.settle,
        inputs.Settlements,
        id="settle",
        tag=CONSUME,
        answers=ok(answers.SettledItems),
        items=inputs.SettleItem,
    ),
    Entry(
        "PUT",
        "/v1/jobs/{id}/touch",
        "consume",
        consume.touch,
        body=inputs.Touched,
        id="touch",
        tag=CONSUME,
        answers=ok(answers.TouchedLease),
        refuses=(LEASE_LOST,),
    ),
    post(
        "/v1/jobs/{id}/nack",
        "consume",
        consume.nack,
        inputs.Nacked,
        id="nack",
        tag=CONSUME,
        answers=ok(answers.Settled),
        refuses=(LEASE_LOST,),
        example={
            "token": _TOKEN,
            "error": {"kind": "SMTPTimeout", "message": "no answer in 30 s"},
            "retry_in": 30,
        },
    ),
    post(
        "/v1/jobs/{id}/release",
        "consume",
        consume.release,
        inputs.Released,
        id="release",
        tag=CONSUME,
        answers=ok(answers.Settled),
        refuses=(LEASE_LOST,),
    ),
    post(
        "/v1/jobs/bulk",
        "produce",
        produce.bulk,
        MANY,
        id="enqueueMany",
        tag=PRODUCE,
        answers=ok(answers.Stored),
        items=inputs.NewJob,
        example=[
            {"kind": "resize", "payload": {"image": 7}},
            {"kind": "resize", "payload": {"image": 8}},
        ],
    ),
    get(
        "/v1/jobs",
        "read",
        look.jobs,
        inputs.Page,
        id="listJobs",
        tag=JOBS,
        answers=ok(answers.JobPage),
    ),
    post("/v1/jobs/{id}/retry", "operate", operate.retry, inputs.Retried, id="retryJob", **_CHANGE),
    post(
        "/v1/jobs/{id}/cancel", "operate", operate.cancel, inputs.Reason, id="cancelJob", **_CHANGE
    ),
    post(
        "/v1/jobs/{id}/archive",
        "operate",
        operate.archive,
        inputs.Reason,
        id="archiveJob",
        **_CHANGE,
    ),
    get(
        "/v1/jobs/{id}/log",
        "read",
        look.job_log,
        inputs.LinesOf,
        id="getJobLog",
        tag=JOBS,
        answers=ok(answers.Lines),
        refuses=(GONE,),
    ),
    get(
        "/v1/jobs/{id}",
        "read",
        look.job,
        inputs.OneJob,
        id="getJob",
        tag=JOBS,
        answers=ok(answers.Job, "The job."),
        refuses=(GONE,),
    ),
    Entry(
        "PATCH", "/v1/jobs/{id}", "operate", operate.edit, inputs.Edited, id="editJob", **_CHANGE
    ),
    Entry("DELETE", "/v1/jobs/{id}", "operate", operate.delete, id="deleteJob", **_CHANGE),
    get(
        "/v1/dead/groups",
        "read",
        look.dead_groups,
        id="listDeadGroups",
        tag=JOBS,
        answers=ok(answers.DeadGroups),
    ),
    get(
        "/v1/dead",
        "read",
        look.dead,
        inputs.DeadPage,
        id="listDead",
        tag=JOBS,
        answers=ok(answers.JobPage),
    ),
    post(
        "/v1/operations:preview",
        "operate",
        operate.preview,
        inputs.Previewed,
        id="previewOperation",
        tag=OPERATIONS,
        answers=ok(
            answers.Preview,
            links={"start": to("startOperation", body={"preview_token": "/preview_token"})},
        ),
        example={"op": "retry", "q": "state:dead group:f3a9c001"},
    ),
    get(
        "/v1/operations",
        "read",
        look.operations,
        inputs.Limit,
        id="listOperations",
        tag=OPERATIONS,
        answers=ok(answers.Operations),
    ),
    post(
        "/v1/operations",
        "operate",
        operate.start,
        inputs.Started,
        id="startOperation",
        tag=OPERATIONS,
        answers=BEGUN,
        refuses=(NOT_THERE, PREVIEW_TOO_OLD),
        example={"preview_token": f"pv_{_TOKEN}", "rate": "200/s"},
    ),
    get(
        "/v1/operations/{id}",
        "read",
        look.one_operation,
        id="getOperation",
        tag=OPERATIONS,
        answers=ok(answers.Operation),
    ),
    Entry(
        "DELETE",
        "/v1/operations/{id}",
        "operate",
        operate.stop_operation,
        id="cancelOperation",
        tag=OPERATIONS,
        answers=ok(answers.Operation),
        refuses=(WRONG_STATE,),
    ),
    post(
        "/v1/operations/{id}/undo",
        "operate",
        operate.undo_operation,
        inputs.Undone,
        id="undoOperation",
        tag=OPERATIONS,
        answers=BEGUN,
        refuses=(WRONG_STATE,),
        example={"reason": "wrong group", "rate": "200/s"},
    ),
]
