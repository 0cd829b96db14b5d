// The timeline of a job: waiting and running times, and the outcome of each attempt.

import { useEffect, useRef } from "preact/hooks";
import { absolute, duration, fine, now, plural } from "../format";
import type { Attempt, Job, Step } from "../wire";
import { Icon, type IconName } from "./icon";

interface Stretch {
  what: "waiting" | "running";
  from: number;
  until: number;
  mood: string;
  label: string;
  end?: { icon: IconName; text: string; mood: string };
}

interface Known extends Stretch {
  open: boolean;
}

export function Timeline({ job }: { job: Job }) {
  const stretches = life(job, job.attempts ?? []);
  const line = useRef<HTMLOListElement>(null);
  // What matters is now; a narrow screen shows the end first.
  useEffect(() => line.current?.scrollTo({ left: line.current.scrollWidth }), [job.id]);
  if (!stretches.length) return null;
  return (
    <ol ref={line} class="timeline" aria-label="Job timeline" tabIndex={0}>
      {stretches.map((one, index) => {
        const seconds = Math.max(0, (one.until - one.from) / 1000);
        return (
          <li key={index} class={`${one.what} ${one.mood}`} style={{ flexGrow: Math.max(1, Math.sqrt(seconds + 0.01) * 3).toFixed(2) }} title={`${one.label} ${fine(seconds)}, ${absolute(one.from)} to ${absolute(one.until)}`}>
            <span class="bar" />
            <span class="timeline-text">
              <b>{one.label}</b>
              <span class="number">{duration(seconds)}</span>
              {one.end && (
                <span class={`state ${one.end.mood}`}>
                  <Icon name={one.end.icon} />
                  {one.end.text}
                </span>
              )}
            </span>
          </li>
        );
      })}
    </ol>
  );
}

/** The last of the attempts and waits are drawn one by one; those before them as one. */
const DRAWN = 16;

function life(job: Job, attempts: Attempt[]): Stretch[] {
  const steps = job.steps ?? [];
  const known = [...attempts.flatMap(failed), ...steps.filter((one) => one.kind !== "step").map(waited)].sort((a, b) => a.from - b.from);
  const created = Date.parse(job.created_at);
  const early = known.length > DRAWN ? known.splice(0, known.length - DRAWN) : [];
  const out: Stretch[] = [];
  let at = created;
  if (early.length) {
    at = early.at(-1)!.until;
    out.push({ what: "waiting", from: created, until: at, mood: "", label: plural(early.length, "earlier attempt or wait", "earlier attempts and waits") });
  }
  for (const one of known) {
    if (one.open) break;
    out.push(...between(at, one.from, out.length > 0, steps, one.what === "running"));
    out.push(one);
    at = Math.max(at, one.until);
  }
  const waits = known.find((one) => one.open);
  if (job.state === "queued") {
    const due = Date.parse(job.run_at) <= now.value;
    if (waits && !due) {
      out.push(...between(at, waits.from, out.length > 0, steps, false));
      out.push({ ...waits, until: Math.max(now.value, waits.from) });
    } else out.push({ what: "waiting", from: at, until: Math.max(now.value, at), mood: "open", label: !due ? "not due yet" : out.length ? "waiting to go on" : "waiting" });
  } else if (job.state === "leased" && job.lease_until) {
    const began = job.progress?.at ? Math.min(Date.parse(job.progress.at), Date.parse(job.lease_until)) : at;
    out.push({ what: "running", from: Math.max(at, Math.min(began, now.value)), until: now.value, mood: "open", label: `attempt ${job.attempt}`, end: { icon: "dot", text: "running", mood: "leased" } });
  } else if (job.ended_at && Date.parse(job.ended_at) > at + 1) {
    const good = job.state === "done";
    out.push({ what: good ? "running" : "waiting", from: at, until: Date.parse(job.ended_at), mood: good ? "good" : "", label: good ? "waited and ran" : "waited", end: good ? { icon: "done", text: "done", mood: "done" } : { icon: "minus", text: job.state, mood: job.state } });
  }
  return out;
}

function failed(one: Attempt): Known[] {
  const ended = one.ended_at ? Date.parse(one.ended_at) : undefined;
  const started = one.started_at ? Date.parse(one.started_at) : ended;
  if (started === undefined || ended === undefined) return [];
  return [{ what: "running", from: started, until: ended, mood: moods[one.outcome] ?? "failed", label: `attempt ${one.attempt}`, end: ending(one), open: false }];
}

function waited(step: Step): Known {
  const ended = step.ended_at === null ? Infinity : Date.parse(step.ended_at);
  const open = ended > now.value;
  const label = step.kind === "sleep" ? (open ? "sleeping" : "slept") : `${open ? "waiting" : "waited"} for ${step.event}`;
  const end: Stretch["end"] = step.timed_out ? { icon: "clock", text: "timed out", mood: "paused" } : undefined;
  return { what: "waiting", from: Date.parse(step.began_at), until: ended, mood: open ? "open" : "", label, end, open };
}

/** From the end of one thing to the beginning of the next: it waits for a worker, then runs, which its steps tell. */
function between(from: number, until: number, again: boolean, steps: Step[], isAttempt: boolean): Stretch[] {
  const queued = again ? "waited" : "queued";
  const began = steps.filter((one) => one.kind === "step").map((one) => Date.parse(one.began_at)).find((at) => at >= from && at < until);
  if (began === undefined || isAttempt) return until - from > 1 || !again ? [{ what: "waiting", from, until: Math.max(from, until), mood: "", label: queued }] : [];
  return [
    { what: "waiting", from, until: began, mood: "", label: queued },
    { what: "running", from: began, until, mood: "good", label: "ran" },
  ];
}

const moods: Record<string, string> = { failed: "failed", dead: "failed", expired: "expired", released: "released", reconciled: "good", cancelled: "released" };

function ending(attempt: Attempt): Stretch["end"] {
  if (attempt.outcome === "expired") return { icon: "clock", text: "lease expired", mood: "paused" };
  if (attempt.outcome === "released") return { icon: "minus", text: "released", mood: "cancelled" };
  if (attempt.outcome === "reconciled") return { icon: "done", text: "found to be done", mood: "done" };
  return { icon: "cross", text: attempt.error_kind ?? attempt.outcome, mood: "dead" };
}
