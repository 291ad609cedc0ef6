r"""A rank's output as lines: cut from a pipe, written to a log, and parsed again.

    1763270000.123456 out epoch 1: loss 2.31        what the rank wrote to stdout
    1763270000.123999 err Traceback …               … and to stderr
    1763270001.000000 note 7 lines were dropped …   a note of the shim

Bytes stay as they were, also those that are no UTF-8. A carriage return ends a line too: progress
bars redraw themselves with it. Of such lines one per second is kept, and the last one.

    pipe:  "\r10%" "\r11%" "\r12%" … "\r100%\ndone\n"
    log:   10%  (a second later) 57%  100%  done

No clock in here: time is an argument.
"""

from __future__ import annotations

LINE_BYTES = 16 << 10  # a longer line is cut: a reader must be able to hold one
SILENCE_S = 0.5  # an unfinished line is shown after so long: a prompt, "loading … "
PROGRESS_S = 1.0  # between two redrawn lines that are kept
STREAMS = ("out", "err", "note")


def head(at: float, stream: str) -> bytes:
    """The time and stream before the text of a line."""
    return b"%.6f %s " % (at, stream.encode())


def parse(line: bytes) -> tuple[float, str, str]:
    """(seconds since 1970, stream, text) of one line of a log, with or without its newline.

    The jobs' user can write anything into its logs: any other line is shown as it is.
    """
    at, _, rest = line.removesuffix(b"\n").partition(b" ")
    stream, space, text = rest.partition(b" ")
    try:
        seconds, name = float(at), stream.decode()
    except ValueError:
        name = ""
    if not space or name not in STREAMS or not 0 <= seconds < 1e12:
        return 0.0, "out", line.removesuffix(b"\n").decode("utf-8", "replace")
    return seconds, name, text.decode("utf-8", "replace")


def _pieces(line: bytes) -> list[bytes]:
    """A line in pieces that are short enough, not cut inside a UTF-8 character."""
    pieces = []
    while len(line) > LINE_BYTES:
        end = LINE_BYTES
        while end > LINE_BYTES - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


class Cutter:
    """Cuts the output of one pipe into lines."""

    __slots__ = ("_drawn_at", "_held", "_pending", "_redrawing", "_shown")

    def __init__(self) -> None:
        self._pending = b""  # the line that has not ended yet
        self._shown = False  # its beginning was already returned, after a silence
        self._redrawing = False  # it began after a carriage return
        self._held: list[bytes] = []  # the latest redrawn line that was not returned, cut
        self._drawn_at = float("-inf")

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Take bytes; the lines that they complete."""
        data = self._pending + data
        done: list[bytes] = []
        if b"\r" in data or self._redrawing:
            self._feed_redrawn(data, done, now)
        else:
            done = data.split(b"\n")
            self._pending = done.pop()
            if done and self._shown:
                if not done[0]:
                    del done[0]
                self._shown = False
        if len(self._pending) > LINE_BYTES:
            *whole, self._pending = _pieces(self._pending)
            done += whole
        if len(data) > LINE_BYTES:
            done = [piece for line in done for piece in _pieces(line)]
        return done

    def flush(self, now: float, fed_at: float, *, final: bool = False) -> list[bytes]:
        """Lines without an end of line yet, after a silence or at the end."""
        done: list[bytes] = []
        if self._pending and (final or now >= fed_at + SILENCE_S):
            text = self._pending.removesuffix(b"\r")
            if text != self._pending or self._redrawing:
                self._draw(text, done, now)
                self._redrawing = True
            else:
                done.append(text)
                self._shown = True
            self._pending = b""
        if self._held and (final or now >= self._drawn_at + PROGRESS_S):
            done += self._held
            self._held, self._drawn_at = [], now
        return done

    def flush_in_s(self, now: float, fed_at: float) -> float | None:
        """How long until `flush` has a line, if nothing is fed before; None: never."""
        due = []
        if self._pending:
            due.append(fed_at + SILENCE_S)
        if self._held:
            due.append(self._drawn_at + PROGRESS_S)
        return max(0.0, min(due) - now) if due else None

    def _feed_redrawn(self, data: bytes, done: list[bytes], now: float) -> None:
        *ended, last = data.replace(b"\r\n", b"\n").split(b"\n")
        for line in ended:
            *drawn, text = line.split(b"\r")
            for piece in drawn:
                self._draw(piece, done, now)
            self._end(text, done, after_return=bool(drawn) or self._redrawing)
            self._redrawing = False
        *drawn, text = last.split(b"\r")
        if drawn and not text:  # perhaps the newline is still to come
            text = drawn.pop() + b"\r"
        for piece in drawn:
            self._draw(piece, done, now)
            self._redrawing = True
        self._pending = text

    def _draw(self, text: bytes, done: list[bytes], now: float) -> None:
        self._shown = False
        if not text.strip():
            return
        if now >= self._drawn_at + PROGRESS_S:
            done += _pieces(text)
            self._held, self._drawn_at = [], now
        else:
            self._held = _pieces(text)

    def _end(self, text: bytes, done: list[bytes], *, after_return: bool) -> None:
        """End a line at its newline: the last redrawn line stays on a screen unless this one covers
        it."""
        if text.strip() or (text and not after_return):  # blanks only wipe a redrawn line
            done.append(text)
        elif self._held:
            done += self._held
        elif not self._shown and not after_return:
            done.append(text)
        self._held, self._shown = [], False
