"""What a shell does for a program on a terminal: a session, a process group in the foreground.

    python session.py PIDFILE program argument…

Without a parent of another group in the session, the kernel would not let the program be stopped.
Ends as the program does: its code, or the signal that ended it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios


def main(pid_file: str, command: list[str]) -> int:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        # A shell that runs the tests in the background ignores some; a shell's children do not.
        for number in (signal.SIGTTOU, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        os.execv(command[0], command)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with open(pid_file + ".new", "w") as file:
        file.write(str(pid))
    os.rename(pid_file + ".new", pid_file)
    _, status = os.waitpid(pid, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
