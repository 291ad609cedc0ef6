"""One browser for all tests that want it, and pages that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ui.report.browser import Browser, Tab

Open = Callable[..., Tab]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


@pytest.fixture
def tab(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page from its text."""
    opened: list[Tab] = []

    def open_page(text: str, width: int = 1000, *, dark: bool = False, script: bool = True) -> Tab:
        file = tmp_path / f"page-{len(opened)}.html"
        file.write_text(text)
        opened.append(Tab(browser, file, width, dark=dark, script=script))
        return opened[-1]

    yield open_page
    for each in opened:
        each.close()
