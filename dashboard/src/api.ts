// All requests to the server: /v1 below the root it is mounted at.

import { signal } from "@preact/signals";
import type { Json } from "./wire";

export const root = document.querySelector<HTMLMetaElement>("meta[name=holdfast-root]")?.content ?? "";

/** Whether the last request reached the server. */
export const reachable = signal(true);
/** Set as soon as a response shows that the user is not signed in. */
export const signedOut = signal(false);
/** How far the server's clock is ahead of this one, in milliseconds. */
export const skew = signal(0);

export interface Asked {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  body?: Json;
}

/** An error response, as a problem document of RFC 9457. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail: string,
    readonly fix: string = "",
    readonly facts: Record<string, Json> = {},
  ) {
    super(detail || title);
  }
}

export async function ask<T>(asked: Asked, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(root + asked.path, {
      method: asked.method,
      headers: asked.body === undefined ? {} : { "Content-Type": "application/json" },
      body: asked.body === undefined ? undefined : JSON.stringify(asked.body),
      credentials: "same-origin",
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    reachable.value = false;
    throw new Problem(0, "", "Server unreachable", "the server does not answer", "Is `holdfast serve` still running?");
  }
  reachable.value = true;
  measureSkew(response);
  if (response.ok) return response.status === 204 ? (undefined as T) : await readJson<T>(response);
  const problem = await readProblem(response);
  if (problem.status === 401) signedOut.value = true;
  throw problem;
}

export const look = <T>(path: string, signal?: AbortSignal) => ask<T>({ method: "GET", path }, signal);

/** Build a path of /v1, with each part escaped, and a query without empty values. */
export function path(parts: string[], query: Record<string, string | number | null | undefined | boolean> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return "/v1/" + parts.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

// Numbers that a double cannot represent are kept as text, so that ids inside payloads are not rounded.
async function readJson<T>(response: Response): Promise<T> {
  return parse(await response.text()) as T;
}

export class Exact {
  constructor(readonly text: string) {}
  toJSON(): unknown {
    const raw = (JSON as unknown as { rawJSON?: (text: string) => unknown }).rawJSON;
    return raw ? raw(this.text) : Number(this.text);
  }
}

export function parse(text: string): unknown {
  type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;
  const reviver: Reviver = (_, value, context) => {
    if (typeof value !== "number" || !context?.source) return value;
    const source = context.source;
    if (Number.isSafeInteger(value) || String(value) === source) return value;
    return /^-?\d{16,}$/.test(source) || !Number.isFinite(value) ? new Exact(source) : value;
  };
  return JSON.parse(text, reviver as (key: string, value: unknown) => unknown);
}

async function readProblem(response: Response): Promise<Problem> {
  const told = (await response.json().catch(() => ({}))) as Record<string, Json>;
  const text = (name: string) => (typeof told[name] === "string" ? (told[name] as string) : "");
  return new Problem(
    response.status,
    text("code"),
    text("title") || response.statusText || `Status ${response.status}`,
    [text("detail"), text("why")].filter(Boolean).join(". "),
    text("fix"),
    told,
  );
}

// The Date header counts in whole seconds: a difference below two seconds means nothing.
function measureSkew(response: Response): void {
  const date = Date.parse(response.headers.get("date") ?? "");
  if (Number.isNaN(date)) return;
  const ahead = date + 500 - Date.now();
  skew.value = Math.abs(ahead) < 2000 ? 0 : ahead;
}
