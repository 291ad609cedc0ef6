"""How a large message crosses to another host: CHUNK frames out of the sender's memory.

    sender                              wire                           receiver
    data[at : at + 256 KiB] ── CHUNK ── payload ──► straight into the posted tensor, at its offset

The receiver has said WANT: the place is there. Two chunks are queued at a time, so that other
groups' frames come between them. The interface is that of `engine.lane`, which does so in memory.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from wiiiiided.backend.codec.interface import PieceInfo
from wiiiiided.backend.engine.lane import Transfer, TransferQueue
from wiiiiided.backend.shm import stats
from wiiiiided.backend.wire.local_frame import FrameKind

if TYPE_CHECKING:
    from wiiiiided.backend.engine.operation import Operation
    from wiiiiided.backend.engine.process import RankProcess
    from wiiiiided.backend.net.link import WideLink

CHUNK_BYTES: Final = 256 * 1024
QUEUED: Final = 2
_INFO: Final = PieceInfo()


class Chunks(TransferQueue):
    """The large messages on their way out over one wide link."""

    def __init__(self, process: RankProcess, link: WideLink) -> None:
        super().__init__()
        self._process, self._link = process, link
        self._queued: Counter[int] = Counter()  # chunks with the link, by group

    def carry(self, transfer: Transfer) -> None:
        """Send a message whose receiver is ready for it."""
        self._waiting.append(transfer)
        self._pump()

    def withdraw(self, group: int) -> None:
        super().withdraw(group)
        self._queued.pop(group, None)  # the link has dropped them
        self._process.driver.soon(self._pump)

    def detach(self, op: Operation) -> None:
        super().detach(op)
        self._link.data.detach(op.group.membership.nonce)

    def _pump(self) -> None:
        while self._waiting and self._queued.total() < QUEUED and not self._link.gone:
            transfer = self._waiting[0]
            group = self._process.groups.get(transfer.group)
            if group is None:
                self._waiting.popleft()
                continue
            piece = transfer.data[transfer.at : transfer.at + CHUNK_BYTES]
            offset, transfer.at = transfer.at, transfer.at + piece.size
            last = transfer.at >= transfer.data.size
            if last:
                self._waiting.popleft()
            self._queued[transfer.group] += 1

            def sent(transfer: Transfer = transfer, last: bool = last) -> None:
                if self._queued[transfer.group] > 0:
                    self._queued[transfer.group] -= 1
                if transfer.op is not None:
                    self._process.driver.moved(transfer.op)
                if last:
                    transfer.when_sent()
                self._process.driver.soon(self._pump)

            header = group.header(FrameKind.CHUNK, transfer.number)
            header.extra = offset
            self._link.send_data(header, piece.data, _INFO, sent)
            self._process.driver.page.words[stats.WIRE_OUT_RAW] += piece.size
            self._process.mesh.push(self._link)
