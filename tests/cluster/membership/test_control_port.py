"""The control port and machines without a certificate: each is refused, and the log stays short."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import pytest

from tests.cluster.connections import run
from wiiiiided.cluster.membership import control_port
from wiiiiided.cluster.membership.control_port import (
    CertificateVerdict,
    ControlPort,
    Handler,
    OpenConnections,
)
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc.connection import RpcConnection

STRANGERS = 20
GREETING = p.encode(p.Opening("greet", p.PROTOCOLS, "VERSION"))


@pytest.fixture(autouse=True)
def without_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_port, "peer_of", lambda connection: None)


def port(handler: Handler) -> ControlPort:
    judge = CertificateVerdict("there is none")
    return ControlPort({"greet": handler}, lambda peer: judge, "elsewhere", OpenConnections())


async def serve_strangers(control: ControlPort, greeting: bytes) -> None:
    """Serve so many connections, one after the other."""
    for _ in range(STRANGERS):
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(framing.frame(framing.MESSAGE, greeting))
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            await control.serve(reader, writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def nothing(connection: RpcConnection, opening: p.Opening) -> None:
    pass


async def a_defect(connection: RpcConnection, opening: p.Opening) -> None:
    raise KeyError("x\ny")


def test_a_stranger_whose_words_are_no_text_is_refused_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    greeting = GREETING.replace(b"VERSION", b"\xff\xfe")
    run(serve_strangers(port(nothing), greeting))
    (line,) = caplog.records
    assert "a machine without a certificate is not served: JSON is malformed" in line.getMessage()
    assert line.exc_info is None


def test_a_stranger_who_finds_a_defect_cannot_fill_the_log_with_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = port(a_defect)
    monkeypatch.setattr(control._log, "_clock", lambda: 0.0)
    run(serve_strangers(control, GREETING))
    control._log.flush(at_once=True)
    first, rest = [line for line in caplog.records if line.levelno >= logging.WARNING]
    assert "a defect while serving a machine without a certificate: KeyError" in first.getMessage()
    assert "\n" not in first.getMessage()
    assert f"and {STRANGERS - 2} more such lines" in rest.getMessage()
    assert first.exc_info is None
