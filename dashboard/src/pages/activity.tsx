import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { look, path, type Problem } from "../api";
import { useFeed } from "../feed";
import { plural } from "../format";
import { Button, Head, JobId, Link, Panel, Time } from "../parts/basics";
import { OperationLine, runs } from "../parts/bulk";
import { Empty, Wait } from "../parts/empty";
import { save } from "../parts/table";
import { Menu } from "../parts/menu";
import { query, setQuery, to } from "../route";
import type { Event, EventPage, Json, Operation } from "../wire";

const FIELDS = ["queue", "kind", "event", "actor", "worker", "job"] as const;

/** Pages behind the first, which alone keeps itself fresh. */
const older = signal<{ events: Event[]; cursor: string | null } | undefined>(undefined);
const failed = signal<string | undefined>(undefined);

export function Activity() {
  const asked = Object.fromEntries(FIELDS.map((name) => [name, query.value.get(name) ?? ""]));
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
  const more = async () => {
    try {
      const page = await look<EventPage>(path(["activity"], { ...asked, limit: 100, cursor: cursor ?? "" }));
      // What was shown of the first page stays where it is while that one moves on.
      older.value = { events: [...told, ...page.events], cursor: page.cursor };
    } catch (error) {
      failed.value = (error as Problem).detail;
    }
  };
  return (
    <>
      <Head title="Activity" sub="What happened to jobs and who did what. Each queue says how much is noted: off, failures or all.">
        <Menu
          label="Save what is shown"
          icon="download"
          items={[
            { label: "As JSON", act: () => save("activity.json", "application/json", JSON.stringify(told, null, 2)) },
            { label: "As NDJSON", act: () => save("activity.ndjson", "application/x-ndjson", told.map((event) => JSON.stringify(event)).join("\n")) },
          ]}
        />
      </Head>
      <Chosen asked={asked} />
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
                    <div class="event-what"><EventText event={event} /></div>
                    <Who event={event} />
                  </li>
                ))}
              </ol>
            </Panel>
          ) : (
            <Empty icon="activity" title={cursor ? "Nothing like it among the newest" : "Nothing like it is on record"}>
              <p>Failures and what people do are noted for every queue that is not set to off; activity=all notes every event.</p>
            </Empty>
          )
        }
      </Wait>
      {failed.value && <p class="notice"><span>{failed.value}</span></p>}
      {cursor && <Button onClick={() => void more()}>Show older</Button>}
    </>
  );
}

function Chosen({ asked }: { asked: Record<string, string> }) {
  const given = Object.entries(asked).filter(([, value]) => value);
  if (!given.length) return null;
  return (
    <p class="notice">
      <span>Only {given.map(([name, value]) => `${name} ${value}`).join(", ")}.</span>
      <Button small look="quiet" onClick={() => setQuery(Object.fromEntries(FIELDS.map((name) => [name, null])))}>Show all</Button>
    </p>
  );
}

/** What happened, in one line and perhaps a second. */
export function EventText({ event }: { event: Event }) {
  const filter = text(event.detail, "filter");
  const said = [
    event.attempt ? `attempt ${event.attempt}` : "",
    event.state && !event.event.startsWith(event.state) ? `now ${event.state}` : "",
    event.reason ?? "",
    ...Object.entries(event.detail ?? {}).filter(([name]) => !HIDDEN.has(name)).map(([name, value]) => `${name} ${plain(value)}`),
  ].filter(Boolean);
  return (
    <>
      <span>
        <Link to={to(["activity"], { event: event.event })}><strong>{event.event.replace("_", " ")}</strong></Link>{" "}
        {event.job ? <JobId id={event.job} /> : event.jobs > 0 ? plural(event.jobs, "job") : null}{" "}
        {event.kind && <span class="mono">{event.kind}</span>}{" "}
        {event.queue && <Link to={to(["queues", event.queue])} class="mono">{event.queue}</Link>}{" "}
        {filter && <Link to={to(["jobs"], { q: filter })} class="mono">{filter}</Link>}
      </span>
      {said.length > 0 && <span class="soft">{said.join(" · ")}</span>}
    </>
  );
}

const HIDDEN = new Set(["filter", "group"]);

function Who({ event }: { event: Event }) {
  if (event.actor) return <Link to={to(["activity"], { actor: event.actor })} class="soft">{event.actor}</Link>;
  if (event.worker) return <Link to={to(["activity"], { worker: event.worker })} class="soft mono">{event.worker}</Link>;
  return <span class="soft">–</span>;
}

const text = (detail: Event["detail"], name: string): string | null => (typeof detail?.[name] === "string" ? (detail[name] as string) : null);
const plain = (value: Json | undefined): string => (typeof value === "string" ? value : JSON.stringify(value));
