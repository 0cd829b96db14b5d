"""What a call of many rows of an adopted table costs: it follows their number."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast import adopt
from holdfast.adopt import Choices

Connect = Callable[..., psycopg.Connection]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="only Linux counts the time of a process"
)


def cpu_of(connection: psycopg.Connection) -> float:
    """The seconds that the server has worked for this session."""
    path = Path(f"/proc/{connection.info.backend_pid}/schedstat")
    return int(path.read_text().split()[0]) / 1e9


@pytest.fixture
def table(database: str, connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute("create table task (id integer primary key, status text default 'queued')")
    connection.execute("insert into task (id) select generate_series(1, 20000)")
    adopt.adopt(database, adopt.plan(database, "task", Choices(queue="tasks")))
    connection.execute("analyze task")
    return connection


def cost(table: psycopg.Connection, case: str, rows: int) -> float:
    """What it costs to end so many rows that are taken, or ids that nobody knows."""
    [(ids, token)] = table.execute(
        "select array_agg(c.id), min(t.token::text)::uuid "
        "from (select gen_random_uuid() as token offset 0) t "
        "cross join lateral holdfast.claim('tasks', 'w', t.token, %s) c",
        [rows],
    )
    if case == "unknown":
        [(ids,)] = table.execute(
            "select array_agg(holdfast.stamp(gen_random_uuid(), 64::smallint)) "
            "from generate_series(1, %s)",
            [rows],
        )
    before = cpu_of(table)
    table.execute(
        "select count(*) from holdfast.nack(%s, array[%s]::uuid[], 'E', 'no', delay => '0')",
        [ids, token],
    )
    return cpu_of(table) - before


@pytest.mark.parametrize("case", ["known", "unknown"])
def test_the_cost_of_a_batch_of_rows_follows_its_size(table: psycopg.Connection, case: str) -> None:
    """Four times the rows are four times the work; matched each with each they would be sixteen."""
    cost(table, case, 100)  # whatever is only done once
    small = min(cost(table, case, 1000) for _ in range(2))
    large = min(cost(table, case, 4000) for _ in range(2))

    assert large < 7 * small


def test_an_unknown_row_costs_little_more_than_a_known_one(table: psycopg.Connection) -> None:
    """A table is asked once what is wrong with it, and not once for each id."""
    known, unknown = cost(table, "known", 1000), cost(table, "unknown", 1000)

    assert unknown < 5 * known
