"""The bytes of both protocols as earlier releases sent them: members of another version get in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wiiiiided.backend.wire.challenge import AuthClient, AuthServer
from wiiiiided.backend.wire.handshake import Acceptor, ConnectionClaim, Connector
from wiiiiided.backend.wire.port_auth import PortClient, PortRequest, PortServer

KEY = bytes(range(100, 132))
NONCE = bytes(range(1, 33)).hex()
CHALLENGE_NONCE = bytes(range(77, 109)).hex()

HANDSHAKE = [
    "574949494949444501010200030000008877665544332211040000000500000000112233445566778899aabbccddeeff"
    + NONCE,
    "57490201" + CHALLENGE_NONCE,
    "5749030017a5ed1c87234a7d1744332a9d6600fa05d768d74a69197a898059945c7bc792",
    "5749040016039915c19b26a14b2bf6ca00c6d6ebde1594dfc33bce4ed0a659e1fc6bf4d7",
]
HANDSHAKE_REFUSED = "574905030101" + "00" * 30
PORT = [
    "5749494b4e4f434b0101000003000000110000000000000004000000050000008899aabbccddeeff" + NONCE,
    "574b0200" + CHALLENGE_NONCE,
    "574b0300ce030012b538b85ae7c3ca3219a36910aae0287d558d923e31220f6e3da84d54",
    "574b0400c08f270562f25a8a58ef3522a5bbc7ccaca1af67a0fe324cc481f1f4030911e6",
]
PORT_REFUSED = "574b0506" + "00" * 32
STORE = [
    "5749494b4e4f434b0103000003000000110000000000000004000000000000000000000000000000" + NONCE,
    "574b0200" + CHALLENGE_NONCE,
    "574b030080cd11bb5ed4475c8a57432f05f7d6c33d02d0e6016e53be77131cf436c4eebf",
    "574b0400b61ff96a5f4b5669716c7deb11aa6344255da5367a3599661e589f3ab8309129",
]


def counting(first: int) -> Callable[[int], bytes]:
    return lambda size: bytes(range(first, first + size))


def handshake() -> tuple[AuthClient, AuthServer]:
    uids = "0011223344556677", "8899aabbccddeeff"
    claim = ConnectionClaim(0x1122334455667788, 3, 4, 5, *uids, "watch")
    client = Connector(KEY, claim, b"binding", random=counting(1))
    return client, Acceptor(b"binding", random=counting(77))


def port(role: str, acceptor: int, uid: str) -> tuple[AuthClient, AuthServer]:
    request = PortRequest(17, 3, role, 4, acceptor, uid)
    return PortClient(KEY, request, counting(1)), PortServer(counting(77))


SIDES = {
    "a handshake": (handshake, HANDSHAKE, 3, HANDSHAKE_REFUSED),
    "a worker at a port": (lambda: port("data", 5, "8899aabbccddeeff"), PORT, 6, PORT_REFUSED),
    "the store at a port": (lambda: port("store", 0, "0" * 16), STORE, 6, PORT_REFUSED),
}


@pytest.mark.parametrize("name", SIDES)
def test_every_message_has_the_bytes_it_has_always_had(name: str) -> None:
    sides, said, reason, refused = SIDES[name]
    client, server = sides()
    found = [client.data_to_send()]
    server.receive_data(found[-1])
    server.challenge(KEY, getattr(server, "version", 0))
    found.append(server.data_to_send())
    client.receive_data(found[-1])
    found.append(client.data_to_send())
    server.receive_data(found[-1])
    if not server.done:
        server.welcome()
    found.append(server.data_to_send())
    client.receive_data(found[-1])
    assert [message.hex() for message in found] == said
    assert client.done
    assert server.done
    client, server = sides()
    server.receive_data(client.data_to_send())
    server.refuse(reason)
    assert server.data_to_send().hex() == refused
