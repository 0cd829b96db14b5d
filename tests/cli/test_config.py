from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_each_setting_says_where_it_came_from(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://app:hunter2@db/shop?connect_timeout=9")
    monkeypatch.setenv("HOLDFAST_HOME", "/var/lib/jobs")

    answer = run("config", "show")
    found = {one["name"]: one for one in run("config", "show", "--json").json}

    assert answer.code == 0
    assert found["database"]["value"] == "db:5432 (user app, database shop)"
    assert found["database"]["source"] == "HOLDFAST_URL"
    assert found["database.connect_timeout"]["source"] == "HOLDFAST_URL"
    assert found["database.keepalives"]["source"] == "default"
    assert found["HOLDFAST_HOME"] == {
        "name": "HOLDFAST_HOME",
        "value": "/var/lib/jobs",
        "source": "environment",
    }


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hunter2@db/shop",
        "postgresql://app@db/shop?password=hunter2",
        "host=db user=app password=hunter2",
        "postgresql://app:hunter%32@db/shop",
    ],
)
def test_a_password_is_never_shown(run: Run, url: str) -> None:
    shown = run("config", "show", "--url", url)
    document = run("config", "show", "--json", "--url", url)

    for answer in (shown, document):
        assert answer.code == 0
        assert "hunter" not in answer.out + answer.err
        assert "••••••" in answer.out


def test_the_flag_comes_before_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://one/x")

    first = run("config", "show", "--url", "postgresql://two/x", "--json").json[0]

    assert first["value"].startswith("two:")
    assert first["source"] == "--url"


def test_without_an_address_it_names_the_embedded_database_and_starts_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    answer = run("config", "show", "--json")

    assert answer.json[0] == {
        "name": "database",
        "value": "embedded PostgreSQL in .holdfast/pg",
        "source": "default",
    }
    assert list(tmp_path.iterdir()) == []


def test_an_address_with_a_password_comes_from_a_file(
    run: Run, database: str, tmp_path: Path
) -> None:
    kept = tmp_path / "url"
    kept.write_text(f"{database}\n")

    assert run("queue", "list", "--url", f"@{kept}").code == 0
    assert "No such file" in run("queue", "list", "--url", "@/nowhere").err
