import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { look, path, type Problem } from "../api";
import { useFeed } from "../feed";
import { plural } from "../format";
import { Button, Head, JobId, Link, Panel, Time } from "../parts/basics";
import { OperationLine, runs, undoOperation } from "../parts/bulk";
import { CopyAs, shell } from "../parts/copy";
import { Empty, Wait } from "../parts/empty";
import { save } from "../parts/table";
import { Menu } from "../parts/menu";
import { query, setQuery, to } from "../route";
import { barred } from "../session";
import type { Event, EventPage, Json, Operation, Queue } from "../wire";

const FIELDS = ["queue", "kind", "event", "actor", "worker", "job"] as const;
type Field = (typeof FIELDS)[number];
type Asked = Record<Field, string>;

/** The recorded events, grouped by what they concern. */
const EVENTS: [string, string[]][] = [
  ["Failed attempts", ["nacked", "reaped", "reconciled"]],
  ["Actions on jobs", ["retried", "cancelled", "edited", "moved", "archived", "deleted", "undone"]],
  ["Only with activity=all", ["enqueued", "claimed", "touched", "acked", "released", "handed_over"]],
  ["Queues and lanes", ["queue_set", "paused", "resumed", "lane_set", "lane_released", "struck", "strike_lifted"]],
  ["Schedules", ["schedule_set", "schedule_run", "schedule_paused", "schedule_resumed", "schedule_deleted"]],
  ["Operations", ["operation_started", "operation_ended", "operation_cancelled", "operation_failed"]],
  ["Workers and tokens", ["worker_stopped", "worker_left", "token_created", "token_revoked", "reply_link_created", "reply_link_revoked", "replied"]],
];

const said = (event: string): string => event.replace("_", " ");

/** Pages after the first; only the first refreshes automatically. */
const older = signal<{ events: Event[]; cursor: string | null } | undefined>(undefined);
const failed = signal<string | undefined>(undefined);

export function Activity() {
  const asked = Object.fromEntries(FIELDS.map((name) => [name, query.value.get(name) ?? ""])) as Asked;
  const address = path(["activity"], { ...asked, limit: 100 });
  const first = useFeed<EventPage>(address, 1500);
  const operations = useFeed<{ operations: Operation[] }>(path(["operations"], { limit: 20 }), 1500);
  useEffect(() => {
    older.value = failed.value = undefined;
  }, [address]);
  const seen = new Set(older.value?.events.map((event) => event.id));
  const told = [...(first.data.value?.events ?? []).filter((event) => !seen.has(event.id)), ...(older.value?.events ?? [])];
  const cursor = older.value ? older.value.cursor : first.data.value?.cursor;
  const running = operations.data.value?.operations.filter(runs) ?? [];
  const undoable = new Map(operations.data.value?.operations.filter((one) => one.undoable > 0 && !runs(one)).map((one) => [Number(one.id), one]));
  const more = async () => {
    try {
      const page = await look<EventPage>(path(["activity"], { ...asked, limit: 100, cursor: cursor ?? "" }));
      // Rows that were shown from the first page stay in place while that page moves on.
      older.value = { events: [...told, ...page.events], cursor: page.cursor };
    } catch (error) {
      failed.value = (error as Problem).detail;
    }
  };
  return (
    <>
      <Head title="Activity" sub="What happened to jobs, and who did what. Each queue's activity setting decides what is recorded: off, failures or all.">
        <Menu
          label="Download this page"
          icon="download"
          items={[
            { label: "As JSON", act: () => save("activity.json", "application/json", JSON.stringify(told, null, 2)) },
            { label: "As NDJSON", act: () => save("activity.ndjson", "application/x-ndjson", told.map((event) => JSON.stringify(event)).join("\n")) },
          ]}
        />
      </Head>
      <Choice asked={asked} />
      {running.map((operation) => (
        <OperationLine key={operation.id} operation={operation} />
      ))}
      <Wait feed={first}>
        {() =>
          told.length ? (
            <Panel flush>
              <ol class="events">
                {told.map((event) => (
                  <li key={event.id} data-row={event.id}>
                    <span class="event-when soft number"><Time at={event.at} /></span>
                    <div class="event-what">
                      <EventText event={event} />
                      {event.event !== "operation_started" && <Undo operation={undoable.get(event.detail?.operation as number)} />}
                    </div>
                    <Who event={event} />
                  </li>
                ))}
              </ol>
            </Panel>
          ) : (
            <Empty icon="activity" title={cursor ? "No matches among the newest events" : "No matching events"}>
              <p>Failures and user actions are recorded for every queue whose activity setting is not off; activity=all records every event.</p>
            </Empty>
          )
        }
      </Wait>
      {failed.value && <p class="notice"><span>{failed.value}</span></p>}
      {cursor && <Button onClick={() => void more()}>Show older</Button>}
    </>
  );
}

