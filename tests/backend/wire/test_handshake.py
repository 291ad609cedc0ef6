"""The handshake between hosts: members are admitted however the bytes are cut, no other peer is."""

from __future__ import annotations

import dataclasses
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
from wiiiiided.backend.wire.handshake import (
    HELLO_BYTES,
    MAGIC,
    VERSIONS,
    Acceptor,
    ConnectionClaim,
    Connector,
    RefusalReason,
)
from wiiiiided.backend.wire.header import VERSION
from wiiiiided.errors import HandshakeFailed, HostError

PAGE = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()
KEY, OTHER_KEY = b"k" * KEY_BYTES, b"K" + b"k" * (KEY_BYTES - 1)
CLAIM = ConnectionClaim(0x0123456789ABCDEF, 3, 1, 4, "00112233445566aa", "ffeeddccbbaa9988", "data")

_u32 = st.integers(0, 2**32 - 1)
_uid = st.binary(min_size=8, max_size=8).map(bytes.hex)
claims = st.builds(
    ConnectionClaim,
    group=st.integers(0, 2**64 - 1),
    generation=_u32,
    connector=_u32,
    acceptor=_u32,
    connector_uid=_uid,
    acceptor_uid=_uid,
    role=st.sampled_from(["data", "watch"]),
)


def hand(data: bytes, to: Connector | Acceptor, cuts: list[int] | None = None) -> None:
    """Give bytes to a side, cut as a socket might; it must never want more than are its own."""
    assert to.wanted == len(data)
    places = sorted(cut % len(data) for cut in cuts or [])
    for begin, end in itertools.pairwise([0, *places, len(data)]):
        assert to.wanted == len(data) - begin
        to.receive_data(data[begin:end])


def meet(
    connector: Connector, acceptor: Acceptor, key: bytes = KEY, cuts: list[int] | None = None
) -> list[bytes]:
    """The whole handshake; returns what was said, in order."""
    said = [connector.data_to_send()]
    hand(said[-1], acceptor, cuts)
    acceptor.admit(key)
    said.append(acceptor.data_to_send())
    hand(said[-1], connector, cuts)
    said.append(connector.data_to_send())
    hand(said[-1], acceptor, cuts)
    said.append(acceptor.data_to_send())
    hand(said[-1], connector, cuts)
    assert connector.data_to_send() == acceptor.data_to_send() == b""
    return said


