import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { look, path } from "../api";
import { archiveJob, cancelJob, deleteJob, editJob, retryJob } from "../deeds";
import { useFeed, useKept } from "../feed";
import { put, value } from "../filter";
import { count, plural } from "../format";
import { useKeys } from "../keys";
import { paused, togglePause } from "../live";
import { bulk } from "../parts/bulk";
import { Age, Button, Head, JobId, JobNote, Link, Mono, None, StateMark } from "../parts/basics";
import { CopyAs, shell } from "../parts/copy";
import { Empty, Stale, Trouble } from "../parts/empty";
import { openEnqueue } from "../parts/enqueue";
import { FilterBox } from "../parts/filterbox";
import { Icon } from "../parts/icon";
import { brief } from "../parts/json";
import { Menu } from "../parts/menu";
import { Table, TableMenu, type Column } from "../parts/table";
import { exportAll, openImport } from "../parts/transfer";
import { go, query, setQuery, to } from "../route";
import { barred } from "../session";
import { states, type Job, type JobPage, type Queue, type State, type Verb } from "../wire";

const LIMIT = 50;
const selected = signal<Set<string>>(new Set());

const columns: Column<Job>[] = [
  { name: "id", title: "Id", cell: (job) => <JobId id={job.id} />, text: (job) => job.id },
  { name: "kind", title: "Kind", cell: (job) => <Mono>{job.kind}</Mono>, text: (job) => job.kind },
  { name: "queue", title: "Queue", cell: (job) => job.queue, text: (job) => job.queue, rank: 2 },
  { name: "state", title: "State", cell: (job) => <StateMark state={job.state} />, text: (job) => job.state },
  { name: "attempt", title: "Att.", right: true, tip: "Attempts used, out of the maximum", cell: (job) => <span class="number">{job.attempt}/{job.max_attempts}</span>, text: (job) => `${job.attempt}/${job.max_attempts}`, rank: 2 },
  { name: "total", title: "All att.", right: true, hidden: true, tip: "All attempts, including those before a retry; a retry restarts the count at 0", cell: (job) => <span class="number">{job.total_attempts}</span>, text: (job) => String(job.total_attempts), rank: 3 },
  { name: "age", title: "Age", right: true, tip: "Time since it was enqueued", cell: (job) => <span class="number"><Age at={job.created_at} /></span>, text: (job) => job.created_at, rank: 2 },
  { name: "note", title: "Last error or progress", wide: true, cell: (job) => <JobNote job={job} />, text: (job) => job.error ?? job.reason, rank: 2 },
  { name: "worker", title: "Worker", cell: (job) => (job.worker ? <Mono title={job.worker}>{job.worker}</Mono> : <None />), text: (job) => job.worker, rank: 3 },
  { name: "payload", title: "Payload", hidden: true, wide: true, cell: (job) => <Mono>{job.payload_preview ? brief(job.payload_preview) : brief(job.payload)}</Mono>, text: (job) => JSON.stringify(job.payload), rank: 3 },
  { name: "priority", title: "Priority", hidden: true, right: true, cell: (job) => job.priority, text: (job) => job.priority, rank: 3 },
  { name: "lane", title: "Lane", hidden: true, cell: (job) => job.lane ?? <None />, text: (job) => job.lane, rank: 3 },
  { name: "key", title: "Key", hidden: true, cell: (job) => job.key ?? <None />, text: (job) => job.key, rank: 3 },
  { name: "tenant", title: "Tenant", hidden: true, cell: (job) => job.tenant ?? <None />, text: (job) => job.tenant, rank: 3 },
  { name: "ended", title: "Ended", hidden: true, right: true, cell: (job) => <Age at={job.ended_at} />, text: (job) => job.ended_at, rank: 3 },
];

