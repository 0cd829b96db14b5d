// Export and import of jobs as a file, one line per job.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { ask, look, parse, path, type Asked, type Problem } from "../api";
import { refreshAll } from "../feed";
import { count, plural } from "../format";
import { jobFields, type Job, type JobPage, type Json } from "../wire";
import { Button } from "./basics";
import { CopyAs } from "./copy";
import { Modal } from "./dialog";
import { Trouble } from "./empty";
import { save } from "./table";
import { toast } from "./toast";

const MOST = 10_000;
const AT_ONCE = 500;

/** Save every job that matches, newest first, up to a number that a browser can handle. */
export async function exportAll(filter: string): Promise<void> {
  const lines: string[] = [];
  let cursor: string | null = "";
  try {
    while (cursor !== null && lines.length < MOST) {
      const page: JobPage = await look<JobPage>(path(["jobs"], { q: filter, limit: AT_ONCE, cursor }));
      lines.push(...page.jobs.map((job) => JSON.stringify(job)));
      cursor = page.cursor;
    }
  } catch (error) {
    toast((error as Problem).detail, true);
    return;
  }
  save("jobs.ndjson", "application/x-ndjson", lines.join("\n") + "\n");
  if (cursor !== null) toast(`Saved the newest ${count(lines.length)}; there are more`, true);
}

const open = signal(false);

export function openImport(): void {
  open.value = true;
}

export function Import() {
  return open.value ? <Asking close={() => (open.value = false)} /> : null;
}

interface Answer {
  created: number;
  skipped: number;
  errors: { index: number; detail?: string; error?: string }[];
}

function Asking({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [queue, setQueue] = useState("");
  const [answer, setAnswer] = useState<Answer>();
  const [problem, setProblem] = useState<Problem | Error>();
  const [busy, setBusy] = useState(false);
  let jobs: Record<string, Json>[] = [];
  let fault = "";
  try {
    jobs = read(text, queue.trim());
  } catch (error) {
    fault = (error as Error).message;
  }
  const request = (some: Record<string, Json>[]): Asked => ({ method: "POST", path: "/v1/jobs/bulk", body: some });

  async function run(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setProblem(undefined);
    const sum: Answer = { created: 0, skipped: 0, errors: [] };
    try {
      for (let at = 0; at < jobs.length; at += AT_ONCE) {
        const told = await ask<Answer>(request(jobs.slice(at, at + AT_ONCE)));
        sum.created += told.created;
        sum.skipped += told.skipped;
        sum.errors.push(...told.errors.map((one) => ({ ...one, index: one.index + at })));
        setAnswer({ ...sum });
      }
      refreshAll();
    } catch (error) {
      setProblem(error as Problem);
    }
    setBusy(false);
  }

  return (
    <Modal title="Import jobs" close={close}>
      <form onSubmit={(event) => void run(event)}>
        <p class="modal-body">One JSON object per line, or an array, as "Export" saves them. They are enqueued as new jobs; jobs whose key is in use are skipped.</p>
        <label class="field">
          <span>File</span>
          <input type="file" accept=".json,.ndjson,.jsonl,application/json" onChange={(event) => void event.currentTarget.files?.[0]?.text().then(setText)} />
        </label>
        <label class="field">
          <span>
            Jobs <small>or paste them here</small>
          </span>
          <textarea class="mono" rows={7} spellcheck={false} value={text.length > 50_000 ? text.slice(0, 50_000) : text} placeholder={'{"kind": "greet", "payload": {"name": "Ada"}}'} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <label class="field">
          <span>
            Queue <small>for all jobs; leave empty to use their own</small>
          </span>
          <input value={queue} placeholder="as in each job" onInput={(event) => setQueue(event.currentTarget.value)} />
        </label>
        {fault && <p class="refusal" role="alert">{fault}</p>}
        {problem && <Trouble problem={problem as Problem} />}
        {answer && (
          <p class="notice" role="status">
            <span>
              {plural(answer.created, "job")} enqueued, {count(answer.skipped)} left out as duplicates
              {answer.errors.length > 0 && `, ${count(answer.errors.length)} refused: line ${(answer.errors[0]!.index ?? 0) + 1}: ${answer.errors[0]!.detail ?? answer.errors[0]!.error ?? ""}`}
            </span>
          </p>
        )}
        <footer>
          {jobs.length > 0 && jobs.length <= 20 ? <CopyAs asked={request(jobs)} /> : <span />}
          <div class="modal-acts">
            <Button look="quiet" onClick={close}>{answer ? "Close" : "Cancel"}</Button>
            <Button submit look="primary" disabled={busy || !jobs.length || answer !== undefined}>{`Enqueue ${count(jobs.length)}`}</Button>
          </div>
        </footer>
      </form>
    </Modal>
  );
}

function read(text: string, queue: string): Record<string, Json>[] {
  const trimmed = text.trim();
  if (!trimmed) return [];
  const rows = trimmed.startsWith("[") ? (parse(trimmed) as Job[]) : trimmed.split("\n").filter((line) => line.trim()).map(line);
  return rows.map((row, index) => {
    if (typeof row !== "object" || row === null || typeof row.kind !== "string") throw new Error(`Line ${index + 1}: a job is an object with a kind`);
    const job: Record<string, Json> = {};
    for (const name of jobFields) if (row[name] !== null && row[name] !== undefined) job[name] = row[name] as Json;
    if (queue) job.queue = queue;
    return job;
  });
}

function line(text: string, index: number): Job {
  try {
    return parse(text) as Job;
  } catch {
    throw new Error(`Line ${index + 1} is not JSON`);
  }
}