def meet_with_a_spoiled_bit(number: int, bit: int) -> None:
    """The handshake, with one bit of one message changed on its way."""
    connector, acceptor = Connector(KEY, CLAIM, versions=(1, 200)), Acceptor(versions=(1, 255))
    sides: list[Connector | Acceptor] = [connector, acceptor]
    for turn in range(4):
        message = bytearray(sides[turn % 2].data_to_send())
        if turn == number:
            message[bit // 8] ^= 1 << bit % 8
        sides[1 - turn % 2].receive_data(bytes(message))
        if turn == 0:
            acceptor.admit(KEY)


def greeted(connector: Connector, **options: Any) -> Acceptor:
    """An acceptor that has heard HELLO and admits it; its challenge is ready."""
    acceptor = Acceptor(**options)
    acceptor.receive_data(connector.data_to_send())
    acceptor.admit(KEY)
    return acceptor


def _still_open(side: Acceptor, data: bytes) -> bool:
    try:
        side.receive_data(data)
    except HandshakeFailed:
        return False
    return True


def refusal_of(side: Connector | Acceptor, data: bytes) -> str:
    with pytest.raises(HandshakeFailed) as caught:
        side.receive_data(data)
    assert side.state is AuthState.FAILED
    assert not side.done
    assert side.wanted == 0
    return str(caught.value)


# -- friends ----


@given(claims, st.binary(max_size=64), st.lists(st.integers(0, 80), max_size=6))
def test_friends_meet_however_their_bytes_are_cut(
    claim: ConnectionClaim, binding: bytes, cuts: list[int]
) -> None:
    connector, acceptor = Connector(KEY, claim, binding), Acceptor(binding)
    said = meet(connector, acceptor, cuts=cuts)
    assert [len(message) for message in said] == [HELLO_BYTES, *[ANSWER_BYTES] * 3]
    assert acceptor.claim == claim
    assert connector.done
    assert acceptor.done
    assert connector.version == acceptor.version == VERSION
    assert connector.wanted == acceptor.wanted == 0


def test_byte_by_byte_they_meet_too() -> None:
    connector, acceptor = Connector(KEY, CLAIM), Acceptor()
    meet(connector, acceptor, cuts=list(range(HELLO_BYTES)))
    assert connector.done
    assert acceptor.done


def test_neither_side_is_done_before_the_other_has_proved_itself() -> None:
    connector, acceptor = Connector(KEY, CLAIM), Acceptor()
    before = acceptor.claim
    acceptor.receive_data(connector.data_to_send())
    assert (before, acceptor.claim) == (None, CLAIM)
    assert acceptor.data_to_send() == b""  # the caller has not spoken
    assert acceptor.wanted == 0
    acceptor.admit(KEY)
    connector.receive_data(acceptor.data_to_send())
    assert (connector.done, acceptor.done) == (False, False)
    acceptor.receive_data(connector.data_to_send())
    assert (connector.done, acceptor.done) == (False, True)
    connector.receive_data(acceptor.data_to_send())
    assert (connector.done, acceptor.done) == (True, True)


def test_the_first_frame_is_left_where_it_is() -> None:
    connector = Connector(KEY, CLAIM)
    acceptor = greeted(connector)
    connector.receive_data(acceptor.data_to_send())
    acceptor.receive_data(connector.data_to_send())
    stream = acceptor.data_to_send() + b"the first frame"
    connector.receive_data(stream[: connector.wanted])
    assert connector.done
    assert stream[ANSWER_BYTES:] == b"the first frame"


def test_nonces_are_new_each_time() -> None:
    first, second = (meet(Connector(KEY, CLAIM), Acceptor()) for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_the_bytes_of_hello_are_those_of_the_page() -> None:
    hello = Connector(KEY, CLAIM, random=lambda size: b"n" * size).data_to_send()
    layout = PAGE.split("### HELLO")[1].split("###")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([^|]+) \|", layout, re.MULTILINE)
    parts = [hello[int(at) : int(at) + int(size)] for at, size, _ in rows]
    assert b"".join(parts) == hello
    ranks = [(1).to_bytes(4, "little"), (4).to_bytes(4, "little")]
    uids = [bytes.fromhex(uid) for uid in (CLAIM.connector_uid, CLAIM.acceptor_uid)]
    numbers = [(3).to_bytes(4, "little"), CLAIM.group.to_bytes(8, "little"), *ranks]
    versions = [bytes([version]) for version in VERSIONS]
    assert parts == [MAGIC, *versions, b"\1", b"\0", *numbers, *uids, b"n" * 32]


def test_the_page_has_every_message_and_reason_with_its_number() -> None:
    for message in AuthMessage:
        assert f"### {message.name}" in PAGE
    for reason in RefusalReason:
        assert re.search(rf"^\| {int(reason)} \| {reason.name} \|", PAGE, re.MULTILINE)


# -- versions ----


@pytest.mark.parametrize(
    ("ours", "theirs", "chosen"),
    [((1, 1), (1, 3), 1), ((1, 3), (2, 5), 3), ((4, 9), (1, 4), 4), ((2, 2), (2, 2), 2)],
)
def test_the_newest_common_version_is_chosen(
    ours: tuple[int, int], theirs: tuple[int, int], chosen: int
) -> None:
    connector, acceptor = Connector(KEY, CLAIM, versions=ours), Acceptor(versions=theirs)
    meet(connector, acceptor)
    assert connector.version == acceptor.version == chosen


@pytest.mark.parametrize(("ours", "theirs"), [((1, 1), (2, 3)), ((4, 6), (2, 3))])
def test_without_a_common_version_both_sides_name_both_ranges(
    ours: tuple[int, int], theirs: tuple[int, int]
) -> None:
    def words(versions: tuple[int, int]) -> str:
        low, high = versions
        return f"version {low} " if low == high else f"versions {low} to {high} "

    connector, acceptor = Connector(KEY, CLAIM, versions=ours), Acceptor(versions=theirs)
    heard = refusal_of(acceptor, connector.data_to_send())
    assert f"other side speaks {words(ours)}of" in heard
    assert f"this side {words(theirs).strip()}:" in heard
    told = refusal_of(connector, acceptor.data_to_send())
    assert f"other side speaks {words(theirs)}of" in told
    assert f"this side {words(ours).strip()}:" in told
    assert "install the same wiiiiided" in told


def test_a_version_that_was_not_offered_is_refused() -> None:
    connector = Connector(KEY, CLAIM)
    acceptor = greeted(connector)
    challenge = bytearray(acceptor.data_to_send())
    challenge[3] = 7
    assert "version 7" in refusal_of(connector, bytes(challenge))


def test_a_man_in_the_middle_cannot_downgrade_the_version() -> None:
    connector, acceptor = Connector(KEY, CLAIM, versions=(1, 2)), Acceptor(versions=(1, 2))
    hello = bytearray(connector.data_to_send())
    hello[9] = 1
    acceptor.receive_data(bytes(hello))
    acceptor.admit(KEY)
    connector.receive_data(acceptor.data_to_send())
    assert connector.version == 1
    assert "proof is wrong" in refusal_of(acceptor, connector.data_to_send())


# -- strangers ----


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\0\1\0\1",
        b"WIIIIIDX",
    ],
)
def test_a_peer_of_another_protocol_is_refused_by_its_eighth_byte_without_an_answer(
    greeting: bytes,
) -> None:
    acceptor = Acceptor()
    tolerated = [at for at in range(8) if _still_open(acceptor, greeting[at : at + 1])]
    assert tolerated == list(range(len(tolerated)))
    assert len(tolerated) < 8
    assert acceptor.data_to_send() == b""
    assert acceptor.claim is None


