"""One end of the sweep of sockets.py: runs in a network namespace, does what its input says.

{"do": "receive", "form": …, "way": …, …}   opens a door, answers its port; then its result
{"do": "send", "port": …, …}                connects there, sends, answers its result
"""

from __future__ import annotations

import gc
import json
import socket
import sys
from typing import Any

from lib import socket_moves as moves
from lib import socket_watch_end as watch
from lib.namespaces import ADDRESSES
from lib.socket_way import SocketWay, after, before, granted


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _receive(asked: dict[str, Any]) -> dict[str, Any]:
    way = SocketWay.of(asked["way"])
    streams: list[socket.socket] = []
    with socket.socket() as door:
        before(door, way)
        door.bind((ADDRESSES[1], 0))
        door.listen(64)
        door.settimeout(moves.PATIENCE_S)
        _say({"port": door.getsockname()[1]})
        streams.extend(moves.patient(door.accept()[0]) for _ in range(way.streams))
    try:
        for sock in streams:
            after(sock, way)
        buffers = granted(streams[0])
        return {"granted": buffers, **_received(streams, way, asked)}
    finally:
        for sock in streams:
            sock.close()


def _received(
    streams: list[socket.socket], way: SocketWay, asked: dict[str, Any]
) -> dict[str, Any]:
    if asked["form"] == "bulk":
        return moves.receive_bulk(streams, way, asked["warm"], asked["total"])
    if asked["form"] == "trips":
        return moves.answer_trips(streams[0], way, asked["payload"])
    return moves.receive_urgent(streams[0], way)


def _send(asked: dict[str, Any]) -> dict[str, Any]:
    way = SocketWay.of(asked["way"])
    streams: list[socket.socket] = []
    try:
        for _ in range(way.streams):
            sock = moves.patient(socket.socket())
            streams.append(sock)
            before(sock, way)
            sock.connect((ADDRESSES[1], asked["port"]))
            after(sock, way)
        buffers = granted(streams[0])
        return {"granted": buffers, **_sent(streams, way, asked)}
    finally:
        for sock in streams:
            sock.close()


def _sent(streams: list[socket.socket], way: SocketWay, asked: dict[str, Any]) -> dict[str, Any]:
    if asked["form"] == "bulk":
        return moves.send_bulk(streams, way, asked["warm"], asked["total"])
    if asked["form"] == "trips":
        return moves.make_trips(streams[0], way, asked["payload"], asked["seconds"])
    return moves.send_urgent(streams[0], asked["seconds"])


_KNOWN = {"receive": _receive, "send": _send, **watch.KNOWN}


def main() -> int:
    for line in sys.stdin:
        asked = json.loads(line)
        gc.collect()
        try:
            _say(_KNOWN[asked["do"]](asked))
        except OSError as problem:
            _say({"error": f"{asked['do']}: {problem}"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
