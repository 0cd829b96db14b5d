"""An adopted table gives nobody new rights: what is generated runs as its owner, on it alone.

Each test logs in as the role it speaks of and tries one way in.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import wait
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
    "a plan": "perform set_config('enable_indexscan', 'off', false)",
    "an end at the first error": "perform set_config('exit_on_error', 'on', false)",
    "a queue's place": "perform set_config('holdfast.unplaced', 'x', false)",
    "a cursor": "execute 'declare left_open cursor with hold for select 1'",
    "a cursor for now": "execute 'declare left_open cursor for select 1'",
}
SESSION = """
select (select jsonb_object_agg(name, setting) from pg_settings), pg_my_temp_schema(),
  coalesce(current_setting('holdfast.unplaced', true), '') = 'x',
  (select count(*) from pg_cursors where name = 'left_open')
"""


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
    before = session.execute(SESSION).fetchone()

    leases = session.execute(
        "select (payload -> 'id')::integer from holdfast.claim('orders', 'w', gen_random_uuid(), 5)"
    ).fetchall()

    assert sorted(leases) == [(1,), (3,), (4,), (5,)]
    assert before == session.execute(SESSION).fetchone()
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


def test_every_setting_that_a_session_may_set_is_compared(roles: Roles) -> None:
    session = roles.session(roles.make("nobody"))
    session.execute("do 'begin end'")  # loads settings of PL/pgSQL
    may_set = session.execute("select name from pg_settings where context in ('user', 'superuser')")
    [[compared]] = roles.admin.execute("select holdfast.session_settings()").fetchall()

    assert {name for (name,) in may_set} <= {*compared, "search_path"}


# Of the shop's owner, found before those of PostgreSQL if the path is left so.
NAMES = ("=", "<>", "<", ">", "<=", ">=", "<@", "@>", "~", "!~", "->>", "->", "?")
TYPES = ("text", "text[]", "integer", "bigint", "boolean", "name", "jsonb", "uuid", "smallint")


def names_of(roles: Roles) -> str:
    """Operators and functions of the shop's owner that betray with whose rights they run."""
    made = [
        f"create function shop.same({one}, {other}) returns boolean language plpgsql "
        f"set search_path = pg_catalog as {evil(roles, roles.owner, 'true')};"
        + "".join(
            f"create operator shop.{name} "
            f"(leftarg = {one}, rightarg = {other}, function = shop.same);"
            for name in NAMES
        )
        for one in TYPES
        for other in {one, "text", "integer"}
    ]
    made += [
        f"create function shop.{name} returns {returned} language plpgsql "
        f"set search_path = pg_catalog as {evil(roles, roles.owner, result)};"
        for name, returned, result in (
            ("glue(text, text)", "text", "'x'"),
            ("current_setting(text)", "text", "'x'"),
            ("current_setting(text, boolean)", "text", "'x'"),
            ("format(text, text)", "text", "'x'"),
            ("format(text, text, text)", "text", "'x'"),
            ("left(text, integer)", "text", "'x'"),
            ("md5(text)", "text", "'x'"),
            ("cardinality(uuid[])", "integer", "1"),
            ("set_config(text, text, boolean)", "text", "'x'"),
            ("pg_has_role(name, name, text)", "boolean", "true"),
        )
    ]
    made.append("create operator shop.|| (leftarg = text, rightarg = text, function = shop.glue);")
    return "".join(made)


def test_a_path_that_a_trigger_leaves_finds_no_function_for_others_to_call(roles: Roles) -> None:
    """What looks at the session afterwards has the rights of Holdfast's owner."""
    trap(roles)
    roles.adopt()
    roles.session(roles.owner).execute(
        names_of(roles) + "create function shop.look() returns trigger language plpgsql as "
        "$$ begin perform set_config('search_path', 'shop, pg_catalog', false); return new; end $$;"
        "create trigger look before update on shop.orders for each row execute function shop.look()"
    )
    worker = roles.session(roles.make("worker", "holdfast_worker"))

    worker.execute("select from holdfast.claim('orders', 'w', gen_random_uuid(), 5)")

    assert ran_as(roles) == set()


