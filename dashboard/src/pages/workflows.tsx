import { useState } from "preact/hooks";
import { path, type Problem } from "../api";
import { cancelWorkflow, retryWorkflow } from "../deeds";
import { useFeed, useKept } from "../feed";
import { absolute, count, duration, now, plural, short } from "../format";
import { useKeys } from "../keys";
import { Button, Fact, Facts, Head, JobId, Link, Mood, None, Panel, StateMark, Time } from "../parts/basics";
import { CopyAs, CopyButton, shell } from "../parts/copy";
import { Bones, Empty, Stale, Trouble, Wait } from "../parts/empty";
import { Graph, Parts, told } from "../parts/graph";
import { Icon, type IconName } from "../parts/icon";
import { Table, TableMenu, type Column } from "../parts/table";
import { all } from "../filter";
import { parts, query, setQuery, to } from "../route";
import { barred } from "../session";
import type { Job, Workflow, WorkflowGroup, WorkflowJob, WorkflowJobs, WorkflowPage, WorkflowShown } from "../wire";

const looks: Record<Workflow["state"], [string, IconName]> = {
  running: ["leased", "dot"],
  waiting: ["paused", "clock"],
  done: ["done", "done"],
  failed: ["dead", "cross"],
  cancelled: ["cancelled", "minus"],
};

const WorkflowState = ({ state }: { state: Workflow["state"] }) => (
  <Mood mood={looks[state][0]} icon={looks[state][1]}>{state}</Mood>
);

const columns: Column<Workflow>[] = [
  { name: "name", title: "Workflow", wide: true, cell: (one) => <Name workflow={one} />, text: (one) => one.name },
  { name: "state", title: "State", cell: (one) => <WorkflowState state={one.state} />, text: (one) => one.state },
  { name: "jobs", title: "Jobs", cell: (one) => <Progress workflow={one} />, text: (one) => `${one.jobs.done} of ${one.jobs.total}`, rank: 2 },
  { name: "started", title: "Started", right: true, cell: (one) => <span class="number"><Time at={one.created_at} /></span>, text: (one) => one.created_at, rank: 2 },
  { name: "took", title: "Took", right: true, cell: (one) => <span class="number">{took(one.created_at, one.ended_at)}</span>, rank: 3 },
  { name: "deadline", title: "Deadline", right: true, cell: (one) => (one.deadline && !one.ended_at ? <span class="number"><Time at={one.deadline} /></span> : <None />), text: (one) => one.deadline, rank: 3 },
  { name: "by", title: "Started by", hidden: true, cell: (one) => one.created_by ?? <None />, text: (one) => one.created_by, rank: 3 },
  { name: "id", title: "Id", hidden: true, cell: (one) => <span class="mono">{one.id}</span>, text: (one) => one.id, rank: 3 },
];

const took = (from: string, until: string | null): string => duration(Math.max(0, ((until ? Date.parse(until) : now.value) - Date.parse(from)) / 1000));

const Name = ({ workflow }: { workflow: Workflow }) => (
  <span class="workflow-name">
    <Link to={to(["workflows", workflow.id])} class="strong">{workflow.name}</Link>
    {workflow.key ? <span class="mono soft clip" title={workflow.key}>{workflow.key}</span> : <span class="mono soft">{short(workflow.id)}</span>}
  </span>
);

const Progress = ({ workflow: { jobs } }: { workflow: Workflow }) => (
  <span class="workflow-progress">
    <Parts jobs={jobs} />
    <span class="number">{count(jobs.done)} of {count(jobs.total)}</span>
    {jobs.dead > 0 && <span class="number bad">{count(jobs.dead)} dead</span>}
  </span>
);

