"""Figures, and the one table they make."""

import json
import os
import platform
import subprocess
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

import holdfast
from holdfast import schema


@dataclass(frozen=True)
class Figure:
    """One thing measured: a sample for each round, and how it compares to another figure.

    A limit bounds the ratio where there is one to compare to, else the value itself; `stretch` is
    what would be better still. Where several queues are measured, `whose` it is and how that queue
    was set up.
    """

    part: str
    what: str
    unit: str
    samples: list[float]
    base: "Figure | None" = None
    at_least: float | None = None
    at_most: float | None = None
    stretch: float | None = None
    whose: str = ""
    about: str = ""

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def ratios(self) -> list[float]:
        """Round by round, since neighbours in time share the machine's mood."""
        if self.base is None:
            return []
        return [mine / other for mine, other in zip(self.samples, self.base.samples, strict=True)]

    @property
    def met(self) -> bool | None:
        """Whether the limit was kept; None where there is none."""
        judged = median(self.ratios) if self.base else self.value
        if self.at_least is not None:
            return judged >= self.at_least
        if self.at_most is not None:
            return judged <= self.at_most
        return None

    def as_json(self) -> dict[str, Any]:
        about: dict[str, Any] = {
            "part": self.part,
            "what": self.what,
            "unit": self.unit,
            "median": _rounded(self.value),
            "samples": [_rounded(sample) for sample in self.samples],
        }
        if self.whose:
            about = {"whose": self.whose} | about
        if self.base:
            about |= {"compared_to": self.base.what, "ratio": _rounded(median(self.ratios))}
        limits = {
            "at_least": self.at_least,
            "at_most": self.at_most,
            "stretch": self.stretch,
            "met": self.met,
        }
        return about | {name: limit for name, limit in limits.items() if limit is not None}


def shown(figures: Sequence[Figure]) -> str:
    """Return all of it in Markdown: the table, and a column for each queue that was measured."""
    ours = [figure for figure in figures if not figure.whose]
    by_queue = [figure for figure in figures if figure.whose and figure.samples]
    absent = [figure for figure in figures if figure.whose and not figure.samples]
    lines = [table(ours)] if ours else []
    if by_queue:
        lines += ["", "Medians, and half of the spread.", "", side_by_side(by_queue), ""]
        lines += [f"- {about}" for about in dict.fromkeys(figure.about for figure in by_queue)]
    lines += [f"- {figure.whose} is left out: {figure.about}" for figure in absent]
    return "\n".join(lines)


def side_by_side(figures: Sequence[Figure]) -> str:
    """Return a Markdown table with a row for each thing measured and a column for each queue."""
    names = list(dict.fromkeys(figure.whose for figure in figures))
    whats = dict.fromkeys((figure.what, figure.unit) for figure in figures)
    cells = {(figure.what, figure.whose): _with_spread(figure) for figure in figures}
    return _aligned(
        [
            ("", "", *names),
            *((what, unit, *(cells.get((what, x), "") for x in names)) for what, unit in whats),
        ],
        right=range(2, len(names) + 2),
    )


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as one Markdown table, aligned for a terminal."""
    header = ("part", "what", "median", "min … max", "", "ratio", "of", "target", "")
    return _aligned([header, *map(_row, figures)], right=(2, 3, 5))


def _aligned(rows: Sequence[tuple[str, ...]], right: Container[int]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| "
        + " | ".join(
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = ["-" * (width - 1) + (":" if n in right else "-") for n, width in enumerate(widths)]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def conditions(connection: psycopg.Connection, settings: Sequence[str]) -> dict[str, Any]:
    """Say on what, with what and how busy: without it no figure means anything."""
    rows = connection.execute(
        "select name, current_setting(name) from pg_settings where name = any(%s)", [list(settings)]
    ).fetchall()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "holdfast": f"{holdfast.__version__} {_commit()}".strip(),
        "schema": sha256(schema.sql().encode()).hexdigest()[:12],
        "postgresql": str(connection.info.parameter_status("server_version")),
        "settings": dict(rows),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load average before": load_average(),
    }


def load_average() -> list[float]:
    """Return the load of the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def save(
    figures: Sequence[Figure], about: dict[str, Any], command: str, where: Path, name: str
) -> Path:
    """Write NAME.json with every sample and NAME.md with the table; returns the latter."""
    where.mkdir(parents=True, exist_ok=True)
    # A line for each figure: short, and a change of one is a change of one line.
    lines = [json.dumps(figure.as_json()) for figure in figures if figure.samples]
    figures_text = ",\n  ".join(lines)
    (where / f"{name}.json").write_text(
        f'{{"command": {json.dumps(command)},\n "conditions": {json.dumps(about)},\n'
        f' "figures": [\n  {figures_text}\n ]}}\n'
    )
    page = where / f"{name}.md"
    facts = "\n".join(f"- {line}" for line in described(about).splitlines())
    page.write_text(f"# {name}\n\n`{command}`\n\n{facts}\n\n{shown(figures)}\n")
    return page


def described(about: dict[str, Any]) -> str:
    """Return the conditions as lines of text."""
    lines = []
    for name, value in about.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} = {setting}" for key, setting in value.items())
        elif isinstance(value, list):
            value = " ".join(map(str, value))
        lines.append(f"{name}: {value}")
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    target = ""
    if figure.at_least is not None:
        target = f"≥ {figure.at_least:g}"
    elif figure.at_most is not None:
        target = f"≤ {figure.at_most:g}"
    if figure.stretch is not None:
        target += f", better {figure.stretch:g}"
    low, high = min(figure.samples), max(figure.samples)
    return (
        figure.part,
        figure.what,
        _number(figure.value),
        f"{_number(low)} … {_number(high)}" if len(figure.samples) > 1 else "",
        figure.unit,
        f"{median(figure.ratios):.2f}" if figure.base else "",
        figure.base.what if figure.base else "",
        target,
        {True: "met", False: "missed", None: ""}[figure.met],
    )


def _with_spread(figure: Figure) -> str:
    spread = max(figure.samples) - min(figure.samples)
    if not figure.value or not spread:
        return _number(figure.value)
    return f"{_number(figure.value)} ± {spread / 2 / figure.value:.0%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rounded(value: float) -> float:
    """Keep five digits: a file with every sample stays small, and no clock is better."""
    return float(f"{value:.5g}")


def _commit() -> str:
    here = Path(__file__).parent
    try:
        asked = ["git", "-C", str(here), "describe", "--always", "--dirty"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")
