from psycopg import connect

from holdfast import schema
from tests.cli.conftest import Run


def test_migrate_installs_once_and_then_does_nothing(run: Run, empty_database: str) -> None:
    first = run("migrate", "--url", empty_database)
    second = run("migrate", "--url", empty_database)

    assert first.code == second.code == 0
    assert first.out.splitlines()[0] == "applied 0001_foundation"
    assert second.out == ""
    assert "is up to date" in second.err
    assert schema.status(empty_database).problem is None


def test_migrate_answers_in_json(run: Run, empty_database: str) -> None:
    plan = run("migrate", "--plan", "--json", "--url", empty_database).json
    done = run("migrate", "--json", "--url", empty_database).json
    nothing = run("migrate", "--json", "--url", empty_database).json

    assert plan["version"] is None
    assert plan["pending"] == done["applied"]
    assert nothing["pending"] == []
    assert nothing["version"] == done["version"]


def test_plan_says_what_would_be_applied_and_applies_nothing(run: Run, empty_database: str) -> None:
    answer = run("migrate", "--plan", "--url", empty_database)

    assert answer.code == 0
    assert "0001_foundation" in answer.out.splitlines()
    assert schema.status(empty_database).found is None


def test_the_script_needs_no_database_and_installs_all(run: Run, empty_database: str) -> None:
    script = run("migrate", "--sql", "--url", "postgresql://127.0.0.1:1/nowhere")
    with connect(empty_database, autocommit=True) as connection:
        connection.execute(script.out)

    assert (script.code, script.err) == (0, "")
    assert run("migrate", "--sql", "--json").json["sql"].strip() == script.out.strip()
    assert run("migrate", "--check", "--url", empty_database).code == 0


def test_check_is_for_scripts(run: Run, empty_database: str) -> None:
    before = run("migrate", "--check", "--url", empty_database)
    run("migrate", "--url", empty_database)
    after = run("migrate", "--check", "--url", empty_database)

    assert before.code == 4
    assert "HF110" in before.err
    assert (after.code, after.out) == (0, "")


def test_status_says_what_is_there_and_what_is_missing(run: Run, empty_database: str) -> None:
    before = run("migrate", "status", "--url", empty_database)
    run("migrate", "--url", empty_database)
    after = run("migrate", "status", "--url", empty_database)
    document = run("migrate", "status", "--json", "--url", empty_database).json

    assert before.code == after.code == 0
    assert "pending" in before.out
    assert "HF110" in before.err
    assert "pending" not in after.out
    assert document["found"] == document["needed"]
    assert document["problem"] is None


def test_a_mode_does_not_go_with_status(run: Run) -> None:
    answer = run("migrate", "--sql", "status")

    assert answer.code == 2
    assert "--sql cannot be used with status" in answer.err
