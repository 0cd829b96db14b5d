"""The maps of CONTRIBUTING.md name rooms and files that exist, and every room."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

MAP = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
SOURCE = ROOT / "src" / "holdfast"
NAMED = sorted(
    name
    for name in set(re.findall(r"`((?:[\w.]+/)*[\w.]+(?:\.py|\.sql|\.ts|\.md|/))`", MAP))
    if not name.startswith((".", "test"))
)
ROOMS = [path for path in SOURCE.rglob("*") if path.is_dir() and (path / "__init__.py").exists()]


@pytest.mark.parametrize("name", NAMED)
def test_what_a_map_names_exists(name: str) -> None:
    places = [ROOT, SOURCE, *SOURCE.iterdir()]

    assert any((place / name).exists() for place in places), name


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(SOURCE)))
def test_every_room_is_on_the_map(room: Path) -> None:
    name = room.relative_to(SOURCE)

    assert f"`src/holdfast/{name}/`" in MAP or f"`{name}/`" in MAP or f"`{name.name}/`" in MAP
