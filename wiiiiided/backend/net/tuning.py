"""Every socket option between machines: its value, why, and which measurement chose it.

Few are left of what trainers like to set. bench/sockets.py sweeps them between two network
namespaces, unshaped and at 1 Gbit and 100 Mbit (bench/results/sockets.md), and
what it found to do nothing, or harm, stands in LEFT_ALONE with the reason, lest it be added again
by habit.

    data       TCP_NODELAY and no more: a stream that may be full for minutes, and lives as
               long as the peer's kernel acknowledges
    watch      carries no data, so its silence means something. The kernels ask each other once a
               second, whatever the processes do:

               last word   probe  probe  probe  probe  probe  probe  probe  probe   given up
               0 s         1      2      3      4      5      6      7      8       9

    listener   one address, one family, a port of the kernel's choice; tuned before it is bound
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

SWEEP: Final = "bench/sockets.py"
BY_DESIGN: Final = "nothing to measure"

# A cable out for 5 s must not be a death, and a gigabit port needs another 2 s to agree on its
# speed: 8 probes cover 7 s whenever the cut begins. The promise to name a lost host is 10 s.
KEEP_IDLE_S: Final = 1
KEEP_INTERVAL_S: Final = 1
KEEP_COUNT: Final = 8
SILENT_AFTER_S: Final = KEEP_IDLE_S + KEEP_COUNT * KEEP_INTERVAL_S
# The kernel looks at TCP_USER_TIMEOUT when a probe is due: it must have passed
# by then, else it counts a second later.
UNACKNOWLEDGED_MS: Final = SILENT_AFTER_S * 1000 - 500

# All ranks of all other machines connect twice, at once: 20 machines of 16 ranks are 640. A peer
# that finds the queue full is not refused but comes again after a second. The kernel cuts it
# to somaxconn.
BACKLOG: Final = 1024

_IPV6_ADDR_PREFERENCES: Final = 72  # linux/in6.h
_PREFER_PUBLIC: Final = 0x0002
_LOW_DELAY: Final = 0x10  # IPTOS_LOWDELAY
_INTERACTIVE: Final = 6  # TC_PRIO_INTERACTIVE: pfifo_fast's first band; more would need root


@dataclass(frozen=True)
class SocketOption:
    """One setsockopt. `family` 0: both. `vital`: without it a promise of ours does not hold."""

    name: str
    level: int
    number: int
    value: int
    why: str
    measured: str
    family: int = 0
    vital: bool = True


@dataclass(frozen=True)
class LeftAlone:
    """An option that others set and we do not."""

    name: str
    why: str
    measured: str


_NODELAY = SocketOption(
    "TCP_NODELAY",
    *(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    "a frame sent behind another must not wait for an acknowledgement that the other side"
    " delays by 40 ms",
    f"{SWEEP}: small messages",
)

# Decides before connecting where an IPv6 connection begins.
LASTING: Final = SocketOption(
    "IPV6_ADDR_PREFERENCES",
    *(socket.IPPROTO_IPV6, _IPV6_ADDR_PREFERENCES, _PREFER_PUBLIC),
    "many desktops begin connections at a temporary (privacy) address, which goes away under a"
    " training that runs for a week",
    BY_DESIGN,
    family=socket.AF_INET6,
    vital=False,
)

DATA: Final = (LASTING, _NODELAY)

WATCH: Final = (
    *(LASTING, _NODELAY),
    SocketOption(
        "SO_KEEPALIVE",
        *(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        "the peer's kernel answers even while its process is stopped or busy: only a machine"
        " that is gone is silent",
        f"{SWEEP}: the watch",
    ),
    SocketOption(
        "TCP_KEEPIDLE",
        *(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_IDLE_S),
        "the time from the last word to the first question is time in which a cut goes unseen",
        f"{SWEEP}: the watch",
    ),
    SocketOption(
        "TCP_KEEPINTVL",
        *(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_INTERVAL_S),
        "the kernel's smallest step; 66 bytes each way",
        f"{SWEEP}: the watch",
    ),
    SocketOption(
        "TCP_KEEPCNT",
        *(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_COUNT),
        "the last question comes 7 s after the first: a cable out for 5 s, and a port that"
        " negotiates again, are survived; with 3, 1 and 5 a third of such cuts were deaths",
        f"{SWEEP}: the watch",
    ),
    SocketOption(
        "TCP_USER_TIMEOUT",
        *(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS),
        "keepalive pauses while a frame (FAULT) is not acknowledged, and the kernel would repeat"
        " it for a quarter of an hour; harmless here, where no more is sent than a window holds",
        f"{SWEEP}: the watch",
    ),
    SocketOption(
        "IP_TOS",
        *(socket.IPPROTO_IP, socket.IP_TOS, _LOW_DELAY),
        "a FAULT frame should not stand behind data in the queues of machines and switches that"
        " look at it",
        BY_DESIGN,
        family=socket.AF_INET,
        vital=False,
    ),
    SocketOption(
        "IPV6_TCLASS",
        *(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _LOW_DELAY),
        "as IP_TOS",
        BY_DESIGN,
        family=socket.AF_INET6,
        vital=False,
    ),
    SocketOption(
        "SO_PRIORITY",
        *(socket.SOL_SOCKET, socket.SO_PRIORITY, _INTERACTIVE),
        "the same for this machine's own queue; IPv6 does not derive it from its class",
        BY_DESIGN,
        vital=False,
    ),
)

LISTENER: Final = (
    SocketOption(
        "SO_REUSEADDR",
        *(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0),
        "the port is the kernel's choice and new each time; with it two listeners could be given"
        " one port, and the second fail to listen",
        BY_DESIGN,
    ),
    SocketOption(
        "IPV6_V6ONLY",
        *(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1),
        "an address of one family, whatever net.ipv6.bindv6only says",
        BY_DESIGN,
        family=socket.AF_INET6,
    ),
)

LEFT_ALONE: Final = (
    LeftAlone(
        "SO_SNDBUF, SO_RCVBUF",
        "the kernel tunes both to the link, up to tcp_rmem and tcp_wmem. A size of our own is cut"
        " to rmem_max and wmem_max, often less than that, and turns the tuning off",
        f"{SWEEP}: buffers",
    ),
    LeftAlone(
        "TCP_QUICKACK",
        "set once it does nothing: the kernel takes it back by itself. Set before every receive it"
        " costs a system call, and a packet for each answer that would have carried the"
        " acknowledgement",
        f"{SWEEP}: QUICKACK",
    ),
    LeftAlone(
        "TCP_NOTSENT_LOWAT",
        "it lets a small frame overtake what the kernel has not sent, but frames of a link go in"
        " order, and what must not wait has the watch",
        f"{SWEEP}: a small frame in a full stream",
    ),
    LeftAlone(
        "SO_KEEPALIVE on data",
        "the watch knows sooner; and keepalive pauses while data is under way",
        BY_DESIGN,
    ),
    LeftAlone(
        "TCP_USER_TIMEOUT on data",
        "it ends a stream whose peer merely does not read: a stopped process is a stall",
        BY_DESIGN,
    ),
    LeftAlone(
        "TCP_CONGESTION",
        "the machine's owner has chosen one for this network",
        BY_DESIGN,
    ),
    LeftAlone(
        "several streams in place of one",
        "each rank of a machine has a link of its own to each rank elsewhere already",
        f"{SWEEP}: streams",
    ),
)


def tune_data(sock: socket.socket) -> None:
    """Tune a connection that carries frames; before it is connected, if it is ours to connect."""
    _apply(sock, DATA)


def tune_watch(sock: socket.socket) -> None:
    """A connection whose end means that the other machine is silent, after SILENT_AFTER_S; before
    it is connected, if it is ours to connect."""
    _apply(sock, WATCH)


def tune_listener(sock: socket.socket) -> None:
    """Tune a listening socket, before it is bound; then listen(BACKLOG)."""
    _apply(sock, LISTENER)


def tune_probe(sock: socket.socket) -> None:
    """Tune a socket that asks for a route, which must have the answer that a connection gets."""
    _apply(sock, (LASTING,))


def _apply(sock: socket.socket, options: tuple[SocketOption, ...]) -> None:
    """Set an option; raises OSError, with its name, if the kernel refuses a vital one."""
    sock.set_inheritable(False)  # a child of the training must not keep a link open
    for option in options:
        if option.family not in (0, sock.family):
            continue
        try:
            sock.setsockopt(option.level, option.number, option.value)
        except OSError as problem:
            if option.vital:
                said = f"the kernel refused {option.name}={option.value}: {problem.strerror}"
                raise OSError(problem.errno, said) from problem
