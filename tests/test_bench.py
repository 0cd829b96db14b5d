"""Every part of the bench runs, at a size that says nothing about speed."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import measures, peers, report, side_by_side
from bench.__main__ import PARTS
from bench.harness import Options, Server
from bench.peers import NAMES, NotInstalledError, Peer
from bench.peers.contract import Ledger
from bench.peers.environment import Environment
from bench.report import Figure

TINY = Options(
    seconds=0,
    rounds=1,
    jobs=4_000,
    waiting=(100, 1_000),
    samples=20,
    lanes=40,
    drain=500,
    pickups=5,
    idle=0,
    rows=2_000,
    requests=2,
    dead=100,
    names=50,
    settled=20,
    singles=20,
    scheduled=100,
    tests=3,
    peers=(),
    before=Path(__file__).parents[1],
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server({"fsync": "off", "shared_buffers": "128MB"}) as server:
        yield server


@pytest.mark.parametrize("part", PARTS)
def test_a_part_measures_something_and_leaves_nothing_behind(part: str, server: Server) -> None:
    figures = PARTS[part].run(server, TINY)

    assert {figure.part for figure in figures} == {part}
    assert all(len(figure.samples) == 1 for figure in figures)
    assert all(figure.value > 0 for figure in figures if figure.unit == "jobs/s")
    assert any(figure.met is not None for figure in figures)
    assert server.databases() == ["postgres"]


def test_a_ratio_is_taken_round_by_round() -> None:
    floor = Figure("cycle", "floor", "jobs/s", [100.0, 10.0, 50.0])
    cycle = Figure("cycle", "cycle", "jobs/s", [80.0, 8.0, 10.0], floor, at_least=0.7)

    assert cycle.ratios == [0.8, 0.8, 0.2]
    assert cycle.met


def test_a_missed_limit_is_told() -> None:
    wal = Figure("cycle", "cycle", "WAL B/job", [900.0], at_most=850)

    assert wal.met is False
    assert "missed" in report.table([wal])


def test_results_are_kept_with_the_command_that_made_them(tmp_path: Path) -> None:
    figure = Figure("cycle", "floor", "jobs/s", [1.0, 2.0])

    page = report.save([figure], {"cores": 2}, "python -m bench cycle", tmp_path, "today")

    assert "`python -m bench cycle`" in page.read_text()
    kept = json.loads((tmp_path / "today.json").read_text())
    assert kept["command"] == "python -m bench cycle"
    assert kept["figures"][0]["samples"] == [1.0, 2.0]


@pytest.mark.parametrize("name", NAMES)
def test_every_queue_says_how_it_is_installed_and_set_up(name: str) -> None:
    queue = peers.queue(name)

    assert queue.name == name
    assert queue.about
    assert queue.version
    assert all(re.fullmatch(r"[\w\[\],-]+==[\d.]+", wanted) for wanted in queue.requirements)
    assert all(re.fullmatch(r"[\w-]+@[\d.]+", wanted) for wanted in queue.packages)


# The bench makes the environments, not the tests: those in Python are tried where they are.
# The smallest of the others: each has an environment of its own, which `bench peers` installs.
@pytest.mark.parametrize("name", ["holdfast", "floor", "pgmq"])
def test_an_adapter_runs_a_few_jobs(name: str, server: Server) -> None:
    try:
        peer = peers.here(name) if name in ("holdfast", "floor") else peers.available(name)
    except NotInstalledError as missing:
        pytest.skip(f"{name} is not installed: {missing}")
    jobs = 40
    with server.database(f"adapter_{name}") as database:
        peer.run("setup", measures.url_of(database))
        filled = measures.bulk(peer, database, jobs)
        found = measures.drain(peer, database, jobs, processes=2)
        singles = measures.single(peer, database, jobs)

    assert filled["rate"] > 0
    assert singles["rate"] > 0
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert found["rate"] > 0
    assert found["wal"] > 0


def test_a_queue_that_cannot_be_installed_is_named_and_the_others_go_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise NotInstalledError("the registry says no")

    monkeypatch.setattr(peers, "installed", refuse)
    contest = side_by_side.Contest(server, replace(TINY, peers=("pgmq",)))
    with contest.open():
        taking_part = [contestant.peer.name for contestant in contest.contestants]

    assert taking_part == ["holdfast", "floor"]
    found = side_by_side.figures([], contest.left_out)
    assert "pgmq is left out: the registry says no" in report.shown(found)


def test_a_queue_may_fail_once_but_not_twice(server: Server) -> None:
    contest = side_by_side.Contest(server, TINY)
    fails = [RuntimeError("the first"), None, RuntimeError("a"), RuntimeError("b")]

    def way(contestant: side_by_side.Contestant) -> dict[str, float]:
        if failure := fails.pop(0):
            raise failure
        return {"drain": 1.0}

    pgmq = Peer(peers.queue("pgmq"), Environment((), {}))
    contest.contestants = [side_by_side.Contestant(pgmq, "none")]
    sampled = contest._sample(way, contest.contestants[0])
    with contest._spared("pgmq"):
        contest._sample(way, contest.contestants[0])

    assert sampled == {"drain": 1.0}
    assert contest.left_out == {"pgmq": "b"}
    assert contest.contestants == []


def test_a_job_that_ran_in_two_processes_is_doubled(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / str(nth), 3) for nth in range(2)]
    for ledger in ledgers:
        ledger.hit(0)
    ledgers[1].hit(2)
    workers = peers.Workers([], ledgers)

    assert workers.begun() == 2
    assert workers.doubled() == 1
    assert [bool(began) for began in workers.times()] == [True, False, True]


def test_a_bar_is_held_against_the_best_of_the_others() -> None:
    def figure(whose: str, what: str, *samples: float) -> Figure:
        return Figure("peers", what, side_by_side.MEASURES[what], list(samples), whose=whose)

    ours = [figure("holdfast", what, 10.0, 10.0) for what in side_by_side.MEASURES]
    others = [
        figure("river", "drain", 5.0, 5.0),
        figure("pgmq", "drain", 8.0, 8.0),
        figure("floor", "drain", 80.0, 80.0),
        figure("pgmq", "pick-up p50", 50.0, 50.0),
        figure("river", "pick-up p50", 2.0, 2.0),
    ]
    judged = side_by_side.judged([*ours, *others])
    bases = {
        figure.base.what: figure.met for figure in judged if figure.base and figure.met is not None
    }

    assert bases["drain, pgmq"] is True
    assert bases["pick-up p50, river"] is False
    assert "drain, river" not in bases
