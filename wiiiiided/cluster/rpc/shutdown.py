"""How the daemon stops listening without leaving a client waiting.

accepted by asyncio ──► given to the server ──► a task of ours
        └─ here when the server closes: neither answered nor closed (up to Python 3.12)
"""

from __future__ import annotations

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Accept no more connections; those that are on their way have their tasks when this
    returns."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await asyncio.sleep(0)
    server.close()