export function Workflows() {
  const { value: asked } = query;
  const state = asked.get("state");
  const name = asked.get("name");
  const cursor = asked.get("cursor");
  const feed = useFeed<WorkflowPage>(path(["workflows"], { state, name, cursor }), 1500);
  const { data, stale } = useKept(feed);
  const [typed, setTyped] = useState(name ?? "");
  return (
    <>
      <Head title="Workflows" sub="Jobs that belong together: what waits for what, and how far each one is.">
        <TableMenu name="workflows" columns={columns} rows={data?.workflows ?? []} />
      </Head>
      <div class="workflow-choice">
        <div class="segments" role="group" aria-label="State">
          <button type="button" aria-pressed={!state} onClick={() => setQuery({ state: null, cursor: null })}>All</button>
          {(Object.keys(looks) as Workflow["state"][]).map((one) => (
            <button key={one} type="button" aria-pressed={state === one} onClick={() => setQuery({ state: one, cursor: null })}>{one}</button>
          ))}
        </div>
        <form onSubmit={(event) => { event.preventDefault(); setQuery({ name: typed.trim() || null, cursor: null }); }}>
          <input value={typed} aria-label="Name of the workflow" placeholder="Name" spellcheck={false} onInput={(event) => setTyped(event.currentTarget.value)} onBlur={() => typed.trim() !== (name ?? "") && setQuery({ name: typed.trim() || null, cursor: null })} />
        </form>
      </div>
      <Wait feed={data ? { ...feed, data: { value: data } } as typeof feed : feed} rows={8}>
        {() =>
          data!.workflows.length ? (
            <>
              <Table name="workflows" label="Workflows" columns={columns} rows={data!.workflows} id={(one) => one.id} stale={stale} />
              <Pages first={!cursor} next={data!.cursor} turn={(to) => setQuery({ cursor: to }, {})} />
            </>
          ) : state || name || cursor ? (
            <Empty icon="search" title="No such workflows" />
          ) : (
            <Empty icon="workflows" title="No workflows yet" commands={["holdfast workflow list"]}>
              <p>A workflow is jobs that belong together, under a name:</p>
              <pre class="snippet" tabIndex={0}>{'@app.workflow\ndef nightly(files: list[str]) -> Flow[int]:\n    return fetch.map(files).then(report)\n\nnightly.start(["a.csv", "b.csv"])'}</pre>
            </Empty>
          )
        }
      </Wait>
    </>
  );
}

const Pages = ({ first, next, turn }: { first: boolean; next: string | null; turn: (cursor: string | null) => void }) =>
  first && !next ? null : (
    <p class="workflow-pages">
      {!first && <Button small onClick={() => turn(null)}>First page</Button>}
      {next && <Button small onClick={() => turn(next)}>Next page</Button>}
    </p>
  );

export function WorkflowOne() {
  const id = parts.value[1] ?? "";
  const feed = useFeed<WorkflowShown>(path(["workflows", id]), 1000);
  const one = feed.data.value;
  const problem = feed.problem.value;
  if (problem?.status === 404) return <Gone id={id} problem={problem} />;
  if (!one) return problem ? <Trouble problem={problem} retry={() => void feed.refresh()} /> : <Bones rows={10} tall />;
  return (
    <>
      <Stale feed={feed} />
      <Shown workflow={one} />
    </>
  );
}

