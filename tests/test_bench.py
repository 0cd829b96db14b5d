"""Every part of the bench runs, at a size that says nothing about speed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import PARTS
from bench.harness import Options, Server
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
