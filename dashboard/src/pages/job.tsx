import { useState } from "preact/hooks";
import { path, type Problem } from "../api";
import { archiveJob, cancelJob, deleteJob, editJob, jobsOf, moveJob, retryJob } from "../deeds";
import { useFeed } from "../feed";
import { all } from "../filter";
import { absolute, duration, endless, fine, plural, short } from "../format";
import { useKeys } from "../keys";
import { useWatched } from "../live";
import { Button, Countdown, Fact, Facts, Head, Link, Mono, None, Panel, ProgressNote, StateMark, Time } from "../parts/basics";
import { CopyAs, CopyButton, shell } from "../parts/copy";
import { Bones, Empty, Stale, Trouble } from "../parts/empty";
import { openEnqueue } from "../parts/enqueue";
import { Icon } from "../parts/icon";
import { JsonView } from "../parts/json";
import { LiveLog } from "../parts/log";
import { Menu } from "../parts/menu";
import { Reply } from "../parts/reply";
import { Steps, waits } from "../parts/steps";
import { Timeline } from "../parts/timeline";
import { go, parts, to } from "../route";
import { barred } from "../session";
import type { Attempt, DeadGroup, Job, Queue } from "../wire";
import { EventText } from "./activity";

export function JobPage() {
  const id = parts.value[1] ?? "";
  const feed = useFeed<Job>(path(["jobs", id], { include: "attempts,events,steps" }), 1000);
  const job = feed.data.value;
  const problem = feed.problem.value;
  if (problem && (problem.status === 404 || problem.status === 410)) return <Gone id={id} problem={problem} />;
  if (!job) return problem ? <Trouble problem={problem} retry={() => void feed.refresh()} /> : <Bones rows={10} tall />;
  return (
    <>
      <Stale feed={feed} />
      <Shown job={job} />
    </>
  );
}

