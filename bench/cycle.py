"""The whole cycle, enqueue, claim, ack, against the physical floor: rows in, the oldest out.

The floor is the least that a queue without leases does, in a table of the queue's shape. Beside it
stand two that are no queue: rows deleted by ids that only their inserter knows, in the same table
and in a bare one.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any
from uuid import uuid4

from bench.harness import BATCH, PAYLOAD, Database, Load, Options, Server, items
from bench.proc import cpu
from bench.report import Figure

# Short, so that the reaper's walk over finished claims falls inside a round: with thirty seconds
# it would come after the end, and the cycle would look cheaper than it is.
LEASE = "3 seconds"
# Batches beside the usual one.
SMALL = (1, 10)


def cycle_of(batch: int) -> str:
    """Return the script that enqueues so many jobs, claims as many and acks what it has got.

    One job is stored as clients do it, by its values.
    """
    put = "select count(*) from holdfast.enqueue(items => :items::jsonb);"
    if batch == 1:
        put = (
            "select holdfast.enqueue_one(id => holdfast.id_in(holdfast.queue_part('default')), "
            "kind => 'send_email', payload => :payload::jsonb);"
        )
    return f"""
{put}
with fresh as materialized (select gen_random_uuid() as token)
select f.token, coalesce(array_agg(c.id) filter (where c.id is not null), '{{}}') as ids
from fresh f
left join lateral holdfast.claim(
  queue => 'default', worker => 'bench', token => f.token, max_jobs => {batch}, lease => '{LEASE}',
  durable => false) c on true
group by f.token \\gset
select count(*) from holdfast.ack(ids => :ids::uuid[], tokens => array[:token::uuid]);
"""


CYCLE = cycle_of(BATCH)

# One id is made for each batch and counted on from: nothing cheaper differs and keeps its order.
FLOOR_IN = """
with stored as (
  insert into bench.floor (part, id, queue, kind, payload)
  select 27, (seed || lpad(to_hex(ord), 12, '0'))::uuid, 'default',
         item ->> 'kind', item -> 'payload'
  from (select left({new_id}::text, 24) as seed offset 0) s
  cross join jsonb_array_elements({items}::jsonb) with ordinality as i(item, ord)
  returning id)
select array_agg(id)::text as ids from stored
"""
BY_ID = "delete from bench.floor where part = 27 and id = any({ids}::uuid[])"


def oldest_of(batch: int) -> str:
    """Return the script that takes so many of the oldest rows out."""
    return f"""
with taken as (
  delete from bench.floor where ctid = any(array(
    select ctid from bench.floor
    where part = 27 and queue = 'default' and priority = 0 and pos is not null
    order by pos limit {batch} for update skip locked))
  returning id)
select array_agg(id) as ids from taken \\gset
"""


BARE = """
with stored as (
  insert into bench.bare (payload)
  select item -> 'payload' from jsonb_array_elements(:items::jsonb) item
  returning id)
