"""wiiiiided.toml: what a daemon can be told. One machine needs none of it.

    log = "normal"            # silent | normal | verbose

    [limits]
    archive = "512MiB"        # of a job's working directory as it is shipped
    archive_files = 100000
    archives = "64GiB"        # of all jobs' together
    log = "16MiB"             # of one rank's log file; two are kept
    keep = 200                # ended jobs whose files and story are kept
    outputs = "4GiB"          # of what is brought back from other machines, of one job
    queue = 20000             # jobs that are not over
    queue_per_user = 5000     # of them, of one user who is neither root nor the daemon's own

    [metrics]                 # for Prometheus, over HTTP; without it nothing listens
    listen = "127.0.0.1:9464"
    token_file = "/etc/wiiiiide/metrics.token"

Read at the start and again on SIGHUP; a file with a mistake changes nothing and says where.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wiiiiided.domain.quantities import parse_size
from wiiiiided.errors import WiiiiideError


class BadSettings(WiiiiideError):
    """wiiiiided.toml cannot be used; the message names file and key."""


@dataclass(frozen=True)
class Address:
    """Where something listens: one interface, never all of them."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Settings:
    log: str = "normal"
    archive_bytes: int = 512 << 20
    archive_files: int = 100_000
    archives_bytes: int = 64 << 30
    log_bytes: int = 16 << 20
    keep: int = 200
    outputs_bytes: int = 4 << 30
    queue: int = 20_000
    queue_per_user: int = 5_000
    metrics_listen: Address | None = None
    metrics_token_file: str = ""

    @property
    def archive_limit(self) -> int:
        """Bytes of the largest archive: the files', and what a tar needs besides."""
        return self.archive_bytes + self.archive_files * 1024


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
    given = _flat(tree)
    for key, value in given.items():
        if key not in KEYS:
            problems.append(f"{key}: unknown; there are {', '.join(KEYS)}")
            continue
        field, convert = KEYS[key]
        try:
            found[field] = convert(value)
        except ValueError as problem:
            problems.append(f"{key}: {problem}")
    if ("metrics.listen" in given) != ("metrics.token_file" in given):
        problems.append("metrics: listen and token_file go together; one of them is missing")
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
    found = parse_size(value) if isinstance(value, str) else None
    if found is None or not 64 << 10 <= found <= 1 << 40:
        raise ValueError(f'{value!r} is not a size from "64KiB" to "1TiB"')
    return found


def _address(value: Any) -> Address:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if colon and not host:
        raise ValueError(f'{value!r} is every interface; name one, for example "127.0.0.1{value}"')
    try:
        found = ipaddress.ip_address(host)
        number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise ValueError(f'{value!r} is not an address and a port, as in "127.0.0.1:9464"')
    if (getattr(found, "ipv4_mapped", None) or found).is_unspecified:
        example = f"127.0.0.1:{number}"
        raise ValueError(f'{value!r} is every interface; name one, for example "{example}"')
    if found.is_multicast:
        raise ValueError(f"{value!r} is a group of machines; name an address of this one")
    return Address(str(found), number)


def _path(value: Any) -> str:
    if not isinstance(value, str) or not os.path.isabs(value) or not value.isprintable():
        raise ValueError(f"{value!r} is not an absolute path")
    return value


KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "log": ("log", _tier),
    "limits.archive": ("archive_bytes", _size),
    "limits.archive_files": ("archive_files", _count(1, 10_000_000)),
    "limits.archives": ("archives_bytes", _size),
    "limits.log": ("log_bytes", _size),
    "limits.keep": ("keep", _count(0, 100_000)),
    "limits.outputs": ("outputs_bytes", _size),
    "limits.queue": ("queue", _count(1, 50_000)),
    "limits.queue_per_user": ("queue_per_user", _count(1, 50_000)),
    "metrics.listen": ("metrics_listen", _address),
    "metrics.token_file": ("metrics_token_file", _path),
}
