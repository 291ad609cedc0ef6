"""The random generators of this process: torch's, numpy's and Python's.

Their states are plain numbers and arrays, so that a checkpoint holds them without pickle:

    torch     uint8 of torch.get_rng_state()
    numpy     the generator's name, its key, its place, and the normal number it has in store
    python    version, words, and the normal number it has in store
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """The states as they are now."""
    theirs: Any = np.random.get_state(legacy=False)
    version, words, spare = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": {
            "name": theirs["bit_generator"],
            "key": theirs["state"]["key"],
            "pos": int(theirs["state"]["pos"]),
            "has_gauss": int(theirs["has_gauss"]),
            "gauss": float(theirs["gauss"]),
        },
        "python": {"version": version, "words": np.array(words, np.int64), "spare": spare},
    }


def set_rng_state(saved: Mapping[str, Any]) -> None:
    """Go on from these states."""
    torch.set_rng_state(saved["torch"])
    theirs = saved["numpy"]
    np.random.set_state(
        (theirs["name"], theirs["key"], theirs["pos"], theirs["has_gauss"], theirs["gauss"])
    )
    mine = saved["python"]
    random.setstate((mine["version"], tuple(mine["words"].tolist()), mine["spare"]))
