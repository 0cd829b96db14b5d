// The frame around every page.

import type { ComponentType } from "preact";
import { effect, signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { pressing, useAnomalies } from "./attention";
import { path, reachable, signedOut } from "./api";
import { useFeed } from "./feed";
import { count, fine, plural } from "./format";
import { openTyped, step, typing, useKeys } from "./keys";
import { liveness, paused, togglePause } from "./live";
import { Link } from "./parts/basics";
import { Bulk, Tray } from "./parts/bulk";
import { Confirmation, Modal } from "./parts/dialog";
import { Enqueue, openEnqueue } from "./parts/enqueue";
import { Icon, Mark, type IconName } from "./parts/icon";
import { Palette } from "./parts/palette";
import { Toasts, toast } from "./parts/toast";
import { Import } from "./parts/transfer";
import { Activity } from "./pages/activity";
import { Anomalies } from "./pages/anomalies";
import { Dead } from "./pages/dead";
import { JobPage } from "./pages/job";
import { Jobs, openById } from "./pages/jobs";
import { Lanes } from "./pages/lanes";
import { Overview } from "./pages/overview";
import { QueuePage } from "./pages/queue";
import { Queues } from "./pages/queues";
import { SchedulePage, Schedules } from "./pages/schedules";
import { Settings } from "./pages/settings";
import { SignIn } from "./pages/signin";
import { Workers } from "./pages/workers";
import { WorkflowOne, Workflows } from "./pages/workflows";
import { go, page, parts, to } from "./route";
import { barred, instance, me } from "./session";
import { switchTheme, theme } from "./theme";
import type { Nodes, Queue, System } from "./wire";

interface Place {
  name: string;
  title: string;
  icon: IconName;
  key: string;
  all: ComponentType;
  one?: ComponentType;
}

export const places: Place[] = [
  { name: "overview", title: "Overview", icon: "overview", key: "o", all: Overview },
  { name: "queues", title: "Queues", icon: "queues", key: "q", all: Queues, one: QueuePage },
  { name: "jobs", title: "Jobs", icon: "jobs", key: "j", all: Jobs, one: JobPage },
  { name: "workflows", title: "Workflows", icon: "workflows", key: "f", all: Workflows, one: WorkflowOne },
  { name: "dead", title: "Dead", icon: "dead", key: "d", all: Dead },
  { name: "schedules", title: "Schedules", icon: "schedules", key: "s", all: Schedules, one: SchedulePage },
  { name: "workers", title: "Workers", icon: "workers", key: "w", all: Workers },
  { name: "lanes", title: "Lanes", icon: "lanes", key: "l", all: Lanes },
  { name: "anomalies", title: "Anomalies", icon: "anomalies", key: "a", all: Anomalies },
  { name: "activity", title: "Activity", icon: "activity", key: "h", all: Activity },
  { name: "settings", title: "Settings", icon: "settings", key: ",", all: Settings },
];

const address = (name: string): string => (name === "overview" ? "" : name);
const menuOpen = signal(false);
const helpOpen = signal(false);
const paletteOpen = signal(false);

effect(() => {
  const place = places.find((one) => one.name === page.value);
  const what = parts.value[1] ? `${parts.value[1].length > 24 ? parts.value[1].slice(-8) : parts.value[1]} · ` : "";
  document.title = `${what}${place?.title ?? "Not found"} · ${instance.value || "Holdfast"}`;
});

openTyped.current = (digits) => {
  void openById(digits).then((found) => {
    if (!found) toast(`No job ends in ${digits}`, true);
  });
};

export function Shell() {
  const search = useRef<HTMLInputElement>(null);
  const goto = Object.fromEntries(places.map((place) => [`g ${place.key}`, () => go(address(place.name))]));
  useKeys({
    ...goto,
    "/": () => (document.querySelector<HTMLInputElement>(".filter input") ?? search.current)?.focus(),
    j: () => step(1),
    k: () => step(-1),
    p: togglePause,
    t: switchTheme,
    n: () => !barred("produce") && openEnqueue(),
    ".": () => (paletteOpen.value = true),
    "?": () => (helpOpen.value = !helpOpen.value),
  });
  useEffect(() => {
    menuOpen.value = false;
  }, [page.value, parts.value]);

  if (signedOut.value) return <SignIn />;
  const place = places.find((one) => one.name === page.value);
  const Page = parts.value.length > 1 ? place?.one : place?.all;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
      <div class={`frame${menuOpen.value ? " open" : ""}`}>
        <Rail />
        <div class="scrim" onClick={() => (menuOpen.value = false)} />
        <div class="column">
          <TopBar search={search} />
          <Lost />
          <Late />
          <Missing />
          <main id="main" tabIndex={-1} class={`page ${place?.name ?? ""}`}>{Page ? <Page key={parts.value.join("/")} /> : <Nowhere />}</main>
        </div>
      </div>
      <Tray />
      <Confirmation />
      <Bulk />
      <Enqueue />
      <Import />
      {helpOpen.value && <Help close={() => (helpOpen.value = false)} />}
      {paletteOpen.value && <Palette close={() => (paletteOpen.value = false)} />}
      {typing.value && <div class="typing" role="status">Job …<b class="mono">{typing.value}</b> <kbd>Enter</kbd></div>}
      <Toasts />
    </>
  );
}

