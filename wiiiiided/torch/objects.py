"""Values with tensors in them, between ranks, without pickle, over any backend.

    torch's send_object_list pickles: every tensor is copied into the pickle, the pickle into a
    tensor, and the receiver runs whatever the pickle says. Here the tensors' own memory is sent,
    and received where it will stay (backend/wire/tensors); nothing that arrives is run.

    the giver                                        every taker
    ─────────                                        ───────────
    opening: magic, GIVEN, bytes of the head  ──►
    head                                      ──►    checked, memory allocated
                                              ◄──    verdict: taken, or why not
    the data, run by run                      ──►    into its place
                                                     the value is built over it

    opening: magic, NOT_GIVEN, bytes of text  ──►
    why there is no value                     ──►    raised there as here

The verdict keeps both sides in step: a value that is refused leaves no message behind that a later
call could take for its own, and no rank waits for what will not come. Under send_object it goes the
other way with a tag of its own, so that it cannot meet the caller's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_object_coll_device

from wiiiiided.backend.wire.tensors import HEAD_BYTES, LIMIT_BYTES, PackedTensors, pack, plan
from wiiiiided.backend.wire.tensors_format import Span
from wiiiiided.backend.wire.tensors_memory import bytes_tensor
from wiiiiided.errors import HostError, UsageError

MAGIC: Final = 0x7774656E_0B1EC701  # no accident: another message here is told from an opening
GIVEN: Final = 1
NOT_GIVEN: Final = 2
VERDICT_BYTES: Final = 512  # one byte, 0 for taken, then the reason as text
TEXT_BYTES: Final = 4096  # of the reason why there is no value
VERDICT_TAG: Final = 1 << 30  # added to the caller's tag, which is below it
# Small neighbours travel as one message: 300 tensors of 1 KB took a third of the time they take one
# by one. 64 KiB to 1 MiB measured alike.
RUN_BYTES: Final = 256 * 1024

Verdict = str  # why a value is not taken; empty: it is


def send_object(
    value: Any,
    dst: int,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    pickle: bool = False,
) -> None:
    """Send a value to global rank `dst`, which calls recv_object. Do not change it meanwhile.

    Returns when it has been taken: two ranks that both send first wait for each other. UsageError
    with the path if a part of it cannot travel, or with the receiver's reason if it was refused
    there; in both cases the receiver's call fails too.
    """
    _check_call(group, dst, tag)
    device = _device(group)

    def put(tensor: torch.Tensor) -> None:
        dist.send(tensor.to(device), dst, group, tag)

    def verdicts() -> list[tuple[int, Verdict]]:
        answer = torch.zeros(VERDICT_BYTES, dtype=torch.uint8, device=device)
        dist.recv(answer, dst, group, tag + VERDICT_TAG)
        return [(dst, _verdict_of(answer))]

    _give(value, pickle, put, verdicts)


def recv_object(
    src: int,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    pickle: bool = False,
    limit_bytes: int = LIMIT_BYTES,
) -> Any:
    """The value that global rank `src` sends with send_object. Its tensors are on the CPU.

    More than limit_bytes of tensors are refused with HostError before memory is allocated, as is
    what was pickled unless pickle is True here as well. All tensors of the value lie in one piece
    of memory, which lives as long as any of them.
    """
    _check_call(group, src, tag)
    device = _device(group)

    def answer(verdict: Verdict) -> None:
        dist.send(_verdict(verdict).to(device), src, group, tag + VERDICT_TAG)

    taking = _Taking(src, pickle, limit_bytes)
    return taking.value(_into(device, lambda t: dist.recv(t, src, group, tag)), answer)


def broadcast_object(
    value: Any,
    src: int,
    group: dist.ProcessGroup | None = None,
    pickle: bool = False,
    limit_bytes: int = LIMIT_BYTES,
) -> Any:
    """The value of global rank `src`, on every rank of the group; elsewhere `value` is ignored.

    A collective call. If one rank refuses the value, or `src` cannot send it, all ranks raise.
    """
    _check_call(group, None, 0)
    device = _device(group)

    def share(tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, src, group)

    def verdicts(mine: Verdict = "") -> list[tuple[int, Verdict]]:
        ranks = dist.get_process_group_ranks(group)
        answers = [_verdict("").to(device) for _ in ranks]
        dist.all_gather(answers, _verdict(mine).to(device), group)
        return [(rank, _verdict_of(a)) for rank, a in zip(ranks, answers, strict=True)]

    if dist.get_rank() == src:
        _give(value, pickle, lambda tensor: share(tensor.to(device)), verdicts)
        return value

    def answer(verdict: Verdict) -> None:
        told = verdicts(verdict)
        if not verdict:
            _raise_refusals(told)

    return _Taking(src, pickle, limit_bytes).value(_into(device, share), answer)


# ---- both sides

Move = Callable[[torch.Tensor], Any]


def _into(device: str, receive: Move) -> Move:
    """A receive into CPU memory, also where the backend has only its own device's (never run by
    us: the machines we build on have no GPU)."""
    if device == "cpu":
        return receive

    def staged(tensor: torch.Tensor) -> None:
        stage = tensor.to(device)
        receive(stage)
        tensor.copy_(stage)

    return staged


def _give(
    value: Any, pickle: bool, put: Move, verdicts: Callable[[], list[tuple[int, Verdict]]]
) -> None:
    try:
        packed = pack(value, pickle=pickle)
    except Exception as error:
        text = str(error).encode("utf-8", "replace")[:TEXT_BYTES] or b"?"
        put(torch.tensor([MAGIC, NOT_GIVEN, len(text)]))
        put(bytes_tensor(memoryview(text)))
        raise
    put(torch.tensor([MAGIC, GIVEN, len(packed.head)]))
    put(bytes_tensor(memoryview(packed.head)))
    _raise_refusals(verdicts())
    for first, last in _runs(packed.spans):
        put(_gathered(packed, first, last))


@dataclass(frozen=True)
class _Taking:
    """The side that receives, from global rank `src`."""

    src: int
    pickle: bool
    limit_bytes: int

    def value(self, take: Move, answer: Callable[[Verdict], None]) -> Any:
        head = self._head(take)
        try:
            blueprint = plan(head, pickle=self.pickle, limit_bytes=self.limit_bytes)
            memory = blueprint.allocate()
        except HostError as error:
            answer(str(error))
            raise
        answer("")
        if blueprint.nbytes:
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            for first, last in _runs(blueprint.spans):
                take(whole[blueprint.spans[first][0] : sum(blueprint.spans[last])])
        return blueprint.build(memory)

    def _head(self, take: Move) -> bytes:
        opening = torch.zeros(3, dtype=torch.int64)
        take(opening)
        magic, state, size = opening.tolist()
        bound = {GIVEN: HEAD_BYTES, NOT_GIVEN: TEXT_BYTES}.get(state, 0)
        if magic != MAGIC or not 0 < size <= bound:
            raise HostError(
                f"rank {self.src} sent something else than an object: "
                "does it call the same function, with the same tag and the same wiiiiided?"
            )
        head = torch.zeros(size, dtype=torch.uint8)
        take(head)
        raw = head.numpy().tobytes()
        if state == NOT_GIVEN:
            text = raw.decode("utf-8", "replace")
            raise UsageError(f"rank {self.src} could not send its object: {text}")
        return raw


def _runs(spans: list[Span]) -> Iterator[tuple[int, int]]:
    """The first and last buffer of each message: a large one alone, small neighbours together."""
    first = 0
    for at in range(1, len(spans) + 1):
        if at == len(spans) or sum(spans[at]) - spans[first][0] > RUN_BYTES:
            yield first, at - 1
            first = at


def _gathered(packed: PackedTensors, first: int, last: int) -> torch.Tensor:
    """Buffers as they stand in the data: one from its own memory, several in a copy."""
    if first == last:
        return bytes_tensor(packed.buffers[first])
    start = packed.spans[first][0]
    stage = torch.zeros(sum(packed.spans[last]) - start, dtype=torch.uint8)
    room = stage.numpy().data
    for (offset, nbytes), buffer in zip(
        packed.spans[first : last + 1], packed.buffers[first : last + 1], strict=True
    ):
        room[offset - start : offset - start + nbytes] = buffer
    return stage


def _verdict(reason: Verdict) -> torch.Tensor:
    raw = reason.encode("utf-8", "replace")[: VERDICT_BYTES - 1]
    answer = torch.zeros(VERDICT_BYTES, dtype=torch.uint8)
    if raw:
        answer[: len(raw) + 1] = torch.tensor([1, *raw], dtype=torch.uint8)
    return answer


def _verdict_of(answer: torch.Tensor) -> Verdict:
    raw = answer.cpu().numpy().tobytes()
    return raw[1:].rstrip(b"\0").decode("utf-8", "replace") if raw[0] else ""


def _raise_refusals(verdicts: list[tuple[int, Verdict]]) -> None:
    for rank, verdict in verdicts:
        if verdict:
            raise UsageError(f"rank {rank} refused the object: {verdict}")


def _check_call(group: dist.ProcessGroup | None, peer: int | None, tag: int) -> None:
    if dist.get_rank(group) < 0:
        raise UsageError(f"rank {dist.get_rank()} is not a member of the group it passed")
    if peer == dist.get_rank():
        raise UsageError(f"rank {peer} cannot send an object to itself: use the object")
    if not 0 <= tag < VERDICT_TAG:
        raise UsageError(f"tag {tag} is not within 0 … {VERDICT_TAG - 1}")


def _device(group: dist.ProcessGroup | None) -> str:
    return str(_get_object_coll_device(group))
