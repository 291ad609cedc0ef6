"""What /proc says of a process and its signals."""

from __future__ import annotations

import signal
import subprocess
import sys

from wiiiiided.cluster.shim import processes

BLOCKS = """
import signal, threading
def deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print(threading.get_native_id(), flush=True)
    threading.Event().wait()
threading.Thread(target=deaf, daemon=True).start()
signal.signal(signal.SIGUSR1, lambda *_: None)
threading.Event().wait()
"""


def test_a_signal_is_blocked_by_a_thread_not_by_its_process() -> None:
    with subprocess.Popen([sys.executable, "-c", BLOCKS], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            deaf = int(program.stdout.readline())
            assert deaf != program.pid
            assert processes.blocking(program.pid, signal.SIGUSR1) == {deaf}
            assert processes.blocking(program.pid, signal.SIGUSR2) == set()
        finally:
            program.kill()


def test_a_process_that_is_gone_blocks_nothing() -> None:
    program = subprocess.Popen([sys.executable, "-c", "pass"])
    program.wait()
    assert processes.blocking(program.pid, signal.SIGUSR1) == set()
