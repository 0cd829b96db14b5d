// What an operator should look at first, as far as it can be told from what the server keeps anyway.

import { count, duration, plural } from "./format";
import { all } from "./filter";
import { to } from "./route";
import type { Anomaly, Kind, Lane, Queue, Schedule, Worker } from "./wire";

export interface Concern {
  code: string;
  grave: boolean;
  title: string;
  detail: string;
  /** Where to look. */
  link: string;
  /** What to type. */
  fix?: string;
}

interface Seen {
  anomalies?: Anomaly[];
  queues?: Queue[];
  kinds?: Kind[];
  workers?: Worker[];
  schedules?: Schedule[];
  lanes?: Lane[];
}

const LATE = 60;

/** Which detector judges the same, over time: what it has raised is not told a second time. */
const DETECTOR: Record<string, string> = {
  "no-worker": "no_worker",
  late: "late",
  paused: "paused_long",
  halted: "lane_halted",
  vanished: "worker_lost",
  schedule: "schedule_missed",
  versions: "version_skew",
};

export function concerns(seen: Seen): Concern[] {
  const raised = new Set(seen.anomalies?.map((one) => one.code));
  return [...unhandled(seen), ...late(seen), ...paused(seen), ...halted(seen), ...vanished(seen), ...troubled(seen), ...versions(seen)]
    .filter((one) => !raised.has(DETECTOR[one.code]!))
    .sort((a, b) => Number(b.grave) - Number(a.grave));
}

/** Anomalies that nobody has acked or muted, as concerns. */
export function raised(anomalies: Anomaly[] | undefined): Concern[] {
  return (anomalies ?? [])
    .filter((one) => !one.muted && !one.acked_at && one.severity !== "info")
    .map((one) => ({
      code: one.code,
      grave: one.severity === "critical",
      title: one.title,
      detail: one.detail ?? "",
      link: to(["anomalies"]),
      fix: one.suggestion ?? undefined,
    }));
}

function unhandled({ kinds, queues }: Seen): Concern[] {
  return (kinds ?? [])
    .filter((kind) => (kind.jobs.queued ?? 0) > 0 && kind.workers.length === 0)
    .map((kind) => ({
      code: "no-worker",
      grave: true,
      title: `No worker for ${kind.kind}`,
      detail: `${plural(kind.jobs.queued ?? 0, "job")} waiting, and no worker that was seen in the last minute handles this kind. ${queues?.length ? "Was the module that defines it imported?" : ""}`,
      link: to(["jobs"], { q: all(["state", "queued"], ["kind", kind.kind]) }),
      fix: "holdfast worker list",
    }));
}

function late({ queues }: Seen): Concern[] {
  return (queues ?? [])
    .filter((queue) => !queue.paused_at && (queue.oldest ?? 0) > LATE)
    .map((queue) => ({
      code: "late",
      grave: (queue.oldest ?? 0) > 10 * LATE,
      title: `${queue.queue} is ${duration(queue.oldest)} behind`,
      detail: `${plural(queue.queued, "job")} waiting, ${count(queue.leased)} running${queue.limit === null ? "" : ` of ${count(queue.limit)} allowed`}.`,
      link: to(["queues", queue.queue]),
      fix: `holdfast queue show ${queue.queue}`,
    }));
}

function paused({ queues }: Seen): Concern[] {
  return (queues ?? [])
    .filter((queue) => queue.paused_at && queue.queued > 0)
    .map((queue) => ({
      code: "paused",
      grave: false,
      title: `${queue.queue} is paused`,
      detail: `${plural(queue.queued, "job")} waiting${queue.paused_by ? `, paused by ${queue.paused_by}` : ""}${queue.paused_reason ? `: ${queue.paused_reason}` : ""}.`,
      link: to(["queues", queue.queue]),
      fix: `holdfast queue resume ${queue.queue}`,
    }));
}

function halted({ lanes }: Seen): Concern[] {
  return (lanes ?? [])
    .filter((lane) => lane.halted_by !== null)
    .map((lane) => ({
      code: "halted",
      grave: true,
      title: `Lane ${lane.lane} is halted`,
      detail: `A failed job stopped it; ${plural(lane.waiting, "job")} waiting behind.`,
      link: to(["lanes"]),
    }));
}

function vanished({ workers }: Seen): Concern[] {
  return (workers ?? [])
    .filter((worker) => !worker.alive && worker.busy > 0)
    .map((worker) => ({
      code: "vanished",
      grave: false,
      title: `${worker.worker} was last seen busy`,
      detail: `It ran ${plural(worker.busy, "job")} when it was last heard of. They come back when their leases end.`,
      link: to(["workers"]),
    }));
}

function troubled({ schedules }: Seen): Concern[] {
  return (schedules ?? [])
    .filter((schedule) => schedule.problem)
    .map((schedule) => ({
      code: "schedule",
      grave: true,
      title: `Schedule ${schedule.name} cannot fire`,
      detail: schedule.problem!,
      link: to(["schedules", schedule.name]),
      fix: `holdfast schedule show ${schedule.name}`,
    }));
}

function versions({ workers }: Seen): Concern[] {
  const found = skew(workers ?? []);
  if (found.length < 2) return [];
  return [{ code: "versions", grave: false, title: "Workers run different versions", detail: `${found.join(", ")}. Fine during a deploy, not for long.`, link: to(["workers"]) }];
}

/** The versions of Holdfast that living workers run. */
export function skew(workers: Worker[]): string[] {
  return [...new Set(workers.filter((worker) => worker.alive && worker.pid !== null && worker.version).map((worker) => worker.version!))].sort();
}
