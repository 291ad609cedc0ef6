"""Job files as tests read them: without a look at the folder that would be shipped."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wiiiiided.domain.spec import JobSpec
from wiiiiided.ui.jobfile.read import examine
from wiiiiided.ui.jobfile.source import text_of


def read(text: str, file: str, sets: Sequence[str] = (), swept: Sequence[str] = ()) -> JobSpec:
    """The job in a text; Invalid with all problems."""
    return examine(text, file, sets, None, swept).spec


def read_file(path: str | os.PathLike[str], sets: Sequence[str] = ()) -> JobSpec:
    return read(text_of(os.fspath(path)), os.fspath(path), sets)
