"""How many examples a property test tries: fewer in `make quick`, more in `make soak`."""

from __future__ import annotations

import hypothesis

_USUAL = 50
# How long an example takes says nothing on a machine that does something else meanwhile.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=_USUAL // 5)
hypothesis.settings.register_profile("test", deadline=None, max_examples=_USUAL)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=_USUAL * 5)


def load_profile(marks: str) -> None:
    """For a run with this `-m`; before the tests are imported, which read it."""
    name = "soak" if marks.startswith("soak") else marks
    hypothesis.settings.load_profile(name if name in ("quick", "soak") else "test")


def examples(number: int) -> int:
    """For a test that wants more or fewer than others: so many in `make test`."""
    return max(1, number * hypothesis.settings.default.max_examples // _USUAL)
