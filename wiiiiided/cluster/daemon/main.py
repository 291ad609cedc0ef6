"""`wiiiiided`: the program. It takes one role after the other until it is stopped.

    main ─ settings, log ─ role ─┬─ QueueDaemon   this machine has the queue: alone, or a cluster's
                                 └─ Member        it was given to a cluster
      ▲                                │
      └── init, join, leave: built anew ┘

Exit codes: 0 stopped · 1 cannot work here now (disk full, socket taken) · 2 usage · 78 a person
must mend something first: wiiiiided.toml, or a state of another version; the unit does not restart
it then.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import replace

from wiiiiided import __version__
from wiiiiided.cluster.daemon.process import (
    DAEMON_TIERS,
    DaemonProcess,
    Launch,
    keep_memory_private,
)
from wiiiiided.cluster.daemon.queue_daemon import QueueDaemon
from wiiiiided.cluster.state.store import StateStore, StoreError, StoreUnusable
from wiiiiided.cluster.system.journal import JournalHandler, say_node
from wiiiiided.cluster.system.sd_notify import Notifier
from wiiiiided.cluster.system.settings import BadSettings, read_settings
from wiiiiided.cluster.trust.identity import Identity, forget
from wiiiiided.config import Notification, Paths, under_journal
from wiiiiided.errors import UsageError, WiiiiideError
from wiiiiided.log import logger

EX_CONFIG = 78


def main(argv: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="wiiiiided",
        description="The daemon: queues and runs jobs on this machine. It stays in the foreground.",
        epilog="WIIIIIDE_HOME=DIR keeps everything under DIR. Jobs go on when it stops.",
    )
    parser.add_argument("--system", action="store_true", help="as the service (see the unit)")
    parser.add_argument(
        "--log",
        choices=tuple(DAEMON_TIERS),
        default="",
        metavar="TIER",
        help="silent, normal or verbose, whatever wiiiiided.toml says",
    )
    parser.add_argument("--version", action="version", version=f"wiiiiided {__version__}")
    options = parser.parse_args(argv)
    notifier = Notifier(Notification.take())
    try:
        paths = Paths.system() if options.system else Paths.user()
        settings = read_settings(paths.config)
        set_up_log(options.log or settings.log)
        if options.system and os.getuid() == 0:
            raise UsageError("the service runs as user wiiiiide: systemctl start wiiiiided")
        keep_memory_private()
        notifier.starting()
        asyncio.run(_run(Launch(paths, settings, notifier, options.log)))
    except (BadSettings, StoreUnusable) as problem:
        return _refuse(notifier, problem, EX_CONFIG)
    except UsageError as problem:
        return _refuse(notifier, problem, 2)
    except WiiiiideError as problem:
        return _refuse(notifier, problem, 1)
    except KeyboardInterrupt:
        return 130  # before the loop had its own handler
    finally:
        notifier.close()
    return 0


async def _run(launch: Launch) -> None:
    """Role after role, until it is stopped."""
    trouble = ""
    before: DaemonProcess | None = None
    while True:
        try:
            daemon = _built(launch)
        except WiiiiideError as problem:
            fresh = before is not None and before.cluster_role.role == "alone"
            if isinstance(problem, StoreError) or not fresh:
                raise
            # Its files as a member or coordinator cannot be used any more: alone again.
            trouble = f"this machine stays alone: its new role cannot be taken up ({problem})"
            logger.error("%s", trouble)
            forget(launch.paths.state)
            daemon = _built(launch)
        daemon.trouble = trouble
        say_node(daemon.node.name)
        if before is not None and before.stop_wanted:
            daemon.end("stopped")
        if await daemon.run() == "stopped":
            return
        launch, before, trouble = replace(launch, settings=daemon.settings), daemon, ""


def _built(launch: Launch) -> DaemonProcess:
    """The daemon of this machine's role."""
    store = StateStore(launch.paths.state)  # and its lock, before anything is touched
    try:
        identity = Identity.load(launch.paths.state)
        if identity is None or identity.role == "coordinator":
            return QueueDaemon(launch, store, identity)
        from wiiiiided.cluster.daemon.member import Member

        return Member(launch, store, identity)
    except BaseException:
        store.close()
        raise


def _refuse(notifier: Notifier, problem: Exception, code: int) -> int:
    notifier.status(str(problem))
    print(f"wiiiiided: {problem}", file=sys.stderr)
    return code


def set_up_log(tier: str) -> None:
    """Lines on stderr, with their time; under systemd to its journal, with fields instead."""
    handler: logging.Handler = logging.StreamHandler()
    if under_journal():
        handler = JournalHandler(fallback=handler)
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(DAEMON_TIERS[tier])


if __name__ == "__main__":
    sys.exit(main())
