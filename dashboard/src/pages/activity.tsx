import { path } from "../api";
import { useFeed } from "../feed";
import { count } from "../format";
import { Head, JobId, Link, Panel, Time } from "../parts/basics";
import { OperationLine, runs } from "../parts/bulk";
import { Empty, Wait } from "../parts/empty";
import { save } from "../parts/table";
import { Menu } from "../parts/menu";
import { to } from "../route";
import type { Event } from "../wire";

export function Activity() {
  const events = useFeed<{ events: Event[] }>(path(["events"], { limit: 200 }), 1500);
  const told = events.data.value?.events ?? [];
  return (
    <>
      <Head title="Activity" sub="What was done to many jobs at once, by whom and with what result.">
        <Menu label="Save what is shown" icon="download" items={[{ label: "As JSON", act: () => save("activity.json", "application/json", JSON.stringify(told, null, 2)) }]} />
      </Head>
      <Wait feed={events}>
        {(data) =>
          data.events.length ? (
            <Panel flush>
              <ol class="events">
                {data.events.map((event, index) => (
                  <li key={event.operation?.id ?? index} data-row={event.operation?.id ?? index}>
                    <span class="event-when soft number"><Time at={event.at} /></span>
                    <div class="event-what">
                      <EventText event={event} />
                      {event.operation && runs(event.operation) && <OperationLine operation={event.operation} />}
                    </div>
                    <span class="soft">{event.actor ?? "somebody"}</span>
                  </li>
                ))}
              </ol>
            </Panel>
          ) : (
            <Empty icon="activity" title="Nothing was done yet">
              <p>Operations on many jobs are listed here: who started them, on which filter, and how many jobs they changed.</p>
            </Empty>
          )
        }
      </Wait>
      <p class="notice">
        <span>Single jobs carry their own record: open one to see its attempts, who retried or cancelled it, and why.</span>
      </p>
    </>
  );
}

function EventText({ event }: { event: Event }) {
  const operation = event.operation;
  if (!operation) {
    return (
      <span>
        {event.event} {event.job && <JobId id={event.job} />} {event.detail ?? event.reason}
      </span>
    );
  }
  const verb = operation.verb === "purge" ? "delete" : operation.verb;
  return (
    <>
      <span>
        <strong>{verb}</strong> <Link to={to(["jobs"], { q: operation.filter })} class="mono">{operation.filter}</Link>
      </span>
      <span class="soft number">
        {operation.state} · {count(operation.changed)} of {count(operation.total)} changed
        {operation.most ? ` · the newest ${count(operation.most)} only` : ""}
        {operation.reason ? ` · ${operation.reason}` : ""}
        {operation.problem ? ` · ${operation.problem}` : ""}
      </span>
    </>
  );
}
