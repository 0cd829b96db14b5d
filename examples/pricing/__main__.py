"""Price 200 scenarios through a robot that fails three times out of ten. Wants `holdfast serve`."""

import argparse
import asyncio
import os
import sys
import urllib.request
from collections.abc import Sequence
from itertools import product

from examples.pricing.app import api, app, price, set_up
from examples.pricing.axiom import Axiom
from holdfast.worker import Worker

SCENARIOS = [
    f"{loan} for a {purpose}, credit score {score}"
    for loan, purpose, score in product(
        ("30-year fixed", "20-year fixed", "15-year fixed", "7/1 ARM", "5/1 ARM"),
        ("purchase", "refinance", "cash-out", "second home"),
        range(620, 820, 20),
    )
]
HANGS = "10/1 ARM, whose page hangs"


def main() -> None:
    """Run the story against an Axiom of its own."""
    parser = argparse.ArgumentParser(prog="python -m examples.pricing", description=__doc__)
    parser.add_argument("--long", action="store_true", help="2,000 runs, each ten times as long")
    long = parser.parse_args().long
    check_server()
    os.environ.setdefault("STUCK_AFTER", "2")
    axiom = Axiom(seconds=0.1 if long else 0.01, failures=0.3, hangs=HANGS)
    with axiom.serving() as os.environ["AXIOM_URL"]:
        asyncio.run(story(axiom, SCENARIOS * (10 if long else 1)))


async def story(axiom: Axiom, scenarios: Sequence[str], *, workers: int = 2) -> None:
    """Ask for all runs at once, behind one that hangs; work until they have ended; tell how."""
    async with app:
        await set_up()
        await price.options(max_attempts=1).aenqueue(HANGS)
        first, *_ = await app.aenqueue_many(price.call(scenario) for scenario in scenarios)
        print(f"{len(scenarios)} runs are queued: {await app.aclient.jobs.explain(first.id)}")

        fleet = [Worker(app) for _ in range(workers)]
        async with asyncio.TaskGroup() as group:
            for worker in fleet:
                group.create_task(worker.run_async())
            while (
                queue := await app.aclient.queues.get("pricing")
            ) and queue.queued + queue.leased:
                await asyncio.sleep(0.1)
            for worker in fleet:
                worker.stop()
        axiom.finish()

        print(f"{axiom.runs} attempts, at most {axiom.most_at_once} at once")
        if queue:
            rate = queue.done / (queue.done + queue.dead)
            print(f"{queue.done} priced, {rate:.1%} of what ended")
        for job in await app.aclient.jobs.list("queue:pricing state:dead"):
            attempts = f"{job.attempt} of {job.max_attempts} attempts"
            print(f"dead after {attempts}: {job.payload['scenario']}: {job.error}")
        print(f"answers that came too late and changed nothing: {axiom.too_late}")


def check_server() -> None:
    """Leave if there is nobody whom Axiom could tell how a run went."""
    try:
        urllib.request.urlopen(f"{api()}/readyz", timeout=5).close()
    except OSError as error:
        sys.exit(f"no server at {api()}: run `holdfast serve` in another terminal ({error})")


if __name__ == "__main__":
    main()
