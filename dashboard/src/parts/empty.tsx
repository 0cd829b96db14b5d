// What a page shows instead of data: that it is loading, that there is none, or an error.

import type { ComponentChildren } from "preact";
import type { Problem } from "../api";
import type { Feed } from "../feed";
import { Button, Time } from "./basics";
import { Command } from "./copy";
import { Icon, type IconName } from "./icon";

export function Empty({ icon = "info", title, children, commands = [] }: { icon?: IconName; title: string; children?: ComponentChildren; commands?: string[] }) {
  return (
    <div class="empty">
      <span class="empty-icon">
        <Icon name={icon} />
      </span>
      <h2>{title}</h2>
      {children && <div class="empty-text">{children}</div>}
      {commands.map((command) => (
        <Command key={command} text={command} />
      ))}
    </div>
  );
}

/** An error; with `retry`, in place of data that could not be loaded. */
export function Trouble({ problem, retry }: { problem: Problem; retry?: () => void }) {
  // The frame says that the server does not answer; one alert about one fault.
  if (retry && problem.status === 0) return <p class="soft" role="status">Nothing has been loaded yet. The page fills as soon as the server answers.</p>;
  return (
    <div class="trouble" role="alert">
      <Icon name="dead" />
      <div>
        <strong>{problem.title}</strong>
        {problem.code && <span class="mono soft"> {problem.code}</span>}
        <p>{problem.detail}</p>
        {problem.fix && <p class="soft">{problem.fix}</p>}
      </div>
      {retry && <Button small onClick={retry}>Try again</Button>}
    </div>
  );
}

/** Shown if no detector has run for long: "no problems" would then mean nothing. */
export function Blind({ since }: { since: string | null }) {
  return (
    <div class="notice">
      <span>
        {since ? <>Detectors last ran <Time at={since} />.</> : "Detectors have not run yet."} They run as part of upkeep, in workers and servers.
      </span>
      <Command text="holdfast upkeep" />
    </div>
  );
}

/** A line above data that could not be refreshed. That the whole server does not answer, the frame says. */
export function Stale({ feed }: { feed: Feed<unknown> }) {
  const problem = feed.problem.value;
  if (!problem || problem.status === 0 || feed.data.value === undefined) return null;
  return (
    <p class="stale" role="status">
      <Icon name="clock" /> Showing the last known data: {problem.detail || problem.title}
    </p>
  );
}

export function Bones({ rows = 6, tall = false }: { rows?: number; tall?: boolean }) {
  return (
    <div class={`bones${tall ? " tall" : ""}`} role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <span key={index} />
      ))}
    </div>
  );
}

/** Shows the data of a feed, or placeholders, or an error. */
export function Wait<T>({ feed, children, rows, tall }: { feed: Feed<T>; children: (data: T) => ComponentChildren; rows?: number; tall?: boolean }) {
  const data = feed.data.value;
  if (data !== undefined) {
    return (
      <>
        <Stale feed={feed as Feed<unknown>} />
        {children(data)}
      </>
    );
  }
  if (feed.problem.value) return <Trouble problem={feed.problem.value} retry={() => void feed.refresh()} />;
  return <Bones rows={rows} tall={tall} />;
}

/** Shown if the server has no such data, with what is available instead. */
export function NotHere({ title, children, commands }: { title: string; children: ComponentChildren; commands?: string[] }) {
  return (
    <Empty icon="info" title={title} commands={commands}>
      {children}
    </Empty>
  );
}