function Shown({ workflow: one }: { workflow: WorkflowShown }) {
  const chosen = query.value.get("group");
  const group = one.groups.find((other) => other.group === chosen);
  const why = barred("operate");
  const open = one.jobs.waiting + one.jobs.queued + one.jobs.leased;
  const failed = one.jobs.dead + one.jobs.cancelled;
  const cancel = why ?? (open ? undefined : "The workflow has ended");
  const retry = why ?? (failed ? undefined : "Nothing in it has failed");
  useKeys({ r: () => !retry && retryWorkflow(one), c: () => !cancel && cancelWorkflow(one) });
  return (
    <>
      <Head
        trail={<Link to="workflows">Workflows</Link>}
        title={
          <>
            {one.name} <WorkflowState state={one.state} />
          </>
        }
        sub={
          <>
            <span class="mono">{one.id}</span> <CopyButton text={one.id} label="Copy id" />
          </>
        }
      >
        {failed > 0 && <Button icon="retry" look="primary" why={retry} keys="r" onClick={() => retryWorkflow(one)}>Retry failed</Button>}
        {open > 0 && <Button icon="cancel" why={cancel} keys="c" onClick={() => cancelWorkflow(one)}>Cancel</Button>}
        <Link to={to(["jobs"], { q: all(["workflow", one.id]) })} class="button">
          <Icon name="jobs" />
          <span>As a list</span>
        </Link>
      </Head>
      {sentence(one) && (
        <p class={`explain ${looks[one.state][0]}`}>
          <Icon name="info" />
          <span>{sentence(one)}</span>
        </p>
      )}
      <Panel title="Graph" acts={<span class="soft number">{plural(one.jobs.total, "job")}{one.groups.length < one.jobs.total && ` in ${plural(one.groups.length, "group")}`}{one.more_groups && ", more not shown"}</span>}>
        {one.groups.length ? <Graph groups={one.groups} chosen={chosen} choose={(next) => setQuery({ group: next === chosen ? null : next }, {})} /> : <p class="soft">No jobs yet.</p>}
      </Panel>
      <div class="split">
        <div class="stack">{group ? <GroupPanel key={group.group} workflow={one} group={group} /> : <GroupList workflow={one} />}</div>
        <Panel title="Facts" acts={<CopyAs cli={shell("holdfast", "workflow", "show", one.id)} asked={{ method: "GET", path: path(["workflows", one.id]) }} />}>
          <Facts>
            <Fact name="Done"><span class="number">{count(one.jobs.done)} of {count(one.jobs.total)}</span></Fact>
            {one.key && <Fact name="Key"><span class="mono">{one.key}</span></Fact>}
            <Fact name="Started"><Time at={one.created_at} />{one.created_by && ` by ${one.created_by}`}</Fact>
            {one.ended_at && <Fact name="Ended"><Time at={one.ended_at} /></Fact>}
            <Fact name="Took"><span class="number">{took(one.created_at, one.ended_at)}</span></Fact>
            {one.deadline && <Fact name="Deadline"><Time at={one.deadline} /> <span class="soft">({absolute(one.deadline)})</span></Fact>}
            {one.parent && <Fact name="Child of"><JobId id={one.parent} /></Fact>}
            {one.reason && <Fact name="Reason">{one.reason}</Fact>}
          </Facts>
        </Panel>
      </div>
    </>
  );
}

/** What the state means, and what to do about it. */
function sentence(one: WorkflowShown): string | null {
  const { jobs } = one;
  if (one.state === "waiting" && jobs.dead + jobs.cancelled > 0) return `${plural(jobs.waiting, "job waits", "jobs wait")} for ${plural(jobs.dead + jobs.cancelled, "job that failed", "jobs that failed")}. Retry what failed, or cancel the workflow.`;
  if (one.state === "waiting") return "Nothing runs until an event comes or a time is reached.";
  if (one.state === "failed") return `${plural(jobs.dead, "job is", "jobs are")} dead. Retry what failed; what is done stays done.`;
  if (one.state === "cancelled" && one.reason) return `Cancelled: ${one.reason}.`;
  if (one.deadline && !one.ended_at) return `What has not ended by ${absolute(one.deadline)} will be cancelled.`;
  return null;
}

