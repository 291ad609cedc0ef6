"""Freed memory stays with the process: a training step frees what the next step wants again.

Every backward allocates a gradient for each parameter, and `zero_grad` frees them. glibc gives
large blocks back to the kernel as soon as they are free, from a mapping of their own or from the
top of the heap, and the kernel hands them out again page by page, each page zeroed at its first
touch. Whether that happens depends on what lies above a block in the heap, so of two ranks that
do the same work one may pay and the other not:

    one step of 12.6 million parameters, SGD      24 ms without page faults, 37 with 10,208 of them

With `keep_freed` blocks below THRESHOLD come from the heap, and the heap shrinks only when more
than `most` bytes at its top are free. So a process may hold on to as much as that. Of other C
libraries nothing is asked; jemalloc and tcmalloc, where they are preloaded, have such rules
already. (Huge pages for weights were tried too, and changed nothing: docs/lab-log.md.)
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h's numbers
_M_MMAP_THRESHOLD: Final = -3
_MOST_INT: Final = 2**31 - 1

THRESHOLD: Final = 512 << 20  # bytes: a block this large gets a mapping of its own


def keep_freed(most: int = THRESHOLD) -> bool:
    """Let the heap keep up to `most` free bytes; False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    large = min(max(most, THRESHOLD), _MOST_INT)
    return bool(mallopt(_M_MMAP_THRESHOLD, THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, large))


def give_back() -> None:
    """Return to the kernel what the heap keeps: once, where much was freed that no step wants."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
