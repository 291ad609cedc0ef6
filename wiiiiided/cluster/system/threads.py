"""Blocking work of a coroutine, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[..., Result], *given: object) -> Result:
    """Runs to its end even when the caller is cancelled: the work uses files that the caller closes
    afterwards."""
    doing = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise
