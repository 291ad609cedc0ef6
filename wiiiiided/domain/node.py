"""A machine as the control plane knows it: detected by its daemon, never asked of a person."""

from __future__ import annotations

import msgspec

PORT = 9461  # the one port of a machine, unless it was told another


class Node(msgspec.Struct, frozen=True):
    """A machine's resources. `boot_id` changes at a restart: nothing of before runs any more."""

    name: str
    cores: int
    memory: int  # bytes
    gpus: int = 0
    boot_id: str = ""
    address: str = ""  # of its one port, an IP; empty: a machine alone has none
    port: int = 0
    version: str = ""  # of the wiiiiided on it
    interface: str = ""  # that has the address: eth0; empty: it is not known

    @property
    def endpoint(self) -> str:
        """Where its one port is: `10.0.0.5:9461`, `[fd00::5]:9461`; empty for a machine alone."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}" if self.address else ""


class DrainRecord(msgspec.Struct, frozen=True):
    """A machine that gets no new jobs until it is resumed; jobs on it go on."""

    by: str
    reason: str
    at: float
