import type { ComponentChildren } from "preact";
import { path } from "../api";
import { pressing, useAnomalies, useBlindSince } from "../attention";
import { useFeed } from "../feed";
import { compact, count, duration, plural } from "../format";
import { Age, Button, Head, Link, Meter, Panel, Time } from "../parts/basics";
import { Chart, type Line } from "../parts/chart";
import { Blind, Bones, Empty, Trouble } from "../parts/empty";
import { openEnqueue } from "../parts/enqueue";
import { Icon } from "../parts/icon";
import { Spark } from "../parts/spark";
import { go, query, setQuery, to } from "../route";
import { rateOf } from "../rates";
import { latest, spans, useHistory } from "../series";
import { barred } from "../session";
import type { DeadGroup, Queue, Schedule, Worker } from "../wire";

export function Overview() {
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]));
  const workers = useFeed<{ workers: Worker[] }>(path(["workers"]), 2000);
  const schedules = useFeed<{ schedules: Schedule[] }>(path(["schedules"]), 5000);
  const groups = useFeed<{ groups: DeadGroup[] }>(path(["dead", "groups"]), 3000);
  const known = queues.data.value?.queues;
  return (
    <>
      <Head title="Overview">
        <Button icon="plus" look="primary" why={barred("produce")} onClick={() => openEnqueue()}>Enqueue</Button>
      </Head>
      <Verdict first={known?.length === 0} />
      <Tiles queues={known} workers={workers.data.value?.workers} groups={groups.data.value?.groups} />
      <Flow />
      <div class="pair">
        <Panel title="Queues" flush acts={<Link to="queues">All queues</Link>}>
          {known ? <Busiest queues={known} /> : <Bones rows={4} />}
        </Panel>
        <Panel title="Dead jobs by failure" flush acts={<Link to="dead">All groups</Link>}>
          {groups.data.value ? <Groups groups={groups.data.value.groups} /> : <Bones rows={4} />}
        </Panel>
      </div>
      {schedules.data.value && schedules.data.value.schedules.length > 0 && <Coming schedules={schedules.data.value.schedules} />}
    </>
  );
}

const SHOWN = 4;

function Verdict({ first }: { first: boolean }) {
  const told = useAnomalies();
  const blind = useBlindSince();
  const anomalies = told.data.value?.anomalies;
  if (!anomalies) return told.problem.value ? <Trouble problem={told.problem.value} retry={() => void told.refresh()} /> : <div class="verdict waiting" aria-hidden="true" />;
  const found = pressing(anomalies);
  if (found.length)
    return (
      <ul class="verdict-list" aria-label="What needs attention">
        {found.slice(0, SHOWN).map((one) => (
          <li key={one.id} class={one.severity === "critical" ? "verdict bad" : "verdict warn"}>
            <Icon name={one.severity === "critical" ? "dead" : "info"} label={one.severity} />
            <Link to="anomalies" class="strong">{one.title}</Link>
            <span class="clip">{one.detail}</span>
          </li>
        ))}
        {found.length > SHOWN && (
          <li class="more">
            <Link to="anomalies">{count(found.length - SHOWN)} more</Link>
          </li>
        )}
      </ul>
    );
  if (first) return <FirstSteps />;
  if (blind !== undefined) return <Blind since={blind} />;
  return (
    <p class="verdict good" role="status">
      <Icon name="done" /> Nothing needs attention.
      {anomalies.length > 0 && <Link to="anomalies">{plural(anomalies.length, "anomaly is", "anomalies are")} acknowledged, muted or informational</Link>}
    </p>
  );
}

const hour = spans[1]!;