def test_a_path_that_a_check_leaves_finds_no_function_for_who_adopts_to_call(roles: Roles) -> None:
    trap(roles)
    roles.session(roles.owner).execute(
        names_of(roles) + "create function shop.fine(text) returns boolean language plpgsql as "
        "$$ begin perform set_config('search_path', 'shop, pg_catalog', false); "
        "return true; end $$;"
        "create domain shop.kind as text check (shop.fine(value));"
        "alter table shop.orders add kind shop.kind default 'x'"
    )
    choices = Choices(
        queue="orders", states=CHOICES.states, columns={"kind": "kind"}, where={"kind": "x"}
    )

    with pytest.raises(CannotAdopt, match="cannot hold 'x'"):
        roles.adopt(choices=choices)

    assert ran_as(roles) <= {roles.owner}


def test_a_path_that_a_check_leaves_finds_no_function_for_who_reconciles(roles: Roles) -> None:
    trap(roles)
    roles.session(roles.owner).execute(
        "create function shop.fine(text) returns boolean language plpgsql as "
        "$$ begin return true; end $$;"
        "create domain shop.word as text check (shop.fine(value));"
        "alter table shop.orders alter status type shop.word"
    )
    roles.adopt()
    with Client(roles.address(roles.holdfast)) as client:
        client.claim("orders", worker="w", limit=5)
    roles.session(roles.owner).execute(
        names_of(roles) + "create or replace function shop.fine(text) returns boolean "
        "language plpgsql as $$ begin perform set_config('search_path', 'shop, pg_catalog', "
        "false); return true; end $$"
    )

    with pytest.raises(errors.InsufficientPrivilege, match="left the session changed"):
        roles.admin.execute("select * from holdfast.reconcile_adopted(64::smallint)")

    assert ran_as(roles) == set()


def test_a_cast_leaves_no_temporary_table_to_whoever_reads(roles: Roles) -> None:
    """A reader's functions are stable: what they made themselves they do not see."""
    database = conninfo_to_dict(roles.url)["dbname"]
    roles.admin.execute(f'grant temporary on database "{database}" to public')
    colours(roles)
    paint(
        roles,
        "if to_regclass('pg_temp.queue') is null then"
        "  execute 'create temporary table queue (name text)'; end if",
    )
    session = roles.session(roles.make("reader", "holdfast_reader"))

    assert session.execute("select * from holdfast.list('')").fetchall() == []

    assert session.execute("select to_regclass('pg_temp.queue')").fetchone() == (None,)


def colours(roles: Roles) -> None:
    """An adopted table with a cast of its owner's."""
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


def paint(roles: Roles, does: str) -> None:
    roles.session(roles.owner).execute(
        "create or replace function shop.told(shop.colour) returns text language plpgsql as "  # type: ignore[arg-type]
        f"$paint$ begin {does}; return 'red'; end $paint$"
    )


HOLD = (
    "if not exists (select from pg_cursors where name = 'evil') then"
    "  execute 'declare evil cursor with hold for select shop.evil()'; end if"
)


def hold(roles: Roles) -> None:
    """A query that runs when somebody commits."""
    trap(roles)
    roles.session(roles.owner).execute(
        "create function shop.evil() returns integer language plpgsql as "
        + evil(roles, roles.owner, "1")
    )


def test_a_cursor_that_is_held_does_not_run_as_who_adopts(roles: Roles) -> None:
    hold(roles)
    roles.session(roles.owner).execute(
        "create function shop.fine(text) returns boolean language plpgsql as "
        f"$$ begin {HOLD}; return true; end $$;"
        "create domain shop.kind as text check (shop.fine(value));"
        "alter table shop.orders add kind shop.kind default 'x'"
    )
    choices = Choices(
        queue="orders", states=CHOICES.states, columns={"kind": "kind"}, where={"kind": "x"}
    )

    with pytest.raises(CannotAdopt, match="cannot hold 'x'"):
        adopt.plan(roles.url, "shop.orders", choices)

    assert ran_as(roles) <= {roles.owner}
    assert not is_superuser(roles, roles.owner)


