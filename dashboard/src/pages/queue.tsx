import { useState } from "preact/hooks";
import { path } from "../api";
import { drainQueue, jobsOf, pauseQueue, resumeQueue } from "../deeds";
import { useFeed } from "../feed";
import { all } from "../filter";
import { bytes, count, duration, fine, plural } from "../format";
import { Button, Count, Fact, Facts, Head, JobId, Link, Meter, Mono, None, Panel, Time } from "../parts/basics";
import { Chart } from "../parts/chart";
import { Command } from "../parts/copy";
import { shell } from "../parts/copy";
import { confirm } from "../parts/dialog";
import { Bones, Empty, Stale, Trouble } from "../parts/empty";
import { openEnqueue } from "../parts/enqueue";
import { Icon } from "../parts/icon";
import { Diff } from "../parts/json";
import { Menu } from "../parts/menu";
import { rateOf } from "../rates";
import { go, parts, query, setQuery, to } from "../route";
import { spans, useHistory } from "../series";
import { barred } from "../session";
import { queueSettings, type JobPage, type Json, type Queue, type Rate, type State, type Worker } from "../wire";
import { QueueState } from "./queues";

export function QueuePage() {
  const name = parts.value.slice(1).join("/");
  const feed = useFeed<Queue>(path(["queues", name]));
  const queue = feed.data.value;
  const problem = feed.problem.value;
  if (problem?.status === 404) {
    return (
      <>
        <Head trail={<Link to="queues">Queues</Link>} title={name} />
        <Empty icon="queues" title="No such queue" commands={[shell("holdfast", "job", "enqueue", "greet", "{}", "--queue", name)]}>
          <p>A queue is created when a job is first enqueued in it, or when its settings are first saved.</p>
        </Empty>
      </>
    );
  }
  if (!queue) return problem ? <Trouble problem={problem} retry={() => void feed.refresh()} /> : <Bones rows={8} tall />;
  const why = barred("operate");
  return (
    <>
      <Head
        trail={<Link to="queues">Queues</Link>}
        title={
          <>
            {queue.queue} <QueueState queue={queue} />
          </>
        }
        sub={queue.paused_at ? <PauseNote queue={queue} /> : undefined}
      >
        {queue.paused_at ? (
          <Button icon="play" look="primary" why={why} onClick={() => resumeQueue(queue)}>Resume</Button>
        ) : (
          <Button icon="pause" why={why} onClick={() => pauseQueue(queue)}>Pause</Button>
        )}
        <Button icon="plus" why={barred("produce")} onClick={() => openEnqueue({ queue: queue.queue })}>Enqueue</Button>
        <Menu
          label="More"
          look="plain"
          items={[
            { label: "Show its jobs", icon: "jobs", act: () => go(jobsOf(["queue", queue.queue])) },
            { label: "Drain", icon: "trash", bad: true, why: why ?? (queue.queued ? undefined : "No jobs are queued"), act: () => drainQueue(queue) },
          ]}
        />
      </Head>
      <Stale feed={feed} />
      <Now queue={queue} />
      <Charts queue={queue.queue} />
      <div class="split">
        <div class="stack">
          <Panel title="Kinds" flush>
            <Kinds queue={queue} />
          </Panel>
          <Panel title="Next to run" flush>
            <Upcoming queue={queue} />
          </Panel>
          <Panel title="Successful attempts" flush>
            <Successes queue={queue} />
          </Panel>
          <Panel title="Workers on this queue" flush>
            <Serving queue={queue.queue} />
          </Panel>
        </div>
        <Panel title="Settings" id="settings">
          <SettingsForm queue={queue} />
        </Panel>
      </div>
    </>
  );
}

function PauseNote({ queue }: { queue: Queue }) {
  return (
    <>
      Paused <Time at={queue.paused_at} />
      {queue.paused_by && <> by {queue.paused_by}</>}
      {queue.paused_until && <>, until <Time at={queue.paused_until} /></>}
      {queue.paused_reason && <>: {queue.paused_reason}</>}
    </>
  );
}

