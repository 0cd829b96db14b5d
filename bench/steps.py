"""Durable steps: how many one worker process stores in a second, and what each costs a job alone.

Jobs of five steps that do nothing, many at once, as async and as def handlers, also in CPU of the
worker and the server together; and one job with a long row of steps, each of which is on disk
before the next begins.
"""

import subprocess
import sys

from bench import measures
from bench.harness import Meter, Options, Server
from bench.report import Figure

STEPS = 5
SLOTS = 200
# CPU that a step may take, in µs, for 3,000 in a second on two cores.
SHARE = 2e6 / 3_000
# Says how many seconds the steps of its jobs took, and the CPU it used.
WORKER = """
import sys, time
from holdfast import App, current
from holdfast.worker import Worker

url, style, jobs, steps, slots = sys.argv[1:]
app, times = App(url), []

async def nothing(n: int) -> int:
    return n

def nothing_either(n: int) -> int:
    return n

@app.task
async def in_steps():
    job = current()
    times.append(time.perf_counter())
    for n in range(int(steps)):
        await job.step(f"step-{n}", nothing, n)
    times.append(time.perf_counter())

@app.task
def in_steps_def():
    job = current()
    times.append(time.perf_counter())
    for n in range(int(steps)):
        job.step(f"step-{n}", nothing_either, n)
    times.append(time.perf_counter())

task = in_steps if style == "async" else in_steps_def
app.enqueue_many([task.call() for _ in range(int(jobs))])
used = time.process_time()
Worker(app, until_idle=True, concurrency=int(slots)).run()
assert len(times) == 2 * int(jobs), (len(times), jobs)
print(max(times) - min(times), time.process_time() - used)
"""


def run(server: Server, options: Options) -> list[Figure]:
    """Measure both styles and one job alone in turn, round after round."""
    jobs, alone = max(options.drain // 10, 20), max(options.singles // 2, 10)
    rates: dict[str, list[float]] = {"async": [], "def": []}
    costs: dict[str, list[float]] = {"async": [], "def": []}
    cpu: dict[str, list[float]] = {"async": [], "def": []}
    with server.database("steps") as database:
        url = measures.url_of(database)
        for _ in range(options.rounds):
            for style in rates:
                database.reset()
                with Meter(database) as meter:
                    took, used = _seconds(url, style, jobs, STEPS, SLOTS)
                rates[style].append(jobs * STEPS / took)
                # Of the server, the enqueue too.
                cpu[style].append((used + meter.server_cpu) / (jobs * STEPS) * 1e6)
                costs[style].append(_seconds(url, style, 1, alone, 1)[0] / alone * 1e3)
        left = database.value("select count(*) from holdfast.step")
        assert left == 0, f"{left} steps were left behind"
    return [
        *(
            Figure(
                "steps",
                f"{jobs:,} jobs of {STEPS} steps, {style} handlers",
                "steps/s",
                found,
                at_least=3_000,
            )
            for style, found in rates.items()
        ),
        *(
            Figure(
                "steps",
                f"{jobs:,} jobs of {STEPS} steps, {style} handlers",
                "CPU µs/step",
                found,
                at_most=SHARE,
            )
            for style, found in cpu.items()
        ),
        *(
            Figure("steps", f"one job, {style} handler", "ms/step", found, at_most=1.2)
            for style, found in costs.items()
        ),
    ]


def _seconds(url: str, style: str, jobs: int, steps: int, slots: int) -> tuple[float, float]:
    asked = [url, style, *map(str, (jobs, steps, slots))]
    said = subprocess.check_output([sys.executable, "-c", WORKER, *asked], text=True)
    took, used = map(float, said.split())
    return took, used