@pytest.mark.parametrize(
    "call",
    [
        "select * from holdfast.list('queue:orders')",
        "select * from holdfast.jobs",
        "select * from holdfast.oldest('orders')",
        "select * from holdfast.claim('orders', 'w', gen_random_uuid(), 5)",
        "select * from holdfast.recount()",
        "select holdfast.upkeep()",
        "select * from holdfast.doctor()",
    ],
)
def test_a_cursor_that_is_held_does_not_run_as_who_calls(roles: Roles, call: str) -> None:
    hold(roles)
    colours(roles)
    paint(roles, HOLD)

    for role in (None, "holdfast_operator"):
        session = roles.session(roles.make("boss", role)) if role else roles.admin
        session.execute(call)  # type: ignore[call-overload]

    assert ran_as(roles) == set()
    assert not is_superuser(roles, roles.owner)


# How a function may end that has replaced a prepared statement: none of them brings it back.
ENDS = {
    "returns": "null",
    "raises": "raise exception 'no'",
    "divides by zero": "perform 1 / 0",
    "asserts": "assert false",
    "sleeps away a timeout": "perform pg_sleep(60)",
}
REPLACE = """
if not exists (select from pg_prepared_statements where statement like '%evil%') then
  execute 'deallocate all';
  execute 'prepare mine as select shop.evil()';
end if
"""


def executes(session: psycopg.Connection) -> object:
    """What a statement gives that the session prepared before; None if there is none now."""
    try:
        return session.execute("execute mine").fetchone()
    except (errors.InvalidSqlStatementName, psycopg.OperationalError):
        return None


@pytest.mark.parametrize("ends", ENDS)
def test_a_trigger_replaces_no_prepared_statement(roles: Roles, ends: str) -> None:
    """To prepare is of no transaction; drivers give names that anybody can guess."""
    hold(roles)
    roles.adopt()
    roles.session(roles.owner).execute(
        "create function shop.look() returns trigger language plpgsql as "
        f"$look$ begin {REPLACE}; {ENDS[ends]}; return new; end $look$;"
        "create trigger look before update on shop.orders for each row execute function shop.look()"
    )
    session = roles.session(roles.make("worker", "holdfast_worker"))
    session.execute("set statement_timeout = '1s'")
    session.execute("prepare mine as select 42")

    try:
        session.execute("select * from holdfast.claim('orders', 'w', gen_random_uuid(), 5)")
    except errors.QueryCanceled:
        assert ends == "sleeps away a timeout"

    assert executes(session) is None
    assert ran_as(roles) == set()


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize(
    "call",
    [
        "select * from holdfast.list('')",
        "select * from holdfast.oldest('orders')",
        "select * from holdfast.recount()",
        "select * from holdfast.doctor()",
    ],
)
def test_a_cast_replaces_no_prepared_statement(roles: Roles, ends: str, call: str) -> None:
    hold(roles)
    colours(roles)
    paint(roles, f"{REPLACE}; {ENDS[ends]}")
    session = roles.session(roles.make("boss", "holdfast_operator"))
    session.execute("set statement_timeout = '1s'")
    session.execute("prepare mine as select 42")

    try:
        session.execute(call)  # type: ignore[call-overload]
    except errors.QueryCanceled:
        assert ends == "sleeps away a timeout"

    assert executes(session) in (None, (42,))
    assert ran_as(roles) == set()


