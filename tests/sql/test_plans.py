"""Whatever the planner believes: never more rows than asked for, the right ones, and few read."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from tests.conftest import Connect
from tests.protocol import Leased, Protocol, shared_database
from tests.sql.test_verbs_limits import copy_in

PLANNERS: dict[str, dict[str, str]] = {
    "as it comes": {},
    "no nested loops": {"enable_nestloop": "off"},
    "no hash joins": {"enable_hashjoin": "off"},
    "no merge joins": {"enable_mergejoin": "off"},
    "no index scans": {"enable_indexscan": "off", "enable_indexonlyscan": "off"},
    "no bitmap scans": {"enable_bitmapscan": "off"},
    "no sequential scans": {"enable_seqscan": "off"},
    "custom plans": {"plan_cache_mode": "force_custom_plan"},
    "generic plans": {"plan_cache_mode": "force_generic_plan"},
    "compiled": {"jit": "on", "jit_above_cost": "0", "jit_optimize_above_cost": "-1"},
    "cheap random pages": {"random_page_cost": "1"},
}

# What a claim has to decide there.
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {},
    "sorted": {"by_kind": True},
    "fair": {"fair": True},
    "lanes": {},
    "limited": {"limit": 3},
    "rated": {"rate_limit": 3, "rate_period": 60},
    "timed": {},
    "keyed": {},
}

# How many jobs the planner was told of before the burst: that many, or one of these.
EMPTIED = "emptied and vacuumed"
CACHED = "planned while empty"
DRAINED = "analysed while drained"
AS_IT_IS = "analysed as it is"


class Reading(NamedTuple):
    """What a statement should have answered, what it did, and how many jobs it read for that."""

    wanted: Any
    got: Any
    rows: int
    most: int = 150


def claim_plain(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: db.claim("plain", max_jobs=5))
    return Reading([0, 1, 2, 3, 4], [job.payload for job in got], rows)


def claim_kinds_among_others(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: db.claim("mixed", max_jobs=5, kinds=["odd", "never"]))
    return Reading([1, 3, 5, 7, 9], [job.payload for job in got], rows)


def claim_kinds_in_their_own_order(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: db.claim("sorted", max_jobs=5, kinds=["rare", "never"]))
    return Reading(["rare"] * 5, [job.kind for job in got], rows)


def claim_fairly(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: db.claim("fair", max_jobs=5))
    return Reading([0, 1, 2, 3, 4], [job.payload for job in got], rows)


def claim_in_lanes(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: db.claim("lanes", max_jobs=5))
    return Reading([0, 1, 2, 3, 4], [job.payload for job in got], rows)


def claim_below_a_limit(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: db.claim("limited", max_jobs=5))
    return Reading([0, 1, 2], [job.payload for job in got], rows)


def claim_below_a_rate(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: db.claim("rated", max_jobs=5))
    return Reading([0, 1, 2], [job.payload for job in got], rows)


def ack(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: db.ack(*held))
    return Reading(["done"] * 5, [answer.outcome for answer in got], rows)


def ack_in_lanes(db: Protocol) -> Reading:
    held = db.claim("lanes", max_jobs=5)
    got, rows = measured(db, lambda: db.ack(*held))
    return Reading(["done"] * 5, [answer.outcome for answer in got], rows)


def touch(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: db.touch(*held))
    return Reading(["leased"] * 5, [answer.outcome for answer in got], rows)


def nack(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: db.nack(*held, error_kind="Oops"))
    return Reading(["queued"] * 5, [answer.outcome for answer in got], rows)


def release(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: db.release(*held))
    return Reading(["queued"] * 5, [answer.outcome for answer in got], rows)


def reap(db: Protocol) -> Reading:
    held = five(db)
    db.later(seconds=31)
    got, rows = measured(db, db.reap)
    return Reading({job.id for job in held}, {job.id for job in got}, rows)


def keep(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: db.ack(*held, keep=True))
    return Reading(["done"] * 5, [answer.outcome for answer in got], rows)


def say_progress(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: db.touch(*held, progress=[{"done": 1}] * 5))
    return Reading(["leased"] * 5, [answer.outcome for answer in got], rows)


def cancel_own(db: Protocol) -> Reading:
    items = [{"verb": "cancel", "id": job.id, "token": job.token} for job in five(db)]
    got, rows = measured(db, lambda: db.settle(*items))
    return Reading(["cancelled"] * 5, [answer.outcome for answer in got], rows)


def hand_over(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: [db.hand_over(job) for job in held])
    return Reading(["leased"] * 5, [answer.outcome for answer in got], rows)


def doubtful(db: Protocol) -> Reading:
    held = doubtful_five(db)
    got, rows = measured(db, db.doubtful)
    return Reading({job.id for job in held}, {job.id for job in got}, rows)


def doubtful_after_a_reap(db: Protocol) -> Reading:
    held = doubtful_five(db)
    db.beat("judge", kinds=["k"])
    assert db.reap() == []
    got, rows = measured(db, db.doubtful)
    return Reading({job.id for job in held}, {job.id for job in got}, rows)


def reconcile(db: Protocol) -> Reading:
    held = doubtful_five(db)
    verdicts = [True, False, True, False, True]
    got, rows = measured(db, lambda: db.reconcile(*held, done=verdicts))
    wanted = ["done" if done else "queued" for done in verdicts]
    return Reading(wanted, [answer.outcome for answer in got], rows)


def promote(db: Protocol) -> Reading:
    db.later(seconds=31)
    got, rows = measured(db, db.promote)
    return Reading(5, got, rows)


def enqueue(db: Protocol) -> Reading:
    items = [{"kind": "k", "queue": "plain"}] * 5
    got, rows = measured(db, lambda: db.enqueue(*items))
    return Reading([True] * 5, [answer.created for answer in got], rows)


def enqueue_with_keys(db: Protocol) -> Reading:
    items = [{"kind": "k", "queue": "keyed", "key": key} for key in ("0", "1", "new", "new", "3")]
    got, rows = measured(db, lambda: db.enqueue(*items))
    wanted = [False, False, True, False, False]
    return Reading(wanted, [answer.created for answer in got], rows)


def look_for_what_is_gone(db: Protocol) -> Reading:
    held = five(db)
    db.ack(*held)
    got, rows = measured(db, lambda: [db.get(job.id) for job in held])
    return Reading([None] * 5, got, rows)


def get(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: [db.get(job.id) for job in held])
    return Reading(["leased"] * 5, [job and job.state for job in got], rows)


def explain(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: [db.explain(job.id) for job in held])
    return Reading([True] * 5, ["Leased" in text for text in got], rows)


def cancel(db: Protocol) -> Reading:
    held = five(db)
    got, rows = measured(db, lambda: db.cancel(*[job.id for job in held]))
    return Reading([True] * 5, [answer.changed for answer in got], rows)


def enqueue_again(db: Protocol) -> Reading:
    items = [{"kind": "k", "queue": "plain", "id": str(uuid4())} for _ in range(5)]
    first = db.enqueue(*items, repeat=True)
    got, rows = measured(db, lambda: db.enqueue(*items, repeat=True))
    return Reading(first, got, rows)


def copy_where_kinds_are_sorted(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: copy_in(db, "sorted"))
    [job] = db.table(f"select by_kind from holdfast.job where id = '{got}'")
    return Reading(True, job.by_kind, rows, most=400)  # the last 200, and some of each priority


def copy_where_tenants_take_turns(db: Protocol) -> Reading:
    got, rows = measured(db, lambda: copy_in(db, "fair"))
    [job] = db.table(f"select tenant from holdfast.job where id = '{got}'")
    return Reading("", job.tenant, rows, most=400)


def enqueue_into_lanes(db: Protocol) -> Reading:
    items = [{"kind": "k", "queue": "lanes", "lane": f"l{n}"} for n in (0, 1, 2, 3, 99)]
    got, rows = measured(db, lambda: db.enqueue(*items))
    return Reading([True] * 4 + [False], [answer.behind is not None for answer in got], rows)


def enqueue_at_a_limit(db: Protocol) -> Reading:
    first, *_ = db.claim("limited", max_jobs=5)
    items = [{"kind": "k", "queue": "limited"}] * 5
    got, rows = measured(db, lambda: db.enqueue(*items))
    return Reading([first.id] * 5, [answer.behind for answer in got], rows)


STATEMENTS: list[Callable[[Protocol], Reading]] = [
    claim_plain,
    claim_kinds_among_others,
    claim_kinds_in_their_own_order,
    claim_fairly,
    claim_in_lanes,
    claim_below_a_limit,
    claim_below_a_rate,
    ack,
    ack_in_lanes,
    touch,
    nack,
    release,
    reap,
    keep,
    say_progress,
    cancel_own,
    hand_over,
    doubtful,
    doubtful_after_a_reap,
    reconcile,
    look_for_what_is_gone,
    get,
    explain,
    cancel,
    enqueue_again,
    copy_where_kinds_are_sorted,
    copy_where_tenants_take_turns,
    promote,
    enqueue,
    enqueue_with_keys,
    enqueue_into_lanes,
    enqueue_at_a_limit,
]


@pytest.fixture(
    scope="module",
    params=[
        (AS_IT_IS, 12),
        *[(told, 60) for told in (0, 1, 2, 3, EMPTIED)],
        *[(told, 5000) for told in (0, 1, 2, 3, EMPTIED, DRAINED, CACHED)],
    ],
    ids=lambda param: f"{param[0]}-then-{param[1]}",
)
def sessions(
    request: pytest.FixtureRequest, postgres: Any, whole_template: str
) -> Iterator[dict[str, Protocol]]:
    """A session for each planner, in a database that got a burst after what the planner was told.

    What a test does there has to be rolled back.
    """
    told, burst = request.param
    with shared_database(postgres.url, whole_template) as url, ExitStack() as stack:

        def session() -> Protocol:
            connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
            stack.callback(connection.close)
            return Protocol(connection)

        def all_sessions() -> dict[str, Protocol]:
            made = {name: session() for name in PLANNERS}
            for name, db in made.items():
                for setting, value in PLANNERS[name].items():
                    db.connection.execute(f"set {setting} = {value}")
            return made

        admin = session()
        admin.connection.execute("alter table holdfast.job set (autovacuum_enabled = off)")
        for queue, settings in QUEUES.items():
            admin.queue_set(queue, **settings)
        if told == CACHED:
            early = all_sessions()
            for db in early.values():
                with db.connection.transaction(force_rollback=True):
                    rehearse(db)
            fill(admin, burst)
            yield early
            return
        if told == EMPTIED:
            fill(admin, 1000)
            admin.connection.execute("delete from holdfast.job")
            admin.connection.execute("vacuum analyze holdfast.job")
        elif told == DRAINED:
            # Pages and no rows: however large the tables grow, the planner believes in one row.
            fill(admin, 1000)
            admin.connection.execute("delete from holdfast.job; delete from holdfast.lane")
            admin.connection.execute("analyze")
        elif told != AS_IT_IS:
            admin.enqueue(*[{"kind": "k", "queue": "elsewhere"}] * told)
            admin.connection.execute("analyze holdfast.job")
        fill(admin, burst)
        if told == AS_IT_IS:
            # All on a page or two, which the planner would rather read than look anything up.
            admin.connection.execute("analyze")
        yield all_sessions()


def fill(db: Protocol, jobs: int) -> None:
    """Enqueue that many jobs into each of the queues."""
    numbers = range(jobs)
    for queue in ("plain", "limited", "rated"):
        db.enqueue(*[{"kind": "k", "queue": queue, "payload": n} for n in numbers])
    kinds = ("even", "odd")
    db.enqueue(*[{"kind": kinds[n % 2], "queue": "mixed", "payload": n} for n in numbers])
    db.enqueue(*[{"kind": "common", "queue": "sorted"}] * jobs)
    db.enqueue(*[{"kind": "rare", "queue": "sorted"}] * 5)
    db.enqueue(
        *[{"kind": "k", "queue": "fair", "tenant": "abc"[n % 3], "payload": n} for n in numbers]
    )
    db.enqueue(
        *[{"kind": "k", "queue": "lanes", "lane": f"l{n % 20}", "payload": n} for n in numbers]
    )
    db.enqueue(*[{"kind": "k", "queue": "timed", "delay": 3600}] * jobs)
    db.enqueue(*[{"kind": "k", "queue": "timed", "delay": 30}] * 5)
    db.enqueue(*[{"kind": "k", "queue": "keyed", "key": str(n)} for n in numbers])


def rehearse(db: Protocol) -> None:
    """Make the session plan every statement."""
    fill(db, 1)
    db.later(seconds=31)
    db.promote()
    for queue in QUEUES:
        db.release(*db.claim(queue))
        db.touch(*db.claim(queue, kinds=["k", "rare", "odd"]))
        db.nack(*db.claim(queue))
        db.later(seconds=31)
        db.ack(*db.claim(queue))
    db.claim("plain")
    db.later(seconds=31)
    db.reap()
    db.reconcile(*db.doubtful(), done=[])
    db.enqueue({"kind": "k", "key": "0", "queue": "keyed"})


def five(db: Protocol) -> list[Leased]:
    return db.claim("plain", max_jobs=5)


def doubtful_five(db: Protocol) -> list[Leased]:
    held = five(db)
    db.declare_kinds({"kind": "k", "done_when": True})
    db.later(seconds=31)
    return held


def measured(db: Protocol, act: Callable[[], Any]) -> tuple[Any, int]:
    before = db.rows_read()
    answer = act()
    return answer, db.rows_read() - before


@pytest.mark.proves("S0.12", "S1.4", "S4.32")
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
def test_a_statement_takes_what_it_should_and_reads_little(
    sessions: dict[str, Protocol], statement: Callable[[Protocol], Reading]
) -> None:
    readings = {}

    for planner, db in sessions.items():
        with db.connection.transaction(force_rollback=True):
            readings[planner] = statement(db)

    assert {planner: r.got for planner, r in readings.items() if r.got != r.wanted} == {}
    # Who forbids index scans is owed the right rows, not few reads.
    del readings["no index scans"]
    assert {planner: r.rows for planner, r in readings.items() if r.rows > r.most} == {}


def test_claims_and_touches_are_heap_only_updates(connect: Connect) -> None:
    db = Protocol(connect())
    db.enqueue(*[{"kind": "k"}] * 200)
    claims, touches = [], []

    for _ in range(10):
        with db.connection.transaction():
            before = updates(db)
            claimed = db.claim(max_jobs=10)
            claims.append(updates(db) - before)
        with db.connection.transaction():
            before = updates(db)
            db.touch(*claimed)
            touches.append(updates(db) - before)

    assert claims == touches == [Counter(all=10, heap_only=10)] * 10


def updates(db: Protocol) -> Counter[str]:
    """How many jobs this session has updated, and how many of them without touching an index."""
    all, heap_only = db.connection.execute(
        "select sum(n_tup_upd)::int, sum(n_tup_hot_upd)::int from pg_stat_xact_user_tables"
        r" where schemaname = 'holdfast' and relname ~ '^job(_\d+)?$'"
    ).fetchone() or (0, 0)
    return Counter(all=all, heap_only=heap_only)


@pytest.mark.proves("S1.4")
def test_the_form_that_holdfast_does_not_use_takes_more_than_its_limit(connect: Connect) -> None:
    connection = connect()
    connection.execute("create table work (id int primary key, state text not null)")
    connection.execute("insert into work values (0, 'queued')")
    connection.execute("analyze work")
    connection.execute("insert into work select n, 'queued' from generate_series(1, 60) n")

    taken = connection.execute(
        """
        update work set state = 'started'
        where id in (
          select id from work where state = 'queued' order by id limit 5 for update skip locked)
        returning id
        """
    ).fetchall()

    assert len(taken) == 61


@pytest.mark.proves("S0.33")
def test_one_order_over_waiting_and_expired_reads_and_sorts_everything(connect: Connect) -> None:
    connection = connect()
    connection.execute(
        """
        create table work (
          id int primary key, status text, lease_until timestamptz, created_at timestamptz);
        create index claim_window on work (status, lease_until, created_at);
        insert into work
        select n, 'pending', null, now() - make_interval(secs => n)
        from generate_series(1, 5000) n;
        insert into work
        select n, 'processing', now() - interval '1 minute', now()
        from generate_series(5001, 5005) n;
        """
    )
    connection.execute("vacuum analyze work")

    [[[explained]]] = connection.execute(
        """
        explain (analyze, format json)
        select id
        from work
        where status = 'pending' or status = 'processing' and lease_until <= now()
        order by created_at
        limit 5
        for update skip locked
        """
    ).fetchall()

    nodes = list(all_nodes(explained["Plan"]))
    assert "Sort" in {node["Node Type"] for node in nodes}
    assert max(node["Actual Rows"] for node in nodes) >= 5000


def all_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from all_nodes(below)


# Functions that anybody may call and that read whole tables on purpose, or one in the order of an
# index, whatever its size.
SCANS = {
    "detect", "doctor", "take_samples", "recount", "search", "count_jobs", "operation_preview",
    "queue_set", "queue_declare", "sweep", "upkeep", "tend", "beat", "tell", "large_used",
}  # fmt: skip

HOT = r"(?:from|join|update|using)\s+holdfast\.(?:job|link|member|ended|dead|history|lease)\b"


def test_functions_that_look_jobs_up_leave_no_choice_of_reading_them_all(db: Protocol) -> None:
    rows = db.table(
        "select p.proname as name, prosrc as body, prosecdef as open,"
        " coalesce(array_to_string(proconfig, ' '), '') like '%enable_seqscan=off%' as pinned"
        " from pg_proc p where pronamespace = 'holdfast'::regnamespace and prokind = 'f'"
    )
    bodies = {row.name: without_comments(row.body) for row in rows}
    pinned = {row.name for row in rows if row.pinned}

    def reads(name: str, seen: set[str]) -> bool:
        """Whether it reads such a table, itself or in functions that do not pin their plans."""
        seen.add(name)
        called = set(re.findall(r"holdfast\.(\w+)\(", bodies[name])) & bodies.keys()
        return bool(re.search(HOT, bodies[name])) or any(
            reads(other, seen) for other in called - pinned - seen
        )

    free = {row.name for row in rows if row.open and not row.pinned and reads(row.name, set())}

    assert free - SCANS == set()
    assert SCANS - free == set(), "these no longer read, or are pinned: take them off the list"


SQL = files("holdfast") / "sql"
FILES = sorted(
    (
        *(file for file in (SQL / "functions").iterdir() if file.name.endswith(".sql")),
        *(file for file in (SQL / "migrations").iterdir() if file.name.endswith(".sql")),
        SQL / "views.sql",
        SQL / "grants.sql",
    ),
    key=lambda file: file.name,
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_statement_chooses_rows_in_a_way_that_can_choose_too_many(file: Traversable) -> None:
    assert unsafe_choices(file.read_text("utf-8")) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_condition_asks_for_the_time_anew_at_every_row(file: Traversable) -> None:
    assert volatile_conditions(file.read_text("utf-8")) == []


def test_the_unsafe_forms_are_recognised() -> None:
    unsafe = """
      delete from t where id in (  -- a comment
        select id from (select f(id) from t) x limit 5 for update skip locked);
      select 1 from t where a = 1 and until < clock_timestamp() order by a;
    """
    safe = """
      -- where id in (select id from t limit 5 for update skip locked)
      delete from t where id = any(array(select id from t limit 5 for update skip locked))
        and kind in (select kind from k);
      select clock_timestamp() from t where a = 1
    """

    assert len(unsafe_choices(unsafe)) == 1
    assert len(volatile_conditions(unsafe)) == 1
    assert unsafe_choices(safe) == volatile_conditions(safe) == []


def unsafe_choices(text: str) -> list[str]:
    """Every `in (select …)` that both limits and locks."""
    code = without_comments(text)
    chosen = [inside(code, match.end()) for match in re.finditer(r"\bin\s*\((?=\s*select)", code)]
    return [query for query in chosen if "limit" in query and "for update" in query]


def volatile_conditions(text: str) -> list[str]:
    """Every condition with clock_timestamp(), which no index can serve."""
    code = without_comments(text)
    conditions = re.findall(
        r"\bwhere\b(.*?)(?:\border by|\bgroup by|\blimit\b|\breturning\b|\bupdate\b|;|$)",
        code,
        re.DOTALL,
    )
    return [condition for condition in conditions if "clock_timestamp" in condition]


def without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text).lower()


def inside(code: str, start: int) -> str:
    """What stands between the parenthesis before `start` and the one that closes it."""
    depth = 1
    for end in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if depth == 0:
            return code[start:end]
    raise ValueError("a parenthesis is not closed")


def test_functions_with_their_owners_rights_pin_where_names_are_found(connect: Connect) -> None:
    functions = (
        connect()
        .execute(
            """
        select p.oid::regprocedure::text, p.proconfig
        from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace and p.prosecdef
        """
        )
        .fetchall()
    )

    assert len(functions) > 20
    assert {
        name: settings
        for name, settings in functions
        if "search_path=pg_catalog, pg_temp" not in (settings or [])
    } == {}


def test_nobody_may_call_anything_by_default(connect: Connect) -> None:
    callable_by_all = (
        connect()
        .execute(
            """
        select p.oid::regprocedure::text
        from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace
          and has_function_privilege('public', p.oid, 'execute')
        """
        )
        .fetchall()
    )

    assert callable_by_all == []
