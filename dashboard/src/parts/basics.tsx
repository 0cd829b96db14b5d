// Small parts of every page: links, buttons, times, states, meters.

import type { AnchorHTMLAttributes, ComponentChildren } from "preact";
import { absolute, coarse, count, endless, now, relative, short, since, zone } from "../format";
import { href, to } from "../route";
import type { Job, State } from "../wire";
import { Icon, type IconName } from "./icon";

export function Link({ to, children, ...rest }: { to: string; children: ComponentChildren } & Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href" | "role">) {
  return (
    <a href={href(to)} data-inside="1" {...rest}>
      {children}
    </a>
  );
}

interface ButtonProps {
  icon?: IconName;
  children?: ComponentChildren;
  onClick?: (event: MouseEvent) => void;
  look?: "plain" | "primary" | "danger" | "quiet";
  label?: string;
  title?: string;
  disabled?: boolean;
  why?: string;
  submit?: boolean;
  small?: boolean;
  pressed?: boolean;
  expanded?: boolean;
  keys?: string;
}

/** With `why`, the button is disabled and shows the reason. */
export function Button({ icon, children, look = "plain", label, title, disabled, why, submit, small, pressed, expanded, keys, onClick }: ButtonProps) {
  const bare = !children;
  return (
    <button
      type={submit ? "submit" : "button"}
      class={`button ${look}${small ? " small" : ""}${bare ? " bare" : ""}`}
      aria-label={label}
      title={why ?? title ?? (bare ? label : undefined)}
      disabled={disabled || why !== undefined}
      aria-pressed={pressed}
      aria-expanded={expanded}
      onClick={onClick}
    >
      {icon && <Icon name={icon} />}
      {children && <span>{children}</span>}
      {keys && <kbd>{keys}</kbd>}
    </button>
  );
}

export function Time({ at, plain = false }: { at: string | null | undefined; plain?: boolean }) {
  if (!at) return <span class="none">–</span>;
  zone.value;
  return (
    <time dateTime={at} title={absolute(at)}>
      {plain ? coarse(Math.abs(since(at))) : relative(at)}
    </time>
  );
}

/** How long ago, without "ago", for columns whose header says so. */
export const Age = ({ at }: { at: string | null | undefined }) => <Time at={at} plain />;

const states: Record<State, IconName> = {
  queued: "circle",
  leased: "dot",
  done: "done",
  dead: "cross",
  cancelled: "minus",
  archived: "archive",
};

export function StateMark({ state, note }: { state: State; note?: string }) {
  return (
    <span class={`state ${state}`}>
      <Icon name={states[state] ?? "circle"} />
      {state}
      {note && <small>{note}</small>}
    </span>
  );
}

export function Mood({ mood, icon, children, title }: { mood: string; icon: IconName; children: ComponentChildren; title?: string }) {
  return (
    <span class={`state ${mood}`} title={title}>
      <Icon name={icon} />
      {children}
    </span>
  );
}

export function JobId({ id }: { id: string }) {
  return (
    <Link to={to(["jobs", id])} class="id" title={id}>
      {short(id)}
    </Link>
  );
}

export const Mono = ({ children, title }: { children: ComponentChildren; title?: string }) => (
  <span class="mono" title={title}>
    {children}
  </span>
);

export const None = () => <span class="none">–</span>;

export function Count({ value, capped, quiet, bad }: { value: number | null | undefined; capped?: boolean; quiet?: boolean; bad?: boolean }) {
  const mood = value ? (bad ? "bad" : "") : quiet ? "none" : "";
  return <span class={`number ${mood}`}>{count(value, capped)}</span>;
}

/** How much of something is used; the number is shown beside it. */
export function Meter({ value, most, mood = "" }: { value: number; most: number; mood?: string }) {
  const share = most > 0 ? Math.min(1, Math.max(0, value / most)) : 0;
  return (
    <span class={`meter ${mood}`} aria-hidden="true">
      <span style={{ width: `${(share * 100).toFixed(1)}%` }} />
    </span>
  );
}

// The length of a lease is not known here; the time left when it was first seen is an estimate.
const leases = new Map<string, number>();

export function Countdown({ until }: { until: string }) {
  const left = -since(until, now.value);
  if (!leases.has(until)) {
    if (leases.size > 500) leases.clear();
    leases.set(until, left);
  }
  return (
    <span class="countdown" title={`lease until ${absolute(until)}`}>
      <Meter value={Math.max(0, left)} most={Math.max(1, leases.get(until)!)} mood={left <= 0 ? "bad" : ""} />
      <span class="number">{left > 0 ? coarse(left) : "expired"}</span>
    </span>
  );
}

export function JobNote({ job }: { job: Job }) {
  if (job.state === "leased" && job.progress) return <ProgressNote progress={job.progress} />;
  if (job.error) return <span class="clip" title={job.error}>{job.error}</span>;
  if (job.state === "queued" && endless(job.run_at)) return <span class="soft">waits for an event</span>;
  if (job.state === "queued" && Date.parse(job.run_at) > now.value) return <span class="soft">due <Time at={job.run_at} /></span>;
  if (job.reason) return <span class="clip soft" title={job.reason}>{job.reason}</span>;
  return <span class="none" />;
}

export function ProgressNote({ progress }: { progress: NonNullable<Job["progress"]> }) {
  const { done, total, note } = progress;
  return (
    <span class="progress-note">
      {done !== undefined && total ? (
        <>
          <Meter value={done} most={total} mood="good" />
          <span class="number">
            {count(done)}/{count(total)}
          </span>
        </>
      ) : done !== undefined ? (
        <span class="number">{count(done)}</span>
      ) : null}
      {note && <span class="clip">{note}</span>}
    </span>
  );
}

export function Head({ title, children, sub, trail }: { title: ComponentChildren; sub?: ComponentChildren; children?: ComponentChildren; trail?: ComponentChildren }) {
  return (
    <header class="head">
      <div class="head-text">
        {trail && <nav class="trail" aria-label="Breadcrumb">{trail}</nav>}
        <h1>{title}</h1>
        {sub && <p class="sub">{sub}</p>}
      </div>
      {children && <div class="head-acts">{children}</div>}
    </header>
  );
}

export function Panel({ title, children, acts, flush, id }: { title?: ComponentChildren; children: ComponentChildren; acts?: ComponentChildren; flush?: boolean; id?: string }) {
  return (
    <section class={`panel${flush ? " flush" : ""}`} id={id}>
      {(title || acts) && (
        <header>
          {title && <h2>{title}</h2>}
          {acts && <div class="panel-acts">{acts}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

export function Facts({ children }: { children: ComponentChildren }) {
  return <dl class="facts">{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
