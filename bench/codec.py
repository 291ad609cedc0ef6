"""What do the codecs and the payload check cost, and what do they save, by kind of data?

Everything is one core's work on pieces as they travel. The transfer over loopback TCP, in the same
run, is what the check is held against: the fastest link there is, so the hardest to please.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lib import machine, program, report
from lib.codec import data as codec_data
from lib.codec import lossy as codec_lossy
from lib.codec import wire as codec_wire
from lib.codec.lossy import ENCODE_TARGET, LossyRow
from lib.report import BenchResult, Sheet, console
from lib.units import KB, MB, size_text

from wiiiiided.backend.codec import registry
from wiiiiided.backend.codec.interface import Codec, PieceInfo

SIZES = (64 * KB, 128 * KB, 256 * KB, 512 * KB, 1 * MB)
QUICK_SIZES = (64 * KB, 256 * KB, 1 * MB)
ROUNDS = 7
CHECK_TARGET = 0.03  # of a piece's transfer time
_ON_FROM = 0.10  # what `auto` wants to save before it encodes (wiiiiided/backend/codec/chooser.py)
_ABOUT = PieceInfo(dtype=0, itemsize=4)
METHOD = (
    "Pieces are cut from {mb} MB of each kind of data and encoded one after the other on one core."
    " Rates are in bytes of raw data, of the median of {rounds} rounds. A piece that lz4 gives back"
    " travels raw and counts as such; its attempt counts in the rate of encoding. `auto` encodes on"
    " links below the rate in the last column: there encoding, decoding and sending the smaller"
    " piece, one after the other, save 10 %. The payload check is made at both ends of a loopback"
    " TCP transfer between two processes, which takes turns with one that has none. A check's part"
    " is the time of one check against that of a piece's transfer; measured is what the transfer"
    " took longer, in the median round. Lossy codecs encode the transformer's gradients with error"
    " feedback; their rates are in bytes of float32, the error is that of a first encoding, by"
    " norms."
)


@dataclass(frozen=True)
class CodecRow:
    """One kind of data in one size of pieces."""

    data: str
    codec: str
    piece_bytes: int
    ratio: float
    encode: float
    decode: float | None

    @property
    def auto_below(self) -> float | None:
        """The rate of a link below which `auto` would encode, in bytes a second."""
        left = 1 - _ON_FROM - 1 / self.ratio
        if left <= 0 or self.decode is None:
            return None
        return left / (1 / self.encode + 1 / self.decode)

    def cells(self) -> Sequence[str]:
        decode, below = (_rate(rate) for rate in (self.decode, self.auto_below))
        name, size = f"{self.data}, {self.codec}", size_text(self.piece_bytes)
        return [name, size, f"{self.ratio:.3f}", _rate(self.encode), decode, below]


@dataclass(frozen=True)
class Checked:
    """One payload check on one size of pieces."""

    check: str
    piece_bytes: int
    transfer: float  # bytes a second, without a check
    rate: float
    slower: float  # measured: how much longer a transfer with it takes, as a part

    @property
    def part(self) -> float:
        return self.transfer / self.rate

    @property
    def met(self) -> bool:
        return self.part < CHECK_TARGET

    def cells(self) -> Sequence[str]:
        verdict = f"< {CHECK_TARGET:.0%}: {'met' if self.met else 'missed'}".replace("%", " %")
        return [
            *(self.check, size_text(self.piece_bytes), _rate(self.transfer), _rate(self.rate)),
            *(f"{100 * self.part:.1f} %", f"{100 * self.slower:+.1f} %"),
            *(_rate(CHECK_TARGET * self.rate), verdict),
        ]


def _rate(rate: float | None) -> str:
    if rate is None:
        return "–"
    return f"{rate / 1e9:.2f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.0f} MB/s"


def _pieces(data: memoryview, nbytes: int) -> list[memoryview]:
    whole = data.nbytes // nbytes * nbytes
    return [data[at : at + nbytes] for at in range(0, whole, nbytes)]


def _median_seconds(work: Callable[[], None], rounds: int) -> float:
    work()  # warms caches and the allocator
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def measure_codec(data: str, codec: Codec, pieces: list[memoryview], rounds: int) -> CodecRow:
    raw = sum(piece.nbytes for piece in pieces)
    encoded = [codec.encode(piece, _ABOUT) for piece in pieces]
    into = memoryview(bytearray(pieces[0].nbytes))
    shrunk = [memoryview(one) for one in encoded if one is not None]
    for piece, one in zip(pieces, encoded, strict=True):
        if one is not None:
            codec.decode(memoryview(one), into, _ABOUT)
            if into != piece:
                raise OSError(f"{codec.name} does not give back what it was given: {data}")

    def encode() -> None:
        for piece in pieces:
            codec.encode(piece, _ABOUT)

    def decode() -> None:
        for one in shrunk:
            codec.decode(one, into, _ABOUT)

    wire = sum(
        piece.nbytes if one is None else len(one)
        for piece, one in zip(pieces, encoded, strict=True)
    )
    decode_rate = None
    if shrunk:
        decode_rate = len(shrunk) * into.nbytes / _median_seconds(decode, rounds)
    encode_rate = raw / _median_seconds(encode, rounds)
    return CodecRow(data, codec.name, into.nbytes, raw / wire, encode_rate, decode_rate)


def measure_checks(
    wire: codec_wire.NearEnd, pieces: list[memoryview], rounds: int
) -> list[Checked]:
    times: dict[str, list[float]] = {name: [] for name in codec_wire.CHECKS}
    for number in range(rounds + 1):
        for name in times:
            seconds = wire.transfer(name, pieces)
            if number:  # the first round opens windows
                times[name].append(seconds)
    raw = sum(piece.nbytes for piece in pieces)
    found = []
    for name, check in codec_wire.CHECKS.items():
        if check is None:
            continue
        rate = raw / _median_seconds(functools.partial(_all, check, pieces), rounds)
        pairs = zip(times[name], times["none"], strict=True)
        slower = statistics.median(mine / bare for mine, bare in pairs) - 1
        transfer = raw / statistics.median(times["none"])
        found.append(Checked(name, pieces[0].nbytes, transfer, rate, slower))
    return found


def _all(check: codec_wire.Sum, pieces: list[memoryview]) -> None:
    for piece in pieces:
        check(piece)


def run(
    sizes: Sequence[int], rounds: int, say: Callable[[str], None]
) -> tuple[list[CodecRow], list[LossyRow], list[Checked]]:
    rows: list[CodecRow] = []
    say("lossy codecs")
    lossy = codec_lossy.measure(codec_data.gradients(), sizes[-1], rounds)
    for data, make in codec_data.KINDS.items():
        say(f"making {data}")
        buffer = make()
        for name in registry.NAMES:
            codec = registry.by_name(name)
            if codec.number:
                for nbytes in sizes:
                    say(f"{name} on {data}, {size_text(nbytes)}")
                    rows.append(measure_codec(data, codec, _pieces(buffer, nbytes), rounds))
    checked: list[Checked] = []
    noise = codec_data.noise()
    with codec_wire.opened() as wire:
        for nbytes in sizes:
            say(f"checks on {size_text(nbytes)}")
            checked += measure_checks(wire, _pieces(noise, nbytes), 3 * rounds)
    return rows, lossy, checked


def _lossy_cells(row: LossyRow) -> list[str]:
    target = ENCODE_TARGET.get(row.codec)
    verdict = "" if target is None else f"≥ {_rate(target)}: {'met' if row.met else 'missed'}"
    return [
        *(row.codec, size_text(row.piece_bytes), f"{row.bits:.2f}", f"{100 * row.error:.2g} %"),
        *(_rate(row.encode), _rate(row.decode), verdict),
    ]


def sheets(
    rows: Sequence[CodecRow], lossy: Sequence[LossyRow], checked: Sequence[Checked]
) -> list[Sheet]:
    codecs = Sheet(
        "Codecs",
        ["data, codec", "piece", "ratio", "encode", "decode", "auto encodes on links below"],
    )
    codecs.rows += [row.cells() for row in rows]
    coded = Sheet(
        "Lossy codecs of gradients",
        ["codec", "piece", "bits an element", "error", "encode", "decode", "encode, one core"],
    )
    coded.rows += [_lossy_cells(row) for row in lossy]
    checks = Sheet(
        "The payload check",
        [
            *("check", "piece", "loopback\ntransfer", "check", "part of a\npiece's time"),
            *("measured,\nboth ends", "within target on\nlinks below", "one check"),
        ],
    )
    checks.rows += [one.cells() for one in checked]
    return [codecs, coded, checks]


def main() -> int:
    parser = program.parser(__doc__ or "", ROUNDS, saves=False)
    given = program.arguments(parser)
    rounds = given.rounds or (3 if given.quick else ROUNDS)
    about = machine.about()
    about.update({name: machine.version_of(name) for name in ("lz4", "xxhash")})
    screen = console()
    with screen.status("") as status:
        rows, lossy, checked = run(QUICK_SIZES if given.quick else SIZES, rounds, status.update)
    data: dict[str, Any] = {
        "codecs": [{**vars(row), "auto_below": row.auto_below} for row in rows],
        "lossy": [{**vars(row), "met": row.met} for row in lossy],
        "checks": [{**vars(one), "part": one.part, "met": one.met} for one in checked],
    }
    result = BenchResult(
        "codec",
        about,
        METHOD.format(mb=codec_data.NBYTES // MB, rounds=rounds),
        sheets(rows, lossy, checked),
        [],
        data,
    )
    report.finish(result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