function Tiles({ queues, workers, groups }: { queues?: Queue[]; workers?: Worker[]; groups?: DeadGroup[] }) {
  const done = useHistory("done", null, hour);
  const oldest = useHistory("oldest", null, hour);
  const queued = useHistory("queued", null, hour);
  const leased = useHistory("leased", null, hour);
  const dead = useHistory("dead", null, hour);
  const sum = (name: "queued" | "leased" | "dead") => queues?.reduce((total, queue) => total + queue[name], 0);
  const alive = workers?.filter((worker) => worker.alive);
  const slots = alive?.reduce((total, worker) => total + worker.slots, 0) ?? 0;
  const worst = queues?.reduce<Queue | null>((most, queue) => ((queue.oldest ?? 0) > (most?.oldest ?? 0) ? queue : most), null);
  const rate = rateOf(null, "done") ?? latest(done.values);
  const late = useAnomalies().data.value?.anomalies.some((one) => one.code === "late" && one.queue === worst?.queue);
  const grown = growth(dead.values);
  return (
    <div class="tiles">
      <Tile name="Done per minute" link="queues" value={rate === null || !queues ? undefined : compact(rate * 60)} note={alive && `by ${plural(alive.length, "worker")}`}>
        <Spark values={done.values} label="Done, last hour" />
      </Tile>
      <Tile name="Oldest waiting" link={worst ? to(["queues", worst.queue]) : "queues"} value={queues && duration(worst?.oldest ?? 0)} note={worst?.oldest ? `in ${worst.queue}` : "no jobs waiting"} bad={late}>
        <Spark values={oldest.values} label="Oldest waiting, last hour" />
      </Tile>
      <Tile name="Queued" link={to(["jobs"], { q: "state:queued" })} value={queues && compact(sum("queued")!)} note={queues && `in ${plural(queues.filter((queue) => queue.queued).length, "queue")}`}>
        <Spark values={queued.values} label="Queued, last hour" />
      </Tile>
      <Tile name="Leased" link={to(["jobs"], { q: "state:leased" })} value={queues && compact(sum("leased")!)} note={slots ? `of ${plural(slots, "slot")}` : "running now"}>
        {slots ? <Meter value={sum("leased") ?? 0} most={slots} /> : <Spark values={leased.values} label="Leased, last hour" />}
      </Tile>
      <Tile name="Dead" link="dead" value={queues && compact(sum("dead")!)} note={groups && (groups.length ? `in ${plural(groups.length, "group")}${grown ? `, ${grown > 0 ? "+" : ""}${count(grown)}` : ""}` : "no dead jobs")} bad={Boolean(sum("dead"))}>
        <Spark values={dead.values} label="Dead, last hour" mood="bad" />
      </Tile>
    </div>
  );
}

function growth(values: (number | null)[]): number {
  const known = values.filter((value): value is number => value !== null);
  return known.length > 1 ? Math.round(known.at(-1)! - known[0]!) : 0;
}

function Tile({ name, value, note, link, children, bad }: { name: string; value: string | undefined; note?: ComponentChildren; link: string; children: ComponentChildren; bad?: boolean }) {
  return (
    <Link to={link} class="tile">
      <span class="tile-name">{name}</span>
      {value === undefined ? <span class="tile-value bone" aria-label="loading" /> : <span class={`tile-value number${bad ? " bad" : ""}`}>{value}</span>}
      <span class="tile-foot">
        <span class="tile-note">{note ?? "\u00a0"}</span>
        {children}
      </span>
    </Link>
  );
}

function Flow() {
  const name = query.value.get("span") ?? "15m";
  const span = spans.find((one) => one.name === name) ?? spans[0]!;
  const queue = query.value.get("queue");
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]));
  const done = useHistory("done", queue, span);
  const enqueued = useHistory("enqueued", queue, span);
  const waiting = useHistory("queued", queue, span);
  const oldest = useHistory("oldest", queue, span);
  const perMinute = (values: (number | null)[]) => values.map((value) => (value === null ? null : value * 60));
  const moment = (from: number, until: number) => {
    const ago = (at: number) => `${Math.max(1, Math.round(Date.now() / 1000 - at))}s`;
    go(to(["jobs"], { q: `age:<${ago(from)} age:>${ago(until)}${queue ? ` queue:${queue}` : ""}` }));
  };
  const flow: Line[] = [
    { label: "done", values: perMinute(done.values), color: 1, fill: true },
    { label: "enqueued", values: perMinute(enqueued.values), color: 3, dash: true },
  ];
  return (
    <Panel
      title="Flow"
      acts={
        <>
          <label class="inline">
            <span class="offscreen">Queue</span>
            <select value={queue ?? ""} onChange={(event) => setQuery({ queue: event.currentTarget.value || null })}>
              <option value="">all queues</option>
              {queues.data.value?.queues.map((one) => (
                <option key={one.queue} value={one.queue}>
                  {one.queue}
                </option>
              ))}
            </select>
          </label>
          <div class="segments" role="group" aria-label="Time span">
            {spans.map((one) => (
              <button key={one.name} type="button" aria-pressed={one === span} onClick={() => setQuery({ span: one === spans[0] ? null : one.name })}>
                {one.name}
              </button>
            ))}
          </div>
        </>
      }
    >
      {done.problem && !done.known ? (
        <p class="soft">No history available.</p>
      ) : (
        <div class="charts">
          <Chart title="Jobs per minute" label="Jobs per minute" times={done.times} lines={flow} unit="rate" onMoment={moment} />
          <Chart title="Waiting" label="Jobs waiting" times={waiting.times} lines={[{ label: "queued", values: waiting.values, color: 3, fill: true }]} onMoment={moment} />
          <Chart title="Oldest waiting" label="Age of the oldest waiting job" times={oldest.times} lines={[{ label: "oldest", values: oldest.values, color: 4, fill: true }]} unit="seconds" onMoment={moment} />
        </div>
      )}
      {!done.known && !done.problem && <p class="soft small">The server has just started recording; the charts fill up over time.</p>}
    </Panel>
  );
}

