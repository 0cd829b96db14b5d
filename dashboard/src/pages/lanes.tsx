import { path } from "../api";
import { releaseLane } from "../deeds";
import { useFeed } from "../feed";
import { all } from "../filter";
import { count, duration, short } from "../format";
import { Button, Count, Countdown, Head, Link, Mono, Mood, None } from "../parts/basics";
import { CopyAs, shell } from "../parts/copy";
import { Empty, Wait } from "../parts/empty";
import { Meter } from "../parts/basics";
import { jobsOf } from "../deeds";
import { to } from "../route";
import { barred } from "../session";
import type { Lane, Queue } from "../wire";

export function Lanes() {
  const lanes = useFeed<{ lanes: Lane[] }>(path(["lanes"]), 1500);
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]), 2000);
  const limited = queues.data.value?.queues.filter((queue) => queue.limit !== null || queue.rate_limit !== null) ?? [];
  return (
    <>
      <Head title="Lanes" sub="The jobs of a lane run in order, one at a time across all workers. Limits apply to whole queues." />
      <Wait feed={lanes}>
        {(data) =>
          data.lanes.length ? (
            <ol class="groups">
              {data.lanes.map((lane) => (
                <LaneCard key={lane.queue + "/" + lane.lane} lane={lane} />
              ))}
            </ol>
          ) : (
            <Empty icon="lanes" title="No lanes in use" commands={["holdfast job enqueue price_run '{\"scenario\": \"base\"}' --lane axiom"]}>
              <p>Jobs with the same lane run one after another, across all workers. Other jobs do not wait for them.</p>
            </Empty>
          )
        }
      </Wait>
      {limited.length > 0 && (
        <section class="panel flush">
          <header>
            <h2>Queues with a limit</h2>
          </header>
          <ul class="rows">
            {limited.map((queue) => (
              <li key={queue.queue} data-row={queue.queue}>
                <Link to={to(["queues", queue.queue])} class="strong">{queue.queue}</Link>
                <span class="soft clip">
                  {queue.limit !== null && `${count(queue.limit)} at once`}
                  {queue.limit !== null && queue.rate_limit !== null && ", "}
                  {queue.rate_limit !== null && `${count(queue.rate_limit)} starts per ${duration(queue.rate_period)}`}
                </span>
                <span class="rows-end with-meter">
                  {queue.limit !== null && <Meter value={queue.leased} most={queue.limit} />}
                  <span class="number soft">{count(queue.leased)} leased, {count(queue.queued)} queued</span>
                </span>
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function LaneCard({ lane }: { lane: Lane }) {
  const why = barred("admin") ?? (lane.job || lane.halted_by ? undefined : "No job holds it");
  return (
    <li class="group" data-row={lane.lane}>
      <div class="group-head">
        <div class="group-what">
          <span class="lane-name">
            <Link to={jobsOf(["queue", lane.queue], ["lane", lane.lane])} class="strong mono">{lane.lane}</Link>
            {lane.halted_by ? <Mood mood="dead" icon="stop">halted</Mood> : lane.running ? <Mood mood="leased" icon="dot">held</Mood> : <Mood mood="active" icon="circle">free</Mood>}
          </span>
          <span class="group-facts soft">
            <span>in <Link to={to(["queues", lane.queue])}>{lane.queue}</Link></span>
            {lane.limit > 1 && <span>{count(lane.limit)} at once</span>}
            <span>on failure: {lane.on_failure}</span>
          </span>
          <p class="lane-why">{sentence(lane)}</p>
        </div>
        <div class="lane-numbers">
          <span>
            <small>waiting</small>
            <Link to={to(["jobs"], { q: all(["state", "queued"], ["queue", lane.queue], ["lane", lane.lane]) })}>
              <Count value={lane.waiting} capped={lane.waiting >= 1000} quiet />
            </Link>
          </span>
          <span>
            <small>oldest</small>
            <span class="number">{lane.oldest === null ? <None /> : duration(lane.oldest)}</span>
          </span>
          <span>
            <small>lease</small>
            {lane.lease_until ? <Countdown until={lane.lease_until} /> : <None />}
          </span>
        </div>
        <div class="group-acts">
          <Button small look="danger" why={why} onClick={() => releaseLane(lane)}>Release</Button>
          <CopyAs cli={shell("holdfast", "job", "list", all(["lane", lane.lane], ["queue", lane.queue]))} />
        </div>
      </div>
    </li>
  );
}

/** Why the next job of the lane is not running. */
function sentence(lane: Lane) {
  if (lane.halted_by) {
    return (
      <>
        Halted: <JobLink id={lane.halted_by} /> failed, and this lane stops on failure until it is released.
      </>
    );
  }
  if (lane.job) {
    return (
      <>
        <JobLink id={lane.job} /> holds it{lane.worker && <> on <Mono>{lane.worker}</Mono></>}. {lane.waiting ? "The next job starts when it ends." : "No other jobs are waiting."}
      </>
    );
  }
  return lane.waiting ? <>Free. The next of {count(lane.waiting)} waiting jobs starts with the next claim.</> : <>Free. No jobs are waiting.</>;
}

const JobLink = ({ id }: { id: string }) => (
  <Link to={to(["jobs", id])} class="id" title={id}>
    {short(id)}
  </Link>
);