function Shown({ job }: { job: Job }) {
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]), 5000);
  useWatched(job.id);
  const why = barred("operate");
  const ended = job.state !== "queued" && job.state !== "leased";
  const retry = why ?? (ended ? undefined : "The job has not ended");
  const cancel = why ?? (ended ? "The job has ended" : undefined);
  const edit = why ?? (job.state === "queued" || job.state === "dead" ? undefined : "Only queued and dead jobs can be edited");
  const asking = job.state === "queued" ? job.steps?.find((step) => step.kind === "event" && waits(step)) : undefined;
  useKeys({
    r: () => !retry && retryJob(job),
    c: () => !cancel && cancelJob(job),
    e: () => !edit && editJob(job, job.state === "dead"),
  });
  return (
    <>
      <Head
        trail={<Link to="jobs">Jobs</Link>}
        title={
          <>
            <span class="mono">{job.kind}</span> <StateMark state={job.state} />
          </>
        }
        sub={
          <>
            <span class="mono">{job.id}</span> <CopyButton text={job.id} label="Copy id" />
          </>
        }
      >
        {job.state === "dead" || (ended && job.state !== "done") ? (
          <Button icon="retry" look="primary" why={retry} keys="r" onClick={() => retryJob(job)}>Retry</Button>
        ) : null}
        {!ended && <Button icon="cancel" why={cancel} keys="c" onClick={() => cancelJob(job)}>Cancel</Button>}
        {(job.state === "dead" || job.state === "queued") && (
          <Button icon="edit" why={edit} keys="e" onClick={() => editJob(job, job.state === "dead")}>{job.state === "dead" ? "Edit & retry" : "Edit"}</Button>
        )}
        <Button icon="clone" why={barred("produce")} onClick={() => openEnqueue({ kind: job.kind, queue: job.queue, payload: job.payload, priority: job.priority, lane: job.lane })}>Clone</Button>
        <Menu
          label="More"
          look="plain"
          items={[
            { label: "Retry", icon: "retry", why: retry, act: () => retryJob(job) },
            { label: "Move to another queue", icon: "move", why: edit, act: () => moveJob(job, (queues.data.value?.queues ?? []).map((one) => one.queue)) },
            { label: "Archive", icon: "archive", why: why ?? (ended && job.state !== "archived" ? undefined : "Only ended jobs can be archived"), act: () => archiveJob(job) },
            { label: "Delete", icon: "trash", bad: true, why: why ?? (job.state === "leased" ? "The job is running; cancel it first" : undefined), act: () => deleteJob(job, () => go("jobs")) },
          ]}
        />
      </Head>

      {job.explain && (
        <p class={`explain ${job.state}`}>
          <Icon name="info" />
          <span>{job.explain}</span>
        </p>
      )}

      <Panel title="Timeline">
        <Timeline job={job} />
      </Panel>

      <div class="split">
        <div class="stack">
          {asking && <Reply key={asking.name} step={asking} />}
          <LiveLog job={job} />
          <Panel title="Attempts" acts={job.fingerprint && <Link to={to(["dead"], { group: job.fingerprint })}>similar failures</Link>}>
            <Attempts job={job} />
          </Panel>
          {job.steps && job.steps.length > 0 && (
            <Panel title="Steps" flush acts={<span class="soft number">{plural(job.steps.length, "step")}</span>}>
              <Steps steps={job.steps} />
            </Panel>
          )}
          {job.state === "dead" && job.fingerprint && <Alike job={job} />}
        </div>
        <div class="stack">
          <Panel title="Facts">
            <Facts>
              <Fact name="Queue"><Link to={to(["queues", job.queue])}>{job.queue}</Link></Fact>
              <Fact name="Priority"><span class="number">{job.priority}</span></Fact>
              <Fact name="Attempts"><span class="number">{job.attempt} of {job.max_attempts}</span>{job.total_attempts > job.attempt && <span class="soft"> ({job.total_attempts} in total, including earlier retries)</span>}</Fact>
              <Fact name="Enqueued"><Time at={job.created_at} /></Fact>
              {job.state === "queued" && <Fact name="Run at">{endless(job.run_at) ? "when its event comes" : <Time at={job.run_at} />}</Fact>}
              {job.expires_at && !job.ended_at && <Fact name="Expires"><Time at={job.expires_at} /></Fact>}
              {job.lease_until && <Fact name="Lease"><Countdown until={job.lease_until} /></Fact>}
              {job.worker && <Fact name="Worker"><Link to={jobsOf(["worker", job.worker])} class="mono">{job.worker}</Link></Fact>}
              {job.ended_at && <Fact name="Ended"><Time at={job.ended_at} /></Fact>}
              {job.lease !== null && <Fact name="Own lease">{duration(job.lease)}</Fact>}
              {job.key && <Fact name="Key"><Link to={jobsOf(["key", job.key])} class="mono">{job.key}</Link></Fact>}
              {job.lane && <Fact name="Lane"><Link to={jobsOf(["lane", job.lane])} class="mono">{job.lane}</Link></Fact>}
              {job.tenant && <Fact name="Tenant"><Link to={jobsOf(["tenant", job.tenant])}>{job.tenant}</Link></Fact>}
              {job.subject && <Fact name="Subject"><Link to={jobsOf(["subject", job.subject])}>{job.subject}</Link></Fact>}
              {job.workflow && <Fact name="Workflow"><Link to={to(["workflows", job.workflow])} class="mono">{short(job.workflow)}</Link></Fact>}
              {job.reason && <Fact name="Reason">{job.reason}</Fact>}
            </Facts>
            {job.progress && (
              <div class="progress-row">
                <ProgressNote progress={job.progress} />
              </div>
            )}
          </Panel>
          <Panel title="Payload" acts={<CopyAs cli={shell("holdfast", "job", "show", job.id)} asked={{ method: "GET", path: path(["jobs", job.id]) }} />}>
            <JsonView value={job.payload} label="payload" />
          </Panel>
          {job.events && job.events.length > 0 && (
            <Panel title="History" flush>
              <ol class="events">
                {job.events.map((event) => (
                  <li key={event.id}>
                    <span class="event-when soft number"><Time at={event.at} /></span>
                    <div class="event-what"><EventText event={event} /></div>
                    <span class="soft">{event.actor ?? event.worker}</span>
                  </li>
                ))}
              </ol>
            </Panel>
          )}
          {job.result !== null && job.result !== undefined && (
            <Panel title="Result">
              <JsonView value={job.result} label="result" />
            </Panel>
          )}
          {job.headers && Object.keys(job.headers).length > 0 && (
            <Panel title="Headers">
              <JsonView value={job.headers} label="headers" />
            </Panel>
          )}
        </div>
      </div>
    </>
  );
}

function Attempts({ job }: { job: Job }) {
  const told = [...(job.attempts ?? [])].reverse();
  if (!told.length) {
    const sentence = job.attempt === 0 ? (job.steps?.length ? "Attempt 1 has begun and pauses between its steps. No attempt has failed." : "No attempts yet.") : job.state === "leased" ? "The first attempt is running. Attempts are recorded when they fail." : "No failed attempts.";
    return <p class="soft">{sentence}</p>;
  }
  return (
    <ol class="attempts">
      {told.map((one, index) => (
        <AttemptRow key={`${one.attempt}-${one.ended_at}`} attempt={one} same={sameAs(one, told[index - 1])} open={index === 0} />
      ))}
    </ol>
  );
}

