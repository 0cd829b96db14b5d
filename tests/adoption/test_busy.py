"""Writers do not notice that their table becomes a queue, or that it no longer is one."""

import pytest

from tests.adoption import busy
from tests.adoption.shapes import SHAPES, Shape


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_writer_waits_for_a_lock_and_every_byte_stays(database: str, shape: Shape) -> None:
    figures = busy.run(database, shape, 20_000)

    assert figures["blocked"] == []
    assert figures["equal"]
    assert figures["jobs"] >= 1000
    assert figures["statements"] > 100
