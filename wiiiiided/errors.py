"""One exception tree. Every message says what happened, to which rank or host, and what to do.

WiiiiideError (a RuntimeError, as torch.distributed's own errors are)
├── UsageError            what the caller did: a dtype without a sum, a tensor of the wrong size
│   └── Mismatch          what the ranks did: they disagree on the operation
├── HostError             what this machine did: no memory, no socket, a member on another machine
│   ├── BadFrame          bytes that are no frame of ours came over a link
│   └── HandshakeFailed   a connection was refused before its first frame: a wrong key, a version
└── GroupFailed           what a peer did; the group is lost, make a new one
    ├── PeerLost          its process died, or it left while others waited
    ├── PeerLate          it did not arrive within the group's timeout
    └── GroupClosed       this group was destroyed here
"""

from __future__ import annotations


class WiiiiideError(RuntimeError):
    """The root: catch this to catch everything the backend raises by itself."""


class UsageError(WiiiiideError):
    """The call cannot be carried out as it was made."""


class Mismatch(UsageError):
    """Ranks called different operations, or the same with another size, dtype, op or root."""


class HostError(WiiiiideError):
    """This machine cannot do what was asked."""


class BadFrame(HostError):
    """Bytes that are no frame of ours, on a link between hosts."""


class HandshakeFailed(HostError):
    """A handshake between hosts failed, here or on the other side; the connection is closed."""


class GroupFailed(WiiiiideError):
    """The group cannot go on; every later call on it fails with the same cause."""


class PeerLost(GroupFailed):
    """A member's process ended, or it destroyed the group, while others needed it."""


class PeerLate(GroupFailed):
    """A member did not arrive within the timeout."""


class GroupClosed(GroupFailed):
    """The group was destroyed in this process, or belongs to the process that forked this one."""
