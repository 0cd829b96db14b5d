"""An adopted table gives nobody new rights: what is generated runs as its owner, on it alone.

Each test logs in as the role it speaks of and tries one way in.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import Client, adopt, schema
from holdfast.adopt import Choices
from holdfast.errors import CannotAdopt

Connect = Callable[..., psycopg.Connection]

TABLE = """
create table shop.orders (
  id integer primary key, status text not null default 'new', note text, attempts integer);
create table shop.shipped (order_id integer);
insert into shop.orders (id) select generate_series(1, 5);
"""
CHOICES = Choices(
    queue="orders",
    states={"queued": ["new"], "leased": ["taken"], "done": ["done"], "dead": ["dead"]},
    output="shop.shipped.order_id",
)


class Roles:
    """A database whose Holdfast belongs to one role, whose table to another; both are no more."""

    def __init__(self, url: str, connect: Connect) -> None:
        self.url, self._connect = url, connect
        self.names: list[str] = []
        self.admin = connect(url)
        self.holdfast = self.make("keeper")
        self.owner = self.make("shopkeeper")
        database = conninfo_to_dict(url)["dbname"]
        for statement in (
            "grant create, temporary on database {database} to {keeper}",
            "create schema shop authorization {owner}",
            # who else may make things there
            "grant usage on schema shop to public",
        ):
            self.admin.execute(
                sql.SQL(statement).format(  # type: ignore[arg-type]
                    database=sql.Identifier(str(database)),
                    keeper=sql.Identifier(self.holdfast),
                    owner=sql.Identifier(self.owner),
                )
            )
        schema.migrate(self.address(self.holdfast))
        self.session(self.owner).execute(TABLE)

    def make(self, name: str, *memberships: str) -> str:
        name = f"{name}_{uuid4().hex[:8]}"
        self.admin.execute(f"create role {name} login")
        for role in memberships:
            self.admin.execute(f"grant {role} to {name}")
        self.names.append(name)
        return name

    def address(self, role: str) -> str:
        return make_conninfo(self.url, user=role)

    def session(self, role: str) -> psycopg.Connection:
        return self._connect(self.address(role))

    def adopt(self, role: str | None = None, choices: Choices = CHOICES) -> None:
        url = self.address(role) if role else self.url
        adopt.adopt(url, adopt.plan(url, "shop.orders", choices))

    def forget(self) -> None:
        for name in reversed(self.names):
            self.admin.execute(f"drop owned by {name} cascade")
        for name in self.names:
            self.admin.execute(f"drop role {name}")


@pytest.fixture
def roles(template: str, empty_database: str, connect: Connect) -> Iterator[Roles]:
    """The four roles of Holdfast are there: the template was migrated by a superuser."""
    made = Roles(empty_database, connect)
    try:
        yield made
    finally:
        made.forget()


# A body that would betray whose rights it has, and do what only they may.
EVIL = """
begin
  insert into shop.ran values (current_user);
  if current_user <> '{owner}' then
    perform nextval('shop.escaped');
  end if;
  begin
    execute 'grant {keeper} to {eve}';
  exception when others then null;
  end;
  begin
    execute 'delete from holdfast.queue';
  exception when others then null;
  end;
  begin
    execute 'reset role; alter role {eve} superuser; select nextval(''shop.escaped'')';
  exception when others then null;
  end;
  return {result};
