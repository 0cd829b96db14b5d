// The graph of a workflow: jobs of one kind that wait for the same are one node, with their states as a bar.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, duration, now } from "../format";
import { lay, stack, type Drawing } from "../graph";
import type { JobCounts, WorkflowGroup } from "../wire";
import { Icon, type IconName } from "./icon";

const WIDTH = 204;
/** Room for one line of states, as a job has, and for the two of a node with many jobs. */
const HEIGHT = { one: 64, many: 84 };
/** So many characters of states fit into a line of a node, also in a wide typeface. */
const LINE = 21;
/** Narrower than this, the graph goes from the top down: in layers if they fit, else in one column. */
const NARROW = 620;
/** A column of so many nodes is shown whole. */
const COLUMN = 12;

interface Props {
  groups: WorkflowGroup[];
  chosen: string | null;
  choose: (group: string) => void;
}

export function Graph({ groups, chosen, choose }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState(() => Math.max(WIDTH, innerWidth - (innerWidth >= NARROW + 260 ? 260 : 48)));
  const across = room >= NARROW;
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setRoom(Math.floor(entry!.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  // Only the shape moves the nodes, not the states, which change every second.
  const shape = groups.map((one) => [one.group, ...one.after, one.child_of].join()).join(";");
  const height = groups.some((one) => one.jobs.total > 1) ? HEIGHT.many : HEIGHT.one;
  const drawing = useMemo(() => {
    const nodes = groups.map((one) => ({ id: one.group, before: before(one) }));
    const size = { width: WIDTH, height, apart: across ? 52 : 40, beside: 16 };
    const layers = lay(nodes, across, size);
    return across || layers.width <= room ? layers : stack(nodes, room, size);
  }, [shape, across || room, height]);
  const byId = new Map(groups.map((one) => [one.group, one]));
  const [focus, setFocus] = useState<string | null>(null);
  const first = focus ?? chosen ?? groups[0]?.group;
  useEffect(() => {
    if (chosen) box.current?.querySelector(`[data-group="${chosen}"]`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [chosen, across]);

  function move(event: KeyboardEvent): void {
    const at = (event.target as HTMLElement).dataset.group;
    const next = at && neighbour(drawing, at, event.key);
    if (!next) return;
    event.preventDefault();
    setFocus(next);
    box.current!.querySelector<HTMLElement>(`[data-group="${next}"]`)!.focus();
  }

  return (
    <div ref={box} class="graph" data-across={across || undefined} data-column={(!across && groups.length <= COLUMN) || undefined}>
      <ul aria-label="Graph of the workflow" style={{ width: `${drawing.width}px`, height: `${drawing.height}px` }} onKeyDown={move}>
        <svg width={drawing.width} height={drawing.height} aria-hidden="true">
          {drawing.edges.map((edge) => (
            <path key={edge.from + edge.to} d={edge.path} class={line(byId.get(edge.from), byId.get(edge.to), edge.from)} />
          ))}
        </svg>
        {groups.map((group) => {
          const spot = drawing.spots.get(group.group)!;
          const mood = moodOf(group.jobs);
          return (
            <li key={group.group} style={{ transform: `translate(${spot.x}px, ${spot.y}px)`, width: `${drawing.wide}px`, height: `${height}px` }}>
              <button
                type="button"
                class={`node ${mood}${group.jobs.total > 1 ? " many" : ""}`}
                data-group={group.group}
                aria-pressed={chosen === group.group}
                tabIndex={first === group.group ? 0 : -1}
                onFocus={() => setFocus(group.group)}
                onClick={() => choose(group.group)}
              >
                <span class="node-name">
                  <span class="mono clip">{group.kind}</span>
                  {group.jobs.total > 1 && <span class="node-times number">× {count(group.jobs.total)}</span>}
                </span>
                <span class="node-bar">
                  <Parts jobs={group.jobs} />
                  <span class="node-took number soft" aria-hidden="true">{took(group)}</span>
                </span>
                <span class={`node-note state ${mood}`} title={told(group.jobs)} aria-hidden="true">
                  <Icon name={icons[mood]} />
                  <span class="node-states">{inLines(group.jobs).map((line) => <span key={line} class="clip">{line}</span>)}</span>
                </span>
                <span class="offscreen">{[told(group.jobs), where(group, byId)].filter(Boolean).join(" ")}</span>
              </button>
            </li>
          );
        })}
      </ul>
    </div>
  );
}

/** How many jobs are in which state, as one bar. */
export function Parts({ jobs }: { jobs: JobCounts }) {
  return (
    <span class="parts" aria-hidden="true">
      {bars.map((state) => jobs[state] > 0 && <span key={state} class={state} style={{ flexGrow: jobs[state] }} />)}
    </span>
  );
}

const bars = ["done", "leased", "queued", "waiting", "dead", "cancelled"] as const;
type Mood = (typeof bars)[number];
const icons: Record<Mood, IconName> = { done: "done", leased: "dot", queued: "circle", waiting: "clock", dead: "cross", cancelled: "minus" };

/** The state that matters most. */
const moodOf = (jobs: JobCounts): Mood => (["dead", "leased", "queued", "waiting", "cancelled"] as const).find((state) => jobs[state] > 0) ?? "done";

const thereIn = (jobs: JobCounts): Mood[] => (["dead", "cancelled", "leased", "queued", "waiting", "done"] as const).filter((state) => jobs[state] > 0);

/** The states in words: one if all are in it, otherwise those that matter, with how many. */
export function told(jobs: JobCounts): string {
  const there = thereIn(jobs);
  if (there.length === 1) return named(there[0]!);
  return there.map((state) => counted(jobs, state)).join(", ");
}

/** The same in two lines of a node. Of states that do not fit, the jobs are only counted: nothing is cut off. */
export function inLines(jobs: JobCounts): string[] {
  const there = thereIn(jobs);
  if (there.length === 1) return [told(jobs)];
  const line = (states: Mood[], rest: Mood[], more: string): string => [...states.map((state) => counted(jobs, state)), ...(rest.length ? [more] : [])].join(", ");
  // At least one state is in the first line: each fits.
  const first = longest(there, (states) => line(states, [], "").length < LINE) || 1;
  const left = there.slice(first);
  const others = (states: Mood[]): string => `${count(states.reduce((sum, state) => sum + jobs[state], 0))} more`;
  const second = longest(left, (states) => line(states, left.slice(states.length), others(left.slice(states.length))).length <= LINE);
  const rest = left.slice(second);
  return [line(there.slice(0, first), [], "") + (left.length ? "," : ""), line(left.slice(0, second), rest, others(rest))].filter(Boolean);
}

/** How many of the first ones fit. */
function longest(states: Mood[], fits: (some: Mood[]) => boolean): number {
  let most = states.length;
  while (most > 0 && !fits(states.slice(0, most))) most--;
  return most;
}

const counted = (jobs: JobCounts, state: Mood): string => `${count(jobs[state])} ${named(state)}`;

const named = (state: string): string => (state === "leased" ? "running" : state);

const before = (group: WorkflowGroup): string[] => [...group.after, ...(group.child_of ? [group.child_of] : [])];

/** What the edges say, for those who do not see them. */
function where(group: WorkflowGroup, byId: Map<string, WorkflowGroup>): string {
  const after = group.after.flatMap((id) => byId.get(id)?.kind ?? []);
  const parent = group.child_of ? byId.get(group.child_of)?.kind : undefined;
  return [after.length ? `after ${after.join(", ")}` : "", parent ? `child of ${parent}` : ""].filter(Boolean).join(", ");
}

function line(from: WorkflowGroup | undefined, to: WorkflowGroup | undefined, id: string): string {
  const open = from && from.jobs.done < from.jobs.total;
  const child = to?.child_of === id && !to.after.includes(id);
  return `${open ? "open" : "passed"}${child ? " child" : ""}${from && from.jobs.dead > 0 ? " broken" : ""}`;
}

function took(group: WorkflowGroup): string {
  if (!group.began_at) return "";
  const over = group.jobs.waiting + group.jobs.queued + group.jobs.leased === 0;
  const end = over && group.ended_at ? Date.parse(group.ended_at) : now.value;
  return duration(Math.max(0, (end - Date.parse(group.began_at)) / 1000));
}

/** Where an arrow key leads: along the edges, or to the next node of the layer. */
function neighbour(drawing: Drawing, at: string, key: string): string | undefined {
  // In one column, up and down lead to the next node, whatever it follows.
  const across = drawing.beside === "y";
  const along = across ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
  const beside = across ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  if (key === along[0]) return drawing.edges.find((edge) => edge.to === at)?.from;
  if (key === along[1]) return drawing.edges.find((edge) => edge.from === at)?.to;
  if (!beside.includes(key)) return undefined;
  const here = drawing.spots.get(at)!;
  const place = (id: string) => drawing.spots.get(id)![drawing.beside];
  const layer = [...drawing.spots.keys()].filter((id) => drawing.spots.get(id)!.layer === here.layer).sort((a, b) => place(a) - place(b));
  return layer[layer.indexOf(at) + (key === beside[1] ? 1 : -1)];
}
