// The drawer that enqueues a job: a form made from the kind's schema, or plain JSON.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { ask, path, type Asked, type Problem } from "../api";
import { priorities } from "../deeds";
import { refreshAll, useFeed } from "../feed";
import { short } from "../format";
import { to } from "../route";
import type { Kind } from "../types";
import { newJobFields, type Json, type Queue } from "../wire";
import { Button, Link } from "./basics";
import { CopyAs, copy, shell } from "./copy";
import { attempt, Modal } from "./dialog";
import { Trouble } from "./empty";
import { usePayload } from "./form";
import { toast } from "./toast";

interface Start {
  kind?: string;
  queue?: string;
  payload?: Json;
  priority?: number;
  key?: string | null;
  lane?: string | null;
}

/** The options that are texts; others have their own inputs. */
const plainFields = newJobFields.filter((one) => one.type === "text" && one.name !== "kind" && one.name !== "queue");

const start = signal<Start | null>(null);

export function openEnqueue(known: Start = {}): void {
  start.value = known;
}

export function Enqueue() {
  return start.value && <Drawer begin={start.value} />;
}

function Drawer({ begin }: { begin: Start }) {
  const kinds = useFeed<{ kinds: Kind[] }>(path(["kinds"]), 10_000);
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]), 5000);
  const [kind, setKind] = useState(begin.kind ?? "");
  const [queue, setQueue] = useState(begin.queue ?? "");
  const [priority, setPriority] = useState(String(begin.priority ?? 0));
  const [delay, setDelay] = useState("");
  const [plain, setPlain] = useState<Record<string, string>>({ key: begin.key ?? "", lane: begin.lane ?? "" });
  const [attempts, setAttempts] = useState("");
  const [problem, setProblem] = useState<Problem | Error>();
  const [busy, setBusy] = useState(false);
  const close = () => (start.value = null);

  const known = kinds.data.value?.kinds.find((one) => one.kind === kind.trim());
  const payload = usePayload({ schema: known?.schema ?? null, start: begin.payload, of: kind, none: "This kind takes no arguments." });

  function request(): Asked {
    const body: Record<string, Json> = { kind: kind.trim(), payload: payload.read() };
    const target = queue.trim() || known?.queue || "";
    if (target) body.queue = target;
    if (priority !== "0") body.priority = Number(priority);
    if (delay.trim()) body.delay = seconds(delay);
    for (const { name } of plainFields) if (plain[name]?.trim()) body[name] = plain[name].trim();
    if (attempts.trim()) body.max_attempts = Number(attempts);
    return { method: "POST", path: path(["jobs"]), body };
  }

  const preview = attempt(request);
  const body = preview?.body as Record<string, Json> | undefined;
  const cli = body && shell(
    "holdfast", "job", "enqueue", String(body.kind), JSON.stringify(body.payload),
    ...(body.queue ? ["--queue", String(body.queue)] : []),
    ...(body.priority ? ["--priority", String(body.priority)] : []),
    ...(body.delay ? ["--delay", `${body.delay as number}s`] : []),
    ...plainFields.flatMap(({ name }) => (body[name] ? [`--${name.replaceAll("_", "-")}`, String(body[name])] : [])),
    ...(body.max_attempts ? ["--max-attempts", String(body.max_attempts)] : []),
  );

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setProblem(undefined);
    try {
      const stored = await ask<{ id: string; created: boolean; behind?: string }>(request());
      toast(
        <>
          {stored.created ? "Enqueued " : "Already enqueued: "}
          <Link to={to(["jobs", stored.id])} class="id">{short(stored.id)}</Link>
        </>,
      );
      close();
      refreshAll();
    } catch (error) {
      setProblem(error as Problem);
      setBusy(false);
    }
  }

  return (
    <Modal title="Enqueue a job" close={close} side>
      <form onSubmit={(event) => void submit(event)}>
        <div class="drawer-scroll">
          <label class="field">
            <span>Kind</span>
            <input value={kind} list="kinds" required autofocus autocomplete="off" class="mono" placeholder="send_email" onInput={(event) => setKind(event.currentTarget.value)} />
            <datalist id="kinds">
              {kinds.data.value?.kinds.map((one) => <option key={one.kind} value={one.kind} />)}
            </datalist>
          </label>
          {known?.doc && <p class="soft doc">{known.doc}</p>}
          {payload.fields}
          <details class="options">
            <summary>Options</summary>
            <div class="field-pair">
              <label class="field">
                <span>Queue</span>
                <input value={queue} list="queues" placeholder={known?.queue ?? "default"} onInput={(event) => setQueue(event.currentTarget.value)} />
                <datalist id="queues">
                  {queues.data.value?.queues.map((one) => <option key={one.queue} value={one.queue} />)}
                </datalist>
              </label>
              <label class="field">
                <span>Priority</span>
                <select value={priority} onChange={(event) => setPriority(event.currentTarget.value)}>
                  {priorities.map((one) => <option key={one.value} value={one.value}>{one.label}</option>)}
                </select>
              </label>
              <label class="field">
                <span>
                  Delay <small>30s, 10m, 2h</small>
                </span>
                <input value={delay} placeholder="now" onInput={(event) => setDelay(event.currentTarget.value)} />
              </label>
              <label class="field">
                <span>Attempts</span>
                <input value={attempts} inputMode="numeric" placeholder="queue default" onInput={(event) => setAttempts(event.currentTarget.value)} />
              </label>
              {plainFields.map(({ name, label, hint }) => (
                <label class="field" key={name}>
                  <span>
                    {label} <small>{hint}</small>
                  </span>
                  <input value={plain[name] ?? ""} onInput={(event) => setPlain({ ...plain, [name]: event.currentTarget.value })} />
                </label>
              ))}
            </div>
          </details>
          {problem && ("title" in problem ? <Trouble problem={problem as Problem} /> : <p class="refusal" role="alert">{problem.message}</p>)}
        </div>
        <footer>
          <div class="copy-row">
            {preview && <CopyAs asked={preview} cli={cli} />}
            {body && (
              <button type="button" class="link" onClick={() => void copy(code(body), "Python copied")}>
                Python
              </button>
            )}
          </div>
          <div class="modal-acts">
            <Button look="quiet" onClick={close}>Cancel</Button>
            <Button submit look="primary" disabled={busy || !kind.trim()}>Enqueue</Button>
          </div>
        </footer>
      </form>
    </Modal>
  );
}

function seconds(text: string): number {
  const match = /^\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|w)?\s*$/.exec(text);
  if (!match) throw new Error(`${text} is not a duration: use, for example, 30s, 10m or 2h`);
  return Number(match[1]) * { s: 1, m: 60, h: 3600, d: 86400, w: 604800 }[(match[2] ?? "s") as "s"];
}

function code(body: Record<string, Json>): string {
  const { kind, payload, ...options } = body;
  const words = Object.entries(options).map(([name, value]) => `, ${name}=${python(value)}`);
  return `client.enqueue(${python(kind!)}, ${python(payload ?? {})}${words.join("")})`;
}

function python(value: Json): string {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}
