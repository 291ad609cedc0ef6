"""Which files of a job are its checkpoints: those its file names, else those of `wide.parallel`.

    ckpt/step-0000000120.host-0.90afb240d9bf7c50.wide      wherever the script saves them

`wide.parallel(save=…)` gives its files names by which they are known in any folder, so a job that
uses it need not say where they are, and the newest of them is found without reading one
(`cluster/shim/checkpoints`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from wiiiiided.domain.spec import Output

WIDE_FILES: Final = "**/step-*.host-*.wide"
_WIDE: Final = re.compile(r"(?:.*/)?step-[0-9]{10}\.host-[0-9]+\.[^/]*\.wide", re.DOTALL)


def checkpoint_globs(output: Output) -> tuple[str, ...]:
    return output.checkpoints or (WIDE_FILES,)


def globs_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Globs that match these files alone, whatever characters their names have."""
    return tuple(re.sub(r"[*?[]", r"[\g<0>]", path) for path in paths)


def are_wide(globs: Iterable[str]) -> bool:
    """Whether these globs match nothing but files of `wide.parallel`."""
    return all(glob == WIDE_FILES or _WIDE.fullmatch(glob) for glob in globs)
