"""A claim that gives nothing while rows are due leaves a reason behind, and neighbours go on."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast import Client, adopt
from holdfast.adopt import Choices
from holdfast.errors import CannotAdopt
from tests.conftest import Clock

Connect = Callable[..., psycopg.Connection]

CHOICES = Choices(
    queue="orders",
    states={"queued": ["new"], "leased": ["taken"], "done": ["done"], "dead": ["dead"]},
)


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as opened:
        yield opened


@pytest.fixture
def table(database: str, connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute("""
        create table orders (id integer primary key, status text not null default 'new', note text,
          attempts integer);
        insert into orders (id) select generate_series(1, 5);
    """)
    adopt.adopt(database, adopt.plan(database, "orders", CHOICES))
    return connection


def claimed(client: Client, limit: int = 1) -> list[int]:
    """The rows that a claim gives."""
    return [lease.payload["id"] for lease in client.claim("orders", worker="w", limit=limit)]


def problem(table: psycopg.Connection) -> str | None:
    """What is said of the table as a whole."""
    [(said,)] = table.execute("select holdfast.adopted_problem(a) from holdfast.adopted a")
    return said  # type: ignore[no-any-return]


def counted(table: psycopg.Connection) -> None:
    """The counters agree with the rows."""
    assert table.execute("select * from holdfast.recount()").fetchall() == []


@pytest.mark.parametrize("limit", [1, 3])
def test_a_row_that_cannot_be_read_is_one_dead_job_and_its_neighbours_go_on(
    table: psycopg.Connection, client: Client, limit: int
) -> None:
    table.execute("alter table orders add extra json")
    table.execute("""insert into orders (id, extra) values (0, '{"name": "a\\u0000b"}')""")

    assert len(client.jobs.list("queue:orders")) == 6
    [unread] = client.jobs.list("queue:orders subject:0")
    assert (unread.state, unread.payload) == ("queued", {})
    assert "Unicode escape" in (unread.error or "")

    assert len(claimed(client, limit)) == limit
    [dead] = client.jobs.list("queue:orders state:dead")
    assert dead.subject == "0"
    assert "(claim, SQLSTATE 22P05)" in client.jobs.explain(dead.id)
    assert table.execute("select count(*) from holdfast.jobs").fetchone() == (6,)
    counted(table)

    table.execute("""update orders set extra = '{}' where id = 0""")
    assert len(claimed(client, 9)) == 6 - limit


def test_a_claim_that_fails_for_no_row_alone_is_told_of_the_table_until_one_works(
    table: psycopg.Connection, client: Client
) -> None:
    """The lock of a row calls nothing of the application's; the order that it is found by does."""
    table.execute('alter function holdfast_adopted."64_claim" rename to gone')
    table.execute("""
        create function holdfast_adopted."64_claim"(text, uuid, integer, interval, text[], integer,
          uuid[], uuid, timestamptz, text[])
        returns setof holdfast_adopted.job_row language plpgsql security definer as
          $$ begin raise exception 'none today' using errcode = '22012'; end $$;
    """)

    assert claimed(client) == []
    assert "No row of table public.orders can be claimed (none today (SQLSTATE 22012))" in (
        problem(table) or ""
    )
    table.execute('drop function holdfast_adopted."64_claim"')
    table.execute('alter function holdfast_adopted.gone rename to "64_claim"')

    assert claimed(client) == [1]
    assert problem(table) is None


SUPPRESSED = {
    "no row": "return null",
    "the old row": "return old",
    "the lease left out": "new.holdfast_token := null; return new",
}


def suppress(table: psycopg.Connection, does: str, when: str) -> None:
    """Have a trigger keep row 1 as it is."""
    table.execute(f"""
        create function keep() returns trigger language plpgsql as $$ begin {does}; end $$;
        create trigger keep before update on orders for each row
          when (old.id = 1 and {when}) execute function keep();
    """)


@pytest.mark.parametrize("does", SUPPRESSED)
def test_a_row_whose_claim_a_trigger_suppresses_is_one_dead_job_and_its_neighbours_go_on(
    table: psycopg.Connection, client: Client, does: str
) -> None:
    suppress(table, SUPPRESSED[does], "new.status = 'taken'")

    assert claimed(client, 3) == [2, 3, 4]
    assert claimed(client) == [5]
    [job] = client.jobs.list("queue:orders state:dead")
    assert job.subject == "1"
    assert "a trigger suppressed the update (claim, SQLSTATE 27000)" in client.jobs.explain(job.id)
    counted(table)

    table.execute("drop trigger keep on orders")
    client.jobs.retry([job.id])
    assert claimed(client) == [1]


