// Tables: columns can be chosen, rows can be navigated by keys, and the page can be saved as a file.

import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { remembered } from "../prefs";
import type { Signal } from "@preact/signals";
import { Bones } from "./empty";
import { Menu } from "./menu";
import { toast } from "./toast";

export interface Column<T> {
  name: string;
  title: string;
  cell: (row: T) => ComponentChildren;
  /** As plain text, for files; a column without is left out of them. */
  text?: (row: T) => string | number | null;
  /** 1 is shown everywhere, 2 from tablets on, 3 where there is room. */
  rank?: 1 | 2 | 3;
  right?: boolean;
  wide?: boolean;
  hidden?: boolean;
  sort?: (a: T, b: T) => number;
  tip?: string;
}

interface TableProps<T> {
  name: string;
  label: string;
  columns: Column<T>[];
  rows: T[] | undefined;
  id: (row: T) => string;
  selected?: Signal<Set<string>>;
  mood?: (row: T) => string | undefined;
  sorted?: { by: string; down: boolean };
  onSort?: (by: string) => void;
  stale?: boolean;
}

const chosen = new Map<string, Signal<string[]>>();

/** The columns that the user chose for a list, stored in this browser. */
export function hiddenColumns<T>(name: string, columns: Column<T>[]): Signal<string[]> {
  let known = chosen.get(name);
  if (!known) {
    const fallback = columns.filter((column) => column.hidden).map((column) => column.name);
    chosen.set(name, (known = remembered<string[]>(`columns.${name}`, fallback)));
  }
  return known;
}

export function Table<T>({ name, label, columns, rows, id, selected, mood, sorted, onSort, stale }: TableProps<T>) {
  const hidden = hiddenColumns(name, columns).value;
  const shown = columns.filter((column) => !hidden.includes(column.name));
  const last = useRef<string | null>(null);
  if (!rows) return <Bones rows={8} />;

  function toggle(key: string, range: boolean): void {
    const set = new Set(selected!.value);
    const from = range && last.current ? rows!.findIndex((row) => id(row) === last.current) : -1;
    const to = rows!.findIndex((row) => id(row) === key);
    if (from >= 0) for (const row of rows!.slice(Math.min(from, to), Math.max(from, to) + 1)) set.add(id(row));
    else if (set.has(key)) set.delete(key);
    else set.add(key);
    last.current = key;
    selected!.value = set;
  }

  const every = selected && rows.length > 0 && rows.every((row) => selected.value.has(id(row)));
  return (
    <div class={`table-wrap${stale ? " fading" : ""}`} tabIndex={-1}>
      <table aria-label={label} data-list={name}>
        <thead>
          <tr>
            {selected && (
              <th class="pick" scope="col">
                <input
                  type="checkbox"
                  aria-label="Select all on this page"
                  checked={every}
                  onChange={() => (selected.value = every ? new Set() : new Set(rows.map(id)))}
                />
              </th>
            )}
            {shown.map((column) => (
              <th key={column.name} scope="col" class={classes(column)} title={column.tip} aria-sort={sorted?.by === column.name ? (sorted.down ? "descending" : "ascending") : undefined}>
                {column.sort && onSort ? (
                  <button type="button" class="sort" onClick={() => onSort(column.name)}>
                    {column.title}
                    <span aria-hidden="true">{sorted?.by === column.name ? (sorted.down ? "↓" : "↑") : ""}</span>
                  </button>
                ) : column.title ? (
                  column.title
                ) : (
                  <span class="offscreen">Actions</span>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const key = id(row);
            const picked = selected?.value.has(key);
            return (
              <tr key={key} data-row={key} class={`${picked ? "picked " : ""}${mood?.(row) ?? ""}`}>
                {selected && (
                  <td class="pick">
                    <input type="checkbox" aria-label={`Select ${key}`} checked={picked} onClick={(event) => toggle(key, event.shiftKey)} />
                  </td>
                )}
                {shown.map((column) => (
                  <td key={column.name} class={classes(column)}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

export function sortRows<T>(rows: T[], columns: Column<T>[], sorted: { by: string; down: boolean }): T[] {
  const sort = columns.find((column) => column.name === sorted.by)?.sort;
  if (!sort) return rows;
  const way = sorted.down ? -1 : 1;
  return [...rows].sort((a, b) => way * sort(a, b));
}

export function TableMenu<T>({ name, columns, rows }: { name: string; columns: Column<T>[]; rows: T[] }) {
  const hidden = hiddenColumns(name, columns);
  return (
    <>
      <Menu
        label="Choose columns"
        icon="columns"
        items={columns
          .filter((column) => column.title)
          .map((column) => ({
            label: column.title,
            checked: !hidden.value.includes(column.name),
            stays: true,
            act: () => {
              const without = hidden.value.filter((one) => one !== column.name);
              hidden.value = without.length < hidden.value.length ? without : [...hidden.value, column.name];
            },
          }))}
      />
      <Menu
        label="Download this page"
        icon="download"
        items={[
          { label: "As CSV", act: () => save(`${name}.csv`, "text/csv", csv(columns, rows)) },
          { label: "As JSON", act: () => save(`${name}.json`, "application/json", JSON.stringify(rows, null, 2)) },
        ]}
      />
    </>
  );
}

export function save(name: string, type: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  toast(`Saved ${name}`);
}

function csv<T>(columns: Column<T>[], rows: T[]): string {
  const told = columns.filter((column) => column.text);
  const lines = [told.map((column) => column.title), ...rows.map((row) => told.map((column) => String(column.text!(row) ?? "")))];
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

// A cell that begins like a formula is turned into text, so that a spreadsheet does not run parts of a payload.
function cell(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}

function classes<T>(column: Column<T>): string | undefined {
  const names = [column.right && "right", column.wide && "wide", column.rank === 3 && "rank3", column.rank === 2 && "rank2", !column.title && "row-acts"].filter(Boolean);
  return names.length ? names.join(" ") : undefined;
}
