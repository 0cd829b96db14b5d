import { path } from "../api";
import { deleteSchedule, editSchedule, pauseSchedule, runSchedule, resumeSchedule } from "../deeds";
import { useFeed } from "../feed";
import { absolute, count, duration, plural } from "../format";
import { Button, Count, Fact, Facts, Head, JobId, Link, Mono, Mood, None, Panel, Time } from "../parts/basics";
import { CopyAs, shell } from "../parts/copy";
import { Bones, Empty, Stale, Trouble, Wait } from "../parts/empty";
import { Icon } from "../parts/icon";
import { JsonView } from "../parts/json";
import { Menu } from "../parts/menu";
import { Table, TableMenu, type Column } from "../parts/table";
import { parts, to } from "../route";
import { barred } from "../session";
import type { Job, Queue, Schedule, Slot } from "../wire";

const columns: Column<Schedule>[] = [
  { name: "name", title: "Schedule", cell: (one) => <Link to={to(["schedules", one.name])} class="strong">{one.name}</Link>, text: (one) => one.name, wide: true },
  { name: "rule", title: "Rule", cell: (one) => <Rule schedule={one} />, text: (one) => one.cron ?? one.every, rank: 2 },
  { name: "tz", title: "Zone", hidden: true, cell: (one) => one.tz, text: (one) => one.tz, rank: 3 },
  { name: "kind", title: "Kind", cell: (one) => <span class="mono clip names" title={one.kind}>{one.kind}</span>, text: (one) => one.kind, rank: 3 },
  { name: "queue", title: "Queue", cell: (one) => <Link to={to(["queues", one.queue])}>{one.queue}</Link>, text: (one) => one.queue, rank: 3 },
  { name: "state", title: "State", cell: (one) => <ScheduleState schedule={one} />, text: (one) => one.state },
  { name: "next", title: "Next", right: true, cell: (one) => <span class="number"><Time at={one.next_at} /></span>, text: (one) => one.next_at },
  { name: "last", title: "Last", right: true, cell: (one) => (one.last_job ? <Link to={to(["jobs", one.last_job])}><Time at={one.last_at} /></Link> : <None />), text: (one) => one.last_at, rank: 2 },
  { name: "fired", title: "Fired", right: true, cell: (one) => <Count value={one.fired} quiet />, text: (one) => one.fired, rank: 3 },
  { name: "missed", title: "Missed", cell: (one) => one.missed, text: (one) => one.missed, rank: 3, hidden: true },
  { name: "overlap", title: "Overlap", cell: (one) => one.overlap, text: (one) => one.overlap, rank: 3, hidden: true },
  { name: "acts", title: "", right: true, cell: (one) => <Acts schedule={one} /> },
];

export function Schedules() {
  const schedules = useFeed<{ schedules: Schedule[] }>(path(["schedules"]), 1500);
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]), 3000);
  const rows = schedules.data.value?.schedules;
  const stopped = new Set(queues.data.value?.queues.filter((queue) => queue.paused_at).map((queue) => queue.queue));
  const hit = rows?.filter((one) => one.state === "active" && stopped.has(one.queue)) ?? [];
  return (
    <>
      <Head title="Schedules" sub="Rules that enqueue jobs at regular times.">
        <TableMenu name="schedules" columns={columns} rows={rows ?? []} />
        <Button icon="plus" look="primary" why={barred("operate")} onClick={() => editSchedule(null)}>New schedule</Button>
      </Head>
      {hit.length > 0 && (
        <p class="notice">
          <Icon name="pause" />
          <span>
            {plural(hit.length, "schedule")} enqueue{hit.length === 1 ? "s" : ""} into a paused queue: {hit.map((one) => one.name).join(", ")}. The jobs wait there.
          </span>
        </p>
      )}
      <Wait feed={schedules}>
        {() =>
          rows!.length ? (
            <Table name="schedules" label="Schedules" columns={columns} rows={rows} id={(one) => one.name} mood={(one) => (one.state === "active" ? undefined : "muted")} />
          ) : (
            <Empty icon="schedules" title="No schedules yet">
              <p>Declare a schedule on a task; the worker creates it when it starts:</p>
              <pre class="snippet" tabIndex={0}>{'@app.schedule("30 5 * * MON-FRI", tz="Europe/Paris")\n@app.task\ndef rates() -> None: ...'}</pre>
              <p>Or create one here.</p>
            </Empty>
          )
        }
      </Wait>
    </>
  );
}

