// Light, dark, or the theme of the system.

import { computed, effect, signal } from "@preact/signals";
import { remembered } from "./prefs";

export const chosen = remembered<"system" | "light" | "dark">("theme", "system");

const media = matchMedia("(prefers-color-scheme: dark)");
const system = signal(media.matches);
media.addEventListener("change", () => (system.value = media.matches));

export const theme = computed<"light" | "dark">(() =>
  chosen.value === "system" ? (system.value ? "dark" : "light") : chosen.value,
);

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

export function switchTheme(): void {
  chosen.value = theme.value === "dark" ? "light" : "dark";
}

export const calm = matchMedia("(prefers-reduced-motion: reduce)");
