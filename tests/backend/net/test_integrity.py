"""When payloads carry a sum, and the sentence that says why."""

from __future__ import annotations

import pytest

from wiiiiided.backend.net.integrity import OFF_ABOVE, ON_BELOW, judge


@pytest.mark.parametrize(
    ("rate", "before", "after"),
    [
        (None, True, True),
        (0.1e9, True, True),
        (0.1e9, False, True),
        (ON_BELOW, True, True),
        (ON_BELOW, False, False),
        (OFF_ABOVE, True, True),
        (OFF_ABOVE, False, False),
        (1.2e9, True, False),
        (1.2e9, False, False),
    ],
)
def test_auto_follows_the_link_and_does_not_waver(
    rate: float | None, before: bool, after: bool
) -> None:
    assert judge("auto", rate, before).summed is after


def test_the_reason_names_the_link() -> None:
    assert judge("auto", 1.234e9).reason == (
        "off: the link does 1.23 GB/s, where a sum would cost each end about 3 % or more"
    )
    assert judge("auto", 12.5e6).reason == (
        "on: the link does 0.01 GB/s, where a sum costs each end about 3 % or less"
    )


@pytest.mark.parametrize("setting", ["on", "off"])
def test_a_setting_is_obeyed_on_any_link(setting: str) -> None:
    for rate in (None, 1e6, 1e10):
        assert judge(setting, rate) == (setting == "on", f"WIIIIIDE_CHECKSUM={setting}")
