// Every action of the dashboard: the question, the request, and the equivalent command.

import { path, type Asked } from "./api";
import { plural, short } from "./format";
import { all } from "./filter";
import { bulk } from "./parts/bulk";
import { shell } from "./parts/copy";
import { confirm, type Field } from "./parts/dialog";
import { howStored, pretty } from "./parts/json";
import { go, to } from "./route";
import { operations } from "./live";
import type { Anomaly, Job, Json, Lane, Operation, Queue, Schedule, Worker, Workflow } from "./wire";

const reason: Field = { name: "reason", label: "Reason", hint: "shown in Activity", placeholder: "optional" };
const why = (values: Record<string, string>): Record<string, Json> => (values.reason?.trim() ? { reason: values.reason.trim() } : {});
const because = (values: Record<string, string>): (string | false)[] => (values.reason?.trim() ? ["--reason", values.reason.trim()] : []);

export function retryJob(job: Job): void {
  confirm({
    title: `Retry ${job.kind} ${short(job.id)}`,
    body: "The job will be retried from attempt 1. The record of its earlier attempts is kept.",
    fields: [reason],
    act: "Retry",
    deed: (values) => ({
      asked: { method: "POST", path: path(["jobs", job.id, "retry"]), body: why(values) },
      cli: shell("holdfast", "job", "retry", job.id, ...because(values)),
      said: "Queued for retry",
    }),
  });
}

export function cancelJob(job: Job): void {
  const running = job.state === "leased";
  confirm({
    title: `Cancel ${job.kind} ${short(job.id)}`,
    body: running ? "The job is running. Its worker learns of the cancellation at its next heartbeat and can no longer change the job." : "The job will not run.",
    fields: [reason],
    act: "Cancel job",
    dismiss: "Go back",
    bad: true,
    deed: (values) => ({
      asked: { method: "POST", path: path(["jobs", job.id, "cancel"]), body: why(values) },
      cli: shell("holdfast", "job", "cancel", job.id, ...because(values)),
      said: "Cancelled",
    }),
  });
}

export function archiveJob(job: Job): void {
  bulk("archive", all(["id", job.id]), { title: `Archive ${job.kind} ${short(job.id)}` });
}

export function deleteJob(job: Job, after?: () => void): void {
  confirm({
    title: `Delete ${job.kind} ${short(job.id)}`,
    body: "Permanently deletes the job and the record of its attempts. To hide the job but keep it, archive it instead.",
    act: "Delete permanently",
    word: short(job.id),
    bad: true,
    deed: () => ({
      asked: { method: "DELETE", path: path(["jobs", job.id]) },
      cli: shell("holdfast", "job", "delete", job.id, "--yes"),
      said: "Deleted",
    }),
    after,
  });
}

/** Change a payload; a dead job is retried with it. */
export function editJob(job: Job, andRetry: boolean): void {
  const before = pretty(job.payload);
  const coded = howStored(job.payload);
  confirm<{ id?: string }>({
    title: `${andRetry ? "Edit and retry" : "Edit"} ${job.kind} ${short(job.id)}`,
    body: andRetry ? "The job will be retried from attempt 1 with this payload. The record of its earlier attempts is kept." : coded ? `${coded} Its payload cannot be edited.` : "Takes effect at the next attempt.",
    fields: [
      ...(coded ? [] : [{ name: "payload", label: "Payload", value: before, lines: 12, mono: true, required: true }]),
      { name: "priority", label: "Priority", value: String(job.priority), options: priorities },
      reason,
    ],
    act: andRetry ? "Save and retry" : "Save",
    deed: (values) => {
      const payload = coded ? job.payload : parsed(values.payload ?? "");
      const change: Record<string, Json> = { ...why(values) };
      if (!coded && values.payload !== before) change.payload = payload;
      if (Number(values.priority) !== job.priority) change.priority = Number(values.priority);
      const edit: Asked = { method: "PATCH", path: path(["jobs", job.id]), body: change };
      const retry: Asked = { method: "POST", path: path(["jobs", job.id, "retry"]), body: why(values) };
      const changed = "payload" in change || "priority" in change;
      if (!changed && !andRetry) throw new Error("No changes to save.");
      return {
        asked: changed ? edit : retry,
        then: changed && andRetry ? retry : undefined,
        cli:
          shell("holdfast", "job", "edit", job.id, ...(coded ? [] : ["--payload", JSON.stringify(payload)]), Number(values.priority) !== job.priority && `--priority=${values.priority}`, ...because(values)) +
          (andRetry ? " && " + shell("holdfast", "job", "retry", job.id) : ""),
        said: andRetry ? "Saved and queued for retry" : "Saved",
      };
    },
  });
}

