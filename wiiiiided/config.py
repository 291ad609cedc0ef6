"""The environment variables of a worker, read once into one frozen value.

This is the only module of the package that reads os.environ, so that everything a user can turn
stands on this page. Bad values are refused by name: a mistyped number must not be a silent default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from wiiiiided.errors import UsageError


@dataclass(frozen=True)
class Config:
    """What a worker can be told from outside; every field names its variable."""

    stall_warning_s: float = 5.0  # WIIIIIDE_STALL_WARNING_S: say who is missing after this long
    spin: str = "auto"  # WIIIIIDE_SPIN: auto | always | never; how to wait before sleeping
    stats_file: str | None = None  # WIIIIIDE_STATS: a file whose first page takes the counters
    log: str = "normal"  # WIIIIIDE_LOG: silent | normal | verbose

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Config:
        """The configuration in this process's environment (or the one given)."""
        env = os.environ if environ is None else environ
        return cls(
            stall_warning_s=_seconds(env, "WIIIIIDE_STALL_WARNING_S", cls.stall_warning_s),
            spin=_choice(env, "WIIIIIDE_SPIN", ("auto", "always", "never")),
            stats_file=env.get("WIIIIIDE_STATS") or None,
            log=_choice(env, "WIIIIIDE_LOG", ("normal", "silent", "verbose")),
        )


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise UsageError(
            f"{name}={text!r} is not a number of seconds above 0; unset it for {default:g}"
        )
    return value


def _choice(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = env.get(name) or choices[0]
    if text not in choices:
        raise UsageError(f"{name}={text!r} is not one of {', '.join(choices)}")
    return text
