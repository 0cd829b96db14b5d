// Numbers over time. Drag to zoom in, click to see the jobs of that moment.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { compact, duration, zone } from "../format";
import { theme } from "../theme";

export interface Line {
  label: string;
  values: (number | null)[];
  color: number;
  fill?: boolean;
  dash?: boolean;
}

interface ChartProps {
  title: string;
  label: string;
  times: number[];
  lines: Line[];
  unit?: "count" | "seconds" | "rate";
  height?: number;
  onMoment?: (from: number, until: number) => void;
}

export function Chart({ title, label, times, lines, unit = "count", height = 220, onMoment }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const pick = useRef(onMoment);
  pick.current = onMoment;
  const look = theme.value;
  const utc = zone.value === "utc";
  const [hovered, setHovered] = useState<number | null>(null);
  const shape = lines.map((line) => line.label + line.color + line.dash).join("|");

  useEffect(() => {
    const host = box.current!;
    const made = new uPlot(options(host, lines, unit, height, write, utc, (from, until) => pick.current?.(from, until), setHovered), data(times, lines), host);
    plot.current = made;
    const watch = new ResizeObserver(() => {
      if (host.clientWidth) made.setSize({ width: host.clientWidth, height });
    });
    watch.observe(host);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, look, unit, height, utc]);

  useEffect(() => {
    plot.current?.setData(data(times, lines));
  });

  const write = (value: number | null) => (value === null ? "–" : unit === "seconds" ? duration(value) : compact(unit === "count" ? Math.round(value) : value));
  const last = (line: Line) => [...line.values].reverse().find((value) => value !== null) ?? null;
  const shown = (line: Line) => (hovered === null ? last(line) : (line.values[hovered] ?? null));
  return (
    <figure>
      <figcaption>
        {title}
        <span class="legend" aria-hidden="true">
          {lines.map((line) => (
            <span key={line.label} class={`c${line.color}`}>
              <i class={line.dash ? "dash" : ""} />
              {line.label} <b class="number">{write(shown(line))}</b>
            </span>
          ))}
          {hovered !== null && <span class="number">{clock(times[hovered] ?? 0, 1, utc)}</span>}
        </span>
      </figcaption>
      <div class="chart" ref={box} role="img" aria-label={`${label}. Now ${lines.map((line) => `${line.label} ${write(last(line))}`).join(", ")}.`} style={{ height: `${height}px` }} />
    </figure>
  );
}

const data = (times: number[], lines: Line[]): uPlot.AlignedData => [times, ...lines.map((line) => line.values)];

function options(host: HTMLElement, lines: Line[], unit: string, height: number, write: (value: number | null) => string, utc: boolean, moment: (from: number, until: number) => void, hover: (index: number | null) => void): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(name).trim();
  const font = `11px ${color("--sans")}`;
  const axis = { stroke: color("--text-faint"), font, grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: host.clientWidth || 600,
    height,
    padding: [10, 30, 0, 0],
    tzDate: utc ? (stamp) => uPlot.tzDate(new Date(stamp * 1000), "Etc/UTC") : undefined,
    cursor: {
      points: { size: 7 },
      drag: { x: true, y: false, setScale: true },
      bind: {
        click: (self, _, handler) => (event: MouseEvent) => {
          handler(event);
          const left = self.cursor.left ?? -1;
          if (left < 0 || self.select.width > 2) return null;
          const at = self.posToVal(left, "x");
          const times = self.data[0];
          const step = times.length > 1 ? times[1]! - times[0]! : 60;
          moment(at - step / 2, at + step / 2);
          return null;
        },
      },
    },
    legend: { show: false },
    hooks: { setCursor: [(self) => hover(self.cursor.left === undefined || self.cursor.left < 0 ? null : (self.cursor.idx ?? null))] },
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.12 : unit === "seconds" ? 1 : 4] } },
    axes: [
      { ...axis, grid: { show: false }, size: 30, space: 70, values: (_, splits, __, ___, step) => splits.map((at) => clock(at, step, utc)) },
      { ...axis, size: 52, values: (_, splits) => splits.map(write), ...(unit === "seconds" ? { incrs: DURATIONS } : unit === "count" ? { incrs: WHOLE } : {}) },
    ],
    series: [
      {},
      ...lines.map((line): uPlot.Series => ({
        label: line.label,
        stroke: color(`--series-${line.color}`),
        width: 1.6,
        dash: line.dash ? [5, 4] : undefined,
        fill: line.fill ? alpha(color(`--series-${line.color}`)) : undefined,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

// Common time steps.
const DURATIONS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];

// Counts are whole numbers, so an axis of counts has no halves.
const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

const alpha = (hex: string): string => hex + "24";

function clock(at: number, step: number, utc: boolean): string {
  const date = new Date(at * 1000);
  const two = (value: number) => String(value).padStart(2, "0");
  const hours = two(utc ? date.getUTCHours() : date.getHours());
  const minutes = two(utc ? date.getUTCMinutes() : date.getMinutes());
  const seconds = two(utc ? date.getUTCSeconds() : date.getSeconds());
  if (step < 60) return `${hours}:${minutes}:${seconds}`;
  if (step < 86400) return `${hours}:${minutes}`;
  return `${utc ? date.getUTCDate() : date.getDate()} ${date.toLocaleString("en", { month: "short", timeZone: utc ? "UTC" : undefined })}`;
}