export function moveJob(job: Job, queues: string[]): void {
  confirm<{ id?: string; new_id?: string }>({
    title: `Move ${job.kind} ${short(job.id)}`,
    body: "The job gets a new id, because an id contains its queue. The old id still works.",
    fields: [{ name: "queue", label: "To queue", value: queues.find((queue) => queue !== job.queue) ?? "", required: true, placeholder: "queue name" }, reason],
    act: "Move",
    deed: (values) => {
      const queue = values.queue?.trim();
      if (!queue) throw new Error("Enter a queue name.");
      return {
        asked: { method: "PATCH", path: path(["jobs", job.id]), body: { queue, ...why(values) } },
        cli: shell("holdfast", "job", "move", job.id, "--to", queue, ...because(values)),
        said: `Moved to ${queue}`,
      };
    },
    after: (answer) => {
      if (answer?.id) go(to(["jobs", answer.new_id ?? answer.id]), { replace: true });
    },
  });
}

export function pauseQueue(queue: Queue): void {
  confirm({
    title: `Pause ${queue.queue}`,
    body: `No new jobs will start. ${queue.leased ? `${plural(queue.leased, "running job")} will finish. ` : ""}Jobs can still be enqueued.`,
    fields: [
      { name: "seconds", label: "For how long", options: [
        { value: "", label: "until resumed" },
        { value: "600", label: "10 minutes" },
        { value: "3600", label: "1 hour" },
        { value: "86400", label: "1 day" },
      ] },
      reason,
    ],
    act: "Pause",
    deed: (values) => ({
      asked: { method: "POST", path: path(["queues", queue.queue, "pause"]), body: { ...why(values), ...(values.seconds ? { seconds: Number(values.seconds) } : {}) } },
      cli: shell("holdfast", "queue", "pause", queue.queue, ...(values.seconds ? ["--for", `${values.seconds}s`] : []), ...because(values)),
      said: `${queue.queue} is paused`,
    }),
  });
}

export function resumeQueue(queue: Queue): void {
  confirm({
    title: `Resume ${queue.queue}`,
    body: queue.queued ? `Workers will start the ${plural(queue.queued, "queued job")} right away.` : "No jobs are queued.",
    act: "Resume",
    deed: () => ({
      asked: { method: "POST", path: path(["queues", queue.queue, "resume"]), body: {} },
      cli: shell("holdfast", "queue", "resume", queue.queue),
      said: `${queue.queue} is resumed`,
    }),
  });
}

export function stopWorker(worker: Worker): void {
  confirm({
    title: `Stop ${worker.worker}`,
    body: worker.busy ? `The worker finishes its ${plural(worker.busy, "running job")}, claims no more, and exits.` : "The worker claims no more jobs and exits.",
    act: "Stop after current jobs",
    bad: true,
    deed: () => ({
      asked: { method: "POST", path: path(["workers", worker.worker, "stop"]), body: {} },
      cli: shell("holdfast", "worker", "stop", worker.worker),
      said: "Stop requested",
    }),
  });
}

export function runSchedule(schedule: Schedule): void {
  confirm<{ job?: string }>({
    title: `Run ${schedule.name} now`,
    body: `Enqueues one ${schedule.kind} job in ${schedule.queue} now. The next scheduled run does not change.`,
    act: "Run now",
    deed: () => ({
      asked: { method: "POST", path: path(["schedules", schedule.name, "run"]), body: {} },
      cli: shell("holdfast", "schedule", "run", schedule.name),
      said: "Enqueued",
    }),
    after: (answer) => {
      if (answer?.job) go(to(["jobs", answer.job]));
    },
  });
}

export function pauseSchedule(schedule: Schedule): void {
  confirm({
    title: `Pause ${schedule.name}`,
    body: "The schedule enqueues no jobs until it is resumed.",
    fields: [reason],
    act: "Pause",
    deed: (values) => ({
      asked: { method: "PATCH", path: path(["schedules", schedule.name]), body: { paused: true, ...why(values) } },
      cli: shell("holdfast", "schedule", "pause", schedule.name, ...because(values)),
      said: `${schedule.name} is paused`,
    }),
  });
}

export function resumeSchedule(schedule: Schedule): void {
  confirm({
    title: `Resume ${schedule.name}`,
    body: "The schedule enqueues jobs again from its next slot.",
    act: "Resume",
    deed: () => ({
      asked: { method: "PATCH", path: path(["schedules", schedule.name]), body: { paused: false } },
      cli: shell("holdfast", "schedule", "resume", schedule.name),
      said: `${schedule.name} is resumed`,
    }),
  });
}

