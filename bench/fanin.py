"""Fan-in: many jobs, each a hundred of which one waits for, beside the same jobs without order.

In jobs per second, and in CPU of the worker and the server together, which depends less on what
else runs on the machine. And what the end of one of them costs when its follower waits for ten, a
thousand, a hundred thousand: the pages that the call which ends it touches. The largest is run to
its end.
"""

import json
import subprocess
import sys
from dataclasses import replace
from uuid import uuid4

from bench import measures
from bench.harness import BATCH, Database, Meter, Options, Server
from bench.report import Figure

WIDTH = 100
WHATS = ("enqueue", "drain")
STYLES = ("without order", "in order")
# Enqueues flows of WIDTH jobs and one, in order or not, or drains them: says how long it took, and
# the CPU it used.
WORKER = """
import sys, time
from holdfast import App
from holdfast.flow import enqueue
from holdfast.worker import Worker

url, what, style, flows, width = *sys.argv[1:4], *map(int, sys.argv[4:])
app, times, sums = App(url), [], []

@app.task
async def part(n: int) -> int:
    times.append(time.perf_counter())
    return n

@app.task
async def total(parts: list[int]) -> None:
    times.append(time.perf_counter())
    sums.append(sum(parts))

numbers = range(width)
flows = -(-flows // 10) * 10
started, used = time.perf_counter(), time.process_time()
if what == "drain":
    Worker(app, until_idle=True, concurrency=200).run()
    assert sums == [sum(numbers)] * flows, (len(sums), flows)
    assert len(times) == flows * (width + 1), len(times)
    took = max(times) - min(times)
else:
    for _ in range(0, flows, 10):
        if style == "in order":
            enqueue(*(part.map(numbers).then(total) for _ in range(10)))
        else:
            calls = [*(part.call(n) for n in numbers), total.call(list(numbers))]
            app.enqueue_many(calls * 10)
    took = time.perf_counter() - started
print(took, time.process_time() - used)
"""


def run(server: Server, options: Options) -> list[Figure]:
    """Measure both in turn, round after round; then the cost of an end at several sizes."""
    flows = max(options.drain // 500, 1) * 10
    jobs = flows * (WIDTH + 1)
    rates: dict[tuple[str, str], list[float]] = {(x, y): [] for x in WHATS for y in STYLES}
    cpu: dict[tuple[str, str], list[float]] = {both: [] for both in rates}
    sizes = sorted({10, 1_000, max(options.drain * 2, 1_000)})
    pages: dict[int, list[float]] = {size: [] for size in sizes}
    with server.database("fanin") as database:
        url = measures.url_of(database)
        for _ in range(options.rounds):
            for style in STYLES:
                database.reset()
                for what in WHATS:
                    asked = [sys.executable, "-c", WORKER, url, what, style, str(flows), str(WIDTH)]
                    with Meter(database) as meter:
                        said = subprocess.check_output(asked, text=True)
                    took, used = map(float, said.split())
                    rates[what, style].append(jobs / took)
                    cpu[what, style].append((used + meter.server_cpu) / jobs * 1e6)
            for size in sizes:
                database.reset()
                pages[size].append(_pages_of_an_end(database, size))
        left = database.value(
            "select (select count(*) from holdfast.link)"
            " + (select count(*) from holdfast.countdown)"
        )
        assert left == 0, f"{left} rows of order were left behind"
    figures = []
    for what in WHATS:
        said = f"{what}, {flows:,} of ({WIDTH} → 1)"
        least, most = (0.5, 2.0) if what == "drain" else (None, None)
        for unit, found in (("jobs/s", rates), ("CPU µs/job", cpu)):
            base = Figure("fanin", f"{said}, without order", unit, found[what, STYLES[0]])
            samples = found[what, STYLES[1]]
            ordered = Figure("fanin", f"{said}, in order", unit, samples, base)
            if unit == "jobs/s":
                ordered = replace(ordered, at_least=least)
            else:
                ordered = replace(ordered, at_most=most)
            figures += [base, ordered]
    first: Figure | None = None
    for size, samples in pages.items():
        what = f"end of one of {size:,} that a job waits for"
        figures.append(
            Figure("fanin", what, "pages", samples, first, at_most=1.5 if first else None)
        )
        first = first or figures[-1]
    return figures


def _pages_of_an_end(database: Database, size: int) -> float:
    """Run a fan-in to its end; returns the pages that an ack touches for each job, half-way."""
    run, part = database.connection.execute, '{"kind": "part", "payload": {"n": 1}}'
    after = list(range(1, size + 1))
    last = json.dumps({"kind": "total", "after": after, "take": {"parts": "all"}})
    items = f"[{','.join([part] * size)},{last}]"
    run("select count(*) from holdfast.enqueue(items => %s::jsonb)", [items])
    touched, ended = 0.0, 0
    while ended < size:
        token = uuid4()
        [(ids, jobs)] = run(
            "select array_agg(id)::text, count(*) from holdfast.claim(queue => 'default', "
            "worker => 'bench', token => %s::uuid, max_jobs => %s, durable => false)",
            [token, min(BATCH, max(size // 4, 1))],
        ).fetchall()
        [[plan]] = run(
            "explain (analyze, buffers, format json) select count(*) from holdfast.ack("
            "ids => %s::uuid[], tokens => array_fill(%s::uuid, array[%s]), results => %s::jsonb)",
            [ids, token, jobs, json.dumps([1] * jobs)],
        ).fetchall()
        if ended <= size // 2 < ended + jobs:
            top = plan[0]["Plan"]
            touched = (top["Shared Hit Blocks"] + top["Shared Read Blocks"]) / jobs
        ended += jobs
    token = uuid4()
    [(id, results)] = run(
        "select id, jsonb_array_length(payload -> 'parts') from holdfast.claim("
        "queue => 'default', worker => 'bench', token => %s::uuid)",
        [token],
    ).fetchall()
    assert results == size, (results, size)
    run("select count(*) from holdfast.ack(ids => array[%s], tokens => array[%s])", [id, token])
    return touched