/** The filter; the address is the state, and a field is applied on blur or Enter. */
function Choice({ asked }: { asked: Asked }) {
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]), 2000);
  const known = EVENTS.flatMap(([, names]) => names);
  const choose = (name: Field, value: string) => setQuery({ [name]: value.trim() || null }, { replace: false });
  return (
    <form class="filter choice" role="search" aria-label="Filter activity" onSubmit={(event) => event.preventDefault()}>
      <Box name="queue" label="Queue" value={asked.queue} choose={choose} offers={queues.data.value?.queues.map((one) => one.queue)} />
      <Box name="kind" label="Kind" value={asked.kind} choose={choose} />
      <label class="field">
        <span>Event</span>
        <select value={asked.event} onChange={(event) => choose("event", event.currentTarget.value)}>
          <option value="">any</option>
          {asked.event && !known.includes(asked.event) && <option value={asked.event}>{asked.event}</option>}
          {EVENTS.map(([group, names]) => (
            <optgroup key={group} label={group}>
              {names.map((name) => (
                <option key={name} value={name}>{said(name)}</option>
              ))}
            </optgroup>
          ))}
        </select>
      </label>
      <Box name="actor" label="Actor" value={asked.actor} choose={choose} />
      <Box name="worker" label="Worker" value={asked.worker} choose={choose} />
      <Box name="job" label="Job id" value={asked.job} choose={choose} />
      <div class="choice-acts">
        <CopyAs
          cli={shell("holdfast", "event", "tail", ...FIELDS.flatMap((name) => (asked[name] ? [`--${name}`, asked[name]] : [])))}
          asked={{ method: "GET", path: path(["activity"], asked) }}
        />
        {FIELDS.some((name) => asked[name]) && (
          <Button small look="quiet" onClick={() => setQuery(Object.fromEntries(FIELDS.map((name) => [name, null])), { replace: false })}>Show all</Button>
        )}
      </div>
    </form>
  );
}

function Box({ name, label, value, choose, offers }: { name: Field; label: string; value: string; choose: (name: Field, value: string) => void; offers?: string[] }) {
  // New events render the page again while the user types.
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return (
    <label class="field">
      <span>{label}</span>
      <input
        value={draft}
        list={offers && `known-${name}`}
        maxLength={name === "job" ? 36 : name === "queue" ? 120 : 200}
        placeholder="any"
        spellcheck={false}
        autocomplete="off"
        onInput={(event) => setDraft(event.currentTarget.value)}
        onChange={(event) => choose(name, event.currentTarget.value)}
      />
      {offers && (
        <datalist id={`known-${name}`}>
          {offers.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      )}
    </label>
  );
}

/** What happened, in one line and perhaps a second. */
export function EventText({ event }: { event: Event }) {
  const filter = text(event.detail, "filter");
  const job = event.job ?? text(event.detail, "job");
  const more = [
    event.attempt ? `attempt ${event.attempt}` : "",
    event.state && !event.event.startsWith(event.state) ? `now ${event.state}` : "",
    event.reason ?? "",
    ...Object.entries(event.detail ?? {}).filter(([name]) => !HIDDEN.has(name)).map(([name, value]) => `${name} ${plain(value)}`),
  ].filter(Boolean);
  return (
    <>
      <span>
        <Link to={to(["activity"], { event: event.event })}><strong>{said(event.event)}</strong></Link>{" "}
        {job ? <JobId id={job} /> : event.jobs > 0 ? plural(event.jobs, "job") : null}{" "}
        {event.kind && <span class="mono">{event.kind}</span>}{" "}
        {event.queue && <Link to={to(["queues", event.queue])} class="mono">{event.queue}</Link>}{" "}
        {filter && <Link to={to(["jobs"], { q: filter })} class="mono">{filter}</Link>}
      </span>
      {more.length > 0 && <span class="soft">{more.join(" · ")}</span>}
    </>
  );
}

const HIDDEN = new Set(["filter", "group", "job"]);

function Undo({ operation }: { operation?: Operation }) {
  if (!operation) return null;
  return (
    <span>
      <Button small why={barred("operate")} onClick={() => undoOperation(operation)}>Undo</Button>
    </span>
  );
}

function Who({ event }: { event: Event }) {
  if (event.actor) return <Link to={to(["activity"], { actor: event.actor })} class="soft">{event.actor}</Link>;
  if (event.worker) return <Link to={to(["activity"], { worker: event.worker })} class="soft mono">{event.worker}</Link>;
  return <span class="soft">–</span>;
}

const text = (detail: Event["detail"], name: string): string | null => (typeof detail?.[name] === "string" ? (detail[name] as string) : null);
const plain = (value: Json | undefined): string => (typeof value === "string" ? value : JSON.stringify(value));