export function Jobs() {
  const filter = query.value.get("q") ?? "";
  const cursor = query.value.get("cursor") ?? "";
  const page = useFeed<JobPage>(path(["jobs"], { q: filter, limit: LIMIT, cursor }), 1500);
  const { data, stale } = useKept(page);
  const refused = page.problem.value?.status === 422 ? page.problem.value : undefined;
  const list = useSteady(data?.jobs, filter + "|" + cursor, stale);
  const rows = list.rows;

  useEffect(() => {
    selected.value = new Set();
  }, [filter, cursor]);

  const picked = (rows ?? []).filter((job) => selected.value.has(job.id));
  const focused = (): Job | undefined => {
    const id = document.activeElement?.closest<HTMLElement>("[data-row]")?.dataset.row;
    return rows?.find((job) => job.id === id) ?? (picked.length === 1 ? picked[0] : undefined);
  };
  const chosen = (verb: "retry" | "cancel") => {
    if (barred("operate")) return;
    if (picked.length > 1) bulk(verb, idFilter(picked), { chosen: picked.length });
    else {
      const job = focused();
      if (job) (verb === "retry" ? retryJob : cancelJob)(job);
    }
  };
  useKeys({
    r: () => chosen("retry"),
    c: () => chosen("cancel"),
    e: () => {
      const job = focused();
      if (job && !barred("operate")) editJob(job, job.state === "dead");
    },
    x: () => {
      const job = focused();
      if (job) toggle(job.id);
    },
    X: () => {
      const job = focused();
      const last = [...selected.value].at(-1);
      if (!job || !rows) return;
      const from = rows.findIndex((one) => one.id === last);
      const until = rows.findIndex((one) => one.id === job.id);
      if (from < 0) return toggle(job.id);
      selected.value = new Set([...selected.value, ...rows.slice(Math.min(from, until), Math.max(from, until) + 1).map((one) => one.id)]);
    },
    "*": () => (selected.value = new Set(rows?.map((job) => job.id))),
  });

  return (
    <>
      <Head title="Jobs">
        <TableMenu name="jobs" columns={columns} rows={rows ?? []} />
        <Menu
          label="Export and import"
          icon="move"
          items={[
            { label: "Export all matching jobs", icon: "download", act: () => void exportAll(filter) },
            { label: "Import jobs", icon: "upload", why: barred("produce"), act: openImport },
            { label: "Act on all matching jobs", icon: "bolt", why: barred("operate"), act: () => bulk("retry", filter) },
          ]}
        />
        <Button look="quiet" icon={paused.value ? "play" : "pause"} pressed={paused.value} onClick={togglePause} title="Pause live updates (p)">
          {paused.value ? "Resume" : "Live"}
        </Button>
        <Button icon="plus" look="primary" why={barred("produce")} onClick={() => openEnqueue()}>Enqueue</Button>
      </Head>
      <FilterBox filter={filter} problem={refused} />
      <StateChips filter={filter} />
      {page.problem.value && !refused && rows === undefined && <Trouble problem={page.problem.value} retry={() => void page.refresh()} />}
      {rows !== undefined && !refused && <Stale feed={page} />}
      <div class="list" onPointerEnter={list.hold} onPointerLeave={list.letGo}>
        {list.fresh > 0 && (
          <button type="button" class="fresh" onClick={list.take}>
            <Icon name="down" /> {plural(list.fresh, "new job")}
          </button>
        )}
        {rows && rows.length === 0 && !stale ? (
          <NoJobs filter={filter} />
        ) : refused && !rows ? null : (
          <Table name="jobs" label="Jobs" columns={columns} rows={rows} id={(job) => job.id} selected={selected} stale={stale} />
        )}
      </div>
      <WhatIsKept filter={filter} rows={rows ?? []} />
      {data?.searched != null && (
        <p class="notice" role="status">
          <Icon name="info" /> Searched only the newest {count(data.searched)} jobs that match the other terms. Narrow by state, queue or kind to search older jobs.
        </p>
      )}
      <nav class="pages" aria-label="Older and newer jobs">
        {cursor ? <Button small look="plain" onClick={() => setQuery({ cursor: null }, {})}>Newest</Button> : <span />}
        <span class="soft number">{rows ? plural(rows.length, "job") + (data?.cursor ? ", and more" : "") : ""}</span>
        {data?.cursor ? <Button small onClick={() => setQuery({ cursor: data.cursor }, {})}>Older <Icon name="right" /></Button> : <span />}
      </nav>
      {picked.length > 0 && <SelectionBar jobs={picked} filter={filter} />}
    </>
  );
}