@pytest.mark.parametrize("ends", ["returns", "raises"])
@pytest.mark.parametrize("verb", ["guard", "touch", "hand_over", "reap", "ack", "reconcile"])
def test_a_condition_replaces_no_prepared_statement(roles: Roles, ends: str, verb: str) -> None:
    hold(roles)
    owner = roles.session(roles.owner)
    owner.execute(
        "create function shop.late(integer) returns boolean language plpgsql as "
        "$$ begin return false; end $$"
    )
    roles.adopt(
        choices=Choices(queue="orders", states=CHOICES.states, done_when="shop.late(job.id)")
    )
    session = roles.session(roles.make("boss", "holdfast_operator"))
    if verb == "reconcile":
        session = roles.session(roles.holdfast)
    session.execute("prepare mine as select 42")
    token = uuid4()
    [(id,), *_] = session.execute(
        "select id from holdfast.claim('orders', 'w', %s, 5)", [token]
    ).fetchall()
    if verb == "reap":
        roles.admin.execute("update holdfast.lease set until = until - interval '1 day'")
        owner.execute("update shop.orders set holdfast_lease_until = now() - interval '1 day'")
    owner.execute(
        "create or replace function shop.late(integer) returns boolean language plpgsql as "  # type: ignore[arg-type]
        f"$late$ begin {REPLACE}; {ENDS[ends]}; return false; end $late$;"
        "create function shop.look() returns trigger language plpgsql as "
        f"$look$ begin {REPLACE}; {ENDS[ends]}; return new; end $look$;"
        "create trigger look before update on shop.orders for each row execute function shop.look()"
    )

    calls = {
        "guard": ("select holdfast.guard(%s, %s)", [id, token]),
        "touch": ("select holdfast.touch(array[%s], array[%s::uuid])", [id, token]),
        "hand_over": (
            "select holdfast.hand_over(%s, %s, gen_random_uuid(), '1 minute', 'x')",
            [id, token],
        ),
        "reap": ("select holdfast.reap()", None),
        "ack": ("select holdfast.ack(array[%s], array[%s::uuid])", [id, token]),
        "reconcile": ("select holdfast.reconcile_adopted(64::smallint)", None),
    }
    try:
        session.execute(*calls[verb])  # type: ignore[arg-type]
    except (errors.InsufficientPrivilege, errors.RaiseException):
        assert verb in ("guard", "reconcile")

    assert executes(session) is None
    assert ran_as(roles) == set()


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_check_replaces_no_prepared_statement_of_who_adopts(roles: Roles, ends: str) -> None:
    hold(roles)
    roles.session(roles.owner).execute(
        "create function shop.fine(text) returns boolean language plpgsql as "
        f"$fine$ begin {REPLACE}; {ENDS[ends]}; return true; end $fine$;"
        "create domain shop.kind as text check (shop.fine(value));"
        "create table shop.kinds (kind text default 'x')"
    )
    roles.admin.execute("prepare mine as select 42")

    with pytest.raises((errors.InsufficientPrivilege, errors.RaiseException)):
        roles.admin.execute(
            "select holdfast.run_as_owner('shop.orders'::regclass, 'select ''x''::shop.kind', true)"
        )

    assert executes(roles.admin) is None
    assert ran_as(roles) == set()


def test_a_session_whose_prepared_statements_were_changed_ends(roles: Roles) -> None:
    """Its driver believes that they are there; a new session has what it prepares."""
    roles.adopt()
    roles.session(roles.owner).execute(
        "create function shop.look() returns trigger language plpgsql as "
        "$$ begin execute 'deallocate all'; return new; end $$;"
        "create trigger look before update on shop.orders for each row "
        "execute function shop.look()"
    )
    session = roles.session(roles.make("worker", "holdfast_worker"))
    session.execute("prepare mine as select 42")

    found = session.execute("select from holdfast.claim('orders', 'w', gen_random_uuid(), 5)")

    assert len(found.fetchall()) == 5  # nothing was left to change when they were taken again
    wait([session.pgconn.socket], timeout=60)
    with pytest.raises(psycopg.OperationalError):
        session.execute("select 1")


LOCKS = {
    "one number": "pg_advisory_lock(-7)",
    "two numbers": "pg_advisory_lock(-3, 2147483647)",
    "shared": "pg_advisory_lock_shared(9223372036854775807)",
    "shared two": "pg_advisory_lock_shared(7, -1)",
}


@pytest.mark.parametrize("ends", ["returns", "raises"])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("lock", LOCKS)
def test_a_trigger_leaves_no_lock_to_the_session(
    roles: Roles, lock: str, held: bool, ends: str
) -> None:
    roles.adopt()
    roles.session(roles.owner).execute(
        "create function shop.look() returns trigger language plpgsql as "  # type: ignore[arg-type]
        f"$$ begin perform {LOCKS[lock]}, pg_advisory_xact_lock(99); {ENDS[ends]}; "
        "return new; end $$;"
        "create trigger look before update on shop.orders for each row execute function shop.look()"
    )
    session = roles.session(roles.make("worker", "holdfast_worker"))
    if held:
        session.execute("select pg_advisory_lock(5, 5)")

    found = session.execute("select from holdfast.claim('orders', 'w', gen_random_uuid(), 5)")

    assert len(found.fetchall()) == (5 if ends == "returns" else 0)
    assert session.execute(
        "select classid::integer, objid::integer from pg_locks "
        "where locktype = 'advisory' and pid = pg_backend_pid()"
    ).fetchall() == ([(5, 5)] if held else [])


