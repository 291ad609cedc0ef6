"""The entry point of `wiiiiide`.

Ctrl-C while the program is still being imported ends it at once, as it ends any program; from then
on it is a KeyboardInterrupt, which `main` answers.
"""

from __future__ import annotations

import signal


def main() -> int:
    """Import the program, then run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, and stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from wiiiiided.ui.cli.main import main as program

    signal.signal(signal.SIGINT, before)
    return program()