/** The groups as a list: the same as the graph, in rows. */
function GroupList({ workflow }: { workflow: WorkflowShown }) {
  return (
    <Panel title="Groups" flush acts={<span class="soft">Choose one to see its jobs</span>}>
      <ul class="rows">
        {workflow.groups.slice(0, 100).map((group) => (
          <li key={group.group} data-row={group.group}>
            <button type="button" class="link mono" data-open onClick={() => setQuery({ group: group.group }, {})}>{group.kind}</button>
            {group.jobs.total > 1 && <span class="soft number">× {count(group.jobs.total)}</span>}
            <span class="rows-end soft">{told(group.jobs)}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

const filters = ["queued", "leased", "done", "dead", "cancelled"] as const;

function GroupPanel({ workflow, group }: { workflow: WorkflowShown; group: WorkflowGroup }) {
  const [state, setState] = useState<string | null>(null);
  const [cursor, setCursor] = useState<string | null>(null);
  const feed = useFeed<WorkflowJobs>(path(["workflows", workflow.id, "jobs"], { group: group.group, state, cursor, limit: 25 }), 1500);
  const { data } = useKept(feed);
  const waiting = data?.jobs.find((job) => job.waits);
  const why = useFeed<Job>(waiting ? path(["jobs", waiting.id]) : null, 3000).data.value?.explain;
  const choose = (next: string | null) => {
    setState(next);
    setCursor(null);
  };
  const number = (one: (typeof filters)[number]) => group.jobs[one] + (one === "queued" ? group.jobs.waiting : 0);
  return (
    <Panel
      flush
      title={<><span class="mono">{group.kind}</span>{group.jobs.total > 1 && ` × ${count(group.jobs.total)}`}</>}
      acts={
        <>
          <span class="soft">in <Link to={to(["queues", group.queue])}>{group.queue}</Link></span>
          <Button small look="quiet" icon="close" label="Close" onClick={() => setQuery({ group: null }, {})} />
        </>
      }
    >
      {group.jobs.total > 1 && (
        <div class="pad">
          <div class="segments" role="group" aria-label="State of jobs">
            <button type="button" aria-pressed={!state} onClick={() => choose(null)}>All</button>
            {filters.filter((one) => number(one) > 0).map((one) => (
              <button key={one} type="button" aria-pressed={state === one} onClick={() => choose(one)}>{one} {count(number(one))}</button>
            ))}
          </div>
        </div>
      )}
      {why && <p class="pad soft workflow-why"><Icon name="info" /> <span><JobId id={waiting!.id} />: {why}</span></p>}
      {!data ? (
        <Bones rows={4} />
      ) : data.jobs.length ? (
        <Table name="workflow-jobs" label={`Jobs of ${group.kind}`} columns={jobColumns} rows={data.jobs} id={(job) => job.id} />
      ) : (
        <p class="pad soft">No such jobs.</p>
      )}
      {data && <Pages first={!cursor} next={data.cursor} turn={setCursor} />}
    </Panel>
  );
}

const jobColumns: Column<WorkflowJob>[] = [
  { name: "id", title: "Job", cell: (job) => <JobId id={job.id} /> },
  { name: "state", title: "State", cell: (job) => <StateMark state={job.state} note={job.waits ? "waits" : undefined} /> },
  { name: "attempt", title: "Attempt", right: true, rank: 2, cell: (job) => <span class="number">{job.state === "queued" && job.attempt === 0 ? <None /> : count(job.attempt)}</span> },
  { name: "after", title: "After", right: true, rank: 2, cell: (job) => (job.waits_for === 1 ? <JobId id={job.after[0]!} /> : job.waits_for ? <span class="number soft">{plural(job.waits_for, "job")}</span> : <None />) },
  { name: "began", title: "Began", right: true, rank: 2, cell: (job) => <span class="number"><Time at={job.began_at} /></span> },
  { name: "took", title: "Took", right: true, cell: (job) => <span class="number">{job.began_at && (job.ended_at || job.state === "leased") ? took(job.began_at, job.ended_at) : <None />}</span> },
];

const Gone = ({ id, problem }: { id: string; problem: Problem }) => (
  <>
    <Head trail={<Link to="workflows">Workflows</Link>} title={<span class="mono">{short(id)}</span>} />
    <Empty icon="search" title="No such workflow" commands={["holdfast workflow list"]}>
      <p>{problem.detail}</p>
      <p>A workflow is forgotten a week after it has ended.</p>
    </Empty>
  </>
);
