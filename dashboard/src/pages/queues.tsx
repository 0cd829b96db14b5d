import { path } from "../api";
import { pauseQueue, resumeQueue } from "../deeds";
import { useFeed } from "../feed";
import { count, duration } from "../format";
import { all } from "../filter";
import { Age, Button, Count, Head, Link, Meter, Mood, None } from "../parts/basics";
import { Empty, Wait } from "../parts/empty";
import { openEnqueue } from "../parts/enqueue";
import { Menu } from "../parts/menu";
import { Spark } from "../parts/spark";
import { sortRows, Table, TableMenu, type Column } from "../parts/table";
import { finished, rateOf } from "../rates";
import { go, query, setQuery, to } from "../route";
import { spans, useHistory } from "../series";
import { barred } from "../session";
import type { Queue } from "../wire";

const columns: Column<Queue>[] = [
  { name: "queue", title: "Queue", cell: (queue) => <Link to={to(["queues", queue.queue])} class="strong">{queue.queue}</Link>, text: (queue) => queue.queue, sort: (a, b) => a.queue.localeCompare(b.queue), wide: true },
  { name: "state", title: "State", cell: (queue) => <QueueState queue={queue} />, text: (queue) => (queue.paused_at ? "paused" : "active"), rank: 2 },
  { name: "oldest", title: "Oldest", right: true, tip: "How long the longest-waiting job has been ready", cell: (queue) => <span class="number">{queue.oldest === null ? <None /> : duration(queue.oldest)}</span>, text: (queue) => queue.oldest, sort: (a, b) => (a.oldest ?? -1) - (b.oldest ?? -1) },
  { name: "queued", title: "Queued", right: true, cell: (queue) => <Link to={to(["jobs"], { q: all(["state", "queued"], ["queue", queue.queue]) })}><Count value={queue.queued} quiet /></Link>, text: (queue) => queue.queued, sort: (a, b) => a.queued - b.queued },
  { name: "leased", title: "Leased", right: true, tip: "Running now, and the limit if one is set", cell: (queue) => <Leased queue={queue} />, text: (queue) => queue.leased, sort: (a, b) => a.leased - b.leased, rank: 2 },
  { name: "rate", title: "Done/min", right: true, tip: "Over the last minute, as seen by this page", cell: (queue) => <Rate queue={queue.queue} />, rank: 3 },
  { name: "spark", title: "Recent", cell: (queue) => <Lately queue={queue.queue} />, rank: 3 },
  { name: "dead", title: "Dead", right: true, cell: (queue) => <Link to={to(["dead"], { queue: queue.queue })}><Count value={queue.dead} quiet bad /></Link>, text: (queue) => queue.dead, sort: (a, b) => a.dead - b.dead },
  { name: "done", title: "Done", right: true, cell: (queue) => <Count value={queue.done} quiet />, text: (queue) => queue.done, sort: (a, b) => a.done - b.done, rank: 3 },
  { name: "attempts", title: "Attempts", right: true, hidden: true, cell: (queue) => queue.max_attempts, text: (queue) => queue.max_attempts, rank: 3 },
  { name: "lease", title: "Lease", right: true, hidden: true, cell: (queue) => duration(queue.lease), text: (queue) => queue.lease, rank: 3 },
  { name: "acts", title: "", right: true, cell: (queue) => <Acts queue={queue} /> },
];

export function Queues() {
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]));
  const by = query.value.get("sort") ?? "queue";
  const sorted = { by: by.replace("-", ""), down: by.startsWith("-") };
  const rows = queues.data.value && sortRows(queues.data.value.queues, columns, sorted);
  return (
    <>
      <Head title="Queues" sub="How many jobs are waiting and running, and how late they are.">
        <TableMenu name="queues" columns={columns} rows={rows ?? []} />
        <Button icon="plus" look="primary" why={barred("produce")} onClick={() => openEnqueue()}>Enqueue</Button>
      </Head>
      <Wait feed={queues} rows={8}>
        {() =>
          rows!.length ? (
            <Table
              name="queues"
              label="Queues"
              columns={columns}
              rows={rows}
              id={(queue) => queue.queue}
              mood={(queue) => (queue.paused_at ? "muted" : undefined)}
              sorted={sorted}
              onSort={(name) => setQuery({ sort: sorted.by === name && !sorted.down ? "-" + name : name })}
            />
          ) : (
            <Empty icon="queues" title="No queues yet" commands={["holdfast job enqueue greet '{\"name\": \"Ada\"}'"]}>
              <p>A queue is created when a job is first enqueued in it, or when its settings are first saved.</p>
            </Empty>
          )
        }
      </Wait>
    </>
  );
}

export function QueueState({ queue }: { queue: Queue }) {
  if (queue.paused_at) {
    return (
      <Mood mood="paused" icon="pause" title={[queue.paused_reason, queue.paused_by && `by ${queue.paused_by}`].filter(Boolean).join(" ")}>
        paused <small><Age at={queue.paused_at} /></small>
      </Mood>
    );
  }
  if (queue.limit && queue.leased >= queue.limit && queue.queued) return <Mood mood="leased" icon="play" title="The maximum number of jobs is running">at its limit</Mood>;
  return <Mood mood="active" icon="play">active</Mood>;
}

export function Leased({ queue }: { queue: Queue }) {
  return (
    <span class="with-meter">
      {queue.limit !== null && <Meter value={queue.leased} most={queue.limit} />}
      <Link to={to(["jobs"], { q: all(["state", "leased"], ["queue", queue.queue]) })}>
        <span class={`number${queue.leased ? "" : " none"}`}>
          {count(queue.leased)}
          {queue.limit !== null && `/${count(queue.limit)}`}
        </span>
      </Link>
    </span>
  );
}

// If there are few queues, the history of each is requested; otherwise the samples of this page are used.
const FEW = 15;

function Lately({ queue }: { queue: string }) {
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"])).data.value?.queues.length ?? 0;
  return queues <= FEW ? <Kept queue={queue} /> : <Spark values={finished(queue)} label={`Jobs done recently in ${queue}`} />;
}

const Kept = ({ queue }: { queue: string }) => <Spark values={useHistory("done", queue, spans[0]!).values} label={`Jobs done recently in ${queue}`} />;

function Rate({ queue }: { queue: string }) {
  const rate = rateOf(queue, "done");
  return <span class={`number${rate ? "" : " none"}`}>{rate === null ? "–" : count(rate * 60)}</span>;
}

function Acts({ queue }: { queue: Queue }) {
  const why = barred("operate");
  return (
    <span class="acts">
      {queue.paused_at ? (
        <Button small look="quiet" icon="play" label={`Resume ${queue.queue}`} why={why} onClick={() => resumeQueue(queue)} />
      ) : (
        <Button small look="quiet" icon="pause" label={`Pause ${queue.queue}`} why={why} onClick={() => pauseQueue(queue)} />
      )}
      <Menu
        label={`More for ${queue.queue}`}
        items={[
          { label: "Enqueue a job", icon: "plus", why: barred("produce"), act: () => openEnqueue({ queue: queue.queue }) },
          { label: "Show its jobs", icon: "jobs", act: () => go(to(["jobs"], { q: all(["queue", queue.queue]) })) },
          { label: "Settings", icon: "settings", act: () => go(to(["queues", queue.queue]) + "#settings") },
        ]}
      />
    </span>
  );
}
