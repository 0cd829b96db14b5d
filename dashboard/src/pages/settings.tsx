import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { ask, look, path, root, type Problem } from "../api";
import { useFeed } from "../feed";
import { bytes, count, fine, now, plural, zone } from "../format";
import { liveness } from "../live";
import { Button, Count, Fact, Facts, Head, Mood, None, Panel, Time } from "../parts/basics";
import { Command, CopyAs, CopyButton, shell } from "../parts/copy";
import { confirm } from "../parts/dialog";
import { Trouble, Wait } from "../parts/empty";
import { barred, has, me, may } from "../session";
import { chosen } from "../theme";
import type { Checkup, Json, Relation, System, Token } from "../wire";

const fresh = signal<{ name: string; secret: string } | null>(null);

export function Settings() {
  const who = me.value;
  return (
    <>
      <Head title="Settings" />
      <div class="split">
        <div class="stack">
          {who && may("admin") ? <Tokens /> : (
            <Panel title="API tokens">
              <p class="soft">Only admins can create and see tokens. {who?.read_only ? "This server is read-only." : ""}</p>
              <Command text="holdfast token create --scope read" />
            </Panel>
          )}
          {who && who.queues === null && <SystemPanel />}
        </div>
        <div class="stack">
          <Panel title="You" acts={who && who.via !== "open" && <Button small onClick={() => void signOut()}>Sign out</Button>}>
            {who && (
              <Facts>
                <Fact name="User">{who.user || "anonymous"}</Fact>
                <Fact name="Signed in with">{{ open: "sign-in is not required on this machine", token: "token", session: "session" }[who.via] ?? who.via}</Fact>
                <Fact name="Scopes">{who.scopes.map((scope) => <span key={scope} class="tag">{scope}</span>)}</Fact>
                <Fact name="Queues">{who.queues === null ? "all" : who.queues.join(", ")}</Fact>
                <Fact name="Read-only">{who.read_only ? "yes" : "no"}</Fact>
              </Facts>
            )}
          </Panel>
          <Panel title="This browser">
            <div class="field-pair">
              <label class="field">
                <span>Theme</span>
                <select value={chosen.value} onChange={(event) => (chosen.value = event.currentTarget.value as "system")}>
                  <option value="system">same as the system</option>
                  <option value="light">light</option>
                  <option value="dark">dark</option>
                </select>
              </label>
              <label class="field">
                <span>Times</span>
                <select value={zone.value} onChange={(event) => (zone.value = event.currentTarget.value as "utc")}>
                  <option value="local">local ({Intl.DateTimeFormat().resolvedOptions().timeZone})</option>
                  <option value="utc">UTC</option>
                </select>
              </label>
            </div>
          </Panel>
          <Panel title="Server">
            {who && (
              <Facts>
                <Fact name="Instance">{who.name || <None />}</Fact>
                <Fact name="Version">{who.version}</Fact>
                <Fact name="Change detection">{who.mode === "live" ? "immediate, with LISTEN" : "polls every second"}</Fact>
                <Fact name="This page">{{ live: "updates live", polling: "refreshes every few seconds", connecting: "is connecting", offline: "cannot reach the server", paused: "is paused" }[liveness.value]}</Fact>
                <Fact name="API"><a href={`${root}/docs`} target="_blank" rel="noreferrer">reference</a>, <a href={`${root}/openapi.json`} target="_blank" rel="noreferrer">openapi.json</a>, <a href={`${root}/metrics`} target="_blank" rel="noreferrer">metrics</a></Fact>
              </Facts>
            )}
          </Panel>
        </div>
      </div>
    </>
  );
}

async function signOut(): Promise<void> {
  await ask({ method: "DELETE", path: "/v1/session" }).catch(() => undefined);
  location.reload();
}

const DAY = 86400;