def test_a_session_whose_own_lock_a_trigger_released_ends(roles: Roles) -> None:
    roles.adopt()
    roles.session(roles.owner).execute(
        "create function shop.look() returns trigger language plpgsql as "
        "$$ begin perform pg_advisory_unlock_all(); return new; end $$;"
        "create trigger look before update on shop.orders for each row execute function shop.look()"
    )
    session = roles.session(roles.make("worker", "holdfast_worker"))
    session.execute("select pg_advisory_lock(5, 5)")

    session.execute("select from holdfast.claim('orders', 'w', gen_random_uuid(), 5)")

    wait([session.pgconn.socket], timeout=60)
    with pytest.raises(psycopg.OperationalError):
        session.execute("select 1")


def test_a_row_that_is_queued_again_wakes_a_worker_where_another_owns_the_table(
    roles: Roles,
) -> None:
    """Holdfast's own trigger notes in the session for whom it rang; the owner did not do that."""
    roles.adopt()
    worker = roles.make("worker", "holdfast_worker")
    with Client(roles.address(worker)) as client, roles.session(worker) as idle:
        first, second, *_ = client.claim("orders", worker="w", limit=5)
        idle.execute("select holdfast.await_work(array['orders'], 'idle')")
        idle.execute("listen holdfast")

        answers = [
            *client.nack([first], message="no", delay=timedelta(0)),
            *client.release([second]),
        ]

        assert [answer.outcome for answer in answers] == ["queued", "queued"]
        assert next(idle.notifies(timeout=60)).channel == "holdfast"


def strange(roles: Roles, how: str, eve: str) -> None:
    """What a role makes of the privilege TRIGGER: in the end the table's owner runs its code."""
    roles.admin.execute(f"create schema evil authorization {eve}")
    roles.session(roles.owner).execute(f"grant trigger on shop.orders to {eve}")
    body = evil(roles, eve, "new")
    same = evil(roles, eve, "true")
    made = {
        "a function": f"create function evil.look() returns trigger language plpgsql as {body};"
        "create trigger look before update on shop.orders for each row "
        "execute function evil.look()",
        "a condition": "create function evil.fine(text) returns boolean "
        f"language plpgsql as {same};"
        "create trigger look before update on shop.orders for each row "
        "when (evil.fine(new.note)) execute function suppress_redundant_updates_trigger()",
        "an operator": "create function evil.same(text, integer) returns boolean "
        f"language plpgsql as {same};"
        "create operator evil.=== (leftarg = text, rightarg = integer, function = evil.same);"
        "create trigger look before update on shop.orders for each row "
        "when (new.note operator(evil.===) 1) "
        "execute function suppress_redundant_updates_trigger()",
        "a domain": f"create function evil.fine(text) returns boolean language plpgsql as {same};"
        "create domain evil.word as text check (evil.fine(value));"
        "create trigger look before update on shop.orders for each row "
        "when (new.status::evil.word is not null) "
        "execute function suppress_redundant_updates_trigger()",
        "a query": f"create function evil.run() returns boolean language plpgsql as {same};"
        "create trigger look before update on shop.orders for each row "
        "when (query_to_xml('select evil.run()', true, true, '') is not null) "
        "execute function suppress_redundant_updates_trigger()",
    }
    session = roles.session(eve)
    session.execute("grant usage on schema evil to public")
    session.execute(made[how])  # type: ignore[call-overload]


STRANGE = ["a function", "a condition", "an operator", "a domain", "a query"]


