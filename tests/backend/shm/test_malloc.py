"""Memory that a step frees is there for the next one, without a page fault."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, resource, sys
from wiiiiided.backend.shm.malloc import keep_freed
if sys.argv[1] == "kept":
    assert keep_freed()
libc, size, faults = ctypes.CDLL(None), 128 << 20, []  # 32,768 pages; numpy would ask for huge ones
libc.malloc.restype = ctypes.c_void_p
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
    libc.memset(block, 1, ctypes.c_size_t(size))
    libc.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


def _faults(how: str) -> list[int]:
    command = [sys.executable, "-c", PROGRAM, how]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(word) for word in said.split()]


def test_freed_memory_is_used_again_without_page_faults() -> None:
    first, *others = _faults("kept")
    assert first > 30_000
    assert max(others) < 1_000


def test_without_it_the_kernel_takes_every_page_back() -> None:
    assert min(_faults("stock")) > 30_000  # what makes the test above mean something