function Now({ queue }: { queue: Queue }) {
  const rate = rateOf(queue.queue, "done");
  return (
    <div class="tiles five">
      <Small name="Queued" link={jobsOf(["state", "queued"], ["queue", queue.queue])} value={count(queue.queued)} note={drained(queue, rate)} />
      <Small name="Oldest" link={jobsOf(["state", "queued"], ["queue", queue.queue])} value={queue.oldest === null ? "–" : duration(queue.oldest)} note="waiting longest" bad={!queue.paused_at && (queue.oldest ?? 0) > 60} />
      <Small name="Leased" link={jobsOf(["state", "leased"], ["queue", queue.queue])} value={count(queue.leased)} note={queue.limit === null ? "no limit" : `of ${count(queue.limit)}`} />
      <Small name="Dead" link={to(["dead"], { queue: queue.queue })} value={count(queue.dead)} note={queue.archived ? `${count(queue.archived)} archived` : "waiting for you to act"} bad={queue.dead > 0} />
      <Small name="Done" link={jobsOf(["state", "done"], ["queue", queue.queue])} value={count(queue.done)} note={queue.keep_done ? `kept ${duration(queue.keep_done)}` : queue.keep_recent ? "some kept for a day" : "deleted when done"} />
    </div>
  );
}

const share = (rates: Rate[], kind: string | null): string => {
  const rate = rates.find((one) => one.kind === kind)?.rate;
  return rate === undefined ? "–" : `${(100 * rate).toFixed(1)} %`;
};

