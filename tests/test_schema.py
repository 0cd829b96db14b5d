"""Install, migrate and verify: once, at once, under load, and never backwards."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import schema
from holdfast.errors import (
    CannotConnect,
    MigrationBlocked,
    NotMigrated,
    Refused,
    SchemaDrift,
    SchemaError,
    SchemaTooNew,
)

SNAPSHOT = Path(__file__).parent / "schema.snapshot.txt"


def make_stale(connection: psycopg.Connection) -> None:
    """Let the functions look as if another release had installed them."""
    connection.execute("update holdfast.migration set checksum = 'stale' where version = 0")


@contextmanager
def reading_jobs(connect: Any) -> Iterator[int]:
    """Keep the view of jobs from being replaced."""
    reader = connect(autocommit=False, application_name="a long report")
    reader.execute("select from holdfast.jobs")
    yield reader.info.backend_pid
    reader.rollback()


def test_migrate_installs_everything_once(empty_database: str) -> None:
    planned = schema.plan(empty_database)

    first, second = schema.migrate(empty_database), schema.migrate(empty_database)

    assert first == planned
    assert first[0] == "0001_foundation"
    assert first[-1] == "functions, views and grants"
    assert second == []
    schema.check(empty_database)


def test_ten_processes_migrate_at_once(empty_database: str) -> None:
    program = (
        "import sys; from holdfast import schema;"
        "sys.stdin.readline(); print(len(schema.migrate(sys.argv[1])))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, empty_database],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]

    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0].strip() for process in processes]

    assert [process.returncode for process in processes] == [0] * 10
    assert sorted(answers) == ["0"] * 9 + [str(len(schema.status(empty_database).applied))]
    schema.check(empty_database)


def test_status_tells_what_is_there_and_what_is_pending(empty_database: str) -> None:
    before = schema.status(empty_database)
    schema.migrate(empty_database)
    after = schema.status(empty_database)

    assert (before.found, before.applied) == (None, ())
    assert isinstance(before.problem, NotMigrated)
    assert (after.found, after.pending, after.problem) == (after.needed, (), None)


def test_an_empty_database_is_not_migrated(empty_database: str) -> None:
    with pytest.raises(NotMigrated, match=r"HF110 .*found: none.*\n.*holdfast migrate"):
        schema.check(empty_database)


def test_an_unreachable_database_is_told_with_its_address() -> None:
    with pytest.raises(CannotConnect, match=r"127\.0\.0\.1:1 \(user app, database shop\)"):
        schema.check("postgresql://app@127.0.0.1:1/shop", source="--url")


def test_the_script_installs_what_migrate_installs(empty_database: str, connect: Any) -> None:
    connect(empty_database).execute(schema.sql())

    assert schema.describe(empty_database) == SNAPSHOT.read_text(encoding="utf-8")
    assert schema.migrate(empty_database) == []


def test_the_script_can_be_piped_to_psql(empty_database: str, binaries: Path) -> None:
    psql = subprocess.run(
        [binaries / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", empty_database],
        input=schema.sql(),
        capture_output=True,
        text=True,
    )

    assert (psql.returncode, psql.stderr) == (0, "")
    schema.check(empty_database)


def test_the_snapshot_in_git_is_the_schema(empty_database: str) -> None:
    schema.migrate(empty_database)

    assert schema.describe(empty_database) == SNAPSHOT.read_text(encoding="utf-8"), (
        "run:  python tools/snapshot_schema.py"
    )


def test_a_newer_schema_is_never_taken_back(database: str, connect: Any) -> None:
    connect().execute(
        "insert into holdfast.migration (version, name, checksum, release) "
        "values (99, '0099_later', 'x', '9.0.0')"
    )

    with pytest.raises(SchemaTooNew, match="HF111 schema is version 99"):
        schema.check(database)
    make_stale(connect())
    with pytest.raises(SchemaTooNew):
        schema.migrate(database)


def test_newer_functions_are_never_taken_back(database: str, connect: Any) -> None:
    make_stale(connect())
    connect().execute("update holdfast.migration set release = '99.0.0' where version = 0")

    with pytest.raises(SchemaTooNew, match=r"99\.0\.0"):
        schema.migrate(database)


def test_a_migration_with_another_text_is_drift(database: str, connect: Any) -> None:
    connect().execute("update holdfast.migration set checksum = 'other' where version = 1")

    with pytest.raises(SchemaDrift, match="0001_foundation"):
        schema.check(database)


def test_functions_of_another_release_are_replaced_by_migrate(database: str, connect: Any) -> None:
    make_stale(connect())
    connect().execute("create or replace function holdfast.version() returns integer return -1")

    with pytest.raises(SchemaDrift, match="holdfast migrate"):
        schema.check(database)
    applied = schema.migrate(database)

    assert applied == ["functions, views and grants"]
    assert connect().execute("select holdfast.version()").fetchone() != (-1,)
    schema.check(database)


def test_functions_and_views_that_are_gone_from_the_files_are_dropped(
    database: str, connect: Any
) -> None:
    make_stale(connect())
    before = schema.describe(database)
    connect().execute(
        """
        create function holdfast.touch(ids uuid[]) returns void language sql as '';
        create function holdfast.retired() returns setof holdfast.jobs language sql
          as 'select * from holdfast.jobs';
        create view holdfast.old_view as select 1 as one;
        create function public.mine() returns integer language sql as 'select 1';
        """
    )

    schema.migrate(database)

    assert schema.describe(database) == before
    assert connect().execute("select public.mine()").fetchone() == (1,)


def test_changed_columns_of_functions_and_views_are_replaced(database: str, connect: Any) -> None:
    wanted = schema.describe(database)
    make_stale(connect())
    connect().execute(
        """
        drop function holdfast.held(uuid[]);
        create function holdfast.held(tokens uuid[]) returns table (id uuid, other text)
          language sql as 'select null::uuid, null::text';
        drop view holdfast.depth;
        create view holdfast.depth as select 1 as something_else;
        """
    )

    schema.migrate(database)

    assert schema.describe(database) == wanted


def test_a_view_somebody_built_on_ours_is_named_not_dropped(database: str, connect: Any) -> None:
    make_stale(connect())
    connect().execute(
        """
        drop view holdfast.depth;
        create view holdfast.depth as select 1 as something_else;
        create view public.report as select * from holdfast.depth;
        """
    )

    with pytest.raises(SchemaError, match="report"):
        schema.migrate(database)

    assert connect().execute("select * from public.report").fetchone() == (1,)


def test_rights_are_kept_when_functions_are_replaced(database: str, connect: Any) -> None:
    rights = (
        "select proname, proacl::text from pg_proc where pronamespace = 'holdfast'::regnamespace"
    )
    before = sorted(connect().execute(rights).fetchall())
    make_stale(connect())
    connect().execute(
        """
        drop function holdfast.version();
        create function holdfast.version() returns text language sql as 'select 1::text';
        """
    )

    schema.migrate(database)

    assert sorted(connect().execute(rights).fetchall()) == before


def test_a_migrate_that_is_not_needed_waits_for_nobody(database: str, connect: Any) -> None:
    owner = connect(autocommit=False)
    owner.execute("lock table holdfast.job, holdfast.queue")

    # The lock is held all the time: who waited for it would be told that it is blocked.
    assert schema.migrate(database) == []


def test_a_blocked_migration_names_who_blocks_it_and_changes_nothing(
    database: str, connect: Any
) -> None:
    make_stale(connect())

    with (
        reading_jobs(connect) as pid,
        pytest.raises(MigrationBlocked, match=rf"HF113 .*\n.*{pid} \(a long report") as blocked,
    ):
        schema.migrate(database, patience=timedelta(0))

    assert "holdfast migrate" in blocked.value.fix
    assert schema.plan(database) == ["functions, views and grants"]


def test_a_migration_waits_for_those_who_are_before_it(database: str, connect: Any) -> None:
    observer = connect()
    make_stale(observer)
    applied: list[str] = []
    migration = threading.Thread(target=lambda: applied.extend(schema.migrate(database)))

    with reading_jobs(connect):
        migration.start()
        blocked = "select exists (select from pg_locks where not granted)"
        while observer.execute(blocked).fetchone() == (False,):
            assert migration.is_alive()
    migration.join()

    assert applied == ["functions, views and grants"]


def test_a_migration_that_fails_leaves_nothing_behind(empty_database: str, connect: Any) -> None:
    connection = connect(empty_database)
    connection.execute(
        """
        create function public.refuse() returns event_trigger language plpgsql
          as 'begin raise exception ''no views today''; end';
        create event trigger refuse on ddl_command_start when tag in ('CREATE VIEW')
          execute function public.refuse();
        """
    )

    with pytest.raises(psycopg.errors.RaiseException, match="no views today") as failed:
        schema.migrate(empty_database)

    assert failed.value.__notes__[0].startswith("in views.sql, line ")
    assert connection.execute("select to_regnamespace('holdfast')").fetchone() == (None,)


def test_a_stricter_default_isolation_does_not_matter(empty_database: str, connect: Any) -> None:
    connection = connect(empty_database)
    connection.execute(
        f"alter database {connection.info.dbname} set default_transaction_isolation = serializable"
    )
    migrations = [
        threading.Thread(target=lambda: done.append(schema.migrate(empty_database)))
        for _ in range(4)
    ]
    done: list[list[str]] = []

    for migration in migrations:
        migration.start()
    for migration in migrations:
        migration.join()

    assert sorted(map(len, done)) == [0, 0, 0, len(schema.status(empty_database).applied)]


def test_an_owner_without_other_rights_can_install(empty_database: str, connect: Any) -> None:
    role = f"owner_{uuid4().hex}"
    admin = connect(empty_database)
    admin.execute(f"create role {role} login")
    admin.execute(f"alter database {admin.info.dbname} owner to {role}")
    try:
        assert schema.migrate(make_conninfo(empty_database, user=role))
        schema.check(make_conninfo(empty_database, user=role))
    finally:
        admin.execute(f"reassign owned by {role} to current_user; drop role {role}")


def test_a_user_who_may_not_install_is_told_what_to_do(empty_database: str, connect: Any) -> None:
    role = f"nobody_{uuid4().hex}"
    connect(empty_database).execute(f"create role {role} login")
    try:
        with pytest.raises(Refused, match="holdfast migrate --sql"):
            schema.migrate(make_conninfo(empty_database, user=role))
    finally:
        connect(empty_database).execute(f"drop role {role}")


def test_callers_notice_nothing_while_functions_are_replaced(database: str, connect: Any) -> None:
    failures: list[BaseException] = []
    calls = [0] * 3
    stop = threading.Event()
    owner = connect()

    def live(nth: int) -> None:
        try:
            connection = connect()
            while not stop.is_set():
                connection.execute(
                    "select id, created from holdfast.enqueue(items => %s::jsonb)",
                    ['[{"kind": "greet"}]'],
                )
                token = uuid4()
                leases = connection.execute(
                    "select id from holdfast.claim("
                    "queue => 'default', worker => 'ada', token => %s, max_jobs => 2)",
                    [token],
                ).fetchall()
                connection.execute(
                    "select id, outcome from holdfast.ack(ids => %s, tokens => %s)",
                    [[id for (id,) in leases], [token]],
                )
                connection.execute("select queue, queued from holdfast.queues").fetchall()
                calls[nth] += 1
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=live, args=[nth]) for nth in range(3)]
    for caller in callers:
        caller.start()
    try:
        for turn in range(6):
            before = list(calls)
            make_stale(owner)
            if turn % 2:
                # A result column more or less: everything is dropped and made again.
                owner.execute(
                    """
                    drop function holdfast.version();
                    create function holdfast.version() returns text language sql as 'select 1::text'
                    """
                )
            schema.migrate(database)
            while not failures and any(
                now < then + 5 for now, then in zip(calls, before, strict=True)
            ):
                time.sleep(0.005)
    finally:
        stop.set()
        for caller in callers:
            caller.join()

    assert failures == []
    schema.check(database)
