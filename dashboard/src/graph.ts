// Where the nodes of a graph are drawn: in layers, each after those that it follows, with few crossings.

export interface Node {
  id: string;
  /** The nodes before it, by their ids; each comes earlier in the list. */
  before: string[];
}

export interface Spot {
  x: number;
  y: number;
  layer: number;
}

export interface Edge {
  from: string;
  to: string;
  path: string;
}

export interface Drawing {
  width: number;
  height: number;
  /** Of a node. */
  wide: number;
  /** The axis along which the nodes of a layer lie. */
  beside: "x" | "y";
  spots: Map<string, Spot>;
  edges: Edge[];
}

interface Size {
  width: number;
  height: number;
  /** Between layers, and between the nodes of one. */
  apart: number;
  beside: number;
}

/** A node, or a bend of an edge that passes a layer. */
interface Place {
  id: string | null;
  layer: number;
  at: number;
  size: number;
  before: Place[];
  after: Place[];
}

/** More bends than this cost more than they help: then edges go straight. */
const BENDS = 4000;

/** Lay out nodes from left to right, or from the top down. */
export function lay(nodes: Node[], across: boolean, size: Size): Drawing {
  const main = across ? size.width : size.height;
  const cross = across ? size.height : size.width;
  const known = new Map<string, Place>();
  const layers: Place[][] = [];
  const put = (place: Place): Place => ((layers[place.layer] ??= []).push(place), place);
  const lines: { from: string; to: string; via: Place[] }[] = [];
  let bends = 0;
  for (const node of nodes) {
    const before = node.before.filter((id) => known.has(id));
    const layer = before.reduce((most, id) => Math.max(most, known.get(id)!.layer + 1), 0);
    const here = put({ id: node.id, layer, at: 0, size: cross, before: [], after: [] });
    known.set(node.id, here);
    for (const id of before) {
      const via: Place[] = [known.get(id)!];
      bends += layer - via[0]!.layer - 1;
      if (bends < BENDS) for (let step = via[0]!.layer + 1; step < layer; step++) via.push(put({ id: null, layer: step, at: 0, size: 6, before: [], after: [] }));
      via.push(here);
      for (let step = 1; step < via.length; step++) {
        via[step]!.before.push(via[step - 1]!);
        via[step - 1]!.after.push(via[step]!);
      }
      lines.push({ from: id, to: node.id, via });
    }
  }
  for (const layer of layers) spread(layer, size.beside);
  for (let sweep = 0; sweep < 4; sweep++) {
    for (const layer of layers.slice(1)) arrange(layer, "before", size.beside);
    for (const layer of layers.slice(0, -1).reverse()) arrange(layer, "after", size.beside);
  }
  for (const layer of layers.slice(1)) arrange(layer, "before", size.beside);
  const low = layers.reduce((least, layer) => Math.min(least, layer[0]!.at - layer[0]!.size / 2), Infinity);
  const high = layers.reduce((most, layer) => Math.max(most, layer.at(-1)!.at + layer.at(-1)!.size / 2), -Infinity);
  const start = (place: Place) => place.layer * (main + size.apart);
  const point = (along: number, beside: number): [number, number] => (across ? [along, beside - low] : [beside - low, along]);
  const spots = new Map<string, Spot>();
  for (const [id, place] of known) {
    const [x, y] = point(start(place), place.at - cross / 2);
    spots.set(id, { x, y, layer: place.layer });
  }
  const edges = lines.map(({ from, to, via }) => {
    let path = "M" + point(start(via[0]!) + main, via[0]!.at).join(" ");
    for (let step = 1; step < via.length; step++) {
      const [a, b] = [via[step - 1]!, via[step]!];
      const [left, right] = [start(a) + main, start(b)];
      const middle = (left + right) / 2;
      path += "C" + [point(middle, a.at), point(middle, b.at), point(right, b.at)].map((one) => one.join(" ")).join(",");
      // Straight past the nodes of a layer: a curve there would go behind them.
      if (b.id === null) path += "L" + point(right + main, b.at).join(" ");
    }
    return { from, to, path };
  });
  const long = layers.length * (main + size.apart) - size.apart;
  const wide = Math.max(0, high - low);
  return { width: across ? long : wide, height: across ? wide : long, wide: size.width, beside: across ? "y" : "x", spots, edges };
}

