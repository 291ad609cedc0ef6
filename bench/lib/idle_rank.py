"""A rank that opens many groups, uses each once and then does nothing.

Started by lib/fleet.py; waits for messages from idle_groups.py.
"""

import os
import time
from pathlib import Path

import torch.distributed as dist

from lib import groups, link
from lib.link import Message
from lib.proc import pss_bytes

# Work that opening a group still has to finish is no cost of an idle group.
_PAUSE_SECONDS = 0.5


def _segments() -> dict[str, int]:
    """The memory behind every shared segment open or mapped here, whether a page is mapped or not.

    Keyed by the segment, so that one that several ranks have is counted once.
    """
    found: dict[str, int] = {}
    for folder in ("/proc/self/fd", "/proc/self/map_files"):
        for entry in Path(folder).iterdir():
            try:
                if not str(entry.readlink()).startswith(("/memfd:", "/dev/shm/")):
                    continue
                facts = entry.stat()
            except OSError:
                continue  # closed meanwhile; or map_files, which only root may follow
            found[f"{facts.st_dev}:{facts.st_ino}"] = facts.st_blocks * 512
    return found


class IdleRank:
    """This rank's groups."""

    def __init__(self) -> None:
        self.rank = groups.join()
        self._groups: list[dist.ProcessGroup] = []

    def open(self, message: Message) -> Message:
        for _ in range(message["groups"]):
            self._groups.append(groups.open_group(message["backend"]))
        return {}

    def rest(self, message: Message) -> Message:
        """The processor time of all of this process's threads while it only sleeps."""
        time.sleep(_PAUSE_SECONDS)
        begin = time.process_time()
        time.sleep(message["seconds"])
        return {"cpu_seconds": time.process_time() - begin}

    def memory(self, message: Message) -> Message:
        """Of the shared memory it maps, this process's part: over all ranks the parts add up."""
        return {"mapped": pss_bytes(os.getpid(), "Shmem"), "segments": _segments()}

    def stop(self, message: Message) -> Message:
        self._groups.clear()
        groups.leave()
        return {}


if __name__ == "__main__":
    link.run(IdleRank)