@pytest.mark.parametrize("owner", ["an ordinary owner", "a superuser"])
@pytest.mark.parametrize("how", STRANGE)
def test_the_privilege_to_make_triggers_does_not_give_the_rights_of_the_owner(
    roles: Roles, how: str, owner: str
) -> None:
    eve = roles.make("eve")
    trap(roles)
    if owner == "a superuser":
        roles.admin.execute("alter table shop.orders owner to current_user")
    roles.adopt()
    if owner == "a superuser":
        roles.admin.execute(f"grant trigger on shop.orders to {roles.owner} with grant option")
    strange(roles, how, eve)
    worker = roles.make("worker", "holdfast_worker")

    with Client(roles.address(worker)) as client, Client(roles.address(roles.holdfast)) as boss:
        assert client.claim("orders", worker="w", limit=5) == []
        boss.upkeep.run()
        [said] = roles.admin.execute(
            "select holdfast.adopted_problem(a) from holdfast.adopted a"
        ).fetchall()
        assert "trigger look on shop.orders" in said[0]
        assert ran_as(roles) == set()
        assert not is_superuser(roles, eve)
        assert roles.admin.execute("select count(*) from holdfast.adopted_fault").fetchone() == (0,)

        roles.admin.execute("drop trigger look on shop.orders")

        assert len(client.claim("orders", worker="w", limit=5)) == 5


@pytest.mark.parametrize("how", STRANGE)
def test_a_table_with_a_trigger_of_another_role_is_not_adopted(roles: Roles, how: str) -> None:
    trap(roles)
    strange(roles, how, roles.make("eve"))

    with pytest.raises(CannotAdopt, match=r"trigger look on shop\.orders .* with the rights of"):
        roles.adopt()

    assert ran_as(roles) == set()


def test_a_trigger_whose_function_belongs_to_who_may_act_as_the_owner_is_called(
    roles: Roles,
) -> None:
    friend = roles.make("friend", roles.owner)
    roles.admin.execute(f"create schema friendly authorization {friend}")
    roles.session(friend).execute(
        "create function friendly.look() returns trigger language plpgsql as "
        "$$ begin return new; end $$; grant usage on schema friendly to public;"
        "create trigger look before update on shop.orders for each row when (new.id > 0) "
        f"execute function friendly.look(); grant trigger on shop.orders to {friend}"
    )
    roles.adopt()

    with Client(roles.address(roles.holdfast)) as client:
        assert len(client.claim("orders", worker="w", limit=5)) == 5


def test_a_trigger_that_comes_while_rows_are_taken_writes_nothing(roles: Roles) -> None:
    """It is made after we looked, and before the table is locked."""
    eve = roles.make("eve")
    trap(roles)
    roles.adopt()
    roles.admin.execute(
        "create function holdfast.refuse_strangers_first(part smallint) returns void "
        "language sql as 'select'"
    )
    before = roles.admin.execute(
        "select pg_get_functiondef('holdfast.marks_before'::regproc)"
    ).fetchone()
    assert before
    roles.admin.execute(  # type: ignore[call-overload]
        before[0].replace("holdfast.refuse_strangers(", "holdfast.refuse_strangers_first(")
    )
    strange(roles, "a function", eve)

    with Client(roles.address(roles.make("worker", "holdfast_worker"))) as client:
        assert client.claim("orders", worker="w", limit=5) == []

    assert ran_as(roles) == set()
    assert not is_superuser(roles, eve)


def test_rows_of_others_that_refer_to_a_superusers_leave_nothing_in_a_session(
    roles: Roles,
) -> None:
    """Success deletes a row; what refers to it goes with it, and another's trigger is called."""
    eve = roles.make("eve")
    trap(roles)
    roles.admin.execute("alter table shop.orders owner to current_user")
    roles.adopt(choices=Choices(queue="orders", states=CHOICES.states, on_success="delete"))
    roles.admin.execute(
        f"grant references on shop.orders to {eve}; create schema evil authorization {eve}"
    )
    roles.session(eve).execute(
        "create table evil.lines (order_id integer references shop.orders on delete cascade);"
        "insert into evil.lines values (1);"
        f"create function evil.run() returns integer language plpgsql as {evil(roles, eve, '1')};"
        "create function evil.look() returns trigger language plpgsql as $$ begin "
        "execute 'declare evil cursor with hold for select evil.run()'; return old; end $$;"
        "create trigger look before delete on evil.lines for each row execute function evil.look()"
    )
    with Client(roles.url) as client:
        client.ack(client.claim("orders", worker="w", limit=5))

    assert ran_as(roles) == set()
    assert not is_superuser(roles, eve)
