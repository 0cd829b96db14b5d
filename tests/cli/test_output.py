from datetime import timedelta

import pytest

from holdfast.cli import output


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.25, "0.2 s"),
        (9.96, "10.0 s"),
        (59, "59 s"),
        (60, "1 m"),
        (90, "90 s"),
        (120, "2 m"),
        (7199.9, "2 h"),
        (86400, "1 d"),
        (40 * 3600, "40 h"),
        (3 * 86400, "3 d"),
        (-5, "0 s"),
    ],
)
def test_a_duration_is_said_in_the_unit_that_tells_most(seconds: float, said: str) -> None:
    assert output.span(timedelta(seconds=seconds)) == said


def test_columns_align_whatever_letters_are_in_them() -> None:
    text = output.table(("name", "n", "note"), [("漢字", 1, "a"), ("é", 20, ""), ("abc", 3, "b")])

    assert text.splitlines() == ["name   n  note", "漢字   1  a", "é     20", "abc    3  b"]


def test_a_table_without_rows_is_its_headings() -> None:
    assert output.table(("a", "b"), []) == "a  b"


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert output.clean("a\x1b[2J\x00\x9b\n\tb\u202ec") == r"a\x1b[2J\x00\x9b  b\u202ec"
    assert output.clean("a\nb", keep="\n") == "a\nb"
