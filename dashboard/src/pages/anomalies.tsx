import { path } from "../api";
import { useAnomalies, useBlindSince } from "../attention";
import { ackAnomaly, muteAnomaly, unmuteAnomaly } from "../deeds";
import { useFeed } from "../feed";
import { count } from "../format";
import { Age, Button, Head, Link, Mood, Panel, Time } from "../parts/basics";
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
      <Mood mood={mood} icon={icon}>{anomaly.severity}</Mood>
      <h2>{anomaly.queue ? <Link to={to(["queues", anomaly.queue])}>{anomaly.title}</Link> : anomaly.title}</h2>
      <p class="soft">{anomaly.detail}</p>
      <p class="soft">
        <span class="mono">{anomaly.code}</span>, since <Time at={anomaly.since} />
        {anomaly.times > 1 && <>, came back {count(anomaly.times - 1)} times</>}
        {anomaly.acked_at && <>, acked by {anomaly.acked_by ?? "somebody"}{anomaly.note && <>: {anomaly.note}</>}</>}
        {anomaly.muted && <>, muted</>}
      </p>
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
      {anomaly.suggestion && <Command text={anomaly.suggestion} />}
      <div class="concern-acts">
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
