"""The four roles and the owners of tables, logged in with psql, become no more than they are."""

import subprocess
from pathlib import Path

import pytest

from tests.adoption.test_rights import (
    HOLD,
    REPLACE,
    Roles,
    colours,
    evil,
    is_superuser,
    names_of,
    trap,
)
from tests.adoption.test_rights import roles as roles  # the fixture

ROLES = ("reader", "producer", "worker", "operator")
CALLS = """
select count(*) from holdfast.list('');
select count(*) from holdfast.jobs;
select count(*) from holdfast.claim('orders', 'w', gen_random_uuid(), 1);
select count(*) from holdfast.claim('orders', 'w', gen_random_uuid(), 9);
select holdfast.reap();
select holdfast.upkeep();
select count(*) from holdfast.recount();
execute mine;
fetch all from evil;
"""
# Each is tried alone: what is refused ends nothing.
TRIES = """
set role {other};
set session authorization {other};
alter role {me} superuser;
grant {other} to {me};
alter table shop.orders owner to {me};
alter schema holdfast owner to {me};
alter function holdfast.owner_of_holdfast() security definer;
create or replace function holdfast.now() returns timestamptz language sql as 'select null';
create function holdfast.mine() returns integer language sql as 'select 1';
create function holdfast_adopted.mine() returns integer language sql as 'select 1';
create function holdfast_told.mine() returns integer language sql as 'select 1';
create trigger mine before insert on holdfast.job for each row execute function shop.look();
select holdfast.run_as_owner('shop.orders'::regclass, 'select current_user', true);
select holdfast.run_as_owner('holdfast.job'::regclass, 'select current_user', true);
select holdfast.readopt_one(64::smallint);
select holdfast.marks_of_session('');
lock table holdfast.releases;
select from holdfast.turn for update;
update holdfast.adopted set relation = 'holdfast.job';
"""


def typed(psql: Path | str, url: str, script: str) -> str:
    """What psql shows for a script; errors do not end it."""
    done = subprocess.run(
        [psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=0", url],
        input=script,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


@pytest.fixture
def psql(binaries: Path) -> Path:
    if not (binaries / "psql").exists():
        pytest.skip("this PostgreSQL came without psql")
    return binaries / "psql"


WAYS = {
    "its own rights": "null",
    "a cursor": HOLD,
    "a prepared statement": REPLACE,
    "a prepared statement, and an error": f"{REPLACE}; perform 1 / 0",
    "a path": "perform set_config('search_path', 'shop, pg_catalog', false)",
}


def traps(roles: Roles, way: str) -> str:
    """What a table's owner can have called, with a way to become more."""
    bad = evil(roles, roles.owner, "1")
    return f"""
        create function shop.evil() returns integer language plpgsql
          set search_path = pg_catalog as {bad};
        create function shop.each() returns void language plpgsql as $each$ begin
          perform shop.evil();
          {WAYS[way]};
        end $each$;
        create or replace function shop.told(shop.colour) returns text language plpgsql as
          $told$ begin perform shop.each(); return 'red'; end $told$;
        create function shop.look() returns trigger language plpgsql as
          $look$ begin perform shop.each(); return new; end $look$;
        create trigger look before update on shop.orders for each row execute function shop.look();
    """


@pytest.mark.parametrize("way", WAYS)
def test_whoever_calls_runs_nothing_of_the_owners_as_themselves(
    roles: Roles, psql: Path, way: str
) -> None:
    trap(roles)
    colours(roles)
    shown = typed(psql, roles.address(roles.owner), names_of(roles) + traps(roles, way))
    assert "ERROR" not in shown
    me = roles.admin.info.user
    names = [roles.make(name, f"holdfast_{name}") for name in ROLES]

    for name in (*names, roles.holdfast, me):
        typed(psql, roles.address(name), "prepare mine as select 42;" + CALLS)

    assert roles.admin.execute("select is_called from shop.escaped").fetchone() == (False,)
    assert not any(is_superuser(roles, name) for name in (*names, roles.owner))
    left = roles.admin.execute(
        "select count(*) from pg_auth_members m join pg_roles r on r.oid = m.member "
        "where r.rolname = any(%s) and m.roleid::regrole::text not like 'holdfast\\_%%'",
        [[*names, roles.owner]],
    ).fetchone()
    assert left == (0,)


@pytest.mark.parametrize("who", [*ROLES, "owner", "maker of triggers"])
def test_nobody_becomes_more_than_they_are(roles: Roles, psql: Path, who: str) -> None:
    roles.adopt()
    if who == "owner":
        name = roles.owner
    elif who == "maker of triggers":
        name = roles.make("eve")
        roles.session(roles.owner).execute(f"grant all on shop.orders to {name}")
    else:
        name = roles.make(who, f"holdfast_{who}")
    before = roles.admin.execute(STANDING, [name]).fetchall()

    for other in (roles.holdfast, roles.admin.info.user, "holdfast_operator"):
        if (who, other) != ("operator", "holdfast_operator"):
            tries = TRIES.format(other=other, me=name).strip().splitlines()
            for line in tries:
                shown = typed(psql, roles.address(name), line)
                if who == "owner" and "shop.orders" in line and line.startswith("alter"):
                    continue
                assert "ERROR" in shown, line

    assert roles.admin.execute(STANDING, [name]).fetchall() == before


STANDING = """
select r.rolsuper, r.rolcreaterole, r.rolbypassrls, array(
  select m.roleid::regrole::text from pg_auth_members m where m.member = r.oid order by 1)
from pg_roles r where r.rolname = %s
"""
