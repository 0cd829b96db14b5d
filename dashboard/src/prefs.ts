// What this browser stores: display preferences, never data.

import { effect, signal, type Signal } from "@preact/signals";

export function remembered<T extends string | string[] | boolean>(name: string, fallback: T): Signal<T> {
  const key = "holdfast." + name;
  const known = signal<T>(stored(key, fallback));
  effect(() => {
    const value = known.value;
    try {
      if (value === fallback) localStorage.removeItem(key);
      else localStorage.setItem(key, JSON.stringify(value));
    } catch {
      // If the browser cannot store preferences, continue without them.
    }
  });
  return known;
}

function stored<T>(key: string, fallback: T): T {
  try {
    const text = localStorage.getItem(key);
    const value = text === null ? fallback : (JSON.parse(text) as T);
    return typeof value === typeof fallback && Array.isArray(value) === Array.isArray(fallback) ? value : fallback;
  } catch {
    return fallback;
  }
}
