"""Tables that fit any screen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.text import columns
from wiiiiided.ui.cli.table import TableColumn, render

COLUMNS = (
    TableColumn("ID", right=True),
    TableColumn("NAME", least=6, readable=10),
    TableColumn("OWNER", leaves=3),
    TableColumn("STATE", painted=True),
    TableColumn("WHY", leaves=1, least=10, readable=15),
)
ROWS = [
    ["1", "digits", "ada", "running", "runs on a"],
    ["120", "a-name-that-is-long", "grace", "queued", "waits for a, which runs job 1"],
]


def text(rows: list[list[str]], width: int | None) -> list[str]:
    return render(COLUMNS, rows, width)


def test_without_a_width_everything_is_shown() -> None:
    assert text(ROWS, None) == [
        " ID  NAME                 OWNER  STATE    WHY",
        "  1  digits               ada    running  runs on a",
        "120  a-name-that-is-long  grace  queued   waits for a, which runs job 1",
    ]


def test_a_narrow_screen_cuts_and_drops_in_order() -> None:
    """The last column is cut, then the name, then a minor column leaves, then both are cut more."""
    assert [text(ROWS, width)[2] for width in (60, 50, 45, 40, 35, 30, 22)] == [
        "120  a-name-that-is-long  grace  queued   waits for a, whic…",
        "120  a-name-that…  grace  queued   waits for a, w…",
        "120  a-name-that-i…  queued   waits for a, w…",
        "120  a-name-that-i…  queued   waits for…",
        "120  a-name-t…  queued   waits for…",
        "120  a-name-that-is-…  queued",
        "120  a-name-…  queued",
    ]


def test_however_narrow_a_row_never_wraps() -> None:
    for width in range(1, 30):
        assert all(columns(line) <= width for line in text(ROWS, width)), width


def test_no_rows_are_a_heading() -> None:
    assert text([], 40) == ["ID  NAME  OWNER  STATE  WHY"]


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=5, max_size=5), max_size=5),
    st.integers(1, 250),
)
def test_whatever_is_in_the_cells_rows_fit(rows: list[list[str]], width: int) -> None:
    assert all(columns(row) <= width for row in render(COLUMNS, rows, width))