function toggle(id: string): void {
  const set = new Set(selected.value);
  if (!set.delete(id)) set.add(id);
  selected.value = set;
}

const idFilter = (jobs: Job[]): string => `id:${jobs.map((job) => job.id).join(",")}`;

function SelectionBar({ jobs, filter }: { jobs: Job[]; filter: string }) {
  const why = barred("operate");
  const one = jobs.length === 1 ? jobs[0] : undefined;
  const q = idFilter(jobs);
  const act = (verb: Verb) => () => {
    if (one && verb === "retry") return retryJob(one);
    if (one && verb === "cancel") return cancelJob(one);
    if (one && verb === "archive") return archiveJob(one);
    if (one && verb === "delete") return deleteJob(one);
    bulk(verb, q, { chosen: jobs.length });
  };
  return (
    <div class="selection" role="toolbar" aria-label="Selected jobs">
      <span class="number">{count(jobs.length)} selected</span>
      <button type="button" class="link" onClick={() => bulk("retry", filter)} disabled={why !== undefined}>
        Act on all matching…
      </button>
      <span class="gap" />
      <Button small icon="retry" why={why} onClick={act("retry")}>Retry</Button>
      <Button small icon="cancel" why={why} onClick={act("cancel")}>Cancel</Button>
      <Button small icon="move" why={why} onClick={act("move")}>Move</Button>
      <Button small icon="archive" why={why} onClick={act("archive")}>Archive</Button>
      <Button small icon="trash" look="danger" why={why} onClick={act("delete")}>Delete</Button>
      <CopyAs cli={shell("holdfast", "job", "list", q)} asked={{ method: "GET", path: path(["jobs"], { q }) }} />
      <Button small look="quiet" icon="close" label="Clear the selection" onClick={() => (selected.value = new Set())} />
    </div>
  );
}

