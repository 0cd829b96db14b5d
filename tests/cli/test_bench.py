from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from holdfast.client import Client
from holdfast.watch.speed import Seen, advise
from tests.cli.conftest import Run

FIGURES = ["round trip", "commit", "single enqueue", "bulk enqueue", "drain", "pick-up"]
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "max_connections": "100",
    "max_wal_size": "1GB",
    "shared_buffers": "128MB",
    "checkpoint_timeout": "5min",
}
FINE = Seen(
    commit=0.0008,
    trip=0.0002,
    notify=0.001,
    pooled=False,
    connections=12,
    forced_checkpoints=0,
    timed_checkpoints=40,
    settings=SETTINGS,
)


def test_it_measures_in_the_time_given_and_leaves_no_row_behind(
    holdfast: Run, client: Client, database: str
) -> None:
    client.enqueue("greet", queue="mail")
    before = _rows(database)

    answer = holdfast("bench", "--seconds", "0.5")

    lines = answer.out.splitlines()
    assert answer.code == 0
    assert [line[:15].strip() for line in lines[: len(FIGURES)]] == FIGURES
    assert max(map(len, lines[: len(FIGURES)])) <= 80
    assert "nothing is left behind" in answer.err
    assert _rows(database) == before
    assert [queue.queue for queue in client.queues.list()] == ["mail"]


def test_as_json_it_has_figures_settings_and_advice(holdfast: Run) -> None:
    found = holdfast("bench", "--seconds", "0.5", "--json").json

    assert [figure["name"] for figure in found["figures"]] == FIGURES
    assert all(figure["value"] > 0 and figure["unit"] for figure in found["figures"])
    assert found["settings"].keys() == SETTINGS.keys()
    # The tests' own server does without.
    assert "fsync is off" in [advice["what"] for advice in found["advice"]]


def test_it_needs_no_more_than_the_rights_of_a_worker(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = "bench_" + psycopg.conninfo.conninfo_to_dict(database)["dbname"][-20:]
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        owner.execute(sql.SQL("grant holdfast_worker to {}").format(sql.Identifier(role)))
        try:
            monkeypatch.setenv("HOLDFAST_URL", psycopg.conninfo.make_conninfo(database, user=role))
            answer = run("bench", "--seconds", "0.5", "--json")
        finally:
            owner.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))

    assert (answer.code, answer.err) == (0, "measuring for 0.5 s; nothing is left behind\n")
    assert len(answer.json["figures"]) == len(FIGURES)


def test_a_database_without_the_schema_is_told_to_migrate(run: Run, empty_database: str) -> None:
    answer = run("bench", "--url", empty_database)

    assert answer.code == 4
    assert "holdfast migrate" in answer.err


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"commit": 0.02}, ["a commit waits 20 ms for the disk", "synchronous_commit = off"]),
        (
            {"commit": 0.02, "settings": SETTINGS | {"synchronous_standby_names": "b"}},
            ["for the disk and for a standby", "enqueue more jobs in one transaction"],
        ),
        ({"settings": SETTINGS | {"synchronous_commit": "off"}}, ["a crash loses the last ones"]),
        ({"settings": SETTINGS | {"fsync": "off"}}, ["fsync is off", "destroy the database"]),
        ({"trip": 0.03}, ["a round trip takes 30 ms", "enqueue_many"]),
        ({"pooled": True}, ["through a pooler", "HOLDFAST_LISTEN_URL"]),
        ({"notify": None}, ["no notification arrived", "holdfast doctor"]),
        ({"notify": 0.05}, ["a notification takes 50 ms"]),
        ({"connections": 90}, ["90 of 100 connections are in use", "max_connections"]),
        ({"forced_checkpoints": 50}, ["50 checkpoints came early", "max_wal_size"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_advice_is_given_on_what_is_slow_or_unsafe(
    seen: dict[str, object], words: list[str]
) -> None:
    [advice] = advise(replace(FINE, **seen))

    told = f"{advice.what} {advice.why} {advice.fix}"
    assert all(word in told for word in words)


def test_where_nothing_stands_out_nothing_is_advised() -> None:
    assert advise(FINE) == []


def _rows(database: str) -> dict[str, int]:
    with psycopg.connect(database) as connection:
        names = connection.execute(
            "select relname from pg_class where relnamespace = 'holdfast'::regnamespace "
            "and relkind in ('r', 'p') order by 1"
        ).fetchall()
        count = sql.SQL("select count(*) from holdfast.{}")
        return {
            name: connection.execute(count.format(sql.Identifier(name))).fetchall()[0][0]
            for (name,) in names
        }
