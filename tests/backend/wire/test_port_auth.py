"""Port authentication: members are admitted however the bytes are cut, no other peer is."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.backend.wire.challenge import (
    ANSWER_BYTES,
    KEY_BYTES,
    MAY_COME,
    AuthMessage,
    AuthState,
)
from wiiiiided.backend.wire.port_auth import (
    HELLO_BYTES,
    MAGIC,
    NO_UID,
    ROLES,
    VERSION,
    PortClient,
    PortRequest,
    PortServer,
    Rejected,
    RejectReason,
)
from wiiiiided.errors import HandshakeFailed, HostError

PAGE = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()
SECTION = PAGE.split("## At a machine's port")[1].split("\n## ")[0]
KEY, OTHER_KEY = b"k" * KEY_BYTES, b"K" + b"k" * (KEY_BYTES - 1)
REQUEST = PortRequest(17, 3, "data", 1, 4, "00112233445566aa")

_u32 = st.integers(0, 2**32 - 1)
requests = st.builds(
    PortRequest,
    job=st.integers(0, 2**64 - 1),
    attempt=_u32,
    role=st.sampled_from(ROLES),
    connector=_u32,
    acceptor=_u32,
    uid=st.binary(min_size=8, max_size=8).map(bytes.hex),
)


def hand(data: bytes, to: PortClient | PortServer, cuts: list[int] | None = None) -> None:
    """Give bytes to a side, cut as a socket might; it must never want more than are its own."""
    assert to.wanted == len(data)
    places = sorted(cut % len(data) for cut in cuts or [])
    for begin, end in itertools.pairwise([0, *places, len(data)]):
        assert to.wanted == len(data) - begin
        to.receive_data(data[begin:end])


def meet(
    client: PortClient, server: PortServer, key: bytes | None = KEY, cuts: list[int] | None = None
) -> list[bytes]:
    """The whole exchange; returns its messages, in order."""
    said = [client.data_to_send()]
    hand(said[-1], server, cuts)
    server.challenge(key)
    said.append(server.data_to_send())
    hand(said[-1], client, cuts)
    said.append(client.data_to_send())
    hand(said[-1], server, cuts)
    server.welcome()
    said.append(server.data_to_send())
    hand(said[-1], client, cuts)
    assert client.data_to_send() == server.data_to_send() == b""
    return said


def challenged(client: PortClient, key: bytes | None = KEY) -> PortServer:
    """A server that has the HELLO; its challenge is ready."""
    server = PortServer()
    server.receive_data(client.data_to_send())
    server.challenge(key)
    return server


def refusal_of(side: PortClient | PortServer, data: bytes) -> str:
    with pytest.raises(HandshakeFailed) as caught:
        side.receive_data(data)
    assert side.state is AuthState.FAILED
    assert not side.done
    assert side.wanted == 0
    return str(caught.value)


# -- members ----


@given(requests, st.lists(st.integers(0, 80), max_size=6))
def test_members_are_admitted_however_their_bytes_are_cut(
    asked: PortRequest, cuts: list[int]
) -> None:
    client, server = PortClient(KEY, asked), PortServer()
    said = meet(client, server, cuts=cuts)
    assert [len(message) for message in said] == [HELLO_BYTES, *[ANSWER_BYTES] * 3]
    assert server.request == asked
    assert client.done
    assert server.done
    assert client.wanted == server.wanted == 0


def test_byte_by_byte_they_meet_too() -> None:
    client, server = PortClient(KEY, REQUEST), PortServer()
    meet(client, server, cuts=list(range(HELLO_BYTES)))
    assert client.done
    assert server.done


def test_nothing_opens_before_the_porter_says_so() -> None:
    client = PortClient(KEY, REQUEST)
    server = challenged(client)
    client.receive_data(server.data_to_send())
    server.receive_data(client.data_to_send())
    assert server.state is AuthState.PROVED
    assert (client.done, server.done) == (False, False)
    assert server.data_to_send() == b""
    server.welcome()
    assert (client.done, server.done) == (False, True)
    client.receive_data(server.data_to_send())
    assert client.done


def test_what_follows_is_left_where_it_is() -> None:
    client = PortClient(KEY, REQUEST)
    server = challenged(client)
    client.receive_data(server.data_to_send())
    stream = client.data_to_send() + b"the first words to the worker"
    server.receive_data(stream[: server.wanted])
    assert server.wanted == 0
    assert stream[ANSWER_BYTES:] == b"the first words to the worker"


def test_nonces_are_new_each_time() -> None:
    first, second = (meet(PortClient(KEY, REQUEST), PortServer()) for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_the_bytes_of_a_port_request_are_those_of_the_page() -> None:
    request = PortClient(KEY, REQUEST, random=lambda size: b"n" * size).data_to_send()
    layout = SECTION.split("### HELLO at a port")[1].split("###")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([^|]+) \|", layout, re.MULTILINE)
    parts = [request[int(at) : int(at) + int(size)] for at, size, _ in rows]
    assert b"".join(parts) == request
    numbers = [(3, 4), (17, 8), (1, 4), (4, 4)]
    packed = [value.to_bytes(size, "little") for value, size in numbers]
    uid = bytes.fromhex(REQUEST.uid)
    assert parts == [MAGIC, bytes([VERSION]), b"\1", b"\0\0", *packed, uid, b"n" * 32]


def test_the_proofs_are_those_of_the_page() -> None:
    request, challenge, proof, opened = meet(PortClient(KEY, REQUEST), PortServer())
    for kind, said in ((3, proof), (4, opened)):
        covered = b"wiiiiide knock\0" + bytes([kind]) + request + challenge
        assert said == b"WK" + bytes([kind, 0]) + hmac.new(KEY, covered, hashlib.sha256).digest()


def test_the_page_has_every_message_and_reason_with_its_number() -> None:
    for message in AuthMessage:
        assert message.name in SECTION
    for reason in RejectReason:
        assert re.search(rf"^\| {int(reason)} \| {reason.name} \|", SECTION, re.MULTILINE)


# -- strangers ----


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\1\0\1", b"WIIIIIDE", b"WIIKNOCX"]
)
def test_a_peer_of_another_protocol_is_refused_by_its_eighth_byte_without_an_answer(
    greeting: bytes,
) -> None:
    server = PortServer()
    for at in range(8):
        try:
            server.receive_data(greeting[at : at + 1])
        except HandshakeFailed:
            break
    assert server.state is AuthState.FAILED
    assert server.data_to_send() == b""
    assert server.request is None


def test_something_else_at_that_port_is_recognised() -> None:
    client = PortClient(KEY, REQUEST)
    assert "something else than wiiiiided" in refusal_of(client, b"S")


def test_a_client_with_another_key_is_refused_and_told() -> None:
    client = PortClient(OTHER_KEY, REQUEST)
    server = challenged(client)
    client.receive_data(server.data_to_send())
    heard = refusal_of(server, client.data_to_send())
    assert "the data connection of rank 1 to rank 4 of job 17, attempt 3" in heard
    with pytest.raises(Rejected, match="has another key for it") as told:
        client.receive_data(server.data_to_send())
    assert told.value.reason == RejectReason.PROOF


def test_an_attempt_that_is_not_here_looks_like_a_wrong_key() -> None:
    """Byte for byte, but for the nonce: an unauthenticated peer cannot ask what runs here."""
    said = []
    for key in (KEY, None):
        client = PortClient(OTHER_KEY, REQUEST)
        server = challenged(client, key)
        challenge = server.data_to_send()
        client.receive_data(challenge)
        refusal_of(server, client.data_to_send())
        said.append((challenge[:4], server.data_to_send()))
    assert said[0] == said[1]


def test_the_owner_of_the_key_is_refused_where_the_attempt_is_not() -> None:
    client = PortClient(KEY, REQUEST)
    server = challenged(client, None)
    client.receive_data(server.data_to_send())
    refusal_of(server, client.data_to_send())


def test_a_daemon_without_the_key_is_refused() -> None:
    client = PortClient(KEY, REQUEST)
    client.receive_data(challenged(client).data_to_send())
    assert "could not prove itself" in refusal_of(client, b"WK\x04\0" + b"w" * 32)


OTHERWISE: dict[str, Any] = {
    "job": 18,
    "attempt": 4,
    "role": "watch",
    "connector": 2,
    "acceptor": 2,
    "uid": NO_UID,
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(PortRequest)])
def test_a_port_request_changed_on_its_way_is_refused(field: str) -> None:
    """Every field counts: another request is put before this one's proof."""
    client = PortClient(KEY, REQUEST, random=bytes)
    changed = PortClient(
        KEY, dataclasses.replace(REQUEST, **{field: OTHERWISE[field]}), random=bytes
    )
    server = challenged(changed)
    assert server.request != REQUEST
    client.data_to_send()
    client.receive_data(server.data_to_send())
    refusal_of(server, client.data_to_send())