function Busiest({ queues }: { queues: Queue[] }) {
  const rows = [...queues].sort((a, b) => (b.oldest ?? -1) - (a.oldest ?? -1) || b.queued - a.queued).slice(0, 6);
  if (!rows.length) return <p class="pad soft">No queues yet.</p>;
  return (
    <ul class="rows">
      {rows.map((queue) => (
        <li key={queue.queue} data-row={queue.queue}>
          <Link to={to(["queues", queue.queue])} class="strong clip">{queue.queue}</Link>
          <span class="soft clip">{now(queue)}</span>
          <span class="number soft rows-end">{count(queue.queued)} queued</span>
          <span class="number soft rows-end">{count(queue.leased)} leased</span>
        </li>
      ))}
    </ul>
  );
}

function now(queue: Queue): string {
  if (queue.paused_at) return "paused";
  if (queue.oldest !== null) return `oldest ${duration(queue.oldest)}`;
  if (queue.leased) return "running";
  return queue.queued ? "none ready" : "idle";
}

function Groups({ groups }: { groups: DeadGroup[] }) {
  const rows = [...groups].sort((a, b) => Date.parse(b.last_at) - Date.parse(a.last_at)).slice(0, 6);
  if (!rows.length) return <p class="pad soft">No dead jobs. Jobs that use up their attempts appear here, grouped by how they failed.</p>;
  return (
    <ul class="rows">
      {rows.map((group) => (
        <li key={group.fingerprint + group.kind + group.queue} data-row={group.fingerprint}>
          <Link to={to(["dead"], { group: group.fingerprint })} class="strong clip" title={group.error ?? ""}>{group.error ?? "no error recorded"}</Link>
          <span class="soft clip mono">{group.kind}</span>
          <span class="number bad rows-end">×{count(group.jobs)}</span>
          <span class="number soft rows-end"><Age at={group.last_at} /></span>
        </li>
      ))}
    </ul>
  );
}

function Coming({ schedules }: { schedules: Schedule[] }) {
  const next = schedules.filter((one) => one.next_at && one.state === "active").sort((a, b) => Date.parse(a.next_at!) - Date.parse(b.next_at!)).slice(0, 5);
  if (!next.length) return null;
  return (
    <Panel title="Next" flush acts={<Link to="schedules">All schedules</Link>}>
      <ul class="rows">
        {next.map((one) => (
          <li key={one.name} data-row={one.name}>
            <Link to={to(["schedules", one.name])} class="strong clip">{one.name}</Link>
            <span class="soft clip mono">{one.kind}</span>
            <span class="number soft rows-end"><Time at={one.next_at} /></span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function FirstSteps() {
  return (
    <Empty icon="bolt" title="Ready for the first job" commands={["holdfast job enqueue greet '{\"name\": \"Ada\"}'", "holdfast worker app.py"]}>
      <p>Enqueue a job and start a worker that handles its kind. This page updates automatically.</p>
    </Empty>
  );
}