export function drainQueue(queue: Queue): void {
  confirm<Operation>({
    title: `Drain ${queue.queue}`,
    body: `Cancels all queued jobs: ${plural(queue.queued, "job")} right now. Running jobs are not affected.`,
    fields: [reason],
    act: "Cancel queued jobs",
    dismiss: "Go back",
    word: queue.queue,
    bad: true,
    deed: (values) => ({
      asked: { method: "POST", path: path(["queues", queue.queue, "drain"]), body: why(values) },
      cli: shell("holdfast", "job", "cancel", all(["state", "queued"], ["queue", queue.queue]), ...because(values)),
      said: "Draining",
    }),
    after: noteOperation,
  });
}

export function cancelWorkflow(workflow: Workflow): void {
  const { waiting, queued, leased } = workflow.jobs;
  confirm<Operation>({
    title: `Cancel workflow ${workflow.name}`,
    body: `Cancels ${plural(waiting + queued + leased, "job")}${leased ? `, of which ${plural(leased, "is", "are")} running` : ""}. Nothing can be added to the workflow. You can undo it for jobs that were not running.`,
    fields: [reason],
    act: "Cancel workflow",
    dismiss: "Go back",
    bad: true,
    deed: (values) => ({
      asked: { method: "POST", path: path(["workflows", workflow.id, "cancel"]), body: why(values) },
      cli: shell("holdfast", "workflow", "cancel", workflow.id, ...because(values)),
      said: "Cancelling the workflow",
    }),
    after: noteOperation,
  });
}

/** Retry what failed in a workflow: all of it, or from a job on. */
export function retryWorkflow(workflow: Workflow, from?: string): void {
  const { dead, cancelled } = workflow.jobs;
  confirm<Operation>({
    title: `Retry workflow ${workflow.name}${from ? ` from ${short(from)} on` : ""}`,
    body: `${from ? "The job, and what failed after it," : `${plural(dead + cancelled, "job that failed", "jobs that failed")}`} will be retried from attempt 1. Jobs that are done stay done.`,
    fields: [reason],
    act: "Retry",
    deed: (values) => ({
      asked: { method: "POST", path: path(["workflows", workflow.id, "retry"]), body: { ...why(values), ...(from ? { from_job: from } : {}) } },
      cli: shell("holdfast", "workflow", "retry", workflow.id, ...(from ? ["--from", from] : []), ...because(values)),
      said: "Retrying the workflow",
    }),
    after: noteOperation,
  });
}

export function releaseLane(lane: Lane): void {
  confirm({
    title: `Release lane ${lane.lane}`,
    body: lane.halted_by
      ? "A failed job halted this lane. Releasing it starts the next job."
      : "The job that holds the lane loses its lease, and the next job starts. The server refuses this while the worker that runs it is alive.",
    act: "Release lane",
    word: lane.lane,
    bad: true,
    deed: () => ({
      asked: { method: "POST", path: path(["lanes", lane.lane, "release"]), body: { queue: lane.queue } },
      said: "Released",
    }),
  });
}

export function ackAnomaly(anomaly: Anomaly): void {
  confirm({
    title: `Acknowledge: ${anomaly.title}`,
    body: "Shows others that you are handling it. The anomaly stays in the list until it is over, and notifications are sent again if it gets worse.",
    fields: [{ name: "note", label: "Note", hint: "shown to others", placeholder: "optional" }],
    act: "Acknowledge",
    deed: (values) => ({
      asked: { method: "POST", path: path(["anomalies", anomaly.id, "ack"]), body: { ...(values.note?.trim() ? { note: values.note.trim() } : {}) } },
      cli: shell("holdfast", "anomaly", "ack", anomaly.id, ...(values.note?.trim() ? ["--note", values.note.trim()] : [])),
      said: "Acknowledged",
    }),
  });
}

export function muteAnomaly(anomaly: Anomaly): void {
  confirm({
    title: `Mute: ${anomaly.title}`,
    body: "Stops notifications by webhook and log. The anomaly stays in the list.",
    fields: [
      { name: "all", label: "What", options: [
        { value: "", label: "only this anomaly" },
        { value: "all", label: `all anomalies of the detector ${anomaly.code}` },
      ] },
      { name: "seconds", label: "For how long", value: "86400", options: [
        { value: "86400", label: "1 day" },
        { value: "3600", label: "1 hour" },
        { value: "604800", label: "1 week" },
        { value: "", label: "until unmuted" },
      ] },
      reason,
    ],
    act: "Mute",
    deed: (values) => ({
      asked: {
        method: "POST",
        path: path(["anomalies", anomaly.id, "mute"]),
        body: { ...why(values), ...(values.all ? { all: true } : {}), ...(values.seconds ? { seconds: Number(values.seconds) } : {}) },
      },
      cli: shell(
        "holdfast", "anomaly", "mute", anomaly.code,
        ...(!values.all && anomaly.queue ? ["--queue", anomaly.queue] : []),
        ...(!values.all && anomaly.subject ? ["--subject", anomaly.subject] : []),
        ...(values.seconds ? ["--for", `${values.seconds}s`] : []),
        ...because(values),
      ),
      said: "Muted",
    }),
  });
}