/** Between the lines beside a column, and how many there are at most: then some share a place. */
const RAIL = 8;
const RAILS = 5;

/** Lay out nodes in one column, for a place that is too narrow for layers: what is not the next is led past the others. */
export function stack(nodes: Node[], room: number, size: Size): Drawing {
  const at = new Map(nodes.map((node, nth) => [node.id, nth]));
  const lines = nodes.flatMap((node) => node.before.filter((id) => at.has(id)).map((id) => ({ from: id, to: node.id })));
  const past = lines.filter(({ from, to }) => at.get(to)! > at.get(from)! + 1);
  const many = (side: "from" | "to", id: string) => past.reduce((sum, one) => sum + +(one[side] === id), 0);
  // What comes from one node, or leads to one, is one line with several ends.
  const trunks = new Map<string, { first: number; last: number; rail: number }>();
  const name = ({ from, to }: { from: string; to: string }) => (many("from", from) >= many("to", to) ? `from ${from}` : `to ${to}`);
  const named = past.map((one) => ({ ...one, trunk: name(one) }));
  for (const { from, to, trunk } of named) {
    const known = trunks.get(trunk) ?? { first: Infinity, last: -Infinity, rail: 0 };
    trunks.set(trunk, { ...known, first: Math.min(known.first, at.get(from)!), last: Math.max(known.last, at.get(to)!) });
  }
  const ends: number[] = [];
  for (const trunk of [...trunks.values()].sort((a, b) => a.first - b.first)) {
    const free = ends.findIndex((end) => end <= trunk.first);
    trunk.rail = free >= 0 ? free : Math.min(ends.length, RAILS - 1);
    ends[trunk.rail] = Math.max(ends[trunk.rail] ?? 0, trunk.last);
  }
  const left = ends.length * RAIL + (ends.length ? RAIL : 0);
  const top = (id: string) => at.get(id)! * (size.height + size.beside);
  const spots = new Map(nodes.map((node) => [node.id, { x: left, y: top(node.id), layer: 0 }]));
  const straight = lines
    .filter(({ from, to }) => at.get(to) === at.get(from)! + 1)
    .map(({ from, to }) => ({ from, to, path: `M${left + 2 * RAIL} ${top(from) + size.height}V${top(to)}` }));
  const led = named.map(({ from, to, trunk }) => {
    const x = left - RAIL * (trunks.get(trunk)!.rail + 1);
    const [out, into] = [top(from) + size.height - 14, top(to) + 14];
    return { from, to, path: `M${left} ${out}Q${x} ${out},${x} ${out + RAIL}V${into - RAIL}Q${x} ${into},${left} ${into}` };
  });
  const height = Math.max(0, nodes.length * (size.height + size.beside) - size.beside);
  return { width: room, height, wide: room - left, beside: "y", spots, edges: [...straight, ...led] };
}

/** Order a layer by where its neighbours are, and move each as near to them as the others allow. */
function arrange(layer: Place[], side: "before" | "after", beside: number): void {
  const wanted = new Map<Place, number>();
  for (const one of layer) wanted.set(one, one[side].length ? mean(one[side].map((other) => other.at)) : one.at);
  layer.sort((a, b) => wanted.get(a)! - wanted.get(b)!);
  let last: Place | undefined;
  for (const one of layer) {
    const least = last ? last.at + (last.size + one.size) / 2 + beside : -Infinity;
    one.at = Math.max(wanted.get(one)!, least);
    last = one;
  }
  const off = mean(layer.map((one) => wanted.get(one)! - one.at));
  for (const one of layer) one.at += off;
}

function spread(layer: Place[], beside: number): void {
  let at = 0;
  for (const one of layer) {
    one.at = at + one.size / 2;
    at += one.size + beside;
  }
  for (const one of layer) one.at -= at / 2;
}

const mean = (values: number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