end
"""


def evil(roles: Roles, eve: str, result: str) -> str:
    return (
        "$evil$"
        + EVIL.format(keeper=roles.holdfast, owner=roles.owner, eve=eve, result=result)
        + "$evil$"
    )


def trap(roles: Roles) -> None:
    roles.session(roles.owner).execute(
        "create table shop.ran (who text); grant insert on shop.ran to public;"
        "create sequence shop.escaped; grant usage on shop.escaped to public"
    )


def ran_as(roles: Roles) -> set[str]:
    """Who ran it, of those who committed; that nobody but the owner did, a sequence tells."""
    assert roles.admin.execute("select is_called from shop.escaped").fetchone() == (False,)
    return {who for (who,) in roles.admin.execute("select distinct who from shop.ran")}


def work(roles: Roles) -> None:
    """Every verb that writes or reads a row, by roles that have no more than their verbs."""
    worker = roles.make("worker", "holdfast_worker")
    operator = roles.make("operator", "holdfast_operator")
    with Client(roles.address(worker)) as client, Client(roles.address(operator)) as boss:
        first, second, third, *_ = client.claim("orders", worker="w", limit=5)
        client.touch([first])
        client.ack([first])
        client.nack([second], message="no", delay=timedelta(0))
        client.release([third])
        with roles.session(worker) as held:
            [lease] = client.claim("orders", worker="w")
            client.on(held).guard(lease)
        client.nack([lease], message="no", final=True)
        boss.jobs.cancel([boss.jobs.list("queue:orders state:queued")[0].id])
        boss.jobs.retry([lease.id])
        boss.jobs.list("queue:orders")
        boss.upkeep.run()
        boss.jobs.search("queue:orders")
        roles.session(operator).execute("select * from holdfast.jobs").fetchall()
        roles.session(operator).execute("select * from holdfast.recount()").fetchall()
    roles.admin.execute("update holdfast.lease set until = until - interval '1 day'")
    roles.session(roles.owner).execute(
        "update shop.orders set holdfast_lease_until = now() - interval '1 day'"
    )
    roles.session(worker).execute("select * from holdfast.reap()").fetchall()


def is_superuser(roles: Roles, role: str) -> bool:
    return roles.admin.execute(
        "select rolsuper or pg_has_role(rolname, %s, 'member') from pg_roles where rolname = %s",
        [roles.holdfast, role],
    ).fetchone() == (True,)


def test_who_may_only_create_in_the_schema_of_the_table_is_called_by_nobody(roles: Roles) -> None:
    """The way in of before: a function and an operator beside the table, found before ours."""
    eve = roles.make("eve")
    trap(roles)
    roles.session(roles.owner).execute(f"grant create on schema shop to {eve}")
    session = roles.session(eve)
    for signature, returned, result in (
        ("power(integer, integer)", "double precision", "1"),
        ("md5(text)", "text", "repeat('a', 32)"),
        ("length(text)", "integer", "1"),
        ("random()", "double precision", "0.5"),
        ("now()", "timestamptz", "clock_timestamp()"),
        ("same(text, text)", "boolean", "true"),
        ("same_number(integer, integer)", "boolean", "true"),
    ):
        session.execute(
            f"create function shop.{signature} returns {returned} language plpgsql as "
            f"{evil(roles, eve, result)}"
        )
    session.execute(
        "create operator shop.= (leftarg = text, rightarg = text, function = shop.same);"
        "create operator shop.= "
        "(leftarg = integer, rightarg = integer, function = shop.same_number)"
    )
    choices = Choices(
        queue="orders",
        states=CHOICES.states,
        done_when="exists (select from shipped s where s.order_id = job.id)",
    )
    roles.adopt(choices=choices)

    work(roles)

    assert ran_as(roles) == set()
    assert not is_superuser(roles, eve)


def test_what_a_condition_names_is_what_it_named_when_the_table_was_adopted(roles: Roles) -> None:
    eve = roles.make("eve")
    trap(roles)
    roles.session(roles.owner).execute(f"grant create on schema shop to {eve}")
    roles.adopt(
        choices=Choices(queue="orders", states=CHOICES.states, done_when="length(job.note) > 99")
    )
    roles.session(eve).execute(
        "create function shop.length(text) returns integer language plpgsql as "
        + evil(roles, eve, "1")
    )

    work(roles)

    assert ran_as(roles) == set()


def test_a_trigger_on_the_table_runs_as_its_owner(roles: Roles) -> None:
    trap(roles)
    roles.session(roles.owner).execute(
        "create function shop.look() returns trigger language plpgsql as "
        + evil(roles, roles.owner, "new")
        + ";create trigger look before update on shop.orders for each row "
        "execute function shop.look()"
    )
    roles.adopt()

    work(roles)

    assert ran_as(roles) == {roles.owner}
    assert not is_superuser(roles, roles.owner)
    assert roles.admin.execute("select count(*) from holdfast.queue").fetchone() == (1,)


def test_a_check_of_the_table_is_looked_at_as_its_owner(roles: Roles) -> None:
    """Adopting looks at all rows for a constraint that takes more values than before."""
    trap(roles)
    roles.session(roles.owner).execute(
        "create function shop.fine(text) returns boolean language plpgsql as "
        + evil(roles, roles.owner, "true")
        + ";alter table shop.orders add check "
        "(shop.fine(status) and status in ('new', 'taken', 'done'))"
    )
    roles.adopt()

    work(roles)

    assert ran_as(roles) == {roles.owner}
    assert not is_superuser(roles, roles.owner)


def test_a_cast_of_the_tables_owner_runs_as_the_owner(roles: Roles) -> None:
    """`to_jsonb` and `::text` call casts that whoever owns a type has made."""
    trap(roles)
    roles.session(roles.owner).execute(
        "create type shop.colour as enum ('red');"
        "create type shop.pair as (a integer);"
        "alter table shop.orders add colour shop.colour default 'red', "
        "  add pair shop.pair default row(1);"
        "create function shop.told(shop.colour) returns text language plpgsql as "
        + evil(roles, roles.owner, "'red'")
        + ";create cast (shop.colour as text) with function shop.told(shop.colour);"
        "create function shop.json_of(shop.pair) returns json language plpgsql as "
        + evil(roles, roles.owner, "'{}'::json")
        + ";create cast (shop.pair as json) with function shop.json_of(shop.pair)"
    )
    choices = Choices(queue="orders", states=CHOICES.states, columns={"tenant": "colour"})
    roles.adopt(choices=choices)

    work(roles)

    assert ran_as(roles) == {roles.owner}
    assert not is_superuser(roles, roles.owner)


def test_a_cast_does_not_run_as_whoever_adopts(roles: Roles) -> None:
    trap(roles)
    roles.session(roles.owner).execute(
        "create type shop.state as enum ('new', 'taken', 'done', 'dead');"
        "create domain shop.kind as text;"
        "create function shop.fine(text) returns boolean language plpgsql as "
        + evil(roles, roles.owner, "true")
        + ";alter domain shop.kind add check (shop.fine(value));"
        "alter table shop.orders add kind shop.kind default 'x';"
        "alter table shop.orders alter status drop default, "
        "  alter status type shop.state using status::shop.state;"
        "create function shop.told(shop.state) returns text language plpgsql as "
        + evil(roles, roles.owner, "format('%s', $1)")
        + ";create cast (shop.state as text) with function shop.told(shop.state)"
    )
    choices = Choices(
        queue="orders", states=CHOICES.states, columns={"kind": "kind"}, where={"kind": "x"}
    )
    adopt.plan(roles.url, "shop.orders", choices)
    roles.adopt(choices=choices)

    work(roles)

    assert ran_as(roles) <= {roles.owner}


def test_a_cast_of_a_linked_tables_owner_is_not_called(roles: Roles) -> None:
    trap(roles)
    roles.session(roles.owner).execute(
        "create type shop.pair as (a integer);"
        "alter table shop.orders add pair shop.pair default row(1);"
        "create function shop.json_of(shop.pair) returns json language plpgsql as "
        + evil(roles, roles.owner, "'{}'::json")
        + ";create cast (shop.pair as json) with function shop.json_of(shop.pair)"
    )
    adopt.link(roles.url, "shop.orders")
    with Client(roles.address(roles.holdfast)) as client:
        waiting = client.enqueue("price", subject="orders:1")
        roles.session(roles.owner).execute("delete from shop.orders where id = 1")

        assert client.jobs.get(waiting.id) is None
    assert ran_as(roles) == set()


def test_the_owner_of_the_table_reads_and_writes_nothing_of_holdfast(roles: Roles) -> None:
    roles.adopt()
    owner = roles.session(roles.owner)
    part = roles.admin.execute("select part from holdfast.adopted").fetchone()

    for statement in (
        "select * from holdfast.lease",
        "select * from holdfast.jobs",
        "select holdfast.adopted_wrote(64::smallint, '{x}', '{dead}', '{1}', 0, null, null, null)",
        "select holdfast.adopted_mended(64::smallint, null)",
        "select * from holdfast.recount()",
        "create table holdfast_adopted.mine (a integer)",
        "create function holdfast_adopted.mine() returns integer language sql as 'select 1'",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            owner.execute(statement)
    assert part == (64,)


def test_the_owner_of_one_table_cannot_count_for_another(roles: Roles) -> None:
    roles.adopt()
    other = roles.make("baker")
    roles.admin.execute(
        f"create schema bakery authorization {other};"
        f"set role {other};"
        "create table bakery.loaves (id integer primary key, status text);"
        "insert into bakery.loaves values (1, 'queued'); reset role"
    )
    adopt.adopt(roles.url, adopt.plan(roles.url, "bakery.loaves", Choices()))
    baker = roles.session(other)

    with pytest.raises(errors.InsufficientPrivilege):
        baker.execute(
            """select holdfast_told."64_wrote"('{x}', '{dead}', '{9}', 0, null, null, null)"""
        )
    for name in ("64_mended", "64_done"):
        with pytest.raises(errors.InsufficientPrivilege):
            baker.execute(f'select holdfast_adopted."{name}"(null::uuid[])')
    # its own counters are its own: what it says is cut to what can be
    baker.execute(
        """select holdfast_told."65_wrote"(array[repeat('x', 999), null, E'a\\nb', 'loaves'],
             '{dead,queued,nonsense,queued}', '{9223372036854775807,9223372036854775807,1,null}',
             9223372036854775807, array[repeat('y', 999)], '{9223372036854775807}', null)"""
    )
    with Client(roles.address(roles.holdfast)) as client:
        found = {queue.queue: (queue.queued, queue.dead) for queue in client.queues.list()}
        assert found["orders"] == (5, 0)
        client.upkeep.run()
        roles.admin.execute("select * from holdfast.recount()")
        found = {queue.queue: (queue.queued, queue.dead) for queue in client.queues.list()}
    assert found == {"orders": (5, 0), "loaves": (1, 0)}


def test_answers_of_what_was_generated_are_not_believed(roles: Roles) -> None:
    """The owner of a table may replace its functions: they cannot speak for jobs of others."""
    roles.adopt()
    with Client(roles.address(roles.holdfast)) as client:
        mine = client.enqueue("work")
        [lease] = client.claim(worker="w")
        roles.admin.execute(
            f"""
            grant usage, create on schema holdfast_adopted to {roles.owner};
            set role {roles.owner};
            create or replace function holdfast_adopted."64_claim"(
              hf_worker text, hf_token uuid, hf_max integer, hf_lease interval, hf_kinds text[],
              hf_lane_limit integer, hf_skip uuid[], hf_only uuid, hf_at timestamptz,
              hf_leaving text[])
            returns setof holdfast_adopted.job_row language sql security definer as $$
              select '{mine.id}'::uuid, hf_token, 'work', 'leased', 0::smallint, 1::smallint,
                3::smallint, hf_at, hf_at, hf_at, 'w', null, null, null, jsonb '1', null, null,
                null::timestamptz $$;
            create or replace function holdfast_adopted."64_settle"(
              hf_ids uuid[], hf_tokens uuid[], hf_verb text, hf_finals boolean[],
              hf_errors text[], hf_delays interval[], hf_reason text, hf_max_attempts smallint,
              hf_backoff interval, hf_cap interval, hf_at timestamptz)
            returns table (id uuid, token uuid, kind text, worker text, attempt smallint,
              outcome text) language sql security definer as $$
              select '{mine.id}'::uuid, '{lease.token}'::uuid, 'work', 'w', 1::smallint, 'done'
              union all select i, t, 'work', 'w', 1::smallint, 'mine'
              from unnest(hf_ids, hf_tokens) u(i, t) $$;
            create or replace function holdfast_adopted."64_rows"(
              hf_ids uuid[], hf_before uuid, hf_max integer, hf_bare boolean)
            returns setof holdfast_adopted.job_row language sql security definer as $$
              select '{mine.id}'::uuid, null::uuid, 'work', 'nonsense', 0::smallint, 1::smallint,
                3::smallint, now(), now(), now(), 'w', null, null, null, jsonb '1', null, null,
                null::timestamptz $$;
            reset role;
            """
        )
        assert client.claim("orders", worker="w") == []
        [row] = roles.admin.execute("select holdfast.stamp(gen_random_uuid(), 64::smallint)")
        answers = client.ack([(row[0], uuid4())])
        assert [answer.outcome for answer in answers] == ["unknown"]
        assert [job.id for job in client.jobs.list("")] == [mine.id]
        assert client.jobs.get(mine.id).state == "leased"  # type: ignore[union-attr]


def test_a_superuser_adopts_where_another_role_owns_holdfast(roles: Roles) -> None:
    roles.adopt()

    work(roles)

    owners = roles.admin.execute(
        "select distinct pg_get_userbyid(proowner), proname in ('64_wrote', '64_mended') "
        "from pg_proc where pronamespace::regnamespace::text in "
        "('holdfast_adopted', 'holdfast_told') order by 2"
    ).fetchall()
    assert owners == [(roles.owner, False), (roles.holdfast, True)]
    assert roles.admin.execute(
        "select pg_get_userbyid(relowner) from pg_class where oid = 'shop.orders'::regclass"
    ).fetchone() == (roles.owner,)


def test_whoever_may_act_for_both_owners_adopts_and_gives_back(roles: Roles) -> None:
    porter = roles.make("porter", roles.holdfast, roles.owner)

    roles.adopt(porter)
    work(roles)
    roles.session(roles.owner).execute(
        "update shop.orders set status = 'done', holdfast_token = null"
    )
    adopt.unadopt(roles.address(porter), "shop.orders")

    assert roles.admin.execute("select count(*) from holdfast.adopted").fetchone() == (0,)
    roles.session(roles.owner).execute("update shop.orders set status = 'new'")


@pytest.mark.parametrize("who", ["holdfast", "owner", "nobody"])
def test_who_may_not_act_for_both_is_told_what_to_grant(roles: Roles, who: str) -> None:
    me = {"holdfast": roles.holdfast, "owner": roles.owner, "nobody": roles.make("nobody")}[who]
    with pytest.raises(CannotAdopt, match="may not act for") as refusal:
        roles.adopt(me)

    missing = {
        "holdfast": [roles.owner],
        "owner": [roles.holdfast],
        "nobody": [roles.owner, roles.holdfast],
    }
    for role in missing[who]:
        assert f'grant "{role}" to "{me}";' in refusal.value.fix


def test_migrating_as_who_may_not_act_for_the_owner_keeps_what_there_is(roles: Roles) -> None:
    roles.adopt()
    roles.session(roles.holdfast).execute("select holdfast.readopt()")

    with Client(roles.address(roles.holdfast)) as client:
        assert len(client.claim("orders", worker="w", limit=9)) == 5


def test_a_writer_of_the_table_needs_no_right_on_holdfast(roles: Roles) -> None:
    roles.adopt()
    writer = roles.make("writer")
    roles.session(roles.owner).execute(
        f"grant select, insert, update, delete, truncate on shop.orders to {writer}"
    )
    session = roles.session(writer)

    session.execute("insert into shop.orders (id) values (6)")
    session.execute("update shop.orders set status = 'taken' where id = 1")
    session.execute("delete from shop.orders where id = 2")
    with Client(roles.address(roles.holdfast)) as client:
        [found] = client.queues.list()
        assert (found.queued, found.leased) == (4, 1)
        session.execute("truncate shop.orders")
        [found] = client.queues.list()
        assert (found.queued, found.leased) == (0, 0)


def test_the_owner_of_a_table_cannot_have_what_is_generated_run_as_another(roles: Roles) -> None:
    """Whoever owns a function may make it SECURITY INVOKER: it would run as who calls it."""
    trap(roles)
    roles.adopt()
    owner = roles.session(roles.owner)
    owner.execute(
        "grant all on shop.orders to public;"
        "create function shop.look() returns trigger language plpgsql as "
        + evil(roles, roles.owner, "new")
        + ";create trigger look before update on shop.orders for each row "
        "execute function shop.look()"
    )
    generated = roles.admin.execute(
        "select oid::regprocedure::text from pg_proc "
        "where pronamespace = 'holdfast_adopted'::regnamespace and proowner = %s::regrole",
        [roles.owner],
    ).fetchall()
    assert len(generated) == 17
    for (name,) in generated:
        for change in ("security invoker", "set search_path = shop, pg_catalog", "reset all"):
            with pytest.raises(errors.InsufficientPrivilege):
                owner.execute(f"alter function {name} {change}")  # type: ignore[arg-type]

    work(roles)

    assert ran_as(roles) == {roles.owner}


def test_what_the_owner_has_on_a_table_makes_nothing_of_its_own_while_it_is_adopted(
    roles: Roles,
) -> None:
    """The owner reaches the schema while its functions are made; nothing of its own runs then."""
    owner = roles.session(roles.owner)
    owner.execute("""
        create sequence shop.reached;
        create function shop.fine(text) returns boolean language plpgsql as $$
          declare
            v_name text;
          begin
            begin
              create function holdfast_adopted."65_claim"() returns text language sql
                as 'select current_user::text';
              perform nextval('shop.reached');
            exception when insufficient_privilege then null;
            end;
            begin
              for v_name in select oid::regprocedure from pg_proc
                where proowner = (select oid from pg_roles where rolname = current_user)
                  and pronamespace = 'holdfast_adopted'::regnamespace
              loop
                execute format('alter function %s security invoker', v_name);
                perform nextval('shop.reached');
              end loop;
            exception when insufficient_privilege then null;
            end;
            return true;
          end $$;
        create domain shop.word as text check (shop.fine(value));
        alter table shop.orders add kind shop.word default 'x',
          add check (shop.fine(status) and status in ('new', 'taken', 'done'));
        alter sequence shop.reached restart;
    """)

    roles.adopt(choices=Choices(queue="orders", states=CHOICES.states, columns={"kind": "kind"}))
    adopt.refresh(roles.url, "shop.orders")

    assert owner.execute("select is_called from shop.reached").fetchone() == (False,)


LEFT = {
    "a search path": "perform set_config('search_path', 'shop', false)",
    "a read-only session": "perform set_config('default_transaction_read_only', 'on', false)",
    "a read-only transaction": "execute 'set transaction read only'",
    "a timeout": "perform set_config('statement_timeout', '1', false)",
    "a temporary table": "execute 'create temporary table queue (name text)'",
    "a temporary table for now": "execute 'create temporary table q (n text) on commit drop'",
    "a zone": "perform set_config('timezone', 'Asia/Tokyo', false)",
}


@pytest.mark.parametrize("left", LEFT)
def test_a_trigger_leaves_nothing_behind_in_the_session_of_whoever_calls(
    roles: Roles, left: str
) -> None:
    """A name that is found elsewhere from then on would be called by the worker itself."""
    database = conninfo_to_dict(roles.url)["dbname"]
    roles.admin.execute(f'grant temporary on database "{database}" to public')
    roles.adopt()
    roles.session(roles.owner).execute(
        f"create function shop.look() returns trigger language plpgsql as "
        f"$$ begin {LEFT[left]}; return new; end $$;"
        "create trigger look before update on shop.orders for each row when (old.id = 2) "
        "execute function shop.look()"
    )
    session = roles.session(roles.make("worker", "holdfast_worker"))
    session.execute("do 'begin end'")  # loads settings of PL/pgSQL
    before = session.execute(
        "select (select jsonb_object_agg(name, setting) from pg_settings), pg_my_temp_schema()"
    ).fetchone()

    leases = session.execute(
        "select (payload -> 'id')::integer from holdfast.claim('orders', 'w', gen_random_uuid(), 5)"
    ).fetchall()

    assert sorted(leases) == [(1,), (3,), (4,), (5,)]
    assert (
        before
        == session.execute(
            "select (select jsonb_object_agg(name, setting) from pg_settings), pg_my_temp_schema()"
        ).fetchone()
    )
    with Client(roles.address(roles.holdfast)) as client:
        [job] = client.jobs.list("queue:orders state:dead")
        said = client.jobs.explain(job.id)
        assert "left the session changed" in said or "read-only transaction" in said


def test_a_cast_leaves_nothing_behind_in_the_session_of_whoever_reads(roles: Roles) -> None:
    roles.session(roles.owner).execute(
        "create type shop.colour as enum ('red');"
        "alter table shop.orders add colour shop.colour default 'red';"
        "create function shop.told(shop.colour) returns text language plpgsql as "
        "$$ begin return 'red'; end $$;"
        "create cast (shop.colour as text) with function shop.told(shop.colour)"
    )
    roles.adopt(
        choices=Choices(queue="orders", states=CHOICES.states, columns={"tenant": "colour"})
    )
    roles.session(roles.owner).execute(
        "create or replace function shop.told(shop.colour) returns text language plpgsql as "
        "$$ begin perform set_config('search_path', 'shop', false); return 'red'; end $$"
    )
    session = roles.session(roles.make("reader", "holdfast_reader"))
    before = session.execute("show search_path").fetchone()

    assert session.execute("select * from holdfast.list('')").fetchall() == []

    assert session.execute("show search_path").fetchone() == before


def test_a_cast_leaves_nothing_behind_in_the_session_of_whoever_adopts(roles: Roles) -> None:
    trap(roles)
    roles.session(roles.owner).execute(
        "create domain shop.kind as text;"
        "create function shop.fine(text) returns boolean language plpgsql as "
        "$$ begin perform set_config('search_path', 'shop, pg_catalog', false); "
        "return true; end $$;"
        "alter domain shop.kind add check (shop.fine(value));"
        "alter table shop.orders add kind shop.kind default 'x';"
        "create function shop.same(text, text) returns boolean language plpgsql as "
        + evil(roles, roles.owner, "true")
        + ";create operator shop.= (leftarg = text, rightarg = text, function = shop.same)"
    )
    choices = Choices(
        queue="orders", states=CHOICES.states, columns={"kind": "kind"}, where={"kind": "x"}
    )

    with pytest.raises(CannotAdopt, match="cannot hold 'x'"):
        roles.adopt(choices=choices)

    assert ran_as(roles) <= {roles.owner}


def test_a_table_that_was_given_to_another_does_not_run_as_who_had_it(roles: Roles) -> None:
    """What was generated belongs to a superuser; the new owner has put a trigger on the table."""
    eve = roles.make("eve")
    trap(roles)
    [me] = roles.admin.execute("select current_user").fetchone() or ()
    roles.admin.execute(f"alter table shop.orders owner to {me}")
    roles.adopt()
    roles.admin.execute(
        f"alter table shop.orders owner to {eve}; grant usage, create on schema shop to {eve}"
    )
    roles.session(eve).execute(
        "create function shop.look() returns trigger language plpgsql as "
        + evil(roles, eve, "new")
        + ";create trigger look before update on shop.orders for each row "
        "execute function shop.look()"
    )
    worker = roles.make("worker", "holdfast_worker")

    with Client(roles.address(worker)) as client:
        assert client.claim("orders", worker="w", limit=5) == []

    assert ran_as(roles) == set()
    assert not is_superuser(roles, eve)


def test_a_trigger_that_is_put_off_does_not_run_as_who_commits(roles: Roles) -> None:
    trap(roles)
    roles.adopt()
    roles.session(roles.owner).execute(
        "create function shop.look() returns trigger language plpgsql as "
        + evil(roles, roles.owner, "null")
        + ";create constraint trigger look after update on shop.orders "
        "deferrable initially deferred for each row execute function shop.look()"
    )
    worker = roles.make("worker", "holdfast_worker")

    with Client(roles.address(worker)) as client:
        client.claim("orders", worker="w", limit=5)

    assert ran_as(roles) <= {roles.owner}
