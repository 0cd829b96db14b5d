// A button that opens a list of things to do.

import type { ComponentChildren } from "preact";
import { useId, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./icon";

export interface Item {
  label: string;
  icon?: IconName;
  act: () => void;
  bad?: boolean;
  why?: string;
  checked?: boolean;
  stays?: boolean;
}

export function Menu({ label, icon = "more", text, items, look = "quiet" }: { label: string; icon?: IconName; text?: ComponentChildren; items: Item[]; look?: string }) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState(false);

  function place(): void {
    const at = button.current!.getBoundingClientRect();
    const panel = list.current!;
    const size = panel.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.right - size.width, innerWidth - size.width - 8));
    const below = at.bottom + 4 + size.height < innerHeight - 8;
    panel.style.left = `${left}px`;
    panel.style.top = `${below ? at.bottom + 4 : Math.max(8, at.top - 4 - size.height)}px`;
  }

  function move(event: KeyboardEvent): void {
    const entries = [...list.current!.querySelectorAll<HTMLButtonElement>("button:not(:disabled)")];
    const here = entries.indexOf(document.activeElement as HTMLButtonElement);
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    entries[(here + step + entries.length) % entries.length]?.focus();
  }

  return (
    <>
      <button
        ref={button}
        type="button"
        class={`button ${look}${text ? "" : " bare small"}`}
        aria-label={text ? undefined : label}
        title={text ? undefined : label}
        aria-haspopup="menu"
        aria-expanded={open}
        aria-controls={id}
        onClick={(event) => {
          event.stopPropagation();
          list.current!.togglePopover();
        }}
      >
        <Icon name={icon} />
        {text && <span>{text}</span>}
      </button>
      <div
        ref={list}
        id={id}
        class="menu"
        popover="auto"
        role="menu"
        aria-label={label}
        onKeyDown={move}
        onToggle={(event) => {
          const opened = (event as unknown as { newState: string }).newState === "open";
          setOpen(opened);
          if (opened) {
            place();
            list.current!.querySelector<HTMLButtonElement>("button:not(:disabled)")?.focus();
          }
        }}
      >
        {items.map((item) => (
          <button
            key={item.label}
            type="button"
            role={item.checked === undefined ? "menuitem" : "menuitemcheckbox"}
            aria-checked={item.checked}
            class={item.bad ? "bad" : ""}
            disabled={item.why !== undefined}
            title={item.why}
            onClick={(event) => {
              event.stopPropagation();
              if (!item.stays) list.current!.hidePopover();
              item.act();
            }}
          >
            {item.checked !== undefined ? <span class="tick">{item.checked && <Icon name="check" />}</span> : item.icon ? <Icon name={item.icon} /> : null}
            {item.label}
          </button>
        ))}
      </div>
    </>
  );
}
