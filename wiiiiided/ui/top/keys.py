"""Bytes from a terminal as keys: "q", "up", "enter", "漢", or "paste …".

    b"\\x1b[A"                       up          a sequence may come in two reads
    b"\\x1b"        and no more      esc         the loop says when no more has come
    b"\\x1b[200~x\\ny\\x1b[201~"       paste xy    pasted text

Pasted text must not press keys: a name with an x and a y in it would cancel a job. So the terminal
is asked to mark it, and it comes as one key that only a filter takes.
"""

from __future__ import annotations

import codecs
import re

NAMES = {
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
    "\x0c": "redraw",
}
SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "OA": "up",
    "OB": "down",
    "[5~": "pageup",
    "[6~": "pagedown",
    "[Z": "backtab",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[7~": "home",
    "[8~": "end",
}
# CSI with its parameters, SS3 with its letter, or a key held with Alt.
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O\x1b])", re.DOTALL)
_BEGUN = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?\Z")
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
PASTE_CHARS = 4096  # of a paste that are kept; the rest is thrown away
HELD_CHARS = 64  # no sequence is longer


class KeyDecoder:
    """Collects bytes and gives back whole keys."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._held = ""
        self._paste: str | None = None

    @property
    def unfinished(self) -> bool:
        """Whether an ESC waits for what follows it."""
        return bool(self._held) and self._paste is None

    def feed(self, data: bytes) -> list[str]:
        self._held += self._decoder.decode(data)
        found: list[str] = []
        while self._held and self._one(found):
            pass
        return found

    def flush(self) -> list[str]:
        """The key of an ESC that no bytes have followed."""
        held, self._held = self._held, ""
        return ["esc"] if held.startswith("\x1b") else []

    def _one(self, found: list[str]) -> bool:
        """Take one key off what is held; False when it is not whole yet."""
        held = self._held
        if self._paste is not None:
            return self._pasting(found)
        if held.startswith(_PASTE):
            self._held, self._paste = held[len(_PASTE) :], ""
            return True
        if match := _SEQUENCE.match(held):
            self._held = held[match.end() :]
            if name := SEQUENCES.get(match[1]):
                found.append(name)
            return True
        if _BEGUN.match(held) and len(held) < HELD_CHARS:
            return False
        self._held = held[1:]
        if held[0] == "\x1b":
            found.append("esc")
        elif name := NAMES.get(held[0], held[0] if held[0].isprintable() else ""):
            found.append(name)
        return True

    def _pasting(self, found: list[str]) -> bool:
        assert self._paste is not None
        text, end, rest = self._held.partition(_PASTED)
        if not end:  # its mark may have come in part
            keep = len(_PASTED) - 1
            text, rest = text[:-keep], text[-keep:]
        self._paste = (self._paste + text)[:PASTE_CHARS]
        self._held = rest
        if end:
            found.append("paste " + "".join(char for char in self._paste if char.isprintable()))
            self._paste = None
        return bool(end)