@pytest.mark.parametrize("does", ["no row", "the old row"])
@pytest.mark.parametrize("verb", ["ack", "nack", "release", "expire", "cancel"])
def test_a_row_whose_end_a_trigger_suppresses_is_one_dead_job_that_says_so(
    table: psycopg.Connection, client: Client, clock: Clock, verb: str, does: str
) -> None:
    leases = client.claim("orders", worker="w", limit=9)
    numbers = {lease.id: lease.payload["id"] for lease in leases}
    suppress(table, SUPPRESSED[does], "new.status <> 'taken'")

    if verb == "expire":
        clock.advance(seconds=31)
        answers = {numbers[one.id]: one.outcome for one in client.upkeep.reap()}
        assert answers == dict.fromkeys((2, 3, 4, 5), "queued")
    elif verb == "cancel":
        changed = {numbers[one.id]: one.changed for one in client.jobs.cancel(list(numbers))}
        assert changed == {1: False, 2: True, 3: True, 4: True, 5: True}
    else:
        ends = {"ack": client.ack, "release": client.release}
        answered = client.nack(leases, message="no") if verb == "nack" else ends[verb](leases)
        answers = {numbers[one.id]: one.outcome for one in answered}
        assert answers.pop(1) == "lost"
        assert set(answers.values()) == {"done" if verb == "ack" else "queued"}

    [job] = client.jobs.list("queue:orders subject:1")
    assert job.state == "dead"
    assert f"suppressed the update ({verb}, SQLSTATE 27000)" in client.jobs.explain(job.id)
    counted(table)


def test_a_lease_that_a_trigger_keeps_from_being_renewed_or_handed_over_says_so(
    table: psycopg.Connection, client: Client
) -> None:
    leases = client.claim("orders", worker="w", limit=9)
    numbers = {lease.id: lease.payload["id"] for lease in leases}
    suppress(table, "return null", "true")

    touched = {numbers[one.id]: one for one in client.touch(leases)}
    [first] = [lease for lease in leases if numbers[lease.id] == 1]
    handed = table.execute(
        "select outcome, detail from holdfast.hand_over(%s, %s, gen_random_uuid(), '1 hour')",
        [first.id, first.token],
    ).fetchone()

    assert {n for n, one in touched.items() if one.outcome == "leased"} == {2, 3, 4, 5}
    assert "suppressed the update" in (touched[1].detail or "")
    assert handed is not None
    assert (handed[0], "suppressed the update" in handed[1]) == ("lost", True)


def test_a_lease_that_could_not_be_taken_back_is_looked_at_again(
    table: psycopg.Connection, client: Client, clock: Clock
) -> None:
    """The table as a whole is broken at the moment: no row is to blame."""
    assert claimed(client) == [1]
    table.execute('alter function holdfast_adopted."64_settle" rename to gone')
    clock.advance(seconds=31)
    assert client.upkeep.reap() == []

    table.execute('alter function holdfast_adopted.gone rename to "64_settle"')
    clock.advance(seconds=11)

    assert [one.outcome for one in client.upkeep.reap()] == ["queued"]


def test_rows_of_a_child_that_came_later_are_neither_taken_nor_ended(
    database: str, table: psycopg.Connection, client: Client, clock: Clock
) -> None:
    """The places of rows, by which they are locked and written, repeat in each child."""
    table.execute("create table kid() inherits (orders)")
    table.execute("insert into kid (id) select generate_series(1, 50)")

    [one] = client.claim("orders", worker="w")
    assert [answer.outcome for answer in client.ack([one])] == ["done"]
    [two] = client.claim("orders", worker="w")
    assert [answer.outcome for answer in client.touch([two])] == ["leased"]
    clock.advance(seconds=31)
    assert [answer.outcome for answer in client.upkeep.reap()] == ["queued"]

    assert table.execute("select distinct status, holdfast_token from kid").fetchall() == [
        ("new", None)
    ]
    counted(table)
    assert problem(table) == (
        "Table public.orders has child tables such as public.kid, whose rows are not jobs. "
        "Type: alter table public.kid no inherit public.orders"
    )
    table.execute("alter table kid no inherit orders")
    assert problem(table) is None


