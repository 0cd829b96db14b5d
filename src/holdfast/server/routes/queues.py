"""The addresses of queues, lanes, strikes, schedules and workers."""

from typing import Any

from holdfast.server.api import look, operate
from holdfast.server.http import answers, inputs
from holdfast.server.http.refusals import PREVIEW_TOO_OLD, WRONG_STATE
from holdfast.server.http.route import Entry, Told, get, ok, post, to
from holdfast.server.routes.jobs import BEGUN
from holdfast.server.routes.tags import QUEUES, SCHEDULES, WORKERS

_OF_SCHEDULE = {
    f"{verb}Schedule": to(f"{verb}Schedule", name="/name")
    for verb in ("get", "run", "change", "delete")
}
_QUEUE: Any = {"tag": QUEUES, "answers": ok(answers.Queue, "The queue.")}
_SCHEDULE: Any = {"tag": SCHEDULES, "answers": ok(answers.Schedule, "The schedule.")}

ROUTES: list[Entry] = [
    get("/v1/queues", "read", look.queues, id="listQueues", tag=QUEUES, answers=ok(answers.Queues)),
    post(
        "/v1/queues/{queue:path}/pause",
        "operate",
        operate.pause,
        inputs.Paused,
        id="pauseQueue",
        **_QUEUE,
    ),
    post("/v1/queues/{queue:path}/resume", "operate", operate.resume, id="resumeQueue", **_QUEUE),
    post(
        "/v1/queues/{queue:path}/drain",
        "operate",
        operate.drain,
        inputs.Drained,
        id="drainQueue",
        tag=QUEUES,
        answers=BEGUN,
        refuses=(PREVIEW_TOO_OLD,),
    ),
    get(
        "/v1/queues/{queue:path}/explain",
        "read",
        look.explain_queue,
        id="explainQueue",
        tag=QUEUES,
        answers=ok(answers.QueueExplained),
    ),
    get(
        "/v1/queues/{queue:path}/upcoming",
        "read",
        look.upcoming,
        inputs.Upcoming,
        id="listUpcoming",
        tag=QUEUES,
        answers=ok(answers.JobPage),
    ),
    # Behind all that have a word after the queue, which it would match: names may have slashes.
    get("/v1/queues/{queue:path}", "read", look.queue, id="getQueue", **_QUEUE),
    Entry(
        "PATCH",
        "/v1/queues/{queue:path}",
        "operate",
        operate.queue_set,
        body=dict[str, Any],
        items=inputs.QueueSettings,
        id="setQueue",
        example={"limit": 4, "keep_done": 86400},
        **_QUEUE,
    ),
    get("/v1/kinds", "read", look.kinds, id="listKinds", tag=QUEUES, answers=ok(answers.Kinds)),
    get(
        "/v1/schedules",
        "read",
        look.schedules,
        id="listSchedules",
        tag=SCHEDULES,
        answers=ok(answers.Schedules),
    ),
    post(
        "/v1/schedules/{name:path}/run",
        "operate",
        operate.run_schedule,
        id="runSchedule",
        tag=SCHEDULES,
        answers=ok(answers.ScheduleRun, status=201),
    ),
    get("/v1/schedules/{name:path}", "read", look.schedule, id="getSchedule", **_SCHEDULE),
    Entry(
        "PUT",
        "/v1/schedules/{name:path}",
        "operate",
        operate.put_schedule,
        inputs.NewSchedule,
        id="putSchedule",
        tag=SCHEDULES,
        answers={
            201: Told(answers.Schedule, "The schedule is created.", _OF_SCHEDULE),
            200: Told(answers.Schedule, "The schedule as it is now."),
        },
        example={"kind": "rates", "cron": "30 5 * * MON-FRI", "tz": "Europe/Paris"},
    ),
    Entry(
        "PATCH",
        "/v1/schedules/{name:path}",
        "operate",
        operate.change_schedule,
        inputs.ChangedSchedule,
        id="changeSchedule",
        **_SCHEDULE,
    ),
    Entry(
        "DELETE",
        "/v1/schedules/{name:path}",
        "operate",
        operate.delete_schedule,
        id="deleteSchedule",
        tag=SCHEDULES,
        answers=ok(answers.ScheduleDeleted),
    ),
    get(
        "/v1/workers",
        "read",
        look.workers,
        id="listWorkers",
        tag=WORKERS,
        answers=ok(answers.Workers),
    ),
    post(
        "/v1/workers/{worker:path}/stop",
        "operate",
        operate.stop_worker,
        id="stopWorker",
        tag=WORKERS,
        answers=ok(answers.WorkerStopping, status=202),
    ),
    get("/v1/lanes", "read", look.lanes, id="listLanes", tag=QUEUES, answers=ok(answers.Lanes)),
    post(
        "/v1/lanes/{lane:path}/release",
        "admin",
        operate.release_lane,
        inputs.LaneOf,
        id="releaseLane",
        tag=QUEUES,
        answers=ok(answers.LaneReleased),
        refuses=(WRONG_STATE,),
    ),
    get(
        "/v1/lanes/{lane:path}/explain",
        "read",
        look.explain_lane,
        inputs.LaneOf,
        id="explainLane",
        tag=QUEUES,
        answers=ok(answers.LaneExplained),
    ),
    get(
        "/v1/strikes",
        "read",
        look.strikes,
        inputs.Strikes,
        id="listStrikes",
        tag=QUEUES,
        answers=ok(answers.StrikeList),
    ),
    post(
        "/v1/strikes",
        "operate",
        operate.strike,
        inputs.NewStrike,
        id="addStrike",
        tag=QUEUES,
        answers=ok(
            answers.Strike,
            "The strike is in force.",
            status=201,
            links={"lift": to("liftStrike", number="/number")},
        ),
        example={"kind": "send_sms", "reason": "the provider is down", "expires": 3600},
    ),
    Entry(
        "DELETE",
        "/v1/strikes/{number}",
        "operate",
        operate.lift,
        id="liftStrike",
        tag=QUEUES,
        answers=ok(answers.Strike, "The strike has ended."),
    ),
]
