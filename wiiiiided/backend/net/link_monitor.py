"""Measurements of a link now and then, and what follows from them: codec and checksum.

every 2 MiB sent ─► rate (asked of the kernel) ─┬─► the encoder's choice of codec
                                                └─► whether payloads carry a sum
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wiiiiided.backend.net.integrity import judge
from wiiiiided.backend.net.link import WideLink
from wiiiiided.backend.net.tcp_rate import LinkRate

LOOK_BYTES: Final = 2 << 20


class LinkMonitor:
    """Measures one link. `checksum` is the setting: auto, on or off."""

    def __init__(self, link: WideLink, checksum: str) -> None:
        self._link, self._setting, self._rate = link, checksum, LinkRate()
        self._looked_at = self._told = 0  # bytes sent at the last look; codec changes told of
        self.checksum = judge(checksum, None)
        link.summed = self.checksum.summed

    def look(self) -> Iterator[str]:
        """Measure, after a send, if it is time; yields a sentence for everything that changed."""
        link = self._link
        if link.data.sent_bytes - self._looked_at < LOOK_BYTES:
            return
        self._looked_at = link.data.sent_bytes
        sock = getattr(link.data.stream, "sock", None)  # a pretended network has none
        sample = self._rate.sample(sock) if sock is not None else None
        if sample is None:
            return
        link.encoder.note_link(sample.nbytes, sample.seconds)
        if link.encoder.switches != self._told:
            self._told = link.encoder.switches
            yield link.encoder.reason
        self.checksum = judge(self._setting, sample.rate, link.summed)
        if self.checksum.summed != link.summed:
            link.summed = self.checksum.summed
            yield f"sums of payloads {self.checksum.reason}"
