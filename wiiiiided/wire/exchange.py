"""Messages of known size, one at a time, without I/O: what a handshake and a knock have in common.

    data_to_send ──► network ──► receive_data, at most `wanted` bytes
                                   ├─ a byte with which nothing begins that may come: Refused
                                   └─ a whole message: _on_message

`wanted` is exact, so whatever follows the last message stays in the socket for whoever gets it; and
nothing is ever kept of a stranger but the beginning of a message.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn


class Expected(NamedTuple):
    """What may come now."""

    name: str  # for a person
    size: int
    beginnings: list[bytes]  # all of the same length


class Exchange:
    """One side. Its class says what it expects, what a message does, and how it fails."""

    def __init__(self) -> None:
        self._in = bytearray()
        self._out = b""

    @property
    def wanted(self) -> int:
        """How many bytes to read, and not one more; 0: it waits for nothing from the network."""
        expected = self._expected()
        return 0 if expected is None else expected.size - len(self._in)

    def data_to_send(self) -> bytes:
        """What must be sent now; each byte is given out once."""
        out, self._out = self._out, b""
        return out

    def receive_data(self, data: bytes) -> None:
        """Take what came, at most `wanted` bytes. Raises Refused: send data_to_send, and close."""
        if not data:
            return
        expected = self._expected()
        if expected is None or len(data) > self.wanted:
            self._fail(f"{len(data)} bytes came where {self.wanted} were expected")
        self._in += data
        self._check_beginning(expected)
        if self.wanted == 0:
            whole = bytes(self._in)
            self._in.clear()
            self._on_message(whole)

    def _check_beginning(self, expected: Expected) -> None:
        """A stranger is sent away at the first byte that is not ours."""
        begin = bytes(self._in[: len(expected.beginnings[0])])
        if not any(one.startswith(begin) for one in expected.beginnings):
            self._fail(
                f"the bytes {begin!r} are no {expected.name} of this protocol: "
                "something else than wiiiiided is at the other end"
            )

    def _expected(self) -> Expected | None:
        """None: nothing may come in this state."""
        raise NotImplementedError

    def _on_message(self, message: bytes) -> None:
        raise NotImplementedError

    def _fail(self, sentence: str) -> NoReturn:
        raise NotImplementedError