function Tokens() {
  const tokens = useFeed<{ tokens: Token[] }>(path(["tokens"]), 3000);
  return (
    <Panel title="API tokens" flush acts={<Button small icon="plus" why={barred("admin")} onClick={createToken}>New token</Button>}>
      {fresh.value && (
        <div class="fresh-token" role="status">
          <p>
            <strong>{fresh.value.name}</strong>: copy the token now. It is not shown again.
          </p>
          <div class="command secret">
            <code>{fresh.value.secret}</code>
            <CopyButton text={fresh.value.secret} label="Copy the token" />
          </div>
          <Button small look="quiet" onClick={() => (fresh.value = null)}>Done</Button>
        </div>
      )}
      <Wait feed={tokens} rows={3}>
        {(data) => {
          const shown = data.tokens.filter((one) => one.sort !== "link");
          if (!shown.length) return <p class="pad soft">No tokens yet. Programs use a token to authenticate to the HTTP API.</p>;
          return (
            <div class="table-wrap">
              <table aria-label="API tokens">
                <thead>
                  <tr>
                    <th scope="col">Name</th>
                    <th scope="col">Scopes</th>
                    <th scope="col" class="rank2">Queues</th>
                    <th scope="col" class="rank2">Created</th>
                    <th scope="col">Expires</th>
                    <th scope="col" class="right"><span class="offscreen">Actions</span></th>
                  </tr>
                </thead>
                <tbody>
                  {shown.map((one) => (
                    <tr key={one.id} data-row={one.id}>
                      <td>
                        <span class="strong">{one.name}</span> {one.sort === "session" && <span class="tag">session</span>}
                      </td>
                      <td>{one.scopes.join(", ")}</td>
                      <td class="rank2">{one.queues === null ? "all" : one.queues.join(", ")}</td>
                      <td class="rank2"><Time at={one.created_at} /></td>
                      <td>{one.expires_at ? <Time at={one.expires_at} /> : "never"}</td>
                      <td class="right">
                        <Button small look="danger" onClick={() => revoke(one)}>Revoke</Button>
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          );
        }}
      </Wait>
    </Panel>
  );
}

function SystemPanel() {
  const system = useFeed<System>(path(["system"]), 10_000);
  return (
    <Panel title="System" flush acts={<CopyAs asked={{ method: "GET", path: path(["system"]) }} />}>
      <Wait feed={system} rows={6}>
        {({ database, standby }) => (
          <>
            <div class="system">
              <Facts>
                <Fact name="PostgreSQL">{database.postgresql}</Fact>
                <Fact name="Schema">{database.schema}, migrated by {database.release}</Fact>
                <Fact name="Database">{bytes(database.size)}</Fact>
                <Fact name="Connections">{count(database.connections)} of {count(database.max_connections)}</Fact>
                {standby && <Fact name="Standby">{standby.behind === null ? "does not answer; the primary answers in its place" : standby.behind ? `${fine(standby.behind)} behind` : "up to date"}</Fact>}
                <Fact name="Oldest transaction">{database.oldest_transaction === null ? "none visible" : `open for ${fine(database.oldest_transaction)}`}</Fact>
              </Facts>
            </div>
            <Doctor />
            <Relations relations={database.relations} />
          </>
        )}
      </Wait>
    </Panel>
  );
}

const LARGEST = 8;

function Relations({ relations }: { relations: Relation[] }) {
  const [all, setAll] = useState(false);
  const rest = all ? [] : relations.slice(LARGEST);
  const sum = (name: "size" | "rows" | "dead") => rest.reduce((total, one) => total + one[name], 0);
  return (
    <div class="table-wrap">
      <table aria-label="Tables">
        <thead>
          <tr>
            <th scope="col">Table</th>
            <th scope="col" class="right" title="with its indexes">Size</th>
            <th scope="col" class="right rank2">Rows</th>
            <th scope="col" class="right">Dead rows</th>
            <th scope="col" class="right rank2">Last vacuum</th>
          </tr>
        </thead>
        <tbody>
          {relations.slice(0, relations.length - rest.length).map((one) => (
            <tr key={one.name} data-row={one.name}>
              <td class="mono">{one.name}</td>
              <td class="right number">{bytes(one.size)}</td>
              <td class="right rank2"><Count value={one.rows} quiet /></td>
              <td class="right"><Count value={one.dead} quiet /></td>
              <td class="right rank2">{one.vacuumed_at ? <Time at={one.vacuumed_at} /> : "never"}</td>
            </tr>
          ))}
          {rest.length > 0 && (
            <tr>
              <td><button type="button" class="link" onClick={() => setAll(true)}>{plural(rest.length, "smaller table")}</button></td>
              <td class="right number">{bytes(sum("size"))}</td>
              <td class="right rank2"><Count value={sum("rows")} quiet /></td>
              <td class="right"><Count value={sum("dead")} quiet /></td>
              <td class="rank2" />
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

const levels = { fail: ["dead", "cross"], warn: ["paused", "dead"], ok: ["done", "done"] } as const;
const worst = Object.keys(levels);

/** The doctor reads catalogues and queues, so it runs only on request. */
function Doctor() {
  const [found, setFound] = useState<{ checks: Checkup[]; at: string }>();
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true);
    try {
      const { checks } = await look<{ checks: Checkup[] }>(path(["doctor"]));
      setFound({ checks: checks.sort((a, b) => worst.indexOf(a.level) - worst.indexOf(b.level)), at: new Date(now.value).toISOString() });
      setProblem(undefined);
    } catch (error) {
      setProblem(error as Problem);
    }
    setBusy(false);
  };
  return (
    <section class="doctor" aria-label="Doctor">
      <header>
        <p class="soft">
          {found ? <>{plural(found.checks.length, "check")} run <Time at={found.at} />. </> : "Checks the health of the database. "}
          <span class="mono">holdfast doctor</span> also checks connections and clocks.
        </p>
        <Button small disabled={busy} why={has("operate") ? undefined : 'This needs the scope "operate"'} onClick={() => void run()}>
          {found ? "Run again" : "Run doctor"}
        </Button>
      </header>
      {problem && <Trouble problem={problem} />}
      {found && (
        <ul class="checks" aria-label="Doctor results">
          {found.checks.map((one) => (
            <li key={one.name} data-row={one.name}>
              <Mood mood={levels[one.level][0]} icon={levels[one.level][1]}>{one.level}</Mood>
              <p><strong>{one.name}</strong> {one.what}</p>
              <p class="soft">{one.why}</p>
              {one.fix && one.level !== "ok" && <Command text={one.fix} />}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function createToken(): void {
  const days = [
    { value: "7", label: "7 days" },
    { value: "90", label: "90 days" },
    { value: "365", label: "a year" },
    { value: "", label: "never" },
  ];
  confirm<Token & { secret: string }>({
    title: "New token",
    body: "A token lets a program use the HTTP API. Its secret is shown only once.",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "php-importer" },
      { name: "scope", label: "Scopes", value: "produce", options: [
        { value: "read", label: "read: see everything" },
        { value: "produce", label: "produce: enqueue" },
        { value: "consume", label: "consume: claim and settle" },
        { value: "produce,consume", label: "produce and consume" },
        { value: "read,produce,operate", label: "operate: retry, cancel and pause" },
        { value: "admin", label: "admin: everything" },
      ] },
      { name: "queues", label: "Queues", hint: "comma-separated names; leave empty for all" },
      { name: "days", label: "Expires in", value: "90", options: days },
    ],
    act: "Create",
    deed: (values) => {
      const queues = (values.queues ?? "").split(",").map((one) => one.trim()).filter(Boolean);
      const scopes = values.scope!.split(",");
      const body: Record<string, Json> = { name: values.name!.trim(), scopes, ...(queues.length ? { queues } : {}), ...(values.days ? { expires: Number(values.days) * DAY } : {}) };
      return {
        asked: { method: "POST", path: path(["tokens"]), body },
        cli: shell("holdfast", "token", "create", values.name!.trim() || "NAME", ...scopes.flatMap((scope) => ["--scope", scope]), ...queues.flatMap((queue) => ["--queue", queue]), ...(values.days ? ["--expires", `${values.days}d`] : [])),
        said: "Token created",
      };
    },
    after: (token) => (fresh.value = { name: token.name, secret: token.secret }),
  });
}

function revoke(token: Token): void {
  confirm({
    title: `Revoke ${token.name}`,
    body: "Programs that use this token are rejected from their next request.",
    act: "Revoke",
    bad: true,
    deed: () => ({
      asked: { method: "DELETE", path: path(["tokens", token.id]) },
      cli: shell("holdfast", "token", "revoke", token.id),
      said: "Revoked",
    }),
  });
}