const sameAs = (one: Attempt, newer: Attempt | undefined): number | null =>
  newer && one.traceback !== null && newer.traceback === one.traceback && newer.message === one.message ? newer.attempt : null;

function AttemptRow({ attempt, same, open }: { attempt: Attempt; same: number | null; open: boolean }) {
  const [shown, setShown] = useState(open);
  const seconds = attempt.started_at && attempt.ended_at ? (Date.parse(attempt.ended_at) - Date.parse(attempt.started_at)) / 1000 : null;
  const details = (attempt.traceback && same === null) || attempt.log;
  return (
    <li class={attempt.outcome}>
      <div class="attempt-head">
        <span class="attempt-number number">{attempt.attempt}</span>
        <span class="attempt-what">
          <strong>{attempt.outcome === "expired" ? "Lease expired" : (attempt.error_kind ?? attempt.outcome)}</strong>
          {attempt.message && <span class="attempt-message">{attempt.message}</span>}
          <span class="attempt-facts soft">
            {attempt.ended_at && <span title={absolute(attempt.ended_at)}><Time at={attempt.ended_at} /></span>}
            {seconds !== null && <span class="number">ran {fine(seconds)}</span>}
            {attempt.worker ? <Mono>{attempt.worker}</Mono> : <None />}
            {attempt.host && <span>{attempt.host}{attempt.version && `, ${attempt.version}`}</span>}
          </span>
        </span>
        {same !== null && !attempt.log ? (
          <span class="soft">same as {same}</span>
        ) : details ? (
          <Button small look="quiet" icon={shown ? "down" : "right"} expanded={shown} onClick={() => setShown(!shown)}>{attempt.traceback ? "Traceback" : "Log"}</Button>
        ) : null}
      </div>
      {shown && attempt.traceback && same === null && <Traceback text={attempt.traceback} />}
      {shown && attempt.log && <Log text={attempt.log} />}
    </li>
  );
}

const Log = ({ text }: { text: string }) => (
  <div class="json">
    <CopyButton text={text} label="Copy log" />
    <pre class="traceback" tabIndex={0} aria-label="Log">{text}</pre>
  </div>
);

const LIBRARY = /site-packages|dist-packages|lib\/python\d|<frozen /;

/** Frames of the user's own code stand out from those of libraries. */
function Traceback({ text }: { text: string }) {
  const lines = text.trimEnd().split("\n");
  let mine = true;
  return (
    <div class="json">
      <CopyButton text={text} label="Copy traceback" />
      <pre class="traceback" tabIndex={0} aria-label="Traceback">
        {lines.map((line, index) => {
          const frame = /^\s*File "([^"]*)"/.exec(line);
          if (frame) mine = !LIBRARY.test(frame[1]!);
          else if (!/^\s/.test(line)) mine = true;
          return (
            <span key={index} class={frame ? (mine ? "tb mine" : "tb") : mine ? "" : "faded"}>
              {line}
              {"\n"}
            </span>
          );
        })}
      </pre>
    </div>
  );
}

function Alike({ job }: { job: Job }) {
  const groups = useFeed<{ groups: DeadGroup[] }>(path(["dead", "groups"]), 3000);
  const group = groups.data.value?.groups.find((one) => one.fingerprint === job.fingerprint && one.kind === job.kind);
  if (!group || group.jobs < 2) return null;
  return (
    <p class="notice">
      <Icon name="link" />
      <span>
        {plural(group.jobs - 1, "other job")} failed the same way. <Link to={to(["dead"], { group: group.fingerprint })}>Open the group</Link> to retry them together.
      </span>
    </p>
  );
}

function Gone({ id, problem }: { id: string; problem: Problem }) {
  const deleted = problem.status === 410;
  return (
    <>
      <Head trail={<Link to="jobs">Jobs</Link>} title={<span class="mono">{short(id)}</span>} />
      <Empty icon={deleted ? "done" : "search"} title={deleted ? "Deleted after completion" : "No such job"} commands={[shell("holdfast", "job", "list", all(["id", short(id)]))]}>
        <p>{problem.detail}</p>
        {!deleted && <p>Of the jobs that are done, a worker keeps at most 5 a second, for a day. To keep all done jobs of a queue:</p>}
        {!deleted && <p class="mono">holdfast queue set default keep_done=7d</p>}
      </Empty>
    </>
  );
}
