"""Whether a piece should be encoded: pure, fed with what was measured, and it says why.

One Chooser serves one direction of one link. Of an exchange it knows four figures, each smoothed:
what the link carries, how fast pieces are encoded, how fast decoded, and how much smaller they
get. The last three are kept for each kind of data, so that token ids do not blur what is known of
gradients. From them it predicts the time of a byte:

    as it is    1 / link
    encoded     1 / encode  +  1 / decode  +  1 / (link × ratio)

Encoding and decoding are counted in full. In an exchange a rank encodes one piece and decodes
another in the same thread that adds and feeds the socket; the kernel goes on sending meanwhile and
hides a part of that, but how much depends on how full its buffer happens to be. To count all of it
errs towards sending raw. The price is real where encoding and the link are about equally fast:
token ids at 1 Gbit/s, sent one way, ran 2.1 to 2.4 times as fast encoded in three runs of four (0.9
times in the other, on a busier machine), and by this count `auto` found it worth it in one.

                    saves ≥ 10 %, by a probe or a slower link
          ┌─────┐ ───────────────────────────────────────────► ┌────┐  every piece is encoded
          │ off │                                              │ on │  and is a measurement; one
          └─────┘ ◄─────────────────────────────────────────── └────┘  that does not shrink
                    saves < 3 %, by pieces or a faster link              travels raw

Off, it cannot know what it misses, so now and then it asks for a probe: a sample of a piece is
encoded and thrown away. After each no, twice as many pieces pass until the next (1, 2, 4 … 64).
A yes that does not keep its promise (figures waver, or the sample was lucky) doubles that longest
wait, so it cannot switch to and fro. Probes, and pieces encoded in vain after such a yes, have a
time budget of almost 1 % of the time spent sending; when it is overdrawn, no probe is made. However
far it is overdrawn, one comes after 4,096 pieces: a change of the data is noticed within that many.

While most of what travels is encoded, samples of the link say little: it stands idle for want of
bytes, and its busy moments are shorter than the kernel's ticks. On 1 Gbit/s (119 MB/s) they read 37
to 289. To believe them all gave 43 MB/s, to believe those above what was known gave 224 and eleven
switches in fifteen exchanges. So what is known stays, until their average is twice as much: then
the link has become faster. Bursts through a shaper can still feign that (256 was believed in one
run; it stayed on). That it has become slower changes nothing for data already encoded.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

# Encoding 4 KiB takes 2 µs in lz4 and 3.5 in Python around it, decoding 2; of the 33 µs that they
# take on a link of 1 Gbit/s, half is won at ratio 2. At 2 KiB that would about break even.
LEAST_PIECE: Final = 4096
# A probe's sample. LZ4 looks back 64 KiB: less would make data look worse than it is.
SAMPLE_BYTES: Final = 65536

# Apart by more than smoothed figures waver, or it would switch to and fro.
_ON_FROM: Final = 0.10
_OFF_BELOW: Final = 0.03

_BUDGET: Final = 0.008  # of the time spent sending: the last probe is paid afterwards, so not 1 %
_MOST_CREDIT_S: Final = 0.002  # saved up in quiet times; bounds a burst of probes
_LONGEST_WAIT: Final = 64  # pieces between probes while the answer stays no
_LAST_WAIT: Final = 4096  # pieces until a probe is made on credit
_IN_DEBT: Final = 15  # pieces that pass between two looks at an overdrawn budget
_MOST_SLIPS: Final = 6  # 64 << 6 is 4096
# The part of the past that stays with each new observation: about 20 pieces count, or 3 samples
# of the link, which are averages already.
_KEEP_PIECE: Final = 0.95
_KEEP_LINK: Final = 0.7
_KEEP_STARVED: Final = 0.9
_FASTER: Final = 2.0  # times what was known: then samples of a starved link are believed
# dtypes, each in small and large pieces, make about 50; all kinds beyond this share one place.
_MOST_KINDS: Final = 64


class SmoothedRate:
    """A quotient of two amounts, each fading: large observations count for more than small ones."""

    __slots__ = ("_above", "_below", "how")

    def __init__(self) -> None:
        self._above = 0.0
        self._below = 0.0
        self.how = "not measured"

    def note(self, above: float, below: float, keep: float, how: str) -> None:
        """Add an observation; `keep` 0 forgets all earlier ones."""
        self._above = keep * self._above + above
        self._below = keep * self._below + below
        self.how = how

    @property
    def value(self) -> float | None:
        return self._above / self._below if self._below > 0 and self._above > 0 else None


@dataclass(frozen=True, slots=True)
class CodecForecast:
    """The figures a verdict rests on: rates in bytes of raw data a second, `link` of any data."""

    codec: str
    link: float
    encode: float
    decode: float
    ratio: float
    sampled: bool  # by a probe alone, not by whole pieces

    @property
    def share(self) -> float:
        """The time of an encoded byte, as a part of its time without."""
        cost = 1 / self.encode
        if self.ratio > 1:
            cost += 1 / self.decode
        return self.link * cost + 1 / self.ratio

    @property
    def saves(self) -> float:
        return 1 - self.share

    def gain_s(self, raw: int, wire: int, encode_s: float) -> float:
        """The gain of one piece, in seconds; below 0 where it has cost more."""
        decode_s = raw / self.decode if wire < raw else 0.0
        return (raw - wire) / self.link - encode_s - decode_s


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice for a piece. The sentence is made when a caller asks for it."""

    codec: str
    probe: bool  # encode a sample of this piece besides, and tell
    why: CodecForecast | str

    @property
    def reason(self) -> str:
        if isinstance(self.why, str):
            return f"{self.codec}: {self.why}"
        return _why_on(self.why) if self.codec == self.why.codec else _why_off(self.why)


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of a sample. `decode_s` is 0 where it did not shrink."""

    raw: int
    wire: int
    encode_s: float
    decode_s: float


@dataclass(slots=True)
class _Kind:
    """The state of one kind of data."""

    verdict: Decision
    encode: SmoothedRate = field(default_factory=SmoothedRate)
    decode: SmoothedRate = field(default_factory=SmoothedRate)
    ratio: SmoothedRate = field(default_factory=SmoothedRate)
    on: bool = False
    wait: int = 1  # pieces from one probe to the next
    waited: int = 0
    slips: int = 0  # how often it was switched on in vain, since it last was worth it
    gain_s: float = 0.0  # since it was switched on
    raw_s: float = 0.0  # what the same pieces would have taken without


class Chooser:
    """Decides for each piece; see the module. `setting` is "auto" or the name of a codec."""

    def __init__(self, setting: str = "auto", candidate: str = "lz4") -> None:
        self.switches = 0  # how often it has changed its mind
        self._candidate = candidate
        self._link = SmoothedRate()
        self._starved = SmoothedRate()  # all samples, those that count for little too
        self._kinds: dict[Hashable, _Kind] = {}
        self._credit_s = 0.0
        self._plain = self._encoded = 0  # raw bytes sent since the last sample of the link, by way
        self._asked = None if setting == "auto" else Decision(setting, False, "it was asked for")
        small = f"pieces under {LEAST_PIECE // 1024} KiB are never encoded"
        self._small = Decision("none", False, small)
        self._unknown = Decision("none", False, "the rate of the link is not known yet")
        self._untried = Decision("none", False, f"{candidate} has not been tried on this data yet")

    def decide(self, kind: Hashable, nbytes: int) -> Decision:
        """The choice for a piece of `nbytes` of this kind; asked once for every piece."""
        if self._asked is not None and self._asked.codec == "none":
            return self._asked
        if nbytes < LEAST_PIECE:
            return self._small
        if self._asked is not None:
            return self._asked
        link = self._link.value
        if link is None:
            return self._unknown
        state = self._kind(kind)
        if not state.on:
            self._plain += nbytes
            self._credit_s = min(_MOST_CREDIT_S, self._credit_s + _BUDGET * nbytes / link)
            if self._due(state):
                state.waited = 0
                return Decision("none", True, state.verdict.why)
        return state.verdict

    def quiet(self, kind: Hashable) -> int:
        """How many more pieces of this kind are sure to travel raw, unless the link changes."""
        if self._asked is not None:
            return _LAST_WAIT if self._asked.codec == "none" else 0
        state = self._kinds.get(kind)
        if self._link.value is None:
            return _LONGEST_WAIT
        if state is None or state.on:
            return 0
        if self._credit_s < 0:
            return min(_IN_DEBT, _LAST_WAIT - state.waited - 1)
        return max(0, state.wait - state.waited - 1)

    def note_quiet(self, kind: Hashable, pieces: int, nbytes: int) -> None:
        """Note that so many pieces have travelled raw without being asked for."""
        link, state = self._link.value, self._kinds.get(kind)
        if link is not None and state is not None:
            state.waited += pieces
            self._plain += nbytes
            self._credit_s = min(_MOST_CREDIT_S, self._credit_s + _BUDGET * nbytes / link)

    def note_link(self, nbytes: float, seconds: float) -> None:
        """The link has carried so much in so much time of being the only thing waited for."""
        if nbytes <= 0 or seconds <= 0:
            return
        starved = self._encoded > self._plain
        self._plain = self._encoded = 0
        self._starved.note(nbytes, seconds, _KEEP_STARVED, "pieces")
        known, average = self._link.value, self._starved.value
        if not starved or known is None or average is None:
            self._link.note(nbytes, seconds, _KEEP_LINK, "pieces")
        elif average >= _FASTER * known:
            self._link.note(average * seconds, seconds, 0, "pieces")
        else:
            return
        for state in self._kinds.values():
            self._judge(state)

    def note_piece(self, kind: Hashable, raw: int, wire: int, seconds: float) -> None:
        """A whole piece was encoded; `wire` is what travels, `raw` itself where it did not
        shrink."""
        state = self._kind(kind)
        state.encode.note(raw, seconds, _KEEP_PIECE, "pieces")
        state.ratio.note(raw, wire, _KEEP_PIECE, "pieces")
        if state.on and isinstance(state.verdict.why, CodecForecast):
            state.gain_s += state.verdict.why.gain_s(raw, wire, seconds)
            state.raw_s += raw / state.verdict.why.link
            self._encoded += raw
        self._judge(state)

    def note_decode(self, kind: Hashable, raw: int, seconds: float) -> None:
        """A piece of the peer's was decoded here: the best guess of how fast the peer does it."""
        self._kind(kind).decode.note(raw, seconds, _KEEP_PIECE, "pieces")

    def note_probe(self, kind: Hashable, probe: Probe) -> None:
        """Note a probe. The last one may be long ago: its figures are replaced."""
        state = self._kind(kind)
        state.encode.note(probe.raw, probe.encode_s, 0, "sample")
        state.ratio.note(probe.raw, probe.wire, 0, "sample")
        if probe.decode_s > 0:
            state.decode.note(probe.raw, probe.decode_s, 0, "sample")
        self._credit_s -= probe.encode_s + probe.decode_s
        self._judge(state, probed=True)
        if not state.on:
            state.wait = min(2 * state.wait, _LONGEST_WAIT << state.slips)

    def _kind(self, kind: Hashable) -> _Kind:
        state = self._kinds.get(kind)
        if state is None:
            if len(self._kinds) >= _MOST_KINDS:
                kind = None
            state = self._kinds.setdefault(kind, _Kind(self._untried))
        return state

    def _due(self, state: _Kind) -> bool:
        state.waited += 1
        if state.waited >= _LAST_WAIT or state.encode.value is None:  # never tried: at once
            return True
        return state.waited >= state.wait and self._credit_s >= 0

    def _judge(self, state: _Kind, probed: bool = False) -> None:
        """Think again, with hysteresis."""
        forecast = self._forecast(state) if self._asked is None else None
        if forecast is None:
            return
        on = forecast.saves >= (_OFF_BELOW if state.on else _ON_FROM)
        if on and not state.on and not probed and state.slips and state.waited < state.wait:
            on = False  # after a slip, a link that wavers must not switch it on before its time
        if on != state.on:
            self._switch(state, on)
        state.verdict = Decision(self._candidate if on else "none", False, forecast)

    def _forecast(self, state: _Kind) -> CodecForecast | None:
        link, encode, ratio = self._link.value, state.encode.value, state.ratio.value
        if link is None or encode is None or ratio is None:
            return None
        # Decoding is the faster half in every codec there is: a guess on the safe side.
        decode = state.decode.value or encode
        return CodecForecast(
            self._candidate, link, encode, decode, ratio, sampled=state.encode.how == "sample"
        )

    def _switch(self, state: _Kind, on: bool) -> None:
        self.switches += 1
        state.on = on
        if not on:
            self._credit_s += min(0.0, state.gain_s)  # encoded in vain: paid like a probe
            kept = state.gain_s >= _ON_FROM * state.raw_s
            # A gain may come back with the next step of a training.
            state.slips = 0 if kept else min(state.slips + 1, _MOST_SLIPS)
            state.wait = 1 if kept else _LONGEST_WAIT << state.slips
        state.waited, state.gain_s, state.raw_s = 0, 0.0, 0.0


def _why_on(forecast: CodecForecast) -> str:
    return (
        f"{forecast.codec}: pieces are {forecast.ratio:.1f} times smaller and the link does "
        f"{_rate(forecast.link)}, so an exchange takes {forecast.share:.2f} of the time"
    )


def _why_off(forecast: CodecForecast) -> str:
    where = " on a sample" if forecast.sampled else ""
    return (
        f"none: {forecast.codec} would make a piece {_slower(forecast.share)} on this link "
        f"({_rate(forecast.link)}; {forecast.codec} encodes {_rate(forecast.encode)} at ratio "
        f"{forecast.ratio:.2f}{where})"
    )


def _slower(share: float) -> str:
    percent = round(100 * abs(share - 1))
    if percent == 0:
        return "no faster"
    if share < 1:
        return f"only {percent} % faster"
    return f"{percent} % slower" if percent < 100 else f"{share:.1f} times as slow"


def _rate(rate: float) -> str:
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "KB/s")):
        number = rate / unit
        if number >= 0.9995:  # what would be rounded to 1000 has the next unit
            return f"{number:.1f} {name}" if number < 10 else f"{number:.0f} {name}"
    return f"{rate:.0f} B/s"
