// Who is looking, and what they may do. The server decides; this only keeps the buttons honest.

import { computed, signal } from "@preact/signals";
import { look } from "./api";
import type { Me } from "./wire";

type Scope = Me["scopes"][number];

export const me = signal<Me | undefined>(undefined);

export async function meet(): Promise<void> {
  me.value = await look<Me>("/v1/me");
}

/** Whether the user has a scope; enough for what changes nothing. */
export const has = (scope: Scope): boolean =>
  me.value !== undefined && (me.value.scopes.includes(scope) || me.value.scopes.includes("admin"));

export const may = (scope: Scope): boolean => has(scope) && !me.value!.read_only;

/** Why an action is closed to this user; undefined if it is not. */
export function barred(scope: "produce" | "operate" | "admin"): string | undefined {
  if (!me.value) return "Not signed in";
  if (me.value.read_only) return "This server is read-only";
  return may(scope) ? undefined : `This needs the scope "${scope}"`;
}

export const instance = computed(() => me.value?.name || "");