def meet_with_a_spoiled_bit(number: int, bit: int) -> None:
    """The exchange, with one bit of one message changed on its way."""
    client, server = PortClient(KEY, REQUEST), PortServer()
    for turn in range(4):
        source, target = (client, server) if turn % 2 == 0 else (server, client)
        message = bytearray(source.data_to_send())
        if turn == number:
            at = bit % (8 * len(message))
            message[at // 8] ^= 1 << at % 8
        target.receive_data(bytes(message))
        if turn == 0:
            server.challenge(KEY)
        if turn == 2:
            server.welcome()


@pytest.mark.parametrize("number", range(4))
@given(st.integers(0, 8 * HELLO_BYTES - 1))
def test_no_bit_of_what_is_said_can_be_changed(number: int, bit: int) -> None:
    with pytest.raises(HandshakeFailed):
        meet_with_a_spoiled_bit(number, bit)


def test_a_replayed_request_is_refused() -> None:
    request, _, proof, _ = meet(PortClient(KEY, REQUEST), PortServer())
    server = PortServer()
    server.receive_data(request)
    server.challenge(KEY)
    refusal_of(server, proof)


def test_a_replayed_daemon_is_refused() -> None:
    _, challenge, _, opened = meet(PortClient(KEY, REQUEST), PortServer())
    client = PortClient(KEY, REQUEST)
    client.receive_data(challenge)
    assert "could not prove itself" in refusal_of(client, opened)


def test_a_proof_played_back_to_its_sender_is_refused() -> None:
    client = PortClient(KEY, REQUEST)
    client.receive_data(challenged(client).data_to_send())
    proof = bytearray(client.data_to_send())
    proof[2] = AuthMessage.WELCOME
    assert "could not prove itself" in refusal_of(client, bytes(proof))


# -- the daemon's verdict, and broken input ----


@pytest.mark.parametrize("reason", list(RejectReason))
def test_a_refusal_is_told_in_words_and_with_its_reason(reason: RejectReason) -> None:
    client = PortClient(KEY, REQUEST)
    server = challenged(client)
    client.receive_data(server.data_to_send())
    server.receive_data(client.data_to_send())
    server.refuse(reason)
    refusal = server.data_to_send()
    assert len(refusal) == ANSWER_BYTES
    assert refusal == bytes([*b"WK", 5, reason]) + bytes(32)
    with pytest.raises(Rejected, match=r"the daemon refuses it: \w+") as told:
        client.receive_data(refusal)
    assert told.value.reason == reason


def test_a_reason_of_a_later_version_is_no_riddle() -> None:
    with pytest.raises(Rejected, match="reason 99"):
        PortClient(KEY, REQUEST).receive_data(b"WK\x05\x63" + bytes(32))


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (8, 2, RejectReason.VERSION),
        (8, 0, RejectReason.VERSION),
        (9, 0, RejectReason.MALFORMED),
        (9, 4, 2),
    ],
)
def test_a_malformed_port_request_is_answered_with_why(
    offset: int, value: int, reason: int
) -> None:
    request = bytearray(PortClient(KEY, REQUEST).data_to_send())
    request[offset] = value
    server = PortServer()
    refusal_of(server, bytes(request))
    assert server.data_to_send()[:4] == bytes([*b"WK", 5, reason])