function Rail() {
  const queues = useFeed<{ queues: Queue[] }>(path(["queues"]), 2000);
  const dead = queues.data.value?.queues.reduce((sum, queue) => sum + queue.dead, 0) ?? 0;
  const found = pressing(useAnomalies().data.value?.anomalies ?? []).length;
  const badges: Record<string, Told> = {
    dead: { number: dead, says: plural(dead, "dead job") },
    anomalies: { number: found, says: plural(found, "anomaly", "anomalies") + " to review" },
  };
  const color = /^#[0-9a-f]{3,8}$/i.test(me.value?.color ?? "") ? me.value!.color : undefined;
  return (
    <nav class="rail" aria-label="Pages">
      <Link to="" class="brand" aria-label="Holdfast: overview">
        <Mark />
        <span class="brand-name">Holdfast</span>
      </Link>
      {instance.value && (
        <span class="instance" style={color ? { "--instance": color } : undefined}>
          {instance.value}
        </span>
      )}
      <ul>
        {places.map((place) => (
          <li key={place.name}>
            <Link to={address(place.name)} aria-current={page.value === place.name ? "page" : undefined} title={`${place.title} (g ${place.key})`}>
              <Icon name={place.icon} />
              <span>{place.title}</span>
              <Badge {...badges[place.name]} />
            </Link>
          </li>
        ))}
      </ul>
      <div class="rail-foot">
        <button type="button" class="button quiet small" onClick={() => (helpOpen.value = true)}>
          <Icon name="keyboard" />
          <span>Keys</span>
          <kbd>?</kbd>
        </button>
        <span class="soft version">{me.value?.version && `v${me.value.version}`}</span>
      </div>
    </nav>
  );
}

interface Told {
  number: number;
  says: string;
}

function Badge({ number, says }: Partial<Told>) {
  if (!number) return null;
  return <span class="badge" role="img" aria-label={says}>{number > 9999 ? "9 999+" : count(number)}</span>;
}

function TopBar({ search }: { search: { current: HTMLInputElement | null } }) {
  return (
    <header class="top">
      <button type="button" class="button quiet bare menu-button" aria-label="Menu" aria-expanded={menuOpen.value} onClick={() => (menuOpen.value = !menuOpen.value)}>
        <Icon name="menu" />
      </button>
      <Search input={search} />
      <span class="gap" />
      <LiveDot />
      <button type="button" class="button quiet bare" aria-label={`Switch to the ${theme.value === "dark" ? "light" : "dark"} theme`} title="Theme (t)" onClick={switchTheme}>
        <Icon name={theme.value === "dark" ? "sun" : "moon"} />
      </button>
      {me.value && (
        <Link to="settings" class="user" title={me.value.read_only ? "read-only" : me.value.scopes.join(", ")}>
          <Icon name="user" />
          <span>{me.value.user || "anonymous"}</span>
          {me.value.read_only && <span class="tag">read-only</span>}
        </Link>
      )}
    </header>
  );
}