function Successes({ queue }: { queue: Queue }) {
  const { hour, day } = queue.success ?? { hour: [], day: [] };
  if (!day.length) return <p class="pad soft">No attempts ended in the last day.</p>;
  return (
    <div class="table-wrap">
      <table aria-label="Successful attempts">
        <thead>
          <tr>
            <th scope="col">Kind</th>
            <th scope="col" class="right">Last hour</th>
            <th scope="col" class="right">Last day</th>
          </tr>
        </thead>
        <tbody>
          {day.map((one) => (
            <tr key={one.kind ?? ""} data-row={one.kind ?? "all"}>
              <td>{one.kind === null ? "all" : <Mono>{one.kind}</Mono>}</td>
              <td class="right number">{share(hour, one.kind)}</td>
              <td class="right number">{share(day, one.kind)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Upcoming({ queue }: { queue: Queue }) {
  const page = useFeed<JobPage>(path(["queues", queue.queue, "upcoming"], { limit: 10 }), 2000);
  const jobs = page.data.value?.jobs;
  if (!jobs) return <Bones rows={3} />;
  if (!jobs.length) return <p class="pad soft">No jobs are waiting.</p>;
  return (
    <ol class="rows" aria-label="Next to run">
      {jobs.map((job) => (
        <li key={job.id}>
          <JobId id={job.id} />
          <Mono>{job.kind}</Mono>
          <span class="number soft rows-end">{Date.parse(job.run_at) > Date.now() ? <Time at={job.run_at} /> : `priority ${job.priority}`}</span>
        </li>
      ))}
    </ol>
  );
}

// At the rate of the last minute; with a rate of zero there is no estimate.
function drained(queue: Queue, rate: number | null): string {
  if (!queue.queued) return "no jobs waiting";
  if (queue.paused_at) return "paused";
  if (rate === null) return "\u00a0";
  return rate ? `drained in ${fine(queue.queued / rate)}` : "none done in the last minute";
}

function Small({ name, value, note, link, bad }: { name: string; value: string; note: string; link: string; bad?: boolean }) {
  return (
    <Link to={link} class="tile low">
      <span class="tile-name">{name}</span>
      <span class={`tile-value number${bad ? " bad" : ""}`}>{value}</span>
      <span class="tile-note">{note}</span>
    </Link>
  );
}

function Charts({ queue }: { queue: string }) {
  const span = spans.find((one) => one.name === query.value.get("span")) ?? spans[0]!;
  const done = useHistory("done", queue, span);
  const enqueued = useHistory("enqueued", queue, span);
  const queued = useHistory("queued", queue, span);
  const leased = useHistory("leased", queue, span);
  const oldest = useHistory("oldest", queue, span);
  const dead = useHistory("dead", queue, span);
  if (done.problem && !done.known) return null;
  const perMinute = (values: (number | null)[]) => values.map((value) => (value === null ? null : value * 60));
  return (
    <Panel
      title="Recent"
      acts={
        <div class="segments" role="group" aria-label="Time span">
          {spans.map((one) => (
            <button key={one.name} type="button" aria-pressed={one === span} onClick={() => setQuery({ span: one === spans[0] ? null : one.name })}>
              {one.name}
            </button>
          ))}
        </div>
      }
    >
      <div class="charts four">
        <Chart title="Enqueued and done per minute" label="Jobs per minute" height={160} times={done.times} unit="rate" lines={[{ label: "done", values: perMinute(done.values), color: 1, fill: true }, { label: "enqueued", values: perMinute(enqueued.values), color: 3, dash: true }]} />
        <Chart title="Queued and leased" label="Jobs queued and leased" height={160} times={queued.times} lines={[{ label: "queued", values: queued.values, color: 3, fill: true }, { label: "leased", values: leased.values, color: 1 }]} />
        <Chart title="Oldest waiting" label="Age of the oldest waiting job" height={160} times={oldest.times} unit="seconds" lines={[{ label: "oldest", values: oldest.values, color: 4, fill: true }]} />
        <Chart title="Dead" label="Dead jobs" height={160} times={dead.times} lines={[{ label: "dead", values: dead.values, color: 2, fill: true }]} />
      </div>
    </Panel>
  );
}

function Kinds({ queue }: { queue: Queue }) {
  const kinds = new Map<string, Partial<Record<State, number>>>();
  for (const one of queue.kinds ?? []) kinds.set(one.kind, { ...kinds.get(one.kind), [one.state]: one.jobs });
  if (!kinds.size) return <p class="pad soft">No jobs yet.</p>;
  return (
    <div class="table-wrap">
      <table aria-label="Kinds">
        <thead>
          <tr>
            <th scope="col">Kind</th>
            <th scope="col" class="right">Queued</th>
            <th scope="col" class="right">Leased</th>
            <th scope="col" class="right">Dead</th>
            <th scope="col" class="right rank2">Done</th>
          </tr>
        </thead>
        <tbody>
          {[...kinds].sort().map(([kind, states]) => (
            <tr key={kind} data-row={kind}>
              <td><Link to={to(["jobs"], { q: all(["queue", queue.queue], ["kind", kind]) })} class="mono">{kind}</Link></td>
              <td class="right"><Count value={states.queued ?? 0} quiet /></td>
              <td class="right"><Count value={states.leased ?? 0} quiet /></td>
              <td class="right"><Count value={states.dead ?? 0} quiet bad /></td>
              <td class="right rank2"><Count value={states.done ?? 0} quiet /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Serving({ queue }: { queue: string }) {
  const workers = useFeed<{ workers: Worker[] }>(path(["workers"]), 2000);
  const serving = workers.data.value?.workers.filter((worker) => worker.alive && worker.queues.includes(queue));
  if (!serving) return <Bones rows={2} />;
  if (!serving.length) {
    return (
      <div class="pad stack">
        <p class="soft">No worker serves this queue.</p>
        <Command text={shell("holdfast", "worker", "app.py", "--queues", `${queue}:8`)} />
      </div>
    );
  }
  return (
    <ul class="rows">
      {serving.map((worker) => (
        <li key={worker.worker}>
          <Mono>{worker.worker}</Mono>
          <span class="soft clip">{worker.host ?? <None />}</span>
          <span class="rows-end with-meter">
            <Meter value={worker.busy} most={worker.slots} />
            <span class="number soft">{worker.busy}/{worker.slots}</span>
          </span>
        </li>
      ))}
    </ul>
  );
}

type Setting = (typeof queueSettings)[number];

function SettingsForm({ queue }: { queue: Queue }) {
  const [edited, setEdited] = useState<Record<string, string>>({});
  const shown = (setting: Pick<Setting, "name">): string => edited[setting.name] ?? text(queue[setting.name]);
  const number = (name: Setting["name"]): number => Number(shown({ name }));
  const changes = queueSettings.filter((setting) => edited[setting.name] !== undefined && edited[setting.name] !== text(queue[setting.name]));
  const why = barred("operate");

  function save(event: Event): void {
    event.preventDefault();
    const body: Record<string, Json> = {};
    for (const setting of changes) body[setting.name] = value(setting, edited[setting.name]!);
    const lines = (take: (setting: Setting) => string) => changes.map((setting) => `${setting.name} = ${take(setting) || "none"}`).join("\n");
    confirm({
      title: `Change ${queue.queue}`,
      body: (
        <>
          <p>Takes effect the next time each worker calls the database.</p>
          <Diff before={lines((setting) => text(queue[setting.name]))} after={lines((setting) => edited[setting.name]!)} />
        </>
      ),
      act: "Save",
      deed: () => ({
        asked: { method: "PATCH", path: path(["queues", queue.queue]), body },
        cli: shell("holdfast", "queue", "set", queue.queue, ...changes.map((setting) => `${setting.name}=${edited[setting.name] || "none"}`)),
        said: "Saved",
      }),
      after: () => setEdited({}),
    });
  }

  return (
    <form class="settings" onSubmit={save}>
      <div class="field-pair">
        {queueSettings.map((setting) => (
          <label class="field" key={setting.name}>
            <span>
              {setting.label} <small>{setting.type === "seconds" ? `seconds: ${setting.hint}` : setting.hint}</small>
            </span>
            {setting.type !== "flag" && setting.type !== "choice" ? (
              <input value={shown(setting)} inputMode="decimal" disabled={why !== undefined} placeholder={setting.empty ? "none" : ""} onInput={(event) => setEdited({ ...edited, [setting.name]: event.currentTarget.value })} />
            ) : (
              <select value={shown(setting)} disabled={why !== undefined} onChange={(event) => setEdited({ ...edited, [setting.name]: event.currentTarget.value })}>
                {(setting.type === "flag" ? ["false", "true"] : setting.options!).map((one) => (
                  <option key={one} value={one}>{setting.type === "flag" ? (one === "true" ? "yes" : "no") : one}</option>
                ))}
              </select>
            )}
          </label>
        ))}
      </div>
      <Facts>
        <Fact name="Retries wait">up to {ladder(number("backoff"), number("backoff_cap"), number("max_attempts"))}</Fact>
        <Fact name="Payload limit">{bytes(number("payload_limit"))}</Fact>
      </Facts>
      <div class="settings-foot">
        {changes.length > 0 && (
          <span class="soft">
            <Icon name="edit" /> {plural(changes.length, "change")}
          </span>
        )}
        <Button look="quiet" disabled={!changes.length} onClick={() => setEdited({})}>Reset</Button>
        <Button submit look="primary" disabled={!changes.length} why={why}>Review and save</Button>
      </div>
    </form>
  );
}

const text = (value: unknown): string => (value === null || value === undefined ? "" : String(value));

function value(setting: Setting, text: string): Json {
  if (setting.type === "flag") return text === "true";
  if (setting.type === "choice") return text;
  if (text.trim() === "") return null;
  return Number(text);
}

/** The longest waits before each further attempt; the real ones are a random part of these. */
function ladder(backoff: number, cap: number, attempts: number): string {
  if (!(backoff >= 0) || !(attempts > 1)) return "no retries";
  const steps = Array.from({ length: Math.min(attempts - 1, 6) }, (_, index) => duration(Math.min(cap, backoff * 2 ** index)));
  return steps.join(", ") + (attempts - 1 > 6 ? " …" : "");
}
