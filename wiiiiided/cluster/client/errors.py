"""Every failure between a command and the daemon, translated here and nowhere else.

ClientError           .code is the command's exit code, .hint says what to do
├── NoDaemon     4    no daemon listens
├── NotAllowed   5    the socket is not for this user
├── DaemonRefused     the daemon said no; code, message and hint are the daemon's
├── VersionMismatch 4 it speaks another protocol
├── DaemonLost   4    it went away, or stopped answering, in the middle
├── NotSettled   1    it was given a new role and does not get into it
└── TimedOut     124  the caller's own deadline
"""

from __future__ import annotations

from wiiiiided import __version__
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.config import Paths
from wiiiiided.errors import WiiiiideError


class ClientError(WiiiiideError):
    """A failure between a command and the daemon."""

    code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NoDaemon(ClientError):
    """No daemon listens on the socket."""

    code = 4


class NotAllowed(ClientError):
    """The socket may not be opened by this user."""

    code = 5


class VersionMismatch(ClientError):
    """Client and daemon do not speak the same protocol."""

    code = 4


class DaemonLost(ClientError):
    """The daemon went away, or stopped answering, in the middle of a request."""

    code = 4


class NotSettled(ClientError):
    """The request is done and on the disk, but the daemon cannot do its part."""

    def __init__(self, role: str, missing: str) -> None:
        super().__init__(
            f"it is done, but this machine does not work as {AS[role]} yet: {missing}",
            "the daemon goes on trying; wiiiiide doctor says what is wrong, its log says more",
        )


AS = {"alone": "a machine alone", "coordinator": "the coordinator", "member": "a member"}


class TimedOut(ClientError):
    """The caller's deadline passed."""

    code = 124


class DaemonRefused(ClientError):
    """The daemon's own no."""

    def __init__(self, refusal: m.Refusal) -> None:
        super().__init__(refusal.message, refusal.hint)
        self.code = refusal.code


def no_daemon(paths: Paths, problem: OSError) -> NoDaemon:
    if paths.mode == "private":
        home = paths.socket.parent
        return NoDaemon(
            f"no daemon answers on {paths.socket}", f"start it: WIIIIIDE_HOME={home} wiiiiided"
        )
    if isinstance(problem, ConnectionRefusedError):
        message = f"no daemon answers on {paths.socket}: the one that made it is gone"
    else:
        others = "" if paths.mode == "user" else f" ({Paths.user().socket} is not there either)"
        message = f"no daemon answers on {paths.socket}{others}"
    own = paths.mode == "user" and isinstance(problem, ConnectionRefusedError)
    return NoDaemon(
        message,
        "start the machine's with `systemctl start wiiiiided` (`wiiiiide service install` sets it "
        "up), or one of your own with `wiiiiided`"
        + (f"; to use the machine's, remove {paths.socket}" if own else ""),
    )


def not_allowed(paths: Paths) -> NotAllowed:
    if paths.mode != "system":
        return NotAllowed(f"you may not use the daemon of {paths.socket}: it is another user's")
    return NotAllowed(
        f"you may not use this machine's daemon: {paths.socket} is for the group wiiiiide",
        "to join it: sudo usermod -aG wiiiiide $USER, then log out and in again. Its members can "
        "run programs as the jobs' user",
    )


def lost() -> DaemonLost:
    return DaemonLost(
        "the daemon went away in the middle of the request; running jobs go on",
        "try again; systemctl status wiiiiided says how it is",
    )


def mismatch(theirs: m.Hello | None) -> VersionMismatch:
    if theirs is None:
        return VersionMismatch(
            f"the program that answers is no wiiiiided that wiiiiide {__version__} understands",
            "restart the daemon, so that it is of the version installed here: "
            "systemctl restart wiiiiided (jobs go on)",
        )
    message = (
        f"wiiiiide {__version__} speaks protocol {m.PROTOCOL}, the daemon is wiiiiided "
        f"{theirs.version} with protocol {theirs.protocol}"
    )
    if theirs.protocol < m.PROTOCOL:
        return VersionMismatch(
            message,
            "restart the daemon to bring it up to date: systemctl restart wiiiiided (jobs go on)",
        )
    return VersionMismatch(message, f"install version {theirs.version} of wiiiiide")
