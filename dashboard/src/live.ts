// One stream of changes for all tabs of a browser: the tab that holds the lock listens and notifies the others.

import { effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { root, signedOut } from "./api";
import type { Operation } from "./wire";

export type Liveness = "connecting" | "live" | "polling" | "offline" | "paused";

/** How the page currently detects changes. */
export const liveness = signal<Liveness>("connecting");
/** While paused, the page does not update. */
export const paused = signal(false);
/** Counts changes; feeds refresh when it grows. */
export const beat = signal(0);
/** The newest state of each running operation. */
export const operations = signal<Record<string, Operation>>({});
/** The number of the last line that each watched job has logged. */
export const lastLines = signal<Record<string, number>>({});

interface News {
  event: string;
  data: unknown;
}

const POLL = 3000;
const channel = "BroadcastChannel" in window ? new BroadcastChannel("holdfast" + root) : null;
// The jobs that each tab shows: the stream tells of these.
const tab = Math.random().toString(36).slice(2);
const watched = new Map<string, string[]>();
const MOST_WATCHED = 100;
let source: EventSource | undefined;
let listening = "";
let heardAt = 0;
let started = false;

export function startLive(): void {
  if (started) return;
  started = true;
  channel?.addEventListener("message", (event) => {
    const news = event.data as News;
    if (news.event === "watches") note(news.data as Watches);
    else if (news.event === "who watches") tellTabs();
    else hear(news);
  });
  window.addEventListener("pagehide", () => channel?.postMessage({ event: "watches", data: { tab, jobs: [] } }));
  if (navigator.locks) {
    // Held until the tab goes; then another tab's request is granted.
    void navigator.locks.request("holdfast-live" + root, () => new Promise<void>(() => lead()));
  } else lead();
  setInterval(watch, POLL);
  effect(() => {
    if (signedOut.value) source?.close();
  });
}

export function togglePause(): void {
  paused.value = !paused.value;
  if (!paused.value) beat.value += 1;
}

/** Have changes of a job sent while the component is shown. */
export function useWatched(id: string): void {
  useEffect(() => {
    watched.set(tab, [id]);
    tellTabs();
    listenAgain();
    return () => {
      watched.delete(tab);
      tellTabs();
      listenAgain();
    };
  }, [id]);
}

interface Watches {
  tab: string;
  jobs: string[];
}

function tellTabs(): void {
  channel?.postMessage({ event: "watches", data: { tab, jobs: watched.get(tab) ?? [] } });
}

function note({ tab, jobs }: Watches): void {
  if (jobs.length) watched.set(tab, jobs);
  else watched.delete(tab);
  listenAgain();
}

function lead(): void {
  channel?.postMessage({ event: "who watches", data: null });
  listen();
}

const address = (): string => {
  const jobs = [...new Set([...watched.values()].flat())].sort().slice(0, MOST_WATCHED);
  return root + "/v1/events/stream" + (jobs.length ? "?watch=" + jobs.join(",") : "");
};

/** What a stream tells of is said when it begins. */
function listenAgain(): void {
  // A page that follows another one takes its place at once.
  setTimeout(() => {
    if (!source || listening === address() || signedOut.value) return;
    source.close();
    listen();
  });
}

function listen(): void {
  listening = address();
  source = new EventSource(listening);
  for (const name of ["hello", "tick", "op", "job", "anomaly", "resync"]) {
    source.addEventListener(name, (event) => {
      const news: News = { event: name, data: read((event as MessageEvent<string>).data) };
      hear(news);
      channel?.postMessage(news);
    });
  }
  source.addEventListener("open", () => hear({ event: "open", data: null }));
  source.addEventListener("error", () => {
    // The browser does not reconnect a stream that was refused.
    const refused = source;
    if (refused?.readyState === EventSource.CLOSED && !signedOut.value) setTimeout(() => refused === source && listen(), 10_000);
  });
}

function hear(news: News): void {
  heardAt = Date.now();
  const mode = (news.data as { mode?: "live" | "polling" } | null)?.mode;
  if (mode) liveness.value = mode;
  else if (liveness.value !== "polling") liveness.value = "live";
  if (news.event === "op") {
    const told = news.data as Operation;
    if (told?.id) operations.value = { ...operations.value, [told.id]: told };
  }
  if (news.event === "job") {
    const told = news.data as { id?: string; log?: number };
    if (told?.id && told.log) lastLines.value = { ...lastLines.value, [told.id]: told.log };
  }
  if (!paused.value) beat.value += 1;
}

// A page cannot see pings, which are comments. So silence means nothing; only the state of the stream counts.
function watch(): void {
  if (document.hidden || paused.value) return;
  const mine = source && source.readyState === EventSource.OPEN;
  const quiet = Date.now() - heardAt;
  if (mine || (!source && heardAt > 0 && quiet < 30_000)) {
    // Refresh now and then in any case: lease times and ages change without an event.
    if (quiet > 10_000) beat.value += 1;
    return;
  }
  liveness.value = "polling";
  beat.value += 1;
}

function read(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