function Search({ input }: { input: { current: HTMLInputElement | null } }) {
  const [text, setText] = useState("");
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    const wanted = text.trim();
    if (!wanted) return;
    if (/^[0-9a-f-]{8,36}$/i.test(wanted) && (await openById(wanted))) {
      setText("");
      return;
    }
    setText("");
    go(to(["jobs"], { q: wanted }));
  }
  return (
    <form class="search" role="search" onSubmit={(event) => void submit(event)}>
      <Icon name="search" />
      <input ref={input} value={text} aria-label="Search jobs by filter or id" placeholder="Search, or an id" spellcheck={false} autocomplete="off" onInput={(event) => setText(event.currentTarget.value)} />
      <kbd>/</kbd>
    </form>
  );
}

function LiveDot() {
  const now = paused.value ? "paused" : !reachable.value ? "offline" : liveness.value;
  const words = { connecting: "connecting", live: "live", polling: "polling", offline: "offline", paused: "paused" };
  const tips = {
    connecting: "Connecting to the server",
    live: "The page updates as changes happen",
    polling: "The page refreshes every few seconds",
    offline: "The server does not answer",
    paused: "Updates are paused",
  };
  return (
    <button type="button" class={`live ${now}`} title={`${tips[now]}. Press p to ${paused.value ? "resume" : "pause"}.`} aria-pressed={paused.value} onClick={togglePause}>
      <span class="live-dot" />
      <span>{words[now]}</span>
    </button>
  );
}

function Lost() {
  if (reachable.value) return null;
  return (
    <p class="lost" role="alert">
      <Icon name="dead" /> The server does not answer. Showing the last known data; reconnecting…
    </p>
  );
}

// A standby a little behind is what a standby is.
const LATE_SECONDS = 5;

function Late() {
  const standby = useFeed<System>(path(["system"]), 10_000).data.value?.standby;
  if (!standby || !reachable.value || (standby.behind !== null && standby.behind < LATE_SECONDS)) return null;
  return (
    <p class="stale strip" role="status">
      <Icon name="clock" />
      {standby.behind === null ? "The standby does not answer. The primary answers in its place." : `Showing data of ${fine(standby.behind)} ago: the standby is behind.`}
    </p>
  );
}

// What a node has that does not answer is missing on every page.
function Missing() {
  const nodes = useFeed<Nodes>(path(["nodes"]), 10_000).data.value?.nodes ?? [];
  const silent = reachable.value ? nodes.filter((node) => node.problem !== null) : [];
  if (silent.length === 0) return null;
  return (
    <p class="stale strip" role="alert">
      <Icon name="dead" />
      {silent.map((node) => `Node ${node.node}${node.address ? ` (${node.address})` : ""} does not answer. `)}
      Its jobs are not shown.
    </p>
  );
}

function Nowhere() {
  return (
    <div class="empty">
      <span class="empty-icon"><Icon name="search" /></span>
      <h2>Page not found</h2>
      <p><Link to="">Go to the overview</Link></p>
    </div>
  );
}

function Help({ close }: { close: () => void }) {
  const rows: [string, string][] = [
    ...places.map((place): [string, string] => [`g ${place.key}`, place.title]),
    ["/", "search or filter"],
    ["digits Enter", "open the job whose id ends in these digits"],
    ["j  k", "next and previous row"],
    ["Enter", "open the row"],
    ["x  X", "select a row, or a range"],
    ["*", "select all rows"],
    ["r  c  e", "retry, cancel, edit"],
    ["n", "enqueue a job"],
    ["p", "pause or resume live updates"],
    ["t", "switch between light and dark"],
    [".", "show all commands"],
    ["?", "show this help"],
  ];
  return (
    <Modal title="Keys" close={close}>
      <dl class="keys">
        {rows.map(([keys, what]) => (
          <div key={keys}>
            <dt>{keys.split(" ").filter(Boolean).map((one) => <kbd key={one}>{one}</kbd>)}</dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Modal>
  );
}
