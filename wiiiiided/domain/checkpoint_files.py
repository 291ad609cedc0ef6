"""Which files of a job are its checkpoints: those its file names, else those of `wide.parallel`.

    ckpt/step-0000000120.host-0.90afb240d9bf7c50.wide      wherever the script saves them

`wide.parallel(save=…)` gives its files names by which they are known in any folder, so a job that
uses it need not say where they are, and the newest of them is found without reading one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from wiiiiided.domain.spec import Output

WIDE_FILES: Final = "**/step-*.host-*.wide"
_NAME: Final = re.compile(r"(?:.*/)?step-(\d{10})\.host-\d+\.[0-9a-f]{16}\.wide")


def checkpoint_globs(output: Output) -> tuple[str, ...]:
    return output.checkpoints or (WIDE_FILES,)


def newest_step(paths: Iterable[str]) -> int:
    """The highest step among files of `wide.parallel`; 0: there is none."""
    found = (_NAME.fullmatch(path) for path in paths)
    return max((int(name[1]) for name in found if name), default=0)
