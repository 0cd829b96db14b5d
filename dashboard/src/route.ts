// The address is the state: pages read it here and change it here.

import { computed, signal } from "@preact/signals";
import { root } from "./api";

interface Place {
  parts: string[];
  query: URLSearchParams;
}

const place = signal<Place>(read());

export const parts = computed(() => place.value.parts);
export const query = computed(() => place.value.query);
export const page = computed(() => place.value.parts[0] ?? "overview");

/** An address inside the dashboard, for href. */
export function href(to: string): string {
  return root + "/" + to;
}

/** Write an address from its parts and query, leaving out what is empty. */
export function to(parts: string[], query: Record<string, string | null | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) search.set(name, value);
  const text = search.toString();
  return parts.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

export function go(address: string, options: { replace?: boolean } = {}): void {
  const target = href(address);
  if (target === location.pathname + location.search) return;
  if (options.replace) history.replaceState(null, "", target);
  else {
    history.pushState(null, "", target);
    scrollTo(0, 0);
  }
  place.value = read();
}

/** Change single values of the query; null removes one. */
export function setQuery(change: Record<string, string | null>, options: { replace?: boolean } = { replace: true }): void {
  const search = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(change)) {
    if (value === null || value === "") search.delete(name);
    else search.set(name, value);
  }
  const text = search.toString();
  go(place.value.parts.map(encodeURIComponent).join("/") + (text ? "?" + text : ""), options);
}

addEventListener("popstate", () => (place.value = read()));

// Every link inside the dashboard is an ordinary one; a plain click stays in this document.
document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element | null)?.closest("a");
  if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  const inside = link.pathname === root || link.pathname.startsWith(root + "/");
  if (!inside || !link.dataset.inside) return;
  event.preventDefault();
  go(link.pathname.slice(root.length + 1) + link.search);
});

function read(): Place {
  const path = location.pathname.slice(root.length);
  return {
    parts: path.split("/").filter(Boolean).map(decode),
    query: new URLSearchParams(location.search),
  };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