def test_a_server_of_something_else_is_recognised_too() -> None:
    connector = Connector(KEY, CLAIM)
    assert connector.data_to_send()
    assert "something else than wiiiiided" in refusal_of(connector, b"S")
    assert connector.data_to_send() == b""


def test_an_unauthenticated_peer_gets_nothing_but_a_nonce() -> None:
    acceptor = greeted(Connector(OTHER_KEY, CLAIM), random=lambda size: b"n" * size)
    assert acceptor.data_to_send() == b"WI\x02" + bytes([VERSION]) + b"n" * 32


def test_a_connector_with_another_key_is_refused_and_told() -> None:
    connector = Connector(OTHER_KEY, CLAIM)
    acceptor = greeted(connector)
    connector.receive_data(acceptor.data_to_send())
    heard = refusal_of(acceptor, connector.data_to_send())
    assert "data connection of rank 1 to rank 4" in heard
    assert "another key" in heard
    told = refusal_of(connector, acceptor.data_to_send())
    assert "was refused: our proof is wrong" in told


def test_an_acceptor_without_the_key_is_refused() -> None:
    # It cannot check the proof either, so it takes it unseen and makes up a welcome.
    connector = Connector(KEY, CLAIM)
    connector.receive_data(greeted(connector).data_to_send())
    assert connector.data_to_send()
    welcome = b"WI\x04\0" + b"w" * 32
    assert "could not prove itself" in refusal_of(connector, welcome)


OTHERWISE: dict[str, Any] = {
    "group": 2,
    "generation": 4,
    "connector": 2,
    "acceptor": 2,
    "connector_uid": "0" * 16,
    "acceptor_uid": "0" * 16,
    "role": "watch",
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ConnectionClaim)])
def test_a_claim_changed_on_its_way_is_refused(field: str) -> None:
    """Every field counts: the HELLO of another claim is put before this one's proof."""
    connector = Connector(KEY, CLAIM, random=bytes)
    changed = Connector(KEY, dataclasses.replace(CLAIM, **{field: OTHERWISE[field]}), random=bytes)
    acceptor = greeted(changed)
    assert acceptor.claim != CLAIM
    connector.data_to_send()
    connector.receive_data(acceptor.data_to_send())
    assert "proof is wrong" in refusal_of(acceptor, connector.data_to_send())