/** Counters if there is no filter; with a filter, the server counts as long as it is cheap. */
function StateChips({ filter }: { filter: string }) {
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]));
  const wanted = (value(filter, "state") ?? "").split(",").filter(Boolean);
  const rest = put(filter, "state", null);
  const queue = rest === "" ? null : /^queue:([^\s",*]+)$/.exec(rest)?.[1];
  const counts = useMemo(() => {
    const told = queues.data.value?.queues;
    if (!told || queue === undefined) return null;
    const counted = queue === null ? told : told.filter((one) => one.queue === queue);
    return (state: State) => counted.reduce((sum, one) => sum + one[state], 0);
  }, [queues.data.value, queue]);
  return (
    <div class="chips" role="group" aria-label="States">
      <button type="button" class="chip" aria-pressed={wanted.length === 0} onClick={() => setQuery({ q: rest, cursor: null }, {})}>
        all
      </button>
      {states.map((state) => {
        const on = wanted.includes(state);
        // The count of done jobs never shrinks, but only some queues keep done jobs: the number would mislead here.
        const number = counts && state !== "done" && state !== "cancelled" ? counts(state) : null;
        return (
          <button key={state} type="button" class={`chip ${state}`} aria-pressed={on} onClick={() => setQuery({ q: put(filter, "state", on && wanted.length === 1 ? null : state), cursor: null }, {})}>
            <StateMark state={state} />
            {number !== null && <span class="number">{count(number)}</span>}
          </button>
        );
      })}
    </div>
  );
}

/** Below a list of done jobs: what it leaves out, if any of its queues does not keep all. */
function WhatIsKept({ filter, rows }: { filter: string; rows: Job[] }) {
  const { queues } = useFeed<{ queues: Queue[] }>(path(["queues"])).data.value ?? {};
  if (!(value(filter, "state") ?? "").split(",").includes("done")) return null;
  const names = value(filter, "queue")?.split(",").map((name) => new RegExp(`^${name.replace(/[.+?^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*")}$`));
  // Rows of adopted tables stay where they are; their ids have a part above those of jobs.
  const adopted = new Set(rows.filter((job) => parseInt(job.id.slice(15, 18), 16) >= 64).map((job) => job.queue));
  const some = (queues ?? []).filter((queue) => !queue.keep_done && !adopted.has(queue.queue) && (!names || names.some((name) => name.test(queue.queue))));
  const first = some[0];
  if (!first) return null;
  const name = some.length === 1 ? first.queue : "QUEUE";
  return (
    <p class="notice" role="status">
      <Icon name="info" /> {some.some((queue) => queue.keep_recent) ? "Of done jobs, a worker keeps at most 5 a second, for a day. To keep all:" : "Done jobs are not kept. To keep them:"}{" "}
      <code>{shell("holdfast", "queue", "set", name, "keep_done=7d")}</code>
    </p>
  );
}

function NoJobs({ filter }: { filter: string }) {
  if (!filter)
    return (
      <Empty icon="jobs" title="No jobs yet" commands={["holdfast job enqueue greet '{\"name\": \"Ada\"}'"]}>
        <p>Enqueue a job here, from your code, with curl, or in a terminal:</p>
      </Empty>
    );
  return (
    <Empty icon="filter" title="No matching jobs" commands={[shell("holdfast", "job", "list", filter)]}>
      <p>
        A term is <code>field:value</code>; a job must match all terms. <code>kind:send*</code> matches a prefix, <code>-queue:noise</code> excludes a queue, <code>age:&lt;2h</code> finds jobs younger than two hours,{" "}
        <code>payload.user.id:42</code> searches the payload.
      </p>
      <p>
        <Link to="jobs">Show all jobs</Link>
      </p>
    </Empty>
  );
}

interface Steady {
  rows: Job[] | undefined;
  fresh: number;
  hold: () => void;
  letGo: () => void;
  take: () => void;
}

/** While the user hovers over or has selected rows, they keep their order; new rows wait above. */
function useSteady(jobs: Job[] | undefined, key: string, stale: boolean): Steady {
  const held = useRef(false);
  const order = useRef<{ key: string; ids: string[] } | null>(null);
  const [, draw] = useState(0);
  const redraw = () => draw((number) => number + 1);
  const known = useRef(new Map<string, Job>());
  if (jobs && !stale) for (const job of jobs) known.current.set(job.id, job);
  const busy = held.current || selected.value.size > 0;
  const newest = jobs?.map((job) => job.id);
  // The rows of the previous page stay until those of this page have loaded.
  if (newest && !stale && (!order.current || order.current.key !== key || !busy)) {
    order.current = { key, ids: newest };
    known.current = new Map(jobs!.map((job) => [job.id, job]));
  }
  const ids = order.current?.ids;
  const fresh = newest && ids && busy ? newest.filter((id) => !ids.includes(id) && (!ids[0] || id > ids[0])).length : 0;
  return {
    rows: ids?.map((id) => known.current.get(id)).filter((job): job is Job => job !== undefined),
    fresh,
    hold: () => {
      held.current = true;
    },
    letGo: () => {
      held.current = false;
      redraw();
    },
    take: () => {
      order.current = null;
      redraw();
    },
  };
}

/** Open a job by the typed digits of its id. */
export async function openById(text: string): Promise<boolean> {
  try {
    const job = await look<Job>(path(["jobs", text]));
    go(to(["jobs", job.id]));
    return true;
  } catch {
    return false;
  }
}
