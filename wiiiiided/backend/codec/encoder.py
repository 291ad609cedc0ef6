"""The two ends of a link's codec: encode its pieces, decode the peer's, and time both.

    link ──encode──► Encoder ──decide──► Chooser (pure)
                        ▲  └──encode──► codec
                        │ how long decoding takes
    link ──decode──► Decoder ──decode──► codec

This is the shell round `chooser`: the clock is here, the decision there. How fast the peer decodes
cannot be measured from here; how fast this process decodes what the peer sends can, and stands for
it. It is off by the difference between two processors, and decoding is the small part.

A piece leaves the caches full of itself, so code between two pieces runs cold: the chooser's
decision takes 1 µs in a loop and 5 to 8 between sends of 256 KiB, 5 % of an exchange at 2 GB/s.
Hence `_quiet`: as long as the answer cannot change, pieces are only counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from wiiiiided.backend.codec import registry
from wiiiiided.backend.codec.chooser import LEAST_PIECE, SAMPLE_BYTES, Chooser, Decision, Probe
from wiiiiided.backend.codec.interface import Buffer, Codec, PieceInfo

RAW: Final = 0
# Where in a piece a sample may begin: a multiple of every itemsize.
_SAMPLE_STEP: Final = 64

Kind = tuple[int, bool]


def kind_of(info: PieceInfo, nbytes: int) -> Kind:
    """Pieces that compress alike, and cost alike: small ones cost more.

    Only what both ends know of a piece: what is decoded here is held against what is sent.
    """
    return info.dtype, nbytes >= SAMPLE_BYTES


class Encoder:
    """One direction of a link. `setting` is "auto" or the name of a codec."""

    def __init__(
        self, setting: str = "auto", now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        name = "lz4" if setting == "auto" else setting
        self._codec: Codec = registry.by_name(name)
        self._chooser = Chooser(setting, name)
        self._now_ns = now_ns
        self._last: Decision | None = None
        self._scratch = bytearray()
        self._probes = 0
        # Pieces like the last one that are sure to travel raw; how many were to, and have by now.
        self._quiet = self._quiet_given = self._quiet_bytes = 0
        self._quiet_info: PieceInfo | None = None
        self._quiet_kind: Kind = (0, False)
        self.encode_ns = 0
        self.probe_ns = 0

    @property
    def reason(self) -> str:
        """Why the last piece travelled as it did; after the first piece, those that are too small
        to be encoded do not count."""
        return "none: nothing has been sent yet" if self._last is None else self._last.reason

    @property
    def switches(self) -> int:
        """How often the decision has changed: a log line is due when this has moved."""
        return self._chooser.switches

    def encode(self, source: memoryview, info: PieceInfo) -> tuple[int, Buffer]:
        """The number of the codec that was used, and what to send: `source` itself for RAW."""
        nbytes = source.nbytes
        if self._quiet and info is self._quiet_info and nbytes >= SAMPLE_BYTES:
            self._quiet -= 1
            self._quiet_bytes += nbytes
            return RAW, source
        self._end_quiet()
        kind = kind_of(info, nbytes)
        decision = self._chooser.decide(kind, nbytes)
        if self._last is None or nbytes >= LEAST_PIECE:
            self._last = decision
        encoded: Buffer | None = None
        if decision.codec != "none":
            encoded = self._encode(source, info, kind)
        elif decision.probe:
            self._probe(source, info, kind)
        if encoded is None and nbytes >= SAMPLE_BYTES:
            self._quiet = self._quiet_given = self._chooser.quiet(kind)
            self._quiet_info, self._quiet_kind = info, kind
        return (RAW, source) if encoded is None else (self._codec.number, encoded)

    def note_link(self, nbytes: float, seconds: float) -> None:
        """Note how many bytes the link has carried, and how long it was busy (`net.tcp_rate`)."""
        self._end_quiet()
        self._chooser.note_link(nbytes, seconds)

    def note_decode(self, info: PieceInfo, nbytes: int, seconds: float) -> None:
        """A piece of the peer's was decoded in this process."""
        self._chooser.note_decode(kind_of(info, nbytes), nbytes, seconds)

    def _end_quiet(self) -> None:
        """Tell the chooser what has passed it by."""
        pieces, nbytes = self._quiet_given - self._quiet, self._quiet_bytes
        self._quiet = self._quiet_given = self._quiet_bytes = 0
        if pieces:
            self._chooser.note_quiet(self._quiet_kind, pieces, nbytes)

    def _encode(self, source: memoryview, info: PieceInfo, kind: Kind) -> Buffer | None:
        begin = self._now_ns()
        encoded = self._codec.encode(source, info)
        spent = self._now_ns() - begin
        self.encode_ns += spent
        wire = source.nbytes if encoded is None else len(encoded)
        self._chooser.note_piece(kind, source.nbytes, wire, spent / 1e9)
        return encoded

    def _probe(self, source: memoryview, info: PieceInfo, kind: Kind) -> None:
        sample = self._sample(source)
        begin = self._now_ns()
        encoded = self._codec.encode(sample, info)
        middle = end = self._now_ns()
        wire = sample.nbytes
        if encoded is not None:
            wire = len(encoded)
            self._decode_sample(memoryview(encoded), sample.nbytes, info)
            end = self._now_ns()
        self.probe_ns += end - begin
        probe = Probe(sample.nbytes, wire, (middle - begin) / 1e9, (end - middle) / 1e9)
        self._chooser.note_probe(kind, probe)

    def _sample(self, source: memoryview) -> memoryview:
        """A part of the piece, each time another one: what repeats often lies in runs."""
        spare = source.nbytes - SAMPLE_BYTES
        if spare <= 0:
            return source
        begin = self._probes * SAMPLE_BYTES % (spare + 1) // _SAMPLE_STEP * _SAMPLE_STEP
        self._probes += 1
        return source[begin : begin + SAMPLE_BYTES]

    def _decode_sample(self, encoded: memoryview, nbytes: int, info: PieceInfo) -> None:
        if len(self._scratch) < nbytes:
            self._scratch = bytearray(SAMPLE_BYTES)
        self._codec.decode(encoded, memoryview(self._scratch)[:nbytes], info)


class Decoder:
    """The other direction of the same link."""

    def __init__(self, encoder: Encoder, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._encoder = encoder
        self._now_ns = now_ns
        self._codecs: dict[int, Codec] = {}
        self.decode_ns = 0

    def decode(self, number: int, source: memoryview, into: memoryview, info: PieceInfo) -> None:
        """Fill `into` from a payload in this codec. Raises BadPayload, naming what is wrong."""
        codec = self._codecs.get(number)
        if codec is None:
            codec = self._codecs[number] = registry.by_number(number)
        begin = self._now_ns()
        codec.decode(source, into, info)
        spent = self._now_ns() - begin
        self.decode_ns += spent
        if number != RAW:
            self._encoder.note_decode(info, into.nbytes, spent / 1e9)
