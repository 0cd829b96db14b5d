"""DBOS: a workflow that enqueues children and waits for them; steps by a decorator."""

import os
import time

from dbos import DBOS, DBOSClient, DBOSConfig

from bench.workflows.ledger import STEPS, WIDTH, main, note

URL = os.environ["DATABASE"]


# begin fan
@DBOS.step()
def begin(n: int) -> int:
    note("begin", n)
    return n


@DBOS.workflow()
def part(n: int) -> int:
    note("part", n)
    return n


@DBOS.step()
def last(parts: list[int]) -> None:
    note("last", parts[0])


@DBOS.workflow()
def fanned(n: int) -> None:
    first = begin(n)
    children = [DBOS.enqueue_workflow("parts", part, first) for _ in range(WIDTH)]
    last([child.get_result() for child in children])


def fan(count: int) -> None:
    _enqueue("fanned", count)


# end fan
# begin steps
@DBOS.workflow()
def in_steps(n: int) -> None:
    for nth in range(STEPS):
        effect(n * STEPS + nth)


@DBOS.step()
def effect(n: int) -> int:
    note("step", n)
    return n


def steps(count: int) -> None:
    _enqueue("in_steps", count)


# end steps


def _enqueue(name: str, count: int) -> None:
    client = DBOSClient(system_database_url=URL)
    for n in range(count):
        options = {"workflow_name": name, "queue_name": "flows", "app_version": "1"}
        client.enqueue(options, n)


def _launch() -> None:
    config = DBOSConfig(
        name="bench",
        system_database_url=URL,
        application_version="1",
        executor_id="bench",
        log_level="ERROR",
        run_admin_server=False,
        max_executor_threads=200,
        sys_db_pool_size=30,
    )
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue("flows", worker_concurrency=50, polling_interval_sec=0.05)
    DBOS.register_queue("parts", worker_concurrency=100, polling_interval_sec=0.05)


def setup() -> None:
    """Make the tables."""
    _launch()
    DBOS.destroy()


def work() -> None:
    """Work until killed; what this executor had begun before is taken up again at once."""
    _launch()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(setup=setup, work=work, fan=fan, steps=steps)
