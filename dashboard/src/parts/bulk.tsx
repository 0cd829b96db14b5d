// Operations on many jobs: previewed first, run by the server in the background, with progress and a stop button.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ask, path, type Asked, type Problem } from "../api";
import { feed, refreshAll, useFeed } from "../feed";
import { absolute, count, plural, short } from "../format";
import { operations } from "../live";
import { to } from "../route";
import { barred } from "../session";
import type { Job, JobPage, Json, Operation, Preview, Verb } from "../wire";
import { Button, Link, Meter } from "./basics";
import { CopyAs, shell } from "./copy";
import { confirm, Modal } from "./dialog";
import { Bones, Trouble } from "./empty";
import { toast } from "./toast";

interface Wanted {
  verb: Verb;
  filter: string;
  /** Only this many of the newest jobs, to try it first. */
  limit?: number;
  title?: string;
  /** The filter names this many jobs that somebody chose. */
  chosen?: number;
}

const wanted = signal<Wanted | null>(null);

export function bulk(verb: Verb, filter: string, options: Omit<Wanted, "verb" | "filter"> = {}): void {
  wanted.value = { verb, filter, ...options };
}

const verbs: Record<Verb, { act: string; past: string; text: string; bad?: boolean; sure?: boolean }> = {
  retry: { act: "Retry", past: "retried", text: "will be retried from attempt 1." },
  cancel: { act: "Cancel", past: "cancelled", text: "will not run; running handlers are notified.", bad: true },
  archive: { act: "Archive", past: "archived", text: "will be archived: you can still find them, but they no longer count as dead." },
  delete: { act: "Delete", past: "deleted", text: "will be deleted permanently, with the record of their attempts.", bad: true, sure: true },
  move: { act: "Move", past: "moved", text: "will move to another queue and get new ids; the old ids still work." },
};

export function Bulk() {
  const known = wanted.value;
  return known && <Asking key={known.verb + known.filter + known.limit} start={known} />;
}