export function unmuteAnomaly(anomaly: Anomaly): void {
  confirm({
    title: `Unmute: ${anomaly.title}`,
    fields: [
      { name: "all", label: "What", options: [
        { value: "", label: "only this anomaly" },
        { value: "all", label: `all anomalies of the detector ${anomaly.code}` },
      ] },
    ],
    act: "Unmute",
    deed: (values) => ({
      asked: { method: "POST", path: path(["anomalies", anomaly.id, "unmute"]), body: { all: Boolean(values.all) } },
      said: "Unmuted",
    }),
  });
}

export function editSchedule(schedule: Schedule | null): void {
  const known = schedule;
  confirm({
    title: known ? `Edit ${known.name}` : "New schedule",
    body: known?.owner ? "This schedule is declared in code. Your edit stays in effect until the declaration changes." : undefined,
    fields: [
      ...(known ? [] : [
        { name: "name", label: "Name", required: true, placeholder: "nightly-rates", mono: true },
        { name: "kind", label: "Kind", required: true, placeholder: "fetch_rates", mono: true },
        { name: "queue", label: "Queue", value: "default" },
      ]),
      { name: "rule", label: "Rule", hint: "a cron expression, or an interval such as 10m", value: known ? (known.cron ?? `${known.every ?? 60}s`) : "", required: true, mono: true, placeholder: "30 5 * * MON-FRI" },
      { name: "tz", label: "Zone", value: known?.tz ?? Intl.DateTimeFormat().resolvedOptions().timeZone },
      { name: "missed", label: "Missed slots", value: known?.missed ?? "once", options: [
        { value: "once", label: "run once to catch up" },
        { value: "all", label: "run all of them" },
        { value: "skip", label: "skip them" },
      ] },
      { name: "overlap", label: "If the previous job is still running", value: known?.overlap ?? "queue", options: [
        { value: "queue", label: "enqueue the next job anyway" },
        { value: "skip", label: "skip the slot" },
        { value: "cancel", label: "cancel the previous job" },
      ] },
      { name: "payload", label: "Payload", value: pretty(known?.payload ?? {}), lines: 4, mono: true },
    ],
    act: known ? "Save" : "Create",
    deed: (values) => {
      const rule = values.rule!.trim();
      const every = /^(\d+(?:\.\d+)?)(s|m|h|d)$/.exec(rule);
      const body: Record<string, Json> = {
        ...(every ? { every: Number(every[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[every[2] as "s"] } : { cron: rule }),
        tz: values.tz!.trim() || "UTC",
        missed: values.missed!,
        overlap: values.overlap!,
        payload: parsed(values.payload || "{}"),
        ...(known ? {} : { kind: values.kind!.trim(), queue: values.queue!.trim() || "default" }),
      };
      const name = known?.name ?? values.name!.trim();
      if (!name) throw new Error("Enter a name.");
      return {
        asked: { method: known ? "PATCH" : "PUT", path: path(["schedules", name]), body },
        said: known ? "Saved" : `${name} is created`,
      };
    },
  });
}

export function deleteSchedule(schedule: Schedule): void {
  confirm({
    title: `Delete ${schedule.name}`,
    body: "Permanently deletes the schedule and the record of its slots. Jobs it has enqueued are kept.",
    act: "Delete permanently",
    word: schedule.name,
    bad: true,
    deed: () => ({
      asked: { method: "DELETE", path: path(["schedules", schedule.name]) },
      cli: shell("holdfast", "schedule", "delete", schedule.name),
      said: "Deleted",
    }),
    after: () => go("schedules"),
  });
}

function noteOperation(operation: Operation): void {
  if (operation?.id) operations.value = { ...operations.value, [operation.id]: operation };
}

export const priorities = Array.from({ length: 10 }, (_, value) => ({ value: String(value), label: value === 9 ? "9 (first)" : value === 0 ? "0 (last)" : String(value) }));

export function parsed(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch (error) {
    throw new Error(`Not valid JSON: ${(error as Error).message}`);
  }
}

export const jobsOf = (...pairs: [string, string][]): string => to(["jobs"], { q: all(...pairs) });
