import { path } from "../api";
import { useAnomalies, useBlindSince } from "../attention";
import { ackAnomaly, muteAnomaly, unmuteAnomaly } from "../deeds";
import { useFeed } from "../feed";
import { plural } from "../format";
import { Age, Button, Head, Link, Mood, Panel } from "../parts/basics";
import { Command } from "../parts/copy";
import { Blind, Empty, Wait } from "../parts/empty";
import { to } from "../route";
import { barred } from "../session";
import type { Anomaly, Json } from "../wire";

export function Anomalies() {
  const told = useAnomalies();
  const over = useFeed<{ anomalies: Anomaly[] }>(path(["anomalies"], { over: "true", limit: 20 }), 10000);
  const blind = useBlindSince();
  const past = over.data.value?.anomalies ?? [];
  return (
    <>
      <Head title="Anomalies" sub="Problems that Holdfast has detected, with evidence and what to do." />
      {blind !== undefined && <Blind since={blind} />}
      <Wait feed={told} rows={5}>
        {({ anomalies }) =>
          anomalies.length ? (
            anomalies.map((one) => <Card key={one.id} anomaly={one} />)
          ) : blind === undefined ? (
            <Empty icon="done" title="No problems found">
              <p>Every waiting kind has a worker, no queue is late, no lane is halted, and every schedule has run on time.</p>
            </Empty>
          ) : null
        }
      </Wait>
      {past.length > 0 && (
        <Panel title="Resolved" flush>
          <ul class="rows">
            {past.map((one) => (
              <li key={one.id} data-row={one.title}>
                <span class="strong clip">{one.title}</span>
                <span class="soft clip">{one.detail}</span>
                <span class="rows-end soft">
                  resolved <Age at={one.resolved_at!} /> ago
                </span>
              </li>
            ))}
          </ul>
        </Panel>
      )}
      <Panel title="What is checked">
        <p class="soft">
          Detectors run every few seconds as part of upkeep. They check queues, workers, lanes, schedules, leases and the database itself. An anomaly is reported once, to webhooks and the log, and is resolved automatically when its cause is gone. List and adjust the detectors with{" "}
          <span class="mono">holdfast anomaly detectors</span>.
        </p>
      </Panel>
    </>
  );
}

const looks = { critical: ["dead", "dead"], warning: ["paused", "info"], info: ["active", "info"] } as const;

function Card({ anomaly }: { anomaly: Anomaly }) {
  const [mood, icon] = looks[anomaly.severity];
  const facts = Object.entries(anomaly.evidence).filter(([, value]) => value !== null);
  return (
    <article class="concern" data-row={anomaly.title}>
      <p class="concern-what soft">
        <Mood mood={mood} icon={icon}>{anomaly.severity}</Mood>
        <span class="mono">{anomaly.code}</span>
        <span>for <Age at={anomaly.since} /></span>
        {anomaly.times > 1 && <span>came back {plural(anomaly.times - 1, "time")}</span>}
        {anomaly.acked_at && <span class="tag">acknowledged by {anomaly.acked_by ?? "unknown"}</span>}
        {anomaly.muted && <span class="tag">muted</span>}
      </p>
      <h2>{anomaly.queue ? <Link to={to(["queues", anomaly.queue])}>{anomaly.title}</Link> : anomaly.title}</h2>
      {anomaly.detail && <p class="soft">{anomaly.detail}</p>}
      {anomaly.note && <p>{anomaly.acked_by ?? "Unknown"}: {anomaly.note}</p>}
      {facts.length > 0 && (
        <details>
          <summary>Evidence</summary>
          <dl class="evidence">
            {facts.map(([name, value]) => (
              <>
                <dt>{name}</dt>
                <dd class="mono clip">{shown(value)}</dd>
              </>
            ))}
          </dl>
        </details>
      )}
      <div class="concern-acts">
        {anomaly.suggestion && <Command text={anomaly.suggestion} />}
        <Button small why={barred("operate") ?? (anomaly.acked_at ? "Already acknowledged" : undefined)} onClick={() => ackAnomaly(anomaly)}>Acknowledge</Button>
        {anomaly.muted ? (
          <Button small why={barred("operate")} onClick={() => unmuteAnomaly(anomaly)}>Unmute</Button>
        ) : (
          <Button small why={barred("operate")} onClick={() => muteAnomaly(anomaly)}>Mute</Button>
        )}
      </div>
    </article>
  );
}

const shown = (value: Json): string => (typeof value === "string" ? value : JSON.stringify(value));