@pytest.mark.parametrize(
    ("parent", "attach", "detach"),
    [
        (
            " partition by range (id)",
            "all_orders attach partition orders default",
            "all_orders detach partition public.orders",
        ),
        ("", "orders inherit all_orders", "orders no inherit public.all_orders"),
    ],
)
def test_a_table_that_became_a_child_says_so_and_is_given_back_when_it_is_none(
    database: str, table: psycopg.Connection, parent: str, attach: str, detach: str
) -> None:
    table.execute(f"create table all_orders (like orders){parent}")
    table.execute(f"alter table {attach}")

    assert (problem(table) or "").endswith(f"Type: alter table public.{detach}")
    with pytest.raises(CannotAdopt, match=r"is a child of public\.all_orders"):
        adopt.unadopt(database, "orders")
    table.execute(f"alter table {detach}")

    assert problem(table) is None
    adopt.unadopt(database, "orders")
    assert table.execute(
        "select string_agg(attname, ' ' order by attnum) from pg_attribute "
        "where attrelid = 'orders'::regclass and attnum > 0 and not attisdropped"
    ).fetchone() == ("id status note attempts",)


# What may be done to a table that worked, and what is said of it from then on.
CHANGES = {
    "the word of what waits": (
        "alter type phase rename value 'new' to 'fresh'",
        "Type public.phase of column status of table public.orders no longer has value new.",
    ),
    "the word of what runs": (
        "alter type phase rename value 'taken' to 'running'",
        "Type public.phase of column status of table public.orders no longer has value taken.",
    ),
    "row level security": (
        (
            "alter table orders owner to plain_owner;"
            "alter table orders enable row level security, force row level security"
        ),
        "Row level security is forced on table public.orders",
    ),
    "the key": (
        "alter table orders drop constraint orders_pkey",
        "Table public.orders no longer has a unique key of id",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_for_which_a_table_would_have_been_refused_is_told(
    database: str, connect: Connect, change: str
) -> None:
    statement, said = CHANGES[change]
    connection = connect()
    connection.execute("""
        create type phase as enum ('new', 'taken', 'done', 'dead');
        create table orders (id integer primary key, status phase not null default 'new');
        do $$ begin create role plain_owner;
        exception when duplicate_object or unique_violation then end $$;
        insert into orders (id) values (1);
    """)
    adopt.adopt(database, adopt.plan(database, "orders", CHOICES))
    assert problem(connection) is None

    connection.execute(statement)
    try:
        if "owner" in statement:
            adopt.refresh(database, "orders")
        assert (problem(connection) or "").startswith(said)
        if change != "the key":
            with Client(database) as client:
                assert claimed(client) == []
    finally:
        if "owner" in statement:
            connection.execute("drop owned by plain_owner cascade")


def test_columns_that_came_to_be_called_as_parameters_are_not_taken_for_them(
    database: str, table: psycopg.Connection, client: Client, clock: Clock
) -> None:
    for name, type in (
        ("hf_ids", "uuid[]"), ("hf_max", "integer"), ("hf_at", "timestamptz"), ("hf_token", "uuid"),
        ("hf_tokens", "uuid[]"), ("hf_only", "uuid"), ("hf_cut", "timestamptz"),
        ("hf_verb", "text"),
        ("hf_until", "timestamptz"), ("hf_lease", "interval"), ("hf_since", "timestamptz"),
        ("v_rows", "text"), ("v_place", "text"), ("hf_before", "uuid"), ("hf_bare", "boolean"),
    ):  # fmt: skip
        table.execute(f"alter table orders add {name} {type}")  # type: ignore[arg-type]

    leases = client.claim("orders", worker="w", limit=3)
    assert [lease.payload["id"] for lease in leases] == [1, 2, 3]
    assert {one.outcome for one in client.touch(leases)} == {"leased"}
    assert [one.outcome for one in client.nack(leases[:1], message="no")] == ["queued"]
    assert [one.outcome for one in client.ack(leases[1:2])] == ["done"]
    [handed] = table.execute(
        "select outcome from holdfast.hand_over(%s, %s, gen_random_uuid(), '20 seconds')",
        [leases[2].id, leases[2].token],
    ).fetchall()
    assert handed == ("leased",)
    clock.advance(seconds=31)
    assert [one.id for one in client.upkeep.reap()] == [leases[2].id]
    assert len(adopt.reconcile(database, "orders")) == 0
    assert len(client.jobs.list("queue:orders")) == 5
    assert table.execute("select count(*) from holdfast.adopted_fault").fetchone() == (0,)
    counted(table)


def test_more_than_a_thousand_rows_that_refuse_keep_no_other_from_being_claimed(
    table: psycopg.Connection, client: Client
) -> None:
    table.execute("delete from orders; alter table orders add check (id > 1250 or status = 'new')")
    table.execute("insert into orders (id) select generate_series(1, 1260)")

    assert claimed(client, 250) == []
    assert claimed(client, 250) == list(range(1251, 1261))
    assert problem(table) is None
    counted(table)
