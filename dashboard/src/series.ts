// History from the server, on an even time grid.

import { path } from "./api";
import { useFeed } from "./feed";
import { now } from "./format";
import type { Metric, Series } from "./wire";

export interface Span {
  name: string;
  seconds: number;
  step: number;
}

export const spans: Span[] = [
  { name: "15m", seconds: 900, step: 20 },
  { name: "1h", seconds: 3600, step: 30 },
  { name: "3h", seconds: 10800, step: 60 },
  { name: "24h", seconds: 86400, step: 600 },
  { name: "7d", seconds: 604800, step: 3600 },
];

export interface History {
  times: number[];
  values: (number | null)[];
  known: boolean;
  problem: boolean;
}

export function useHistory(metric: Metric, queue: string | null, span: Span): History {
  const feed = useFeed<Series>(path(["metrics", "series"], { metric, queue, step: span.step, from: from(span) }), 5000);
  const told = (feed.data.value?.points ?? []) as [number, number | null][];
  const points = new Map(told);
  const times = since(grid(span), told[0]?.[0]);
  return {
    times,
    values: joined(times.map((at) => points.get(at) ?? null)),
    known: points.size > 1,
    problem: feed.problem.value !== undefined,
  };
}

/** The last value that is not missing. */
export const latest = (values: (number | null)[]): number | null => [...values].reverse().find((value) => value !== null) ?? null;

function grid({ seconds, step }: Span): number[] {
  const end = Math.floor(now.value / 1000 / step) * step;
  const length = Math.floor(seconds / step);
  return Array.from({ length }, (_, index) => end - (length - 1 - index) * step);
}

// A sample that came a little late leaves an empty point; only a longer silence is a gap.
function joined(values: (number | null)[]): (number | null)[] {
  return values.map((value, index) => {
    const before = values[index - 1];
    const after = values[index + 1];
    return value === null && before != null && after != null ? (before + after) / 2 : value;
  });
}

// A server that has just started has no older data: the line fills the whole chart.
function since(times: number[], first: number | undefined): number[] {
  const begun = first === undefined ? -1 : times.findIndex((at) => at >= first);
  return begun <= 0 ? times : times.slice(Math.min(begun, times.length - SHORTEST));
}

const SHORTEST = 12;

// The address stays the same for a while, so that responses are shared; the grid removes old values.
const from = ({ seconds, step }: Span): number => Math.floor((now.value / 1000 - seconds) / (step * 10)) * step * 10;
