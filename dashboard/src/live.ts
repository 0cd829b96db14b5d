// One stream of changes for all tabs of a browser: the tab that holds the lock listens and notifies the others.

import { effect, signal } from "@preact/signals";
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

interface News {
  event: string;
  data: unknown;
}

const POLL = 3000;
const channel = "BroadcastChannel" in window ? new BroadcastChannel("holdfast" + root) : null;
let source: EventSource | undefined;
let heardAt = 0;
let started = false;

export function startLive(): void {
  if (started) return;
  started = true;
  channel?.addEventListener("message", (event) => hear(event.data as News));
  if (navigator.locks) {
    // Held until the tab goes; then another tab's request is granted.
    void navigator.locks.request("holdfast-live" + root, () => new Promise<void>(() => listen()));
  } else listen();
  setInterval(watch, POLL);
  effect(() => {
    if (signedOut.value) source?.close();
  });
}

export function togglePause(): void {
  paused.value = !paused.value;
  if (!paused.value) beat.value += 1;
}

function listen(): void {
  source = new EventSource(root + "/v1/events/stream");
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
    if (source?.readyState === EventSource.CLOSED && !signedOut.value) setTimeout(listen, 10_000);
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
