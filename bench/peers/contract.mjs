// What contract.py is to Python, for adapters in Node: the same command line, ledger and lines.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const WARM_UP = 16;
const AT_ONCE = 100;

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

// The packages are in the queue's environment, not beside its adapter.
export const load = createRequire(path.join(process.env.BENCH_PACKAGES ?? ".", "package.json"));
export { AT_ONCE };
export const sleep = () => pause(0.01);

class Clock {
  start() {
    this.began = performance.now();
    this.used = process.cpuUsage();
  }

  stop() {
    const { user, system } = process.cpuUsage(this.used);
    this.seconds = (performance.now() - this.began) / 1000;
    this.cpu = (user + system) / 1e6;
  }
}

// Node maps no file: what has changed is written every few milliseconds, so that no handler pays
// for being counted.
function ledger(file, jobs) {
  const descriptor = fs.openSync(file, "r+");
  const counts = new Uint8Array(jobs);
  const times = new Float64Array(jobs);
  const bytes = new Uint8Array(times.buffer);
  const timesAt = Math.ceil(jobs / 8) * 8;
  let low = jobs;
  let high = 0;
  const write = () => {
    if (low >= high) return;
    fs.writeSync(descriptor, bytes, 8 * low, 8 * (high - low), timesAt + 8 * low);
    fs.writeSync(descriptor, counts, low, high - low, low);
    [low, high] = [jobs, 0];
  };
  setInterval(write, 5).unref();
  process.on("exit", write);
  return (job) => {
    if (!counts[job]) times[job] = now();
    if (counts[job] < 255) counts[job] += 1;
    if (job < low) low = job;
    if (job >= high) high = job + 1;
  };
}

async function pace(jobs, interval, answered, clock, enqueue) {
  const times = new Float64Array(jobs);
  const began = now();
  for (let job = 0; job < jobs; job += 1) {
    if (job === WARM_UP) clock.start();
    const early = interval ? began + job * interval - now() : 0;
    if (early > 0) await pause(early);
    await enqueue(job);
    times[job] = now();
  }
  clock.stop();
  fs.writeFileSync(answered, new Uint8Array(times.buffer));
}

// Run the action of the command line; see main() of contract.py.
export async function main({ setup, bulk, feed, work }) {
  const [action, url, ...rest] = process.argv.slice(2);
  const clock = new Clock();
  if (action === "work") {
    const [file, jobs, style] = rest;
    await work(url, ledger(file, Number(jobs)), style);
    return;
  }
  if (action === "setup") await setup(url);
  else if (action === "bulk") await bulk(url, Number(rest[0]), rest[1] === "keys", clock);
  else if (action === "feed") {
    const [jobs, interval, answered] = rest;
    await feed(url, (enqueue) => pace(Number(jobs), Number(interval), answered, clock, enqueue));
  } else throw new Error(`there is no action ${action}`);
  if (action !== "setup") console.log(JSON.stringify({ seconds: clock.seconds, cpu: clock.cpu }));
  process.exit(0);
}