function Asking({ start }: { start: Wanted }) {
  const [verb, setVerb] = useState<Verb>(start.verb);
  const [rate, setRate] = useState(start.limit ? "" : "200");
  const [reason, setReason] = useState("");
  const [queue, setQueue] = useState("");
  const [typed, setTyped] = useState("");
  const [preview, setPreview] = useState<Preview>();
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const close = () => (wanted.value = null);
  const said = verbs[verb];

  // The server refuses an empty filter, so name all states to match everything.
  const q = start.filter.trim() || "state:queued,leased,done,dead,cancelled,archived";
  const body: Record<string, Json> = { op: verb, q };
  if (start.limit) body.limit = start.limit;
  if (verb === "move") body.queue = queue.trim();
  if (reason.trim()) body.reason = reason.trim();
  const asks: Asked = { method: "POST", path: "/v1/operations:preview", body };

  useEffect(() => {
    if (verb === "move" && !queue.trim()) {
      setPreview(undefined);
      return;
    }
    const stop = new AbortController();
    setPreview(undefined);
    setProblem(undefined);
    const wait = setTimeout(() => {
      ask<Preview>(asks, stop.signal).then(setPreview, (error: Problem) => {
        if (!stop.signal.aborted) setProblem(error);
      });
    }, verb === "move" || reason ? 300 : 0);
    return () => {
      clearTimeout(wait);
      stop.abort();
    };
  }, [verb, queue, reason]);

  const starts: Asked = {
    method: "POST",
    path: "/v1/operations",
    body: { preview_token: preview?.preview_token ?? "", ...(rate ? { rate: `${rate}/s` } : {}) },
  };
  const sure = preview && (said.sure || (preview.count > 1000 && !start.limit));
  const word = preview ? String(preview.count) : "";

  async function run(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    try {
      const operation = await ask<Operation>(starts);
      // The sample has the newest of them: all, if there are few.
      if (start.limit && verb === "retry" && preview!.sample.length === preview!.count) canaries.value = { ...canaries.value, [operation.id]: preview!.sample };
      operations.value = { ...operations.value, [operation.id]: operation };
      close();
      toast(`${said.act}: started for ${plural(preview!.count, "job")}`);
      refreshAll();
    } catch (error) {
      setProblem(error as Problem);
      setBusy(false);
    }
  }

  return (
    <Modal title={start.title ?? (start.chosen ? `${said.act} ${plural(start.chosen, "selected job")}` : `${said.act} all matching jobs`)} close={close}>
      <form onSubmit={(event) => void run(event)}>
        <p class="modal-body">
          {start.chosen ? `The ${plural(start.chosen, "selected job")}` : <>Jobs matching <code>{q}</code></>} {said.text}
        </p>
        {!start.title && !start.chosen && (
          <label class="field">
            <span>Action</span>
            <select value={verb} onChange={(event) => setVerb(event.currentTarget.value as Verb)}>
              {Object.entries(verbs).map(([name, one]) => (
                <option key={name} value={name}>{one.act}</option>
              ))}
            </select>
          </label>
        )}
        {verb === "move" && (
          <label class="field">
            <span>To queue</span>
            <input value={queue} required onInput={(event) => setQueue(event.currentTarget.value)} />
          </label>
        )}
        <div class="preview" aria-live="polite">
          {problem ? (
            <Trouble problem={problem} />
          ) : preview ? (
            <>
              <strong class="number">{count(preview.count, preview.capped)}</strong>
              <span>
                {preview.count === 1 ? "job" : "jobs"} as of {absolute(preview.as_of, false)}. Jobs added later are not affected.
              </span>
              {preview.sample.length > 0 && (
                <span class="soft">
                  For example{" "}
                  {preview.sample.slice(0, 5).map((id, index) => (
                    <>
                      {index > 0 && ", "}
                      <Link to={to(["jobs", id])} class="id" target="_blank">{short(id)}</Link>
                    </>
                  ))}
                </span>
              )}
            </>
          ) : verb === "move" && !queue.trim() ? (
            <span class="soft">Enter a queue to see how many jobs would move.</span>
          ) : (
            <Bones rows={2} />
          )}
        </div>
        <div class="field-pair">
          <label class="field">
            <span>
              Rate limit <small>jobs per second</small>
            </span>
            <select value={rate} onChange={(event) => setRate(event.currentTarget.value)}>
              <option value="20">20</option>
              <option value="200">200</option>
              <option value="2000">2 000</option>
              <option value="">unlimited</option>
            </select>
          </label>
          <label class="field">
            <span>
              Reason <small>shown in Activity</small>
            </span>
            <input value={reason} autofocus placeholder="optional" onInput={(event) => setReason(event.currentTarget.value)} />
          </label>
        </div>
        {sure && (
          <label class="field">
            <span>
              Type <b class="mono">{word}</b> to confirm
            </span>
            <input value={typed} autocomplete="off" onInput={(event) => setTyped(event.currentTarget.value)} />
          </label>
        )}
        <footer>
          <CopyAs
            asked={asks}
            then={preview && starts}
            cli={shell("holdfast", "job", verb, q, ...(verb === "move" ? ["--to", queue.trim()] : []), ...(start.limit ? ["--limit", String(start.limit)] : []), ...(reason.trim() ? ["--reason", reason.trim()] : []))}
          />
          <div class="modal-acts">
            <Button look="quiet" onClick={close}>{verb === "cancel" ? "Go back" : "Cancel"}</Button>
            <Button submit look={said.bad ? "danger" : "primary"} disabled={busy || !preview || preview.count === 0 || (sure && typed.replaceAll(/\D/g, "") !== word)}>
              {preview ? `${said.act} ${count(preview.count, preview.capped)}` : said.act}
            </Button>
          </div>
        </footer>
      </form>
    </Modal>
  );
}

/** The jobs that were retried first, by the operation that did it. */
const canaries = signal<Record<string, string[]>>({});

const announced = new Set<string>();

/** What became of the jobs that were retried first. */
function Canary({ operation, ids }: { operation: Operation; ids: string[] }) {
  const page = useFeed<JobPage>(path(["jobs"], { q: `id:${ids.join(",")}`, limit: ids.length }), 1000);
  const told = page.data.value?.jobs;
  // A reply that is a little old shows them dead as they were before.
  const since = Date.parse(operation.started_at ?? operation.created_at);
  const ended = (job: Job) => job.state !== "queued" && job.state !== "leased" && Date.parse(job.ended_at ?? "") >= since;
  const open = told?.filter((job) => !ended(job)) ?? [];
  const died = told?.filter((job) => ended(job) && job.state !== "done").length ?? 0;
  // One that is gone is done: only queues that keep done jobs still have it.
  const done = ids.length - died - open.length;
  const over = told !== undefined && open.length === 0;
  const verdict = died === 0 ? `All ${count(ids.length)} passed` : `${count(died)} of ${count(ids.length)} failed again`;
  useEffect(() => {
    if (over && !announced.has(operation.id)) toast(verdict, died > 0);
    if (over) announced.add(operation.id);
  }, [over]);
  if (!told) return null;
  if (over) return <strong class={`canary ${died ? "bad" : "good"}`} role="status">{verdict}</strong>;
  const failing = open.filter((job) => job.attempt > 0 && job.state === "queued").length;
  return (
    <span class="canary number soft">
      {count(done)} passed{died > 0 && ` · ${count(died)} failed again`}{failing > 0 && ` · ${count(failing)} failed once and will be retried`} · {plural(open.length - failing, "has", "have")} not ended yet
    </span>
  );
}

