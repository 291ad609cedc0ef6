"""Archives for tests: honest ones, and those with every trick."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def link(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.SYMTYPE, linkname=target)


def directory(name: str) -> tarfile.TarInfo:
    return entry(name, tarfile.DIRTYPE, mode=0o755)


Item = tarfile.TarInfo | tuple[str, bytes] | tuple[tarfile.TarInfo, bytes]


def tar(*items: Item, format: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of entries, and of (name or entry, content)."""
    made = io.BytesIO()
    with tarfile.open(
        fileobj=made, mode="w", format=format, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for item in items:
            if isinstance(item, tarfile.TarInfo):
                archive.addfile(item)
                continue
            named, content = item
            info = entry(named) if isinstance(named, str) else named
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def patched(archive: bytes, change: Callable[[bytearray], None]) -> bytes:
    """The same with its first header changed, and its checksum right again."""
    header = bytearray(archive[:512])
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + archive[512:]


class Dribble:
    """A stream that gives little at a time, as a socket may."""

    def __init__(self, data: bytes, most: int = 7) -> None:
        self._data = io.BytesIO(data)
        self._most = most

    def read(self, size: int) -> bytes:
        return self._data.read(min(size, self._most))
