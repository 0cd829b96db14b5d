import { path } from "../api";
import { concerns } from "../attention";
import { useFeed } from "../feed";
import { Head, Link, Mood, Panel, Time } from "../parts/basics";
import { Command } from "../parts/copy";
import { Bones, Empty } from "../parts/empty";
import type { Anomaly, Kind, Lane, Queue, Schedule, Worker } from "../wire";

export function Anomalies() {
  const told = useFeed<{ anomalies: Anomaly[] }>(path(["anomalies"]), 3000);
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]));
  const kinds = useFeed<{ kinds: Kind[] }>(path(["kinds"]), 3000);
  const workers = useFeed<{ workers: Worker[] }>(path(["workers"]), 2000);
  const schedules = useFeed<{ schedules: Schedule[] }>(path(["schedules"]), 5000);
  const lanes = useFeed<{ lanes: Lane[] }>(path(["lanes"]), 3000);
  const known = queues.data.value && kinds.data.value && workers.data.value;
  const found = concerns({
    queues: queues.data.value?.queues,
    kinds: kinds.data.value?.kinds,
    workers: workers.data.value?.workers,
    schedules: schedules.data.value?.schedules,
    lanes: lanes.data.value?.lanes,
  });
  const anomalies = told.data.value?.anomalies ?? [];
  return (
    <>
      <Head title="Anomalies" sub="What looks wrong, with the evidence and what to do." />
      {anomalies.map((one, index) => (
        <article class="concern" key={one.id ?? index}>
          <Mood mood={one.severity === "critical" ? "dead" : "paused"} icon={one.severity === "critical" ? "dead" : "info"}>{one.severity ?? "warning"}</Mood>
          <h2>{one.title ?? one.code}</h2>
          <p class="soft">{one.detail}</p>
          {one.since && <p class="soft">since <Time at={one.since} /></p>}
          {one.suggestion && <Command text={one.suggestion} />}
        </article>
      ))}
      {!known ? (
        <Bones rows={5} />
      ) : found.length ? (
        found.map((one) => (
          <article class="concern" key={one.title} data-row={one.title}>
            <Mood mood={one.grave ? "dead" : "paused"} icon={one.grave ? "dead" : "info"}>{one.grave ? "look now" : "to know"}</Mood>
            <h2>
              <Link to={one.link}>{one.title}</Link>
            </h2>
            <p class="soft">{one.detail}</p>
            {one.fix && <Command text={one.fix} />}
          </article>
        ))
      ) : anomalies.length === 0 ? (
        <Empty icon="done" title="Nothing looks wrong">
          <p>Every kind that waits has a worker, no queue is late or paused with jobs in it, no lane is halted, and every schedule can fire.</p>
        </Empty>
      ) : null}
      <Panel title="What is looked at">
        <p class="soft">
          This page judges what is true now: kinds that wait without a worker, queues more than a minute behind or paused with jobs in them, halted lanes, workers that vanished while busy, schedules that cannot fire, and
          workers of different versions. Detectors that need a history, such as a jump in failures, are not part of this server.
        </p>
      </Panel>
    </>
  );
}
