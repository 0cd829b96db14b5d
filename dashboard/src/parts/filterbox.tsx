// The input for filters, with completion from existing values.

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { path, type Problem } from "../api";
import { useFeed } from "../feed";
import { drop, terms, word } from "../filter";
import { setQuery } from "../route";
import { filterFields, states, type JobPage, type Kind, type Queue, type Worker } from "../wire";
import { Button } from "./basics";
import { Icon } from "./icon";

export function FilterBox({ filter, problem }: { filter: string; problem?: Problem }) {
  const [text, setText] = useState(filter);
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  const list = useId();
  useEffect(() => setText(filter), [filter]);
  const offers = useOffers(open ? text : null);

  function apply(next: string): void {
    setOpen(false);
    setAt(-1);
    setText(next);
    setQuery({ q: next.trim() || null, cursor: null }, {});
  }

  function take(offer: string): void {
    const before = text.slice(0, text.length - lastWord(text).length);
    const next = before + offer;
    setAt(-1);
    if (/[:.]$/.test(offer)) {
      setText(next);
      input.current?.focus();
    } else apply(next + " ");
  }

  function key(event: KeyboardEvent): void {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setOpen(true);
      const step = event.key === "ArrowDown" ? 1 : -1;
      setAt((offers.length + at + step + (at < 0 && step < 0 ? 1 : 0)) % Math.max(1, offers.length));
    } else if ((event.key === "Enter" || event.key === "Tab") && open && at >= 0 && offers[at]) {
      event.preventDefault();
      take(offers[at]);
    } else if (event.key === "Enter") {
      event.preventDefault();
      apply(text);
    } else if (event.key === "Escape") {
      setOpen(false);
      setAt(-1);
    }
  }

  return (
    <div class="filter">
      <div class={`filter-box${problem ? " wrong" : ""}`}>
        <Icon name="filter" />
        <input
          ref={input}
          type="text"
          value={text}
          placeholder="state:dead kind:send* payload.user.id:42 age:<2h"
          aria-label="Filter jobs"
          role="combobox"
          aria-expanded={open && offers.length > 0}
          aria-controls={list}
          aria-autocomplete="list"
          aria-activedescendant={at >= 0 ? `${list}-${at}` : undefined}
          aria-invalid={problem !== undefined}
          spellcheck={false}
          autocomplete="off"
          onInput={(event) => {
            setText(event.currentTarget.value);
            setOpen(true);
            setAt(-1);
          }}
          onFocus={() => setOpen(true)}
          onBlur={() => setTimeout(() => setOpen(false), 150)}
          onKeyDown={key}
        />
        {text && <Button small look="quiet" icon="close" label="Clear the filter" onClick={() => apply("")} />}
        {text.trim() !== filter && <Button small look="primary" onClick={() => apply(text)}>Apply</Button>}
      </div>
      <ul class="offers" id={list} role="listbox" aria-label="Suggestions" hidden={!open || offers.length === 0}>
        {offers.map((offer, index) => (
          <li
            key={offer}
            id={`${list}-${index}`}
            role="option"
            aria-selected={index === at}
            onMouseDown={(event) => {
              event.preventDefault();
              take(offer);
            }}
          >
            <span class="mono">{offer}</span>
            <small>{hint(offer)}</small>
          </li>
        ))}
      </ul>
      {problem && (
        <p class="refusal" role="alert">
          {problem.detail} {problem.fix}
        </p>
      )}
      {!problem && terms(filter).length > 1 && (
        <div class="terms" aria-label="Filter terms">
          {terms(filter).map((term, index) => (
            <button key={term.text + index} type="button" class="term" title={`Remove ${term.text}`} onClick={() => apply(drop(filter, index))}>
              <span>{term.text}</span>
              <Icon name="close" />
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

const hints: Record<(typeof filterFields)[number], string> = {
  state: "queued, leased, done, dead …",
  kind: "send_email, send*",
  queue: "mail",
  lane: "jobs of one lane",
  worker: "the worker that runs it",
  id: "the id or its last digits",
  key: "order-42",
  tenant: "acme",
  subject: "user/7",
  error: 'the last error: "Timeout*"',
  group: "dead jobs with the same failure",
  reason: "expired, or what an operator gave",
  attempt: ">2",
  attempts: ">5, including earlier retries",
  priority: ">=5",
  age: "time since it was enqueued: <2h",
  workflow: "the id of a workflow",
  created: "a time, or a date: >=2026-01-31",
  "payload.": "payload.user.id:42",
};

const hint = (offer: string): string => (hints as Record<string, string>)[offer.replace(/^-|:$/g, "")] ?? "";

function useOffers(text: string | null): string[] {
  const queues = useFeed<{ queues: Queue[] }>(text === null ? null : path(["queues"]), 5000);
  const kinds = useFeed<{ kinds: Kind[] }>(text === null ? null : path(["kinds"]), 10_000);
  const workers = useFeed<{ workers: Worker[] }>(text === null ? null : path(["workers"]), 5000);
  const recent = useFeed<JobPage>(text === null ? null : path(["jobs"], { limit: 50 }), 10_000);
  if (text === null) return [];
  const last = lastWord(text);
  const not = last.startsWith("-") ? "-" : "";
  const bare = last.slice(not.length);
  const colon = bare.indexOf(":");
  if (colon < 0) {
    const paths = bare.startsWith("payload.") ? payloadPaths(recent.data.value?.jobs.map((job) => job.payload) ?? []) : [];
    const names = [...filterFields.map((field) => (field.endsWith(".") ? field : field + ":")), ...paths.map((one) => one + ":")];
    return names.filter((name) => name.startsWith(bare) && name !== bare).map((name) => not + name).slice(0, 20);
  }
  const field = bare.slice(0, colon);
  const begun = bare.slice(colon + 1).replace(/^"/, "");
  const known: Record<string, string[]> = {
    state: [...states],
    queue: queues.data.value?.queues.map((one) => one.queue) ?? [],
    kind: kinds.data.value?.kinds.map((one) => one.kind) ?? [],
    worker: workers.data.value?.workers.map((one) => one.worker) ?? [],
    age: ["<10m", "<1h", "<1d", ">1d"],
    attempt: [">1", ">=3"],
    attempts: [">5", ">20"],
    priority: [">=5", "9"],
  };
  return (known[field] ?? [])
    .filter((one) => one.toLowerCase().includes(begun.toLowerCase()) && one !== begun)
    .map((one) => `${not}${field}:${word(one)}`)
    .slice(0, 12);
}

const lastWord = (text: string): string => /(?:[^\s"]|"(?:\\.|[^"\\])*"?)*$/.exec(text)?.[0] ?? "";

function payloadPaths(payloads: unknown[]): string[] {
  const found = new Set<string>();
  const walk = (value: unknown, at: string, depth: number): void => {
    if (found.size > 40 || depth > 3 || typeof value !== "object" || value === null || Array.isArray(value)) return;
    for (const [name, part] of Object.entries(value)) {
      if (!/^[\w-]+$/.test(name)) continue;
      if (typeof part === "object" && part !== null) walk(part, `${at}.${name}`, depth + 1);
      else found.add(`${at}.${name}`);
    }
  };
  for (const payload of payloads) walk(payload, "payload", 0);
  return [...found].sort();
}
