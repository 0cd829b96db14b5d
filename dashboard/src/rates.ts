// Rates, computed from the counters of the server: the page records them for a minute and more.
// If the server has a history, that is used instead.

import { effect, signal } from "@preact/signals";
import { path } from "./api";
import { feed } from "./feed";
import type { Queue } from "./wire";

export type Counter = "done" | "dead" | "queued" | "leased" | "cancelled" | "oldest";

interface Sample {
  at: number;
  queues: Map<string, Queue>;
}

const KEPT = 900;
const MINUTE = 60_000;

/** Grows with each sample; charts read it to update. */
export const sampled = signal(0);
const samples: Sample[] = [];

/** Record the counters for as long as the page is open. */
export function startRates(): void {
  const queues = feed<{ queues: Queue[] }>(path(["queues"]));
  queues.users += 1;
  void queues.refresh();
  setInterval(() => queues.nudge(), 2000);
  effect(() => {
    const told = queues.data.value;
    if (!told) return;
    samples.push({ at: Date.now(), queues: new Map(told.queues.map((queue) => [queue.queue, queue])) });
    if (samples.length > KEPT) samples.splice(0, samples.length - KEPT);
    sampled.value = samples.length + samples[0]!.at;
  });
}

/** How fast a counter grew over the last minute, per second; null until two samples are known. */
export function rateOf(queue: string | null, counter: Counter, over = MINUTE): number | null {
  sampled.value;
  const last = samples.at(-1);
  const first = samples.find((sample) => sample.at >= Date.now() - over) ?? last;
  if (!first || !last || last.at - first.at < 1000) return null;
  const grown = total(last, queue, counter) - total(first, queue, counter);
  return Math.max(0, grown) / ((last.at - first.at) / 1000);
}

/** Jobs done in each of the last steps, for small lines beside names. */
export function finished(queue: string | null, steps = 24, step = 5000): number[] | null {
  return growth(queue, "done", steps, step);
}

export function growth(queue: string | null, counter: Counter, steps: number, step: number): number[] | null {
  sampled.value;
  if (samples.length < 2) return null;
  const end = samples.at(-1)!.at;
  const out: number[] = [];
  for (let index = 0; index < steps; index++) {
    const from = at(end - (steps - index) * step);
    const until = at(end - (steps - index - 1) * step);
    out.push(from && until && from !== until ? Math.max(0, total(until, queue, counter) - total(from, queue, counter)) : 0);
  }
  return out;
}

export function levels(queue: string | null, counter: Counter, steps: number, step: number): (number | null)[] {
  sampled.value;
  const end = samples.at(-1)?.at ?? 0;
  return Array.from({ length: steps }, (_, index) => {
    const sample = at(end - (steps - index - 1) * step);
    return sample ? total(sample, queue, counter) : null;
  });
}

/** When the first sample was taken: before it nothing is known. */
export const sampledSince = (): number | null => samples[0]?.at ?? null;
export const lastSample = (): number | null => samples.at(-1)?.at ?? null;

function at(time: number): Sample | undefined {
  if (!samples.length || time < samples[0]!.at - 2500) return undefined;
  let low = 0;
  let high = samples.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (samples[middle]!.at <= time) low = middle;
    else high = middle - 1;
  }
  return samples[low];
}

function total(sample: Sample, queue: string | null, counter: Counter): number {
  if (queue !== null) return Number(sample.queues.get(queue)?.[counter] ?? 0);
  let sum = 0;
  for (const one of sample.queues.values()) {
    const value = Number(one[counter] ?? 0);
    sum = counter === "oldest" ? Math.max(sum, value) : sum + value;
  }
  return sum;
}
