import { path } from "../api";
import { stopWorker } from "../deeds";
import { useFeed } from "../feed";
import { all } from "../filter";
import { bytes, count, duration, percent, plural } from "../format";
import { Age, Button, Count, Countdown, Head, JobId, JobNote, Link, Meter, Mono, Mood, None, Panel } from "../parts/basics";
import { Bones, Empty, Wait } from "../parts/empty";
import { Icon } from "../parts/icon";
import { Table, TableMenu, type Column } from "../parts/table";
import { query, setQuery, to } from "../route";
import { barred } from "../session";
import type { JobPage, Worker } from "../wire";

const columns: Column<Worker>[] = [
  { name: "worker", title: "Worker", wide: true, cell: (one) => <Link to={to(["jobs"], { q: all(["worker", one.worker]) })} class="mono strong clip" title={one.worker}>{one.worker}</Link>, text: (one) => one.worker },
  { name: "state", title: "State", cell: (one) => <WorkerState worker={one} />, text: (one) => (one.alive ? "alive" : "gone") },
  { name: "seen", title: "Seen", right: true, cell: (one) => <span class="number"><Age at={one.seen_at} /></span>, text: (one) => one.seen_at, rank: 2 },
  { name: "slots", title: "Slots", right: true, cell: (one) => <Slots worker={one} />, text: (one) => `${one.busy}/${one.slots}` },
  { name: "queues", title: "Queues", cell: (one) => <span class="clip names" title={one.queues.join(", ")}>{one.queues.join(", ") || <None />}</span>, text: (one) => one.queues.join(" "), rank: 2 },
  { name: "acked", title: "Acked", right: true, cell: (one) => <Count value={one.acked} quiet />, text: (one) => one.acked, rank: 2 },
  { name: "failed", title: "Failed", right: true, tip: "Share of all attempts it ended", cell: (one) => <Failed worker={one} />, text: (one) => one.failed, rank: 2 },
  { name: "lost", title: "Lost", right: true, tip: "Leases it lost before the job ended", cell: (one) => <Count value={one.lost} quiet bad />, text: (one) => one.lost, rank: 3 },
  { name: "busy", title: "Busy", hidden: true, right: true, tip: "Total time its handlers ran", cell: (one) => <span class="number">{duration(one.busy_time)}</span>, text: (one) => one.busy_time, rank: 3 },
  { name: "claimed", title: "Claimed", hidden: true, right: true, cell: (one) => <span class="number">{one.claimed_at ? <Age at={one.claimed_at} /> : <None />}</span>, text: (one) => one.claimed_at, rank: 3 },
  { name: "acks", title: "Last ack", hidden: true, right: true, cell: (one) => <span class="number">{one.acked_at ? <Age at={one.acked_at} /> : <None />}</span>, text: (one) => one.acked_at, rank: 3 },
  { name: "rss", title: "Memory", right: true, cell: (one) => <span class="number">{bytes(one.rss)}</span>, text: (one) => one.rss, rank: 3 },
  { name: "lag", title: "Loop lag", right: true, tip: "How long its event loop was blocked", cell: (one) => <span class={`number${(one.loop_lag ?? 0) > 1 ? " bad" : ""}`}>{duration(one.loop_lag)}</span>, text: (one) => one.loop_lag, rank: 3 },
  { name: "version", title: "Version", hidden: true, cell: (one) => <span class="clip names" title={one.version ?? ""}>{one.version ?? <None />}</span>, text: (one) => one.version, rank: 3 },
  { name: "host", title: "Host", hidden: true, cell: (one) => one.host ?? <None />, text: (one) => one.host, rank: 3 },
  { name: "pid", title: "Pid", hidden: true, right: true, cell: (one) => one.pid ?? <None />, text: (one) => one.pid, rank: 3 },
  { name: "python", title: "Python", hidden: true, cell: (one) => one.python ?? <None />, text: (one) => one.python, rank: 3 },
  { name: "kinds", title: "Kinds", hidden: true, cell: (one) => <span class="clip names" title={one.kinds.join(", ")}>{one.kinds.join(", ")}</span>, text: (one) => one.kinds.join(" "), rank: 3 },
  { name: "started", title: "Up", right: true, cell: (one) => <span class="number"><Age at={one.started_at} /></span>, text: (one) => one.started_at, rank: 3 },
  { name: "acts", title: "", right: true, cell: (one) => <Acts worker={one} /> },
];

