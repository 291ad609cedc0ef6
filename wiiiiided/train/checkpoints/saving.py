"""When a run saves, and how: a copy between two steps, written while training goes on.

    step n ── due? ─┬─ scheduler, evaluation … ─┬─ next batch ── forward ── backward ── step n+1
                    │ all ranks know            │ save: generators of all ranks ─ barrier
                                                │ place 0 copies its host's state, starts the writer
                                                └─ no rank can write a weight before place 0 steps

A save that has become due in a step is made when the loop asks for its next batch, or else in the
next training forward: what the script does after a step, a scheduler's step above all, belongs to
that step. Steps count alike on all ranks; time is that of rank 0, whose wish travels with what
ranks tell each other in a step, as does that of a rank to which a signal came (`signals`): then all
hosts have written the file before training goes on. No byte of state crosses the network.

The memory for the copy is looked for after the first step, by a thread, and stays allocated: pages
that are there take half the time. Where memory does not allow a copy, place 0 writes the file
itself and the others wait in their next step.

The writer works at a low priority as long as nothing waits for it. A save that ranks wait for, the
one before it, and what is still being written at a process's end are written at that of ranks.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.segment import Segment, page_up
from wiiiiided.backend.wire.tensors import pack, unpack
from wiiiiided.domain.disk_room import room_on
from wiiiiided.errors import HostError, UsageError
from wiiiiided.train.checkpoints import writer
from wiiiiided.train.checkpoints.file import FileHead, FileImage, candidates
from wiiiiided.train.checkpoints.owner import FileOwner
from wiiiiided.train.checkpoints.policy import SavePolicy, SaveWish
from wiiiiided.train.checkpoints.signals import StopSignals
from wiiiiided.train.data.shared_memory import available_bytes
from wiiiiided.train.memory import MappedMemory, host_barrier
from wiiiiided.train.residuals import HostNumber
from wiiiiided.train.rng import rng_state
from wiiiiided.train.small_collectives import all_gather_text

_SAVE: Final = CallSignature.of("a checkpoint of wide.parallel")
_SPARE_BYTES: Final = 1 << 20  # a scheduler's state may grow
_RNG_BYTES: Final = 32 * 1024  # of one rank: torch 5 kB, numpy 2.5 kB, Python 5 kB

Collect = Callable[[], dict[str, Any]]


class Saver:
    """The checkpoints that one run writes on this host."""

    def __init__(
        self,
        policy: SavePolicy,
        owner: FileOwner,
        process_group: dist.ProcessGroup,
        group: Group,
        collect: Collect,
    ) -> None:
        """`collect`: the host's state but for random generators. A collective call."""
        self._process_group, self._group, self._collect, self._owner = (
            process_group,
            group,
            collect,
            owner,
        )
        self._policy, self.folder = policy, policy.path
        self.number = HostNumber.of(group)
        self._rng = MappedMemory(group, "random generators", _RNG_BYTES * group.team.size)
        self._image: Segment | None = None
        self._is_prepared = False
        self._prepared: Future[Segment | None] | None = None  # the memory that a thread looks for
        self._last_step, self._last_s = 0, time.monotonic()
        self._token = all_gather_text(process_group, os.urandom(8).hex())[0]
        self._pending, self._is_begun = SaveWish.NO, False
        self._asked: list[int] = []  # the step after which the script asked for a save to come
        say = log.warn if group.team.rank == 0 else log.tell  # once a host is enough
        warn_signal = group.driver.config.warn_signal
        self._signals = StopSignals(warn_signal, functools.partial(say, group.who))
        weakref.finalize(self, self._signals.forget)
        self._says_synchronous = self._says_busy = False
        self._writing: list[tuple[int, subprocess.Popen[str]]] = []
        weakref.finalize(self, _finish, self._writing, group.who)  # also at the process's end
        if process_group.rank() == 0:
            weakref.finalize(self, _say_unsaved, self._asked, group.who)

    # -- when ----

    def begin(self) -> None:
        """Begin before the first step; raises if files of an earlier run are in the way."""
        if not self._is_trial:
            self._signals.listen()
        if self._is_begun:
            return
        for said in all_gather_text(self._process_group, self._in_the_way()):
            if said:
                raise UsageError(said)
        self._is_begun = True

    def _in_the_way(self) -> str:
        try:
            mine = candidates(self.folder, self._owner, self.number.host, [])
        except UsageError as problem:
            return str(problem)
        if not mine:
            return ""
        return (
            f"there is a checkpoint of an earlier run, {mine[0][1]}: call run.resume() before the "
            "first step to go on from it, or save to another folder"
        )

    @property
    def _is_trial(self) -> bool:
        """Whether nothing is to stay of this run, which ends when it is told to."""
        return self._group.driver.config.probe

    def begin_after(self, step: int) -> None:
        """Count from the step that the run goes on after, or from 0."""
        self._is_begun, self._pending = True, SaveWish.NO
        self._last_step, self._last_s = step, time.monotonic()

    def wishes(self, step: int) -> SaveWish:
        """Whether a signal came to this rank, or it is time after this step: by rank 0's clock, or
        by the number of steps."""
        if self._signals.asked:
            return SaveWish.NOW
        if self._asked:
            return SaveWish.ASKED
        if self._policy.steps is not None:
            return SaveWish(step - self._last_step >= self._policy.steps)
        late = time.monotonic() - self._last_s >= self._policy.seconds
        return SaveWish(self._process_group.rank() == 0 and late)

    def stepped(self, step: int, wished: SaveWish) -> None:
        """All ranks have made a step, and know what one of them wished then."""
        if not self._is_prepared:
            self._prepare(step)
        if wished:
            self._pending = max(wished, self._pending, SaveWish.DUE)
            self._last_step, self._last_s = step, time.monotonic()

    def save_pending(self, step: int) -> None:
        """Save, between two steps, if the last one was due."""
        if self._pending:
            self.save(step, self._pending >= SaveWish.ASKED)

    def ask(self, step: int) -> None:
        """Note that the script wants a save as soon as hosts meet."""
        if not self._is_trial:
            self._asked[:] = [step]

    def end_loop(self, step: int) -> None:
        """The loop over the data is over: what the script has asked for in it does not wait for
        another loop, which may not come."""
        if self._pending is SaveWish.ASKED:
            self.save(step, True)

    # -- how ----

    def save(self, step: int, waits: bool) -> None:
        """Save this step, on all ranks; `waits`: until all hosts have written it."""
        self._pending = SaveWish.NO
        self._asked.clear()
        self._last_step, self._last_s = step, time.monotonic()
        if self._is_trial:
            return
        self._lay_down_rng()
        host_barrier(self._group, _SAVE)
        if self._group.team.rank == 0:
            if waits:
                self._end_writer()
            self._write(step)
            if waits:
                self._end_writer()
        if waits:
            all_gather_text(self._process_group, "")
            self._signals.saved(step)

    def _lay_down_rng(self) -> None:
        packed = pack(rng_state())
        mine = self._rng.bytes[self._group.team.rank * _RNG_BYTES :][:_RNG_BYTES]
        raw = packed.head + bytes(packed.join())
        mine[:8].view(np.uint32)[:] = len(packed.head), packed.nbytes
        mine[8 : 8 + len(raw)] = np.frombuffer(raw, np.uint8)

    def _read_rng(self, place: int) -> Any:
        theirs = self._rng.bytes[place * _RNG_BYTES :][:_RNG_BYTES]
        head, data = (int(n) for n in theirs[:8].view(np.uint32))
        return unpack(theirs[8 : 8 + head].tobytes(), theirs[8 + head : 8 + head + data].tobytes())

    def _write(self, step: int) -> None:
        busy = self.poll()
        if busy is not None:
            self._say_busy(step, busy)
            return
        value = {"step": step, **self._collect()}
        ranks, ranks_here = self._group.team.ranks, self._group.team.size
        value["rng"] = {rank: self._read_rng(place) for place, rank in enumerate(ranks)}
        image, path = self._image_of(step, value)
        try:
            writer.make_folder(self.folder)
            if lacking := self._lacking(image.nbytes):
                _warn(self._group.who, step, lacking)
                return
            room = self._room(image.nbytes)
            if room is None:
                writer.write(path, image.chunks(), self.number.host, self._policy.keep)
                return
            image.copy_to(room.map, min(ranks_here, os.cpu_count() or 1))
            self._start(step, room, image.nbytes, path)
        except OSError as problem:
            _warn(self._group.who, step, problem.strerror or str(problem))

    def _lacking(self, nbytes: int) -> str:
        """A sentence on the room that a job's disk lacks for one more file, and for what stays free
        where the daemon's state may be; "": nothing."""
        job, disk = self._owner.job, os.statvfs(self.folder)
        if job is None:
            return ""
        is_daemons = os.stat(self.folder).st_dev == os.stat(job.work).st_dev
        left = room_on(disk) if is_daemons else 0
        lacking = nbytes + left - disk.f_bavail * disk.f_frsize
        if lacking <= 0:
            return ""
        also = f", and {_mib(left)} stay free there" if left else ""
        return f"the disk of {self.folder} lacks {_mib(lacking)}: it takes {_mib(nbytes)}{also}"

    def _image_of(self, step: int, value: dict[str, Any]) -> tuple[FileImage, str]:
        ranks, owner = self._process_group.size(), self._owner
        head = FileHead(step, *self.number, ranks, owner.model, self._token, owner.job_name)
        return FileImage.of(head, value), str(self.folder / head.name(owner.series))

    def _say_busy(self, step: int, busy: int) -> None:
        if not self._says_busy:
            self._says_busy = True
            log.warn(
                self._group.who,
                f"step {step} is not saved: step {busy} is still being written. It may be the same "
                "with later ones. Save less often (save_every)",
            )

    def _start(self, step: int, room: Segment, nbytes: int, path: str) -> None:
        numbers = [str(self.number.host), str(self._policy.keep)]
        said = [str(room.fd), str(nbytes), path, *numbers]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", writer.__file__, *said],
            pass_fds=(room.fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._writing.append((step, process))

    def _prepare(self, step: int) -> None:
        """Make the memory for saves early: after the first step, when the optimizer has its state.
        The kernel needs several times as long to find and clear it as a copy takes."""
        self._is_prepared = True
        if self._group.team.rank == 0:
            image, _ = self._image_of(step, {"step": step, **self._collect()})
            nbytes = image.nbytes + _SPARE_BYTES + _RNG_BYTES * self._group.team.size
            thread = ThreadPoolExecutor(1, "wiiiiide-checkpoint")
            self._prepared = thread.submit(_make_room, nbytes)
            thread.shutdown(wait=False)

    def _room(self, nbytes: int) -> Segment | None:
        """Memory for the copy; None: there is not so much."""
        if self._prepared is not None:
            self._image, self._prepared = self._prepared.result(), None
        if self._image is not None and self._image.nbytes >= nbytes:
            return self._image
        self._image = None  # its memory is free before a larger copy is made
        self._image = _make_room(nbytes)
        if self._image is not None:
            return self._image
        if not self._says_synchronous:
            self._says_synchronous = True
            text = f"a checkpoint takes {_mib(nbytes)}, more than is free in memory"
            log.warn(self._group.who, f"{text}: it is written while the ranks wait")
        return None

    # -- the writer's end ----

    def poll(self) -> int | None:
        """The step that is being written; says what became of one that is done."""
        for step, process in self._writing:
            if process.poll() is None:
                return step
        self._end_writer()
        return None

    def _end_writer(self) -> None:
        _finish(self._writing, self._group.who)


def _mib(nbytes: int) -> str:
    """Rounded up: a sentence about what is lacking must not say too little."""
    return f"{-(-nbytes // 2**20):,} MiB"


def _make_room(nbytes: int) -> Segment | None:
    """Make so much memory, every page there and mapped; None: there is not so much."""
    if page_up(nbytes) > available_bytes():
        return None
    try:
        made = Segment.create("checkpoint", page_up(nbytes))
        made.reserve(0, made.nbytes)
    except HostError:
        return None
    made.populate()
    return made


def _finish(writing: list[tuple[int, subprocess.Popen[str]]], who: str) -> None:
    """Wait for the writer, which hears of it, and say what went wrong."""
    while writing:
        step, process = writing.pop()
        # Its end of file is not enough: a loader's worker may have the pipe open, too.
        said, _ = process.communicate(writer.NOW)
        if process.returncode:
            _warn(who, step, said or f"its writer ended with {process.returncode}")


def _say_unsaved(asked: list[int], who: str) -> None:
    """Warn at the end of a run of saves that the script asked for and that were not made."""
    for step in asked:
        log.warn(
            who,
            f"run.save() after step {step} has saved nothing: hosts make different numbers of "
            "steps, and did not meet again in the loop over the data. Call it after a loop that "
            "has come to its end",
        )


def _warn(who: str, step: int, why: str) -> None:
    log.warn(
        who, f"step {step} could not be saved: {why}. Training goes on; the last good one is kept"
    )
