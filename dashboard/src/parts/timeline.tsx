// The timeline of a job: waiting and running times, and the outcome of each attempt.

import { absolute, duration, fine, now } from "../format";
import type { Attempt, Job } from "../wire";
import { Icon, type IconName } from "./icon";

interface Stretch {
  what: "waiting" | "running";
  from: number;
  until: number;
  mood: string;
  label: string;
  end?: { icon: IconName; text: string; mood: string };
}

export function Timeline({ job }: { job: Job }) {
  const stretches = life(job, job.attempts ?? []);
  if (!stretches.length) return null;
  return (
    <ol class="timeline" aria-label="Job timeline" tabIndex={0}>
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

function life(job: Job, attempts: Attempt[]): Stretch[] {
  const out: Stretch[] = [];
  let at = Date.parse(job.created_at);
  for (const one of attempts) {
    const ended = one.ended_at ? Date.parse(one.ended_at) : undefined;
    const started = one.started_at ? Date.parse(one.started_at) : ended;
    if (started === undefined || ended === undefined) continue;
    out.push({ what: "waiting", from: at, until: Math.max(at, started), mood: "", label: out.length ? "waited" : "queued" });
    out.push({ what: "running", from: started, until: ended, mood: moods[one.outcome] ?? "failed", label: `attempt ${one.attempt}`, end: ending(one) });
    at = ended;
  }
  if (job.state === "queued") {
    const due = Date.parse(job.run_at);
    out.push({ what: "waiting", from: at, until: Math.max(now.value, at), mood: "open", label: due > now.value ? "not due yet" : attempts.length ? "waiting for the next attempt" : "waiting" });
  } else if (job.state === "leased" && job.lease_until) {
    const began = job.progress?.at ? Math.min(Date.parse(job.progress.at), Date.parse(job.lease_until)) : at;
    out.push({ what: "running", from: Math.max(at, Math.min(began, now.value)), until: now.value, mood: "open", label: `attempt ${job.attempt}`, end: { icon: "dot", text: "running", mood: "leased" } });
  } else if (job.ended_at && Date.parse(job.ended_at) > at + 1) {
    const good = job.state === "done";
    out.push({ what: good ? "running" : "waiting", from: at, until: Date.parse(job.ended_at), mood: good ? "good" : "", label: good ? "waited and ran" : "waited", end: good ? { icon: "done", text: "done", mood: "done" } : { icon: "minus", text: job.state, mood: job.state } });
  }
  return out;
}

const moods: Record<string, string> = { failed: "failed", dead: "failed", expired: "expired", released: "released", reconciled: "good", cancelled: "released" };

function ending(attempt: Attempt): Stretch["end"] {
  if (attempt.outcome === "expired") return { icon: "clock", text: "lease expired", mood: "paused" };
  if (attempt.outcome === "released") return { icon: "minus", text: "released", mood: "cancelled" };
  if (attempt.outcome === "reconciled") return { icon: "done", text: "found to be done", mood: "done" };
  return { icon: "cross", text: attempt.error_kind ?? attempt.outcome, mood: "dead" };
}
