// Short messages after an action.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { Icon } from "./icon";

interface Toast {
  id: number;
  text: ComponentChildren;
  bad: boolean;
}

const toasts = signal<Toast[]>([]);
let next = 0;

export function toast(text: ComponentChildren, bad = false): void {
  const id = next++;
  toasts.value = [...toasts.value.slice(-2), { id, text, bad }];
  setTimeout(() => (toasts.value = toasts.value.filter((one) => one.id !== id)), bad ? 9000 : 4000);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={one.bad ? "toast bad" : "toast"}>
          <Icon name={one.bad ? "dead" : "check"} />
          <span>{one.text}</span>
        </div>
      ))}
    </div>
  );
}