export function SchedulePage() {
  const name = parts.value.slice(1).join("/");
  const feed = useFeed<Schedule>(path(["schedules", name]), 1500);
  const one = feed.data.value;
  const last = useFeed<Job>(one?.last_job ? path(["jobs", one.last_job]) : null, 2000);
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]), 3000);
  if (!one) {
    if (feed.problem.value?.status === 404) {
      return (
        <>
          <Head trail={<Link to="schedules">Schedules</Link>} title={name} />
          <Empty icon="schedules" title="No such schedule" commands={["holdfast schedule list"]} />
        </>
      );
    }
    return feed.problem.value ? <Trouble problem={feed.problem.value} retry={() => void feed.refresh()} /> : <Bones rows={8} tall />;
  }
  const why = barred("operate");
  const runs = last.data.value?.state === "leased";
  const stopped = queues.data.value?.queues.find((queue) => queue.queue === one.queue)?.paused_at;
  return (
    <>
      <Head
        trail={<Link to="schedules">Schedules</Link>}
        title={
          <>
            {one.name} <ScheduleState schedule={one} />
          </>
        }
        sub={<Rule schedule={one} />}
      >
        <Button icon="play" look="primary" why={why} onClick={() => runSchedule(one)}>Run now</Button>
        {one.state === "paused" ? (
          <Button icon="play" why={why} onClick={() => resumeSchedule(one)}>Resume</Button>
        ) : (
          <Button icon="pause" why={why} onClick={() => pauseSchedule(one)}>Pause</Button>
        )}
        <Button icon="edit" why={why} onClick={() => editSchedule(one)}>Edit</Button>
        <Menu label="More" look="plain" items={[{ label: "Delete", icon: "trash", bad: true, why, act: () => deleteSchedule(one) }]} />
      </Head>
      <Stale feed={feed} />
      {one.problem && (
        <p class="explain dead">
          <Icon name="dead" />
          <span>{one.problem}</span>
        </p>
      )}
      {runs && (
        <p class="notice">
          <Icon name="info" />
          <span>
            The previous job is still running. If it has not ended by the next slot, {one.overlap === "skip" ? "that slot is skipped" : one.overlap === "cancel" ? "it is cancelled and a new job is enqueued" : "a new job is enqueued anyway"}.
          </span>
        </p>
      )}
      {stopped && (
        <p class="notice">
          <Icon name="pause" />
          <span>
            Queue <Link to={to(["queues", one.queue])}>{one.queue}</Link> is paused: its jobs wait there.
          </span>
        </p>
      )}
      <div class="split">
        <Panel title="Slots" flush>
          <Slots slots={one.slots ?? []} />
        </Panel>
        <div class="stack">
          <Panel title="Facts" acts={<CopyAs cli={shell("holdfast", "schedule", "show", one.name)} asked={{ method: "GET", path: path(["schedules", one.name]) }} />}>
            <Facts>
              <Fact name="Next"><Time at={one.next_at} /></Fact>
              <Fact name="Kind"><Mono>{one.kind}</Mono></Fact>
              <Fact name="Queue"><Link to={to(["queues", one.queue])}>{one.queue}</Link></Fact>
              <Fact name="Zone">{one.tz}</Fact>
              <Fact name="Missed slots">{{ skip: "skipped", once: "run once to catch up", all: "all run" }[one.missed]}</Fact>
              <Fact name="Overlap">{{ queue: "enqueue the next job anyway", skip: "skip the slot", cancel: "cancel the previous job" }[one.overlap]}</Fact>
              <Fact name="Fired"><span class="number">{count(one.fired)}</span></Fact>
              <Fact name="Skipped"><span class="number">{count(one.skipped)}</span></Fact>
              <Fact name="Declared by">{one.owner ?? "a user"}{one.edited && ", edited later"}</Fact>
              {one.updated_by && <Fact name="Last change"><Time at={one.updated_at} /> by {one.updated_by}</Fact>}
            </Facts>
          </Panel>
          {one.next && one.next.length > 0 && (
            <Panel title="Next slots">
              <ol class="next">
                {one.next.map((at) => (
                  <li key={at} class="number">
                    <span>{absolute(at)}</span>
                    <span class="soft"><Time at={at} /></span>
                  </li>
                ))}
              </ol>
            </Panel>
          )}
          <Panel title="Payload">
            <JsonView value={one.payload} label="payload" />
          </Panel>
        </div>
      </div>
    </>
  );
}

function Slots({ slots }: { slots: Slot[] }) {
  if (!slots.length) return <p class="pad soft">No slots yet.</p>;
  const moods = { fired: ["done", "done"], run: ["leased", "play"], skipped: ["cancelled", "minus"], duplicate: ["cancelled", "clone"], refused: ["dead", "cross"] } as const;
  return (
    <ul class="rows">
      {slots.map((slot) => (
        <li key={slot.slot}>
          <span class="number">{absolute(slot.slot)}</span>
          <Mood mood={moods[slot.outcome][0]} icon={moods[slot.outcome][1]}>{slot.outcome === "run" ? "run manually" : slot.outcome}</Mood>
          <span class="rows-end">{slot.job ? <JobId id={slot.job} /> : <None />}</span>
        </li>
      ))}
    </ul>
  );
}

function Rule({ schedule }: { schedule: Schedule }) {
  return (
    <span class="rule">
      <Mono>{schedule.cron ?? `every ${duration(schedule.every)}`}</Mono>
      {schedule.explain && <small class="soft">{schedule.explain}</small>}
    </span>
  );
}

function ScheduleState({ schedule }: { schedule: Schedule }) {
  if (schedule.problem) return <Mood mood="dead" icon="cross" title={schedule.problem}>cannot fire</Mood>;
  if (schedule.state === "paused") return <Mood mood="paused" icon="pause" title={schedule.paused_reason ?? undefined}>paused</Mood>;
  if (schedule.state === "withdrawn") return <Mood mood="cancelled" icon="minus" title="The program that declared this schedule no longer does">withdrawn</Mood>;
  return <Mood mood="active" icon="play">active</Mood>;
}

function Acts({ schedule }: { schedule: Schedule }) {
  const why = barred("operate");
  return (
    <span class="acts">
      <Button small look="quiet" icon="bolt" label={`Run ${schedule.name} now`} why={why} onClick={() => runSchedule(schedule)} />
      {schedule.state === "paused" ? (
        <Button small look="quiet" icon="play" label={`Resume ${schedule.name}`} why={why} onClick={() => resumeSchedule(schedule)} />
      ) : (
        <Button small look="quiet" icon="pause" label={`Pause ${schedule.name}`} why={why} onClick={() => pauseSchedule(schedule)} />
      )}
    </span>
  );
}
