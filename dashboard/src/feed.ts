// Data that refreshes automatically: one copy per address, even if several parts of a page show it.
// Not the stream: that is live.ts.

import { effect, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { look, type Problem } from "./api";
import { beat, paused } from "./live";

/** The state of an address: the last successful response, and the error since then. */
export class Feed<T> {
  readonly data = signal<T | undefined>(undefined);
  readonly problem = signal<Problem | undefined>(undefined);
  users = 0;
  every = 1000;
  private askedAt = 0;
  private asking: Promise<void> | undefined;
  private again = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly address: string) {}

  /** Refresh now; several calls at once make one more request, not several. */
  refresh(): Promise<void> {
    if (this.asking) {
      this.again = true;
      return this.asking;
    }
    this.askedAt = Date.now();
    this.asking = this.load().finally(() => {
      this.asking = undefined;
      if (this.again) {
        this.again = false;
        void this.refresh();
      }
    });
    return this.asking;
  }

  /** Refresh soon, but not more often than the feed allows. */
  nudge(): void {
    if (!this.users || this.timer || document.hidden) return;
    const wait = Math.max(0, this.askedAt + this.every - Date.now());
    this.timer = setTimeout(() => {
      this.timer = undefined;
      if (this.users && !paused.value) void this.refresh();
    }, wait);
  }

  private async load(): Promise<void> {
    try {
      this.data.value = await look<T>(this.address);
      this.problem.value = undefined;
    } catch (error) {
      this.problem.value = error as Problem;
    }
  }
}

const feeds = new Map<string, Feed<unknown>>();

export function feed<T>(address: string): Feed<T> {
  let known = feeds.get(address);
  if (!known) {
    forget();
    feeds.set(address, (known = new Feed<unknown>(address)));
  }
  return known as Feed<T>;
}

const nothing = new Feed<unknown>("");

/** Follow an address while the component is shown; null follows nothing. */
export function useFeed<T>(address: string | null, every = 1000): Feed<T> {
  const followed = address === null ? (nothing as Feed<T>) : feed<T>(address);
  useEffect(() => {
    if (address === null) return;
    followed.users += 1;
    followed.every = every;
    void followed.refresh();
    return () => {
      followed.users -= 1;
    };
  }, [address]);
  return followed;
}

/** The data of a feed, or of the previous one while a new address loads, so that pages do not flicker. */
export function useKept<T>(followed: Feed<T>): { data: T | undefined; stale: boolean } {
  const kept = useRef<T | undefined>(undefined);
  const data = followed.data.value;
  if (data !== undefined) kept.current = data;
  return { data: data ?? kept.current, stale: data === undefined && kept.current !== undefined };
}

/** Refresh everything that is shown, after a change from this page. */
export function refreshAll(): void {
  const look = () => {
    for (const one of feeds.values()) if (one.users) void one.refresh();
  };
  look();
  // The response may be up to a second old.
  setTimeout(look, 1200);
}

effect(() => {
  beat.value;
  for (const one of feeds.values()) one.nudge();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused.value) for (const one of feeds.values()) one.nudge();
});

function forget(): void {
  for (const [address, one] of feeds) {
    if (feeds.size < 60) return;
    if (!one.users) feeds.delete(address);
  }
}