export function Workers() {
  const workers = useFeed<{ workers: Worker[] }>(path(["workers"]), 1500);
  const gone = query.value.get("gone") === "1";
  const told = workers.data.value?.workers;
  const rows = told?.filter((one) => gone || one.alive);
  const hidden = told ? told.length - told.filter((one) => one.alive).length : 0;
  const versions = skew(told ?? []);
  return (
    <>
      <Head title="Workers" sub="Everything that claims jobs: your worker processes, and consumers over HTTP.">
        {hidden > 0 && (
          <Button look="quiet" pressed={gone} onClick={() => setQuery({ gone: gone ? null : "1" })}>
            {gone ? "Hide" : "Show"} {count(hidden)} stopped
          </Button>
        )}
        <TableMenu name="workers" columns={columns} rows={rows ?? []} />
      </Head>
      {versions.length > 1 && (
        <p class="notice">
          <Icon name="info" />
          <span>Running workers have different versions: {versions.join(" and ")}. This is expected only during a deployment.</span>
        </p>
      )}
      <Wait feed={workers}>
        {() =>
          rows!.length ? (
            <Table name="workers" label="Workers" columns={columns} rows={rows} id={(one) => one.worker} mood={(one) => (one.alive ? undefined : "muted")} />
          ) : (
            <Empty icon="workers" title="No workers are running" commands={["holdfast worker app.py"]}>
              <p>Jobs wait until a worker runs. Start one in a terminal, or claim jobs over HTTP from any language:</p>
            </Empty>
          )
        }
      </Wait>
      {rows && rows.length > 0 && <Running />}
    </>
  );
}

function Running() {
  const page = useFeed<JobPage>(path(["jobs"], { q: "state:leased", limit: 100 }), 1500);
  const jobs = page.data.value?.jobs;
  return (
    <Panel title="Running now" flush acts={jobs && <span class="soft number">{plural(jobs.length, "job")}{page.data.value?.cursor && " and more"}</span>}>
      {!jobs ? (
        <Bones rows={3} />
      ) : jobs.length === 0 ? (
        <p class="pad soft">No jobs are running.</p>
      ) : (
        <div class="table-wrap">
          <table aria-label="Running jobs">
            <thead>
              <tr>
                <th scope="col">Id</th>
                <th scope="col">Kind</th>
                <th scope="col" class="rank2">Worker</th>
                <th scope="col" class="rank3">Progress</th>
                <th scope="col">Lease</th>
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.id}>
                  <td><JobId id={job.id} /></td>
                  <td><Mono>{job.kind}</Mono></td>
                  <td class="rank2"><Mono>{job.worker}</Mono></td>
                  <td class="rank3"><JobNote job={{ ...job, error: null, reason: null }} /></td>
                  <td>{job.lease_until && <Countdown until={job.lease_until} />}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

function WorkerState({ worker }: { worker: Worker }) {
  if (!worker.alive) return <Mood mood="cancelled" icon="minus">gone</Mood>;
  if (worker.stop_at) return <Mood mood="paused" icon="stop" title={worker.stop_by ? `by ${worker.stop_by}` : undefined}>stopping</Mood>;
  return <Mood mood="active" icon="done">alive</Mood>;
}

function Slots({ worker }: { worker: Worker }) {
  return (
    <span class="with-meter">
      {worker.slots > 0 && <Meter value={worker.busy} most={worker.slots} />}
      <span class="number">{worker.slots > 0 ? `${worker.busy}/${worker.slots}` : <None />}</span>
    </span>
  );
}

function Failed({ worker }: { worker: Worker }) {
  const ended = worker.acked + worker.failed;
  if (!ended) return <None />;
  return (
    <span class={`number${worker.failed / ended > 0.2 ? " bad" : ""}`} title={`${worker.failed} of ${ended}`}>
      {percent(worker.failed / ended)}
    </span>
  );
}

function Acts({ worker }: { worker: Worker }) {
  const why = barred("operate") ?? (worker.alive ? (worker.stop_at ? "The worker is stopping" : undefined) : "The worker has stopped");
  return <Button small look="quiet" label={`Stop ${worker.worker}`} why={why} onClick={() => stopWorker(worker)}>Stop</Button>;
}

/** The versions of Holdfast that running workers have. */
function skew(workers: Worker[]): string[] {
  return [...new Set(workers.filter((worker) => worker.alive && worker.pid !== null && worker.version).map((worker) => worker.version!))].sort();
}
