// A small line chart. Its value is shown beside it as a number.

const WIDTH = 84;
const HEIGHT = 22;

export function Spark({ values, label, mood = "" }: { values: (number | null)[] | null; label: string; mood?: string }) {
  // Unknown values at either end are not drawn, because they are not zero.
  const first = values?.findIndex((value) => value !== null) ?? -1;
  const last = values?.findLastIndex((value) => value !== null) ?? -1;
  const shown = first < 0 ? [] : values!.slice(first, last + 1);
  const known = shown.filter((value): value is number => value !== null);
  if (known.length < 2) return <span class="spark" aria-hidden="true" />;
  const most = Math.max(1e-9, ...known);
  const step = WIDTH / (shown.length - 1);
  const points = shown.map((value, index) => [index * step, HEIGHT - 2 - ((value ?? 0) / most) * (HEIGHT - 5)] as const);
  const line = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const flat = known.every((value) => value === 0);
  return (
    <svg class={`spark ${mood}${flat ? " flat" : ""}`} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label} preserveAspectRatio="none">
      <path class="spark-fill" d={`${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`} />
      <path class="spark-line" d={line} />
    </svg>
  );
}
