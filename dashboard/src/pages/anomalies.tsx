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
      <Head title="Anomalies" sub="What looks wrong, with the evidence and what to do." />
      {blind !== undefined && <Blind since={blind} />}
      <Wait feed={told} rows={5}>
        {({ anomalies }) =>
          anomalies.length ? (
            anomalies.map((one) => <Card key={one.id} anomaly={one} />)
          ) : blind === undefined ? (
            <Empty icon="done" title="Nothing looks wrong">
              <p>Every kind that waits has a worker, no queue is late, no lane is halted, and every schedule has fired when it should.</p>
            </Empty>
          ) : null
        }
      </Wait>
      {past.length > 0 && (
        <Panel title="Over" flush>
          <ul class="rows">
            {past.map((one) => (
              <li key={one.id} data-row={one.title}>
                <span class="strong clip">{one.title}</span>
                <span class="soft clip">{one.detail}</span>
                <span class="rows-end soft">
                  over <Age at={one.resolved_at!} /> ago
                </span>
              </li>
            ))}
          </ul>
        </Panel>
      )}
      <Panel title="What is looked at">
        <p class="soft">
          Detectors look every few seconds, wherever upkeep runs: at queues, workers, lanes, schedules, leases, and at the database itself. Each is raised once, told to webhooks and the log, and over by itself. See and tune them with{" "}
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
        {anomaly.acked_at && <span class="tag">acked by {anomaly.acked_by ?? "somebody"}</span>}
        {anomaly.muted && <span class="tag">muted</span>}
      </p>
      <h2>{anomaly.queue ? <Link to={to(["queues", anomaly.queue])}>{anomaly.title}</Link> : anomaly.title}</h2>
      {anomaly.detail && <p class="soft">{anomaly.detail}</p>}
      {anomaly.note && <p>{anomaly.acked_by ?? "Somebody"}: {anomaly.note}</p>}
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
        <Button small why={barred("operate") ?? (anomaly.acked_at ? "It is acked" : undefined)} onClick={() => ackAnomaly(anomaly)}>Ack</Button>
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
