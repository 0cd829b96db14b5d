import { path } from "../api";
import { useFeed } from "../feed";
import { all } from "../filter";
import { count, plural } from "../format";
import { Age, Button, Count, Head, JobId, Link, Mono, Time } from "../parts/basics";
import { bulk } from "../parts/bulk";
import { CopyAs, shell } from "../parts/copy";
import { Bones, Empty, Wait } from "../parts/empty";
import { Icon } from "../parts/icon";
import { Menu } from "../parts/menu";
import { go, query, setQuery, to } from "../route";
import { barred } from "../session";
import type { DeadGroup, JobPage } from "../wire";

export function Dead() {
  const groups = useFeed<{ groups: DeadGroup[] }>(path(["dead", "groups"]), 1500);
  const queue = query.value.get("queue");
  return (
    <>
      <Head title="Dead" sub="Jobs that used up their attempts, grouped by how they failed. They stay here until you act on them.">
        <Link to={to(["jobs"], { q: "state:dead" })} class="button">
          <Icon name="jobs" />
          <span>As a list</span>
        </Link>
      </Head>
      {queue && (
        <div class="terms">
          <button type="button" class="term" onClick={() => setQuery({ queue: null }, {})}>
            <span>queue:{queue}</span>
            <Icon name="close" />
          </button>
        </div>
      )}
      <Wait feed={groups} rows={8}>
        {(data) => <Groups groups={data.groups.filter((one) => !queue || one.queue === queue)} />}
      </Wait>
    </>
  );
}

function Groups({ groups }: { groups: DeadGroup[] }) {
  const chosen = query.value.get("group");
  if (!groups.length) {
    return (
      <Empty icon="done" title="No dead jobs" commands={["holdfast dead groups"]}>
        <p>A job that fails its last attempt is kept here with its payload and errors until you retry, edit, archive or delete it.</p>
      </Empty>
    );
  }
  const latest = query.value.get("order") === "latest";
  const later = (a: DeadGroup, b: DeadGroup) => Date.parse(b.last_at) - Date.parse(a.last_at);
  const rows = [...groups].sort((a, b) => (latest ? 0 : b.jobs - a.jobs) || later(a, b));
  return (
    <>
      <div class="segments" role="group" aria-label="Order">
        <button type="button" aria-pressed={!latest} onClick={() => setQuery({ order: null })}>Largest first</button>
        <button type="button" aria-pressed={latest} onClick={() => setQuery({ order: "latest" })}>Newest failure first</button>
      </div>
      <ol class="groups">
        {rows.map((group) => (
          <Group key={group.fingerprint + group.kind + group.queue} group={group} open={group.fingerprint === chosen} />
        ))}
      </ol>
    </>
  );
}

const filterOf = (group: DeadGroup): string => all(["state", "dead"], ["group", group.fingerprint], ["kind", group.kind], ["queue", group.queue]);

function Group({ group, open }: { group: DeadGroup; open: boolean }) {
  const why = barred("operate");
  const filter = filterOf(group);
  const name = `${group.kind}: ${group.error ?? "no error recorded"}`;
  return (
    <li class="group" data-row={group.fingerprint}>
      <div class="group-head">
        <button type="button" class="group-open" data-open="1" aria-expanded={open} aria-label={`${open ? "Close" : "Open"} ${name}`} onClick={() => setQuery({ group: open ? null : group.fingerprint })}>
          <Icon name={open ? "down" : "right"} />
        </button>
        <div class="group-what">
          <strong class="group-error">{group.error ?? "no error recorded"}</strong>
          <span class="group-facts soft">
            <Mono>{group.kind}</Mono>
            <span>in <Link to={to(["queues", group.queue])}>{group.queue}</Link></span>
            <span>first <Time at={group.first_at} /></span>
            <span>last <Time at={group.last_at} /></span>
          </span>
        </div>
        <Link to={to(["jobs"], { q: filter })} class="group-count number" title="Show as a list">{count(group.jobs)}</Link>
        <div class="group-acts">
          {group.jobs > 10 && (
            <Button small icon="retry" why={why} title="Check quickly whether the fix works" onClick={() => bulk("retry", filter, { limit: 10, title: "Retry 10 first" })}>Retry 10 first</Button>
          )}
          <Button small icon="retry" look="primary" why={why} onClick={() => bulk("retry", filter, { title: `Retry ${plural(group.jobs, "job")}` })}>{group.jobs > 1 ? "Retry all" : "Retry"}</Button>
          <Menu
            label={`More for ${name}`}
            items={[
              { label: "Archive all", icon: "archive", why, act: () => bulk("archive", filter, { title: "Archive group" }) },
              { label: "Move all to another queue", icon: "move", why, act: () => bulk("move", filter, { title: "Move group" }) },
              { label: "Delete all", icon: "trash", bad: true, why, act: () => bulk("delete", filter, { title: "Delete group" }) },
              { label: "Show as a list", icon: "jobs", act: () => go(to(["jobs"], { q: filter })) },
            ]}
          />
        </div>
      </div>
      {open && <Members filter={filter} total={group.jobs} />}
    </li>
  );
}

function Members({ filter, total }: { filter: string; total: number }) {
  // The most recent failure first.
  const page = useFeed<JobPage>(path(["dead"], { q: filter, order: "failed", limit: 10 }), 2000);
  const jobs = page.data.value?.jobs;
  if (!jobs) return <Bones rows={3} />;
  return (
    <div class="members">
      <ul class="rows">
        {jobs.map((job) => (
          <li key={job.id}>
            <JobId id={job.id} />
            <span class="clip soft" title={job.error ?? ""}>{job.error}</span>
            <span class="number soft rows-end"><Count value={job.attempt} /> attempts</span>
            <span class="number soft rows-end"><Age at={job.ended_at} /></span>
          </li>
        ))}
      </ul>
      <div class="members-foot">
        {total > jobs.length ? <Link to={to(["jobs"], { q: filter })}>All {count(total)}</Link> : <span />}
        <CopyAs cli={shell("holdfast", "job", "retry", filter, "--limit", "10")} asked={{ method: "POST", path: "/v1/operations:preview", body: { op: "retry", q: filter, limit: 10 } }} />
      </div>
    </div>
  );
}