select array_agg(id) as ids from stored \\gset
delete from bench.bare where id = any(:ids::bigint[]);
"""

CLAIM = (
    "select array_agg(id)::text from holdfast.claim(queue => 'default', worker => 'bench', "
    f"token => %s::uuid, max_jobs => {BATCH}, lease => '{LEASE}', durable => false)"
)

# The floor is to be as low as it can be: no planning, no bad plan.
FLOOR_SETTINGS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"


def run(server: Server, options: Options) -> list[Figure]:
    """Measure the floor, what lies below it, and the cycle in turn, round after round."""
    with server.database("cycle") as database:
        _make_floors(database)
        floor_in = FLOOR_IN.format(new_id=_new_id(database), items=":items")
        scripts = {
            "bare rows in, out by id": BARE,
            "rows in, out by id": f"{floor_in} \\gset\n{BY_ID.format(ids=':ids')};",
            "floor: rows in, the oldest out": f"{floor_in} \\gset\n{oldest_of(BATCH)}",
            "enqueue, claim, ack": CYCLE,
        }
        rounds: dict[str, list[tuple[Load, int]]] = {what: [] for what in scripts}
        for _ in range(options.rounds):
            for what, script in scripts.items():
                database.reset()
                database.connection.execute("truncate bench.floor, bench.bare")
                settings = "" if script == CYCLE else FLOOR_SETTINGS
                with database.upkeep():
                    load = database.pgbench(
                        script, seconds=options.seconds, options=settings, items=items(BATCH)
                    )
                jobs = load.transactions * BATCH - left_over(database)
                rounds[what].append((load, jobs))
        database.reset()
        found = [*_figures(rounds), *_small_batches(database, options, floor_in)]
        database.reset()
        return [*found, *_verbs(database, options)]


def left_over(database: Database) -> int:
    """Count the jobs that claims which came up short left waiting; nobody may hold one."""
    leased = database.value("select count(*) from holdfast.job where token is not null")
    assert leased == 0, f"{leased} jobs were claimed and not acked"
    return int(database.value("select count(*) from holdfast.job"))


def _figures(rounds: dict[str, list[tuple[Load, int]]]) -> list[Figure]:
    measures: dict[str, Callable[[Load, int], float]] = {
        "jobs/s": lambda load, jobs: jobs / load.seconds,
        "backend µs/job": lambda load, jobs: load.backend_cpu / jobs * 1e6,
        "server µs/job": lambda load, jobs: load.server_cpu / jobs * 1e6,
        "WAL B/job": lambda load, jobs: load.wal / jobs,
    }
    found: list[Figure] = []
    for unit, measure in measures.items():
        bare, by_id, floor, cycle = (
            Figure("cycle", what, unit, [measure(load, jobs) for load, jobs in loads])
            for what, loads in rounds.items()
        )
        if not (floor.value and bare.value and cycle.value):
            continue  # the kernel does not tell
        found += [
            floor,
            replace(cycle, base=floor, at_least=0.8 if unit == "jobs/s" else None),
            replace(by_id, base=floor),
            replace(bare, base=floor),
            replace(cycle, base=by_id),
        ]
        if unit == "WAL B/job":
            found.append(replace(cycle, at_most=700))
    return found


def _small_batches(database: Database, options: Options, floor_in: str) -> list[Figure]:
    """Compare the cycle with the floor where few jobs share the price of a call."""
    found: list[Figure] = []
    for batch in SMALL:
        scripts = {
            f"floor in batches of {batch}": (
                f"{floor_in} \\gset\n{oldest_of(batch)}",
                FLOOR_SETTINGS,
            ),
            f"cycle in batches of {batch}": (cycle_of(batch), ""),
        }
        speed: dict[str, list[float]] = {what: [] for what in scripts}
        for _ in range(options.rounds):
            for what, (script, settings) in scripts.items():
                database.reset()
                database.connection.execute("truncate bench.floor")
                with database.upkeep():
                    load = database.pgbench(
                        script,
                        seconds=options.seconds // 2,
                        options=settings,
                        items=items(batch),
                        payload=json.dumps(PAYLOAD),
                    )
                jobs = load.transactions * batch - left_over(database)
                speed[what].append(jobs / load.seconds)
        floor, mine = (Figure("cycle", what, "jobs/s", rates) for what, rates in speed.items())
        found += [floor, replace(mine, base=floor, at_least=0.7)]
    return found


def _verbs(database: Database, options: Options) -> list[Figure]:
    """Say where the cycle's CPU goes: each verb alone on one connection, next to the floor's."""
    spent: dict[str, list[float]] = {}
    with database.upkeep(), database.connect(options=FLOOR_SETTINGS) as connection:
        pid = connection.info.backend_pid

        def call(what: str, query: str, *parameters: Any) -> Any:
            before = cpu(pid)
            cursor = connection.execute(query, parameters)
            spent.setdefault(what, []).append((cpu(pid) - before) / BATCH * 1e6)
            return cursor.fetchall()[0][0] if cursor.description else None

        floor_in = FLOOR_IN.format(new_id=_new_id(database), items="%s")
        by_id = BY_ID.format(ids="%s")
        batch = items(BATCH)
        for _ in range(5 + 40 * options.seconds):
            ids = call("rows in", floor_in, batch)
            call("out by id", by_id, ids)
            token = uuid4()
            call("enqueue", "select count(*) from holdfast.enqueue(%s::jsonb)", batch)
            ids = call("claim", CLAIM, token)
            call(
                "ack", "select count(*) from holdfast.ack(%s::uuid[], array[%s::uuid])", ids, token
            )
    return [
        Figure("cycle", f"{what}, alone", "backend µs/job", [median(samples)])
        for what, samples in spent.items()
        if any(samples)
    ]


def _make_floors(database: Database) -> None:
    parameters = database.value(
        "select array_to_string(reloptions, ', ') from pg_class "
        "where oid = 'holdfast.job'::regclass"
    )
    database.connection.execute(
        f"""
        create schema bench;
        create table bench.floor (like holdfast.job including all) with ({parameters});
        create table bench.bare (
          id bigint generated always as identity primary key, payload jsonb not null
        ) with ({parameters});
        """
    )


def _new_id(database: Database) -> str:
    # In the order of time, like the queue's own: random ids spread over the whole index.
    in_order = database.connection.info.server_version >= 180_000
    return "uuidv7()" if in_order else "gen_random_uuid()"
