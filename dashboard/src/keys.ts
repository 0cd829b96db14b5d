// Keyboard shortcuts. They are off while the user types, or while a dialog is open.

import { signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";

type Keys = Record<string, () => void>;

const layers: { current: Keys }[] = [];
let prefix = "";
let prefixed: ReturnType<typeof setTimeout> | undefined;
let digits = "";
let typed: ReturnType<typeof setTimeout> | undefined;

/** Digits typed so far on the way to a job's id. */
export const typing = signal("");

/** Give keys a meaning while a component is shown; the newest layer wins. */
export function useKeys(keys: Keys): void {
  const layer = { current: keys };
  useLayoutEffect(() => {
    layers.push(layer);
    return () => {
      layers.splice(layers.indexOf(layer), 1);
    };
  });
}

/** What happens with digits and Enter: set by the shell. */
export const openTyped = { current: (_: string): void => undefined };

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || writes(event.target)) return;
  if (document.querySelector("dialog[open]") && event.key !== "?") return;
  if (document.querySelector(".menu:popover-open")) return;
  if (collectId(event)) return;
  const key = prefix ? `${prefix} ${event.key}` : event.key;
  prefix = "";
  clearTimeout(prefixed);
  if (key === "g") {
    prefix = "g";
    prefixed = setTimeout(() => (prefix = ""), 1200);
    return;
  }
  for (let index = layers.length - 1; index >= 0; index--) {
    const act = layers[index]!.current[key];
    if (act) {
      event.preventDefault();
      act();
      return;
    }
  }
});

/** Step through the rows of the list on the page; the focus is the cursor, on what Enter opens: `data-open`, or the first link. */
export function step(by: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>("main [data-row]")];
  if (!rows.length) return;
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const next = here < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, here + by));
  const row = rows[next]!;
  const opener = row.querySelector<HTMLElement>("[data-open]") ?? row.querySelector<HTMLElement>("a") ?? row.querySelector<HTMLElement>("button, input");
  (opener ?? row).focus();
  row.scrollIntoView({ block: "nearest" });
}

// A job's id is hexadecimal; it has to begin with a digit, to be distinguishable from letters that are shortcuts.
function collectId(event: KeyboardEvent): boolean {
  if (event.key === "Enter" && digits.length >= 4) {
    event.preventDefault();
    openTyped.current(digits);
    forgetDigits();
    return true;
  }
  if (!(/^\d$/.test(event.key) || (digits && /^[\da-f-]$/.test(event.key)))) {
    if (digits) forgetDigits();
    return false;
  }
  digits += event.key;
  typing.value = digits;
  clearTimeout(typed);
  typed = setTimeout(forgetDigits, 2500);
  return true;
}

function forgetDigits(): void {
  digits = "";
  typing.value = "";
}

function writes(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  if (!element?.matches) return false;
  return element.matches("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
}