def test_more_than_was_wanted_is_refused() -> None:
    server = PortServer()
    refusal_of(server, PortClient(KEY, REQUEST).data_to_send() + b"!")


@given(st.binary(max_size=200), st.sampled_from(list(MAY_COME)))
def test_noise_is_refused_or_waited_for_and_nothing_else(noise: bytes, state: AuthState) -> None:
    side: PortClient | PortServer = (
        PortClient(KEY, REQUEST) if state.name in ("CHALLENGE", "WELCOME") else PortServer()
    )
    if state is AuthState.PROOF:
        side = challenged(PortClient(KEY, REQUEST))
    if state is AuthState.WELCOME:
        side.receive_data(challenged(PortClient(KEY, REQUEST)).data_to_send())
    side.data_to_send()
    try:
        side.receive_data(noise)
    except HandshakeFailed:
        assert side.state is AuthState.FAILED
    assert not side.done


@pytest.mark.parametrize(
    "changes",
    [{"uid": "xyz"}, {"uid": "ab"}, {"job": -1}, {"attempt": 2**32}, {"role": "guest"}],
)
def test_what_cannot_be_said_is_refused_in_words(changes: dict[str, Any]) -> None:
    with pytest.raises(HostError, match="cannot be said in a request"):
        PortClient(KEY, dataclasses.replace(REQUEST, **changes))


def test_a_key_of_another_size_is_refused_on_both_sides() -> None:
    with pytest.raises(HandshakeFailed, match="has 5 bytes"):
        PortClient(b"short", REQUEST)
    server = PortServer()
    server.receive_data(PortClient(KEY, REQUEST).data_to_send())
    with pytest.raises(HandshakeFailed, match="has 5 bytes"):
        server.challenge(b"short")


def test_a_verdict_out_of_turn_is_a_defect() -> None:
    server = PortServer()
    for verdict in (
        server.welcome,
        lambda: server.challenge(KEY),
        lambda: server.refuse(RejectReason.BUSY),
    ):
        with pytest.raises(RuntimeError, match="takes no verdict"):
            verdict()
