"""The ranks of one side, each in its host, at the end of a line that it inherits (lib/link.py)."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
from collections.abc import Sequence

from lib import link
from lib.fleet import HERE, START_SECONDS, Fleet, rank_program
from lib.net_hosts import Hosts

# Of a namespace made a moment ago every port is free; below the range the kernel picks from.
_ports = itertools.count(29500)


class NetFleet(Fleet):
    """Ranks placed on hosts, with settings in their environment."""

    def __init__(self, hosts: Hosts, settings: dict[str, str], program: str = "net_rank") -> None:
        self._hosts, self._settings = hosts, settings
        super().__init__(program, hosts.ranks)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _start(self, launcher: Sequence[str]) -> None:
        port = next(_ports)
        for rank in range(self.ranks):
            self._start_rank(rank, port)
        # Each rank says who it is as if it had been asked.
        self._collect(list(range(self.ranks)), START_SECONDS)

    def _start_rank(self, rank: int, port: int) -> None:
        host = self._hosts.placement[rank]
        ours, theirs = socket.socketpair()
        self._lines[rank] = ours
        with theirs:
            own = {link.LINE: str(theirs.fileno())}
            process = subprocess.Popen(
                host.inside(rank_program(self._program)),
                env=_surroundings()
                | {"PYTHONPATH": str(HERE)}
                | self._place(rank, port)
                | self._settings
                | own,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        self._processes.append(process)
        self._pidfds.append(os.pidfd_open(process.pid))

    def _place(self, rank: int, port: int) -> dict[str, str]:
        """The environment torchrun would give this rank."""
        hosts = self._hosts
        host = hosts.placement[rank]
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - hosts.placement.index(host)),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(host.ranks),
            "GROUP_RANK": str(hosts.all.index(host)),
            "MASTER_ADDR": hosts.all[0].address,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }


def _surroundings() -> dict[str, str]:
    """This program's environment without what could help or hinder a backend."""
    strange = ("GLOO_", "WIIIIIDE_")
    return {name: text for name, text in os.environ.items() if not name.startswith(strange)}