/** Running operations, at the bottom of every page until the user dismisses them. */
export function Tray() {
  const running = useFeed<{ operations: Operation[] }>("/v1/operations", 1000);
  const [away, setAway] = useState<string[]>([]);
  const told = new Map<string, Operation>();
  for (const one of running.data.value?.operations ?? []) told.set(one.id, one);
  for (const one of Object.values(operations.value)) {
    const known = told.get(one.id);
    if (!known || (known.done ?? 0) <= (one.done ?? 0)) told.set(one.id, one);
  }
  const mine = Object.keys(operations.value);
  const shown = [...told.values()].filter((one) => !away.includes(one.id) && (runs(one) || mine.includes(one.id)));
  if (!shown.length) return null;
  return (
    <aside class="tray" aria-label="Operations">
      {shown.slice(-3).map((one) => (
        <OperationLine key={one.id} operation={one} away={() => setAway((known) => [...known, one.id])} />
      ))}
    </aside>
  );
}

export const runs = (operation: Operation): boolean => operation.state === "running";

export function OperationLine({ operation, away }: { operation: Operation; away?: () => void }) {
  const said = operation.verb === "undo" ? { act: "Undo", past: "restored" } : verbs[operation.verb];
  const whole = operation.total || operation.done || 1;
  return (
    <div class="operation">
      <div class="operation-head">
        <strong>{said.act}</strong>
        <code class="clip" title={operation.filter}>{operation.filter}</code>
        {runs(operation) ? (
          <Button small look="quiet" onClick={() => cancelOperation(operation)}>Stop</Button>
        ) : (
          <>
            {operation.undoable > 0 && <Button small look="quiet" why={barred("operate")} onClick={() => undoOperation(operation)}>Undo</Button>}
            {away && <Button small look="quiet" icon="close" label="Dismiss" onClick={away} />}
          </>
        )}
      </div>
      <Meter value={operation.done} most={whole} mood={operation.state === "failed" ? "bad" : "good"} />
      <span class="number soft">
        {count(operation.done)}/{count(operation.total)} {runs(operation) ? "" : operation.state === "done" ? said.past : operation.state}
        {operation.done > operation.changed ? ` · ${count(operation.done - operation.changed)} skipped: they had already changed` : ""}
        {operation.problem ? ` · ${operation.problem}` : ""}
      </span>
      {canaries.value[operation.id] && operation.state === "done" && <Canary operation={operation} ids={canaries.value[operation.id]!} />}
    </div>
  );
}

export function cancelOperation(operation: Operation): void {
  confirm({
    title: "Stop this operation",
    body: `${count(operation.done)} of ${count(operation.total)} jobs are done; the rest will not be changed.${operation.verb === "delete" ? "" : " You can undo the finished part."}`,
    act: "Stop operation",
    bad: true,
    deed: () => ({
      asked: { method: "DELETE", path: path(["operations", operation.id]) },
      cli: shell("holdfast", "op", "cancel", operation.id),
      said: "Stopped",
    }),
    after: () => void feed("/v1/operations").refresh(),
  });
}

/** What an undo does with the jobs that are still as the operation left them. */
const back: Record<string, string> = {
  retry: "that have not started return to their previous state: dead with their last error, or cancelled.",
  cancel: "that were queued are queued again, for their original time. Jobs that were running stay cancelled.",
  archive: "that are still archived return to their previous state.",
  move: "that are still queued or dead return to their previous queues.",
};

export function undoOperation(operation: Operation): void {
  confirm<Operation>({
    title: `Undo: ${verbs[operation.verb as Verb].act.toLowerCase()} ${operation.filter}`,
    body: `Up to ${plural(operation.undoable, "job")} ${back[operation.verb]}`,
    act: `Undo ${count(operation.undoable)}`,
    deed: () => ({
      asked: { method: "POST", path: path(["operations", operation.id, "undo"]), body: {} },
      cli: shell("holdfast", "op", "undo", operation.id),
      said: "Undo started",
    }),
    after: (started) => {
      const { [operation.id]: _, ...others } = canaries.value;
      canaries.value = others;
      operations.value = { ...operations.value, [started.id]: started };
      refreshAll();
    },
  });
}