@given(st.integers(0, 8 * HELLO_BYTES - 1))
def test_no_bit_of_hello_can_be_changed(bit: int) -> None:
    with pytest.raises(HandshakeFailed):
        meet_with_a_spoiled_bit(0, bit)


@pytest.mark.parametrize("number", [1, 2, 3])
@given(st.integers(0, 8 * ANSWER_BYTES - 1))
def test_no_bit_of_the_answers_can_be_changed(number: int, bit: int) -> None:
    with pytest.raises(HandshakeFailed):
        meet_with_a_spoiled_bit(number, bit)


@pytest.mark.parametrize(("mine", "theirs"), [(b"a", b"b"), (b"a", b""), (b"", b"a")])
def test_another_certificate_is_refused(mine: bytes, theirs: bytes) -> None:
    connector = Connector(KEY, CLAIM, mine)
    acceptor = greeted(connector, binding=theirs)
    connector.receive_data(acceptor.data_to_send())
    assert "proof is wrong" in refusal_of(acceptor, connector.data_to_send())


def test_a_replayed_connector_is_refused() -> None:
    hello, _, proof, _ = meet(Connector(KEY, CLAIM), Acceptor())
    acceptor = Acceptor()
    acceptor.receive_data(hello)
    acceptor.admit(KEY)
    assert "proof is wrong" in refusal_of(acceptor, proof)


def test_a_replayed_acceptor_is_refused() -> None:
    _, challenge, _, welcome = meet(Connector(KEY, CLAIM), Acceptor())
    connector = Connector(KEY, CLAIM)
    connector.receive_data(challenge)
    assert "could not prove itself" in refusal_of(connector, welcome)


def test_a_proof_played_back_to_its_sender_is_refused() -> None:
    connector = Connector(KEY, CLAIM)
    connector.receive_data(greeted(connector).data_to_send())
    proof = bytearray(connector.data_to_send())
    proof[2] = AuthMessage.WELCOME
    assert "could not prove itself" in refusal_of(connector, bytes(proof))


def test_a_member_cannot_be_made_to_prove_both_sides() -> None:
    """An attacker opens a second connection to get the answer for the first; roles keep it out."""
    victim = Connector(KEY, CLAIM)
    oracle = Acceptor()  # the same process also accepts, with the same key
    hello = victim.data_to_send()
    oracle.receive_data(hello)  # its own HELLO, sent back
    oracle.admit(KEY)
    victim.receive_data(oracle.data_to_send())
    proof = victim.data_to_send()
    assert "no welcome" in refusal_of(victim, proof)
    assert oracle.claim == CLAIM  # whose caller sees its own uid as the connector's, and refuses
    oracle.refuse(RefusalReason.UNKNOWN)
    assert oracle.data_to_send()[2] == AuthMessage.REFUSAL


# -- the caller's verdict, and broken input ----


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (RefusalReason.UNKNOWN, "no member of that group"),
        (RefusalReason.BUSY, "try again"),
        (RefusalReason.MALFORMED, "did not understand"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_refusal_is_told_in_words(reason: RefusalReason, words: str, late: bool) -> None:
    connector, acceptor = Connector(KEY, CLAIM), Acceptor()
    acceptor.receive_data(connector.data_to_send())
    if late:
        acceptor.admit(KEY)
        connector.receive_data(acceptor.data_to_send())
    acceptor.refuse(reason)
    assert acceptor.wanted == 0
    refusal = acceptor.data_to_send()
    assert len(refusal) == ANSWER_BYTES
    told = refusal_of(connector, refusal)
    assert "the data connection of rank 1 to rank 4 in group 0123456789abcdef" in told
    assert words in told


def test_a_reason_of_a_later_version_is_no_riddle() -> None:
    told = refusal_of(Connector(KEY, CLAIM), b"WI\x05\x63\1\1".ljust(ANSWER_BYTES, b"\0"))
    assert "reason 99" in told


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [(10, 0, "role 0"), (10, 3, "role 3"), (8, 9, "versions 9 to 1, which is none")],
)
def test_a_broken_greeting_is_refused_in_words(offset: int, value: int, words: str) -> None:
    connector, acceptor = Connector(KEY, CLAIM), Acceptor()
    hello = bytearray(connector.data_to_send())
    hello[offset] = value
    assert words in refusal_of(acceptor, bytes(hello))
    assert "did not understand our greeting" in refusal_of(connector, acceptor.data_to_send())


