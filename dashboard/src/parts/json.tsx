// JSON as text with colours. It is never interpreted as markup.

import type { VNode } from "preact";
import { Exact } from "../api";
import type { Json } from "../wire";
import { CopyButton } from "./copy";

const LONG = 60_000;

export function JsonView({ value, label }: { value: Json; label: string }) {
  const coded = howStored(value);
  if (coded) return <p class="quiet" aria-label={label}>{coded}</p>;
  const text = pretty(value);
  return (
    <div class="json">
      <CopyButton text={text} label={`Copy ${label}`} />
      <pre tabIndex={0} aria-label={label}>
        <code>{text.length > LONG ? text.slice(0, LONG) + "\n…" : paint(text)}</code>
      </pre>
    </div>
  );
}

/** How a payload, result or step is stored that is not as it was enqueued; undefined if it is. */
export function howStored(value: unknown): string | undefined {
  const coded = (value as { $holdfast?: { key?: string; store?: string; address?: string; bytes?: number } } | null)?.$holdfast;
  if (typeof coded !== "object" || coded === null) return undefined;
  if (coded.store) return `In the store ${coded.store} at ${coded.address}, ${coded.bytes} bytes${coded.key ? `, encrypted with the key ${coded.key}` : ""}.`;
  if (!coded.key) return undefined;
  return `Encrypted with the key ${coded.key}. Only its task can read it.`;
}

export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}

/** One line, for where there is little room. */
export function brief(value: unknown, most = 80): string {
  const text = howStored(value) ?? (value instanceof Exact ? value.text : (JSON.stringify(value) ?? ""));
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

function paint(text: string): (string | VNode)[] {
  const out: (string | VNode)[] = [];
  let last = 0;
  for (const match of text.matchAll(TOKEN)) {
    out.push(text.slice(last, match.index));
    const [whole, string, colon, word] = match;
    if (string) {
      out.push(<span class={colon ? "j-key" : "j-string"}>{string}</span>);
      if (colon) out.push(colon);
    } else out.push(<span class={word ? "j-word" : "j-number"}>{whole}</span>);
    last = match.index + whole.length;
  }
  out.push(text.slice(last));
  return out;
}

/** Which lines two texts do not share: added and removed ones, in order. */
export function Diff({ before, after }: { before: string; after: string }) {
  const lines = compare(before.split("\n"), after.split("\n"));
  return (
    <pre class="diff" tabIndex={0} aria-label="Changes">
      {lines.map(([sign, line], index) => (
        <span key={index} class={sign === "+" ? "added" : sign === "-" ? "removed" : ""}>
          {sign} {line}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}

function compare(a: string[], b: string[]): [string, string][] {
  if (a.length * b.length > 1_000_000) return [...a.map((line): [string, string] => ["-", line]), ...b.map((line): [string, string] => ["+", line])];
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1]! + 1 : Math.max(table[(i + 1) * width + j]!, table[i * width + j + 1]!);
  const out: [string, string][] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      out.push([" ", a[i]!]);
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && table[(i + 1) * width + j]! >= table[i * width + j + 1]!)) out.push(["-", a[i++]!]);
    else out.push(["+", b[j++]!]);
  }
  return out;
}
