"""wiiiiided.toml: what a daemon can be told. One machine needs none of it.

    log = "normal"            # silent | normal | verbose

    [limits]
    archive = "512MiB"        # of a job's working directory as it is shipped
    archive_files = 100000
    log = "16MiB"             # of one rank's log file; two are kept
    keep = 200                # ended jobs whose files and story are kept
    queue = 20000             # jobs that are not over

Read at the start and again on SIGHUP; a file with a mistake changes nothing and says where.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wiiiiided.errors import WiiiiideError
from wiiiiided.jobfile.values import size


class BadSettings(WiiiiideError):
    """wiiiiided.toml cannot be used; the message names file and key."""


@dataclass(frozen=True)
class Settings:
    log: str = "normal"
    archive_bytes: int = 512 << 20
    archive_files: int = 100_000
    log_bytes: int = 16 << 20
    keep: int = 200
    queue: int = 20_000


def read_settings(path: Path) -> Settings:
    """The settings in a file; the defaults where there is none."""
    try:
        tree = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Settings()
    except OSError as problem:
        raise BadSettings(f"{path}: cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadSettings(f"{path}: {problem}") from problem
    problems: list[str] = []
    found: dict[str, Any] = {}
    for key, value in _flat(tree).items():
        if key not in KEYS:
            problems.append(f"{key}: unknown; there are {', '.join(KEYS)}")
            continue
        field, convert = KEYS[key]
        try:
            found[field] = convert(value)
        except ValueError as problem:
            problems.append(f"{key}: {problem}")
    if problems:
        raise BadSettings("\n".join(f"{path}: {problem}" for problem in problems))
    return replace(Settings(), **found)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _tier(value: Any) -> str:
    if value not in ("silent", "normal", "verbose"):
        raise ValueError(f"{value!r} is not one of silent, normal, verbose")
    return str(value)


def _count(least: int, most: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
        return value

    return convert


def _size(value: Any) -> int:
    found = size(value) if isinstance(value, str) else None
    if found is None or not 64 << 10 <= found <= 1 << 40:
        raise ValueError(f'{value!r} is not a size from "64KiB" to "1TiB"')
    return found


KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "log": ("log", _tier),
    "limits.archive": ("archive_bytes", _size),
    "limits.archive_files": ("archive_files", _count(1, 10_000_000)),
    "limits.log": ("log_bytes", _size),
    "limits.keep": ("keep", _count(0, 100_000)),
    "limits.queue": ("queue", _count(1, 50_000)),
}