def test_garbage_in_place_of_a_proof_is_refused_and_told() -> None:
    acceptor = greeted(Connector(KEY, CLAIM))
    acceptor.data_to_send()
    assert "no proof of this protocol" in refusal_of(acceptor, b"WX")
    assert acceptor.data_to_send()[:4] == b"WI\x05" + bytes([RefusalReason.MALFORMED])


def test_more_than_was_wanted_is_refused() -> None:
    acceptor = Acceptor()
    hello = Connector(KEY, CLAIM).data_to_send()
    assert "81 bytes came where 80" in refusal_of(acceptor, hello + b"!")


def test_a_failed_handshake_stays_failed() -> None:
    acceptor = Acceptor()
    refusal_of(acceptor, b"GET")
    refusal_of(acceptor, Connector(KEY, CLAIM).data_to_send())
    assert acceptor.data_to_send() == b""


def test_a_verdict_out_of_turn_is_a_mistake_of_the_caller() -> None:
    acceptor = Acceptor()
    with pytest.raises(RuntimeError, match="takes no verdict"):
        acceptor.admit(KEY)
    with pytest.raises(RuntimeError, match="takes no verdict"):
        acceptor.refuse(RefusalReason.BUSY)
    meet(Connector(KEY, CLAIM), acceptor)
    with pytest.raises(RuntimeError, match="state done takes no verdict"):
        acceptor.refuse(RefusalReason.BUSY)


@pytest.mark.parametrize("key", [b"", b"k" * 31, b"k" * 33])
def test_a_key_of_another_size_is_refused(key: bytes) -> None:
    with pytest.raises(HandshakeFailed, match=f"{len(key)} bytes, it must have 32"):
        Connector(key, CLAIM)
    acceptor = Acceptor()
    acceptor.receive_data(Connector(KEY, CLAIM).data_to_send())
    with pytest.raises(HandshakeFailed, match=f"{len(key)} bytes, it must have 32"):
        acceptor.admit(key)


@pytest.mark.parametrize(
    "change",
    [
        {"connector_uid": "xyz"},
        {"acceptor_uid": "00"},
        {"role": "king"},
        {"connector": -1},
        {"generation": 2**32},
        {"group": 2**64},
    ],
)
def test_a_claim_that_cannot_be_said_is_refused_in_words(change: dict[str, Any]) -> None:
    with pytest.raises(HandshakeFailed, match="cannot be said in a handshake"):
        Connector(KEY, dataclasses.replace(CLAIM, **change))


def test_every_state_that_waits_for_bytes_says_which() -> None:
    waiting = set(AuthState) - {
        AuthState.VERDICT,
        AuthState.PROVED,
        AuthState.DONE,
        AuthState.FAILED,
    }
    assert set(MAY_COME) == waiting
    assert issubclass(HandshakeFailed, HostError)


# -- chance ----

_beginnings = st.sampled_from([b"", MAGIC, b"WI", *(b"WI" + bytes([m]) for m in AuthMessage)])


@given(st.lists(st.tuples(_beginnings, st.binary(max_size=100)).map(b"".join), max_size=6))
def test_garbage_is_refused_and_never_wants_much(pieces: list[bytes]) -> None:
    connector = Connector(KEY, CLAIM)
    fresh, admitted = Acceptor(), greeted(Connector(KEY, CLAIM))
    for side in (connector, fresh, admitted):
        side.data_to_send()
        for piece in pieces:
            try:
                side.receive_data(piece[: side.wanted])
            except HandshakeFailed:
                break
            if side.state is AuthState.VERDICT:
                fresh.admit(KEY)
            assert 0 < side.wanted <= HELLO_BYTES
        assert len(side.data_to_send()) in (0, ANSWER_BYTES)
        assert not side.done
