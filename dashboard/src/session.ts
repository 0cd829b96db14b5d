// The signed-in user and their permissions. The server decides; this only disables buttons.

import { computed, signal } from "@preact/signals";
import { look } from "./api";
import type { Me } from "./wire";

type Scope = Me["scopes"][number];

export const me = signal<Me | undefined>(undefined);

export async function meet(): Promise<void> {
  me.value = await look<Me>("/v1/me");
}

/** Whether the user has a scope; sufficient for actions that change nothing. */
export const has = (scope: Scope): boolean =>
  me.value !== undefined && (me.value.scopes.includes(scope) || me.value.scopes.includes("admin"));

export const may = (scope: Scope): boolean => has(scope) && !me.value!.read_only;

/** Why this user may not perform an action; undefined if they may. */
export function barred(scope: "produce" | "operate" | "admin"): string | undefined {
  if (!me.value) return "Not signed in";
  if (me.value.read_only) return "This server is read-only";
  return may(scope) ? undefined : `This needs the scope "${scope}"`;
}

export const instance = computed(() => me.value?.name || "");
