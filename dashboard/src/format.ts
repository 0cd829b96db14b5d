// Numbers, times and durations as people read them.

import { signal } from "@preact/signals";
import { skew } from "./api";
import { remembered } from "./prefs";

const THIN = "\u202f";

/** The server's time, updated once a second while the page is visible. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now() + skew.value;
}, 1000);
document.addEventListener("visibilitychange", () => (now.value = Date.now() + skew.value));

export const zone = remembered<"local" | "utc">("zone", "local");

export function count(value: number | null | undefined, capped = false): string {
  if (value === null || value === undefined) return "–";
  const whole = Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
  return capped ? whole + "+" : whole;
}

/** Short for tiles and axes: 12.4 k, 3.1 M. */
export function compact(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6) return trim(value / 1e6) + THIN + "M";
  if (size >= 1e4) return trim(value / 1e3) + THIN + "k";
  if (size >= 100 || Number.isInteger(value)) return count(value);
  return trim(value);
}

export function percent(share: number): string {
  const value = share * 100;
  return (value > 0 && value < 10 ? value.toFixed(1) : Math.round(value).toString()) + THIN + "%";
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size === 0) return "0" + THIN + "s";
  if (size < 0.9995) return Math.max(1, Math.round(seconds * 1000)) + THIN + "ms";
  if (size < 10) return trim(seconds) + THIN + "s";
  if (size < 99.5) return Math.round(seconds) + THIN + "s";
  if (size < 5400) return Math.round(seconds / 60) + THIN + "m";
  if (size < 129600) return Math.round(seconds / 3600) + THIN + "h";
  return Math.round(seconds / 86400) + THIN + "d";
}

/** Two units, for countdowns and measurements: 3 m 12 s. */
export function fine(seconds: number): string {
  const size = Math.max(0, Math.abs(seconds));
  if (size < 60) return duration(size);
  const [big, small, by]: [string, string, number] = size < 3600 ? ["m", "s", 60] : size < 86400 ? ["h", "m", 3600] : ["d", "h", 86400];
  const whole = Math.floor(size / by);
  const rest = Math.floor((size - whole * by) / (by === 60 ? 1 : by === 3600 ? 60 : 3600));
  return whole + THIN + big + (rest ? " " + rest + THIN + small : "");
}

export function since(at: string, to: number = now.value): number {
  return (to - Date.parse(at)) / 1000;
}

/** Whether a time is so far away that it means none: a wait without a timeout ends in a hundred years. */
export const endless = (at: string): boolean => since(at) < -50 * 365 * 86400;

export function relative(at: string): string {
  const seconds = since(at);
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? coarse(seconds) + " ago" : "in " + coarse(-seconds);
}

/** At least whole seconds: a clock that ticks once a second cannot show milliseconds. */
export function coarse(seconds: number): string {
  return duration(Math.max(1, seconds < 99.5 ? Math.floor(seconds) : seconds));
}

export function absolute(at: string | number, withDate = true): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "–";
  const utc = zone.value === "utc";
  const part = (name: "FullYear" | "Month" | "Date" | "Hours" | "Minutes" | "Seconds") =>
    (utc ? date[`getUTC${name}`]() : date[`get${name}`]()) + (name === "Month" ? 1 : 0);
  const two = (value: number) => String(value).padStart(2, "0");
  const day = `${part("FullYear")}-${two(part("Month"))}-${two(part("Date"))}`;
  const time = `${two(part("Hours"))}:${two(part("Minutes"))}:${two(part("Seconds"))}`;
  const tail = utc ? " UTC" : "";
  return withDate ? `${day} ${time}${tail}` : time + tail;
}

export function bytes(size: number | null): string {
  if (size === null) return "–";
  if (size < 1000) return size + THIN + "B";
  const units = ["kB", "MB", "GB", "TB"];
  let value = size;
  let unit = "B";
  for (const next of units) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return (value < 10 ? value.toFixed(1) : Math.round(value)) + THIN + unit;
}

export const short = (id: string): string => id.slice(-8);

export const plural = (number: number, one: string, many = one + "s"): string => `${count(number)} ${number === 1 ? one : many}`;

const trim = (value: number): string => {
  const size = Math.abs(value);
  return size >= 100 ? Math.round(value).toString() : value.toFixed(1).replace(/\.0$/, "");
};
