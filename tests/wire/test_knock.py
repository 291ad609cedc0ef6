"""The knock at a machine's one port: members get in however the bytes are cut, nobody else does."""

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

from wiiiiided.errors import HostError, Refused
from wiiiiided.wire.knock import (
    ANSWER_BYTES,
    KEY_BYTES,
    KNOCK_BYTES,
    MAGIC,
    MAY_COME,
    NOBODY,
    ROLES,
    VERSION,
    Knock,
    Knocker,
    Message,
    Porter,
    Reason,
    State,
    Unwelcome,
)

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
SECTION = PAGE.split("## The knock")[1].split("\n## ")[0]
KEY, OTHER_KEY = b"k" * KEY_BYTES, b"K" + b"k" * (KEY_BYTES - 1)
KNOCK = Knock(17, 3, "data", 1, 4, "00112233445566aa")

_u32 = st.integers(0, 2**32 - 1)
knocks = st.builds(
    Knock,
    job=st.integers(0, 2**64 - 1),
    attempt=_u32,
    role=st.sampled_from(ROLES),
    connector=_u32,
    acceptor=_u32,
    uid=st.binary(min_size=8, max_size=8).map(bytes.hex),
)


def hand(data: bytes, to: Knocker | Porter, cuts: list[int] | None = None) -> None:
    """Give bytes to a side, cut as a socket might; it must never want more than are its own."""
    assert to.wanted == len(data)
    places = sorted(cut % len(data) for cut in cuts or [])
    for begin, end in itertools.pairwise([0, *places, len(data)]):
        assert to.wanted == len(data) - begin
        to.receive_data(data[begin:end])


def meet(
    knocker: Knocker, porter: Porter, key: bytes | None = KEY, cuts: list[int] | None = None
) -> list[bytes]:
    """The whole knock; returns what was said, in order."""
    said = [knocker.data_to_send()]
    hand(said[-1], porter, cuts)
    porter.challenge(key)
    said.append(porter.data_to_send())
    hand(said[-1], knocker, cuts)
    said.append(knocker.data_to_send())
    hand(said[-1], porter, cuts)
    porter.open()
    said.append(porter.data_to_send())
    hand(said[-1], knocker, cuts)
    assert knocker.data_to_send() == porter.data_to_send() == b""
    return said


def challenged(knocker: Knocker, key: bytes | None = KEY) -> Porter:
    """A porter that has heard the knock; its challenge is ready."""
    porter = Porter()
    porter.receive_data(knocker.data_to_send())
    porter.challenge(key)
    return porter


def refusal_of(side: Knocker | Porter, data: bytes) -> str:
    with pytest.raises(Refused) as caught:
        side.receive_data(data)
    assert side.state is State.FAILED
    assert not side.done
    assert side.wanted == 0
    return str(caught.value)


# -- members ----


@given(knocks, st.lists(st.integers(0, 80), max_size=6))
def test_members_meet_however_their_bytes_are_cut(knock: Knock, cuts: list[int]) -> None:
    knocker, porter = Knocker(KEY, knock), Porter()
    said = meet(knocker, porter, cuts=cuts)
    assert [len(message) for message in said] == [KNOCK_BYTES, *[ANSWER_BYTES] * 3]
    assert porter.knock == knock
    assert knocker.done
    assert porter.done
    assert knocker.wanted == porter.wanted == 0


def test_byte_by_byte_they_meet_too() -> None:
    knocker, porter = Knocker(KEY, KNOCK), Porter()
    meet(knocker, porter, cuts=list(range(KNOCK_BYTES)))
    assert knocker.done
    assert porter.done


def test_nothing_opens_before_the_porter_says_so() -> None:
    knocker = Knocker(KEY, KNOCK)
    porter = challenged(knocker)
    knocker.receive_data(porter.data_to_send())
    porter.receive_data(knocker.data_to_send())
    assert porter.state is State.PROVED
    assert (knocker.done, porter.done) == (False, False)
    assert porter.data_to_send() == b""
    porter.open()
    assert (knocker.done, porter.done) == (False, True)
    knocker.receive_data(porter.data_to_send())
    assert knocker.done


def test_what_follows_is_left_where_it_is() -> None:
    knocker = Knocker(KEY, KNOCK)
    porter = challenged(knocker)
    knocker.receive_data(porter.data_to_send())
    stream = knocker.data_to_send() + b"the first words to the worker"
    porter.receive_data(stream[: porter.wanted])
    assert porter.wanted == 0
    assert stream[ANSWER_BYTES:] == b"the first words to the worker"


def test_nonces_are_new_each_time() -> None:
    first, second = (meet(Knocker(KEY, KNOCK), Porter()) for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_the_bytes_of_a_knock_are_those_of_the_page() -> None:
    knock = Knocker(KEY, KNOCK, random=lambda size: b"n" * size).data_to_send()
    layout = SECTION.split("### KNOCK")[1].split("###")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([^|]+) \|", layout, re.MULTILINE)
    parts = [knock[int(at) : int(at) + int(size)] for at, size, _ in rows]
    assert b"".join(parts) == knock
    numbers = [(3, 4), (17, 8), (1, 4), (4, 4)]
    packed = [value.to_bytes(size, "little") for value, size in numbers]
    uid = bytes.fromhex(KNOCK.uid)
    assert parts == [MAGIC, bytes([VERSION]), b"\1", b"\0\0", *packed, uid, b"n" * 32]


def test_the_proofs_are_those_of_the_page() -> None:
    knock, challenge, proof, opened = meet(Knocker(KEY, KNOCK), Porter())
    for kind, said in ((3, proof), (4, opened)):
        covered = b"wiiiiide knock\0" + bytes([kind]) + knock + challenge
        assert said == b"WK" + bytes([kind, 0]) + hmac.new(KEY, covered, hashlib.sha256).digest()


def test_the_page_has_every_message_and_reason_with_its_number() -> None:
    for message in Message:
        assert message.name in SECTION
    for reason in Reason:
        assert re.search(rf"^\| {int(reason)} \| {reason.name} \|", SECTION, re.MULTILINE)


# -- strangers ----


@pytest.mark.parametrize(
    "stranger", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\1\0\1", b"WIIIIIDE", b"WIIKNOCX"]
)
def test_a_stranger_is_sent_away_by_its_eighth_byte_without_an_answer(stranger: bytes) -> None:
    porter = Porter()
    for at in range(8):
        try:
            porter.receive_data(stranger[at : at + 1])
        except Refused:
            break
    assert porter.state is State.FAILED
    assert porter.data_to_send() == b""
    assert porter.knock is None


def test_something_else_at_that_port_is_recognised() -> None:
    knocker = Knocker(KEY, KNOCK)
    assert "something else than wiiiiided" in refusal_of(knocker, b"S")


def test_a_knocker_with_another_key_is_refused_and_told() -> None:
    knocker = Knocker(OTHER_KEY, KNOCK)
    porter = challenged(knocker)
    knocker.receive_data(porter.data_to_send())
    heard = refusal_of(porter, knocker.data_to_send())
    assert "the data connection of rank 1 to rank 4 of job 17, attempt 3" in heard
    with pytest.raises(Unwelcome, match="has another key for it") as told:
        knocker.receive_data(porter.data_to_send())
    assert told.value.reason == Reason.PROOF


def test_an_attempt_that_is_not_here_looks_like_a_wrong_key() -> None:
    """Byte for byte, but for the nonce: a stranger cannot ask what runs here."""
    said = []
    for key in (KEY, None):
        knocker = Knocker(OTHER_KEY, KNOCK)
        porter = challenged(knocker, key)
        challenge = porter.data_to_send()
        knocker.receive_data(challenge)
        refusal_of(porter, knocker.data_to_send())
        said.append((challenge[:4], porter.data_to_send()))
    assert said[0] == said[1]


def test_the_owner_of_the_key_is_refused_where_the_attempt_is_not() -> None:
    knocker = Knocker(KEY, KNOCK)
    porter = challenged(knocker, None)
    knocker.receive_data(porter.data_to_send())
    refusal_of(porter, knocker.data_to_send())


def test_a_daemon_without_the_key_is_refused() -> None:
    knocker = Knocker(KEY, KNOCK)
    knocker.receive_data(challenged(knocker).data_to_send())
    assert "could not prove itself" in refusal_of(knocker, b"WK\x04\0" + b"w" * 32)


OTHERWISE: dict[str, Any] = {
    "job": 18,
    "attempt": 4,
    "role": "watch",
    "connector": 2,
    "acceptor": 2,
    "uid": NOBODY,
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Knock)])
def test_a_knock_changed_on_its_way_is_refused(field: str) -> None:
    """Every field counts: another knock is put before this one's proof."""
    knocker = Knocker(KEY, KNOCK, random=bytes)
    changed = Knocker(KEY, dataclasses.replace(KNOCK, **{field: OTHERWISE[field]}), random=bytes)
    porter = challenged(changed)
    assert porter.knock != KNOCK
    knocker.data_to_send()
    knocker.receive_data(porter.data_to_send())
    refusal_of(porter, knocker.data_to_send())


def meet_with_a_spoiled_bit(number: int, bit: int) -> None:
    """The knock, with one bit of one message changed on its way."""
    knocker, porter = Knocker(KEY, KNOCK), Porter()
    for turn in range(4):
        source, target = (knocker, porter) if turn % 2 == 0 else (porter, knocker)
        message = bytearray(source.data_to_send())
        if turn == number:
            at = bit % (8 * len(message))
            message[at // 8] ^= 1 << at % 8
        target.receive_data(bytes(message))
        if turn == 0:
            porter.challenge(KEY)
        if turn == 2:
            porter.open()


@pytest.mark.parametrize("number", range(4))
@given(st.integers(0, 8 * KNOCK_BYTES - 1))
def test_no_bit_of_what_is_said_can_be_changed(number: int, bit: int) -> None:
    with pytest.raises(Refused):
        meet_with_a_spoiled_bit(number, bit)


def test_a_replayed_knocker_is_refused() -> None:
    knock, _, proof, _ = meet(Knocker(KEY, KNOCK), Porter())
    porter = Porter()
    porter.receive_data(knock)
    porter.challenge(KEY)
    refusal_of(porter, proof)


def test_a_replayed_daemon_is_refused() -> None:
    _, challenge, _, opened = meet(Knocker(KEY, KNOCK), Porter())
    knocker = Knocker(KEY, KNOCK)
    knocker.receive_data(challenge)
    assert "could not prove itself" in refusal_of(knocker, opened)


def test_a_proof_played_back_to_its_sender_is_refused() -> None:
    knocker = Knocker(KEY, KNOCK)
    knocker.receive_data(challenged(knocker).data_to_send())
    proof = bytearray(knocker.data_to_send())
    proof[2] = Message.OPEN
    assert "could not prove itself" in refusal_of(knocker, bytes(proof))


# -- the daemon's verdict, and broken input ----


@pytest.mark.parametrize("reason", list(Reason))
def test_a_refusal_is_told_in_words_and_with_its_reason(reason: Reason) -> None:
    knocker = Knocker(KEY, KNOCK)
    porter = challenged(knocker)
    knocker.receive_data(porter.data_to_send())
    porter.receive_data(knocker.data_to_send())
    porter.refuse(reason)
    refusal = porter.data_to_send()
    assert len(refusal) == ANSWER_BYTES
    assert refusal == bytes([*b"WK", 5, reason]) + bytes(32)
    with pytest.raises(Unwelcome, match=r"the daemon refuses it: \w+") as told:
        knocker.receive_data(refusal)
    assert told.value.reason == reason


def test_a_reason_of_a_later_version_is_no_riddle() -> None:
    with pytest.raises(Unwelcome, match="reason 99"):
        Knocker(KEY, KNOCK).receive_data(b"WK\x05\x63" + bytes(32))


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [(8, 2, Reason.VERSION), (8, 0, Reason.VERSION), (9, 0, Reason.MALFORMED), (9, 4, 2)],
)
def test_a_knock_that_makes_no_sense_is_answered_with_why(
    offset: int, value: int, reason: int
) -> None:
    knock = bytearray(Knocker(KEY, KNOCK).data_to_send())
    knock[offset] = value
    porter = Porter()
    refusal_of(porter, bytes(knock))
    assert porter.data_to_send()[:4] == bytes([*b"WK", 5, reason])


def test_more_than_was_wanted_is_refused() -> None:
    porter = Porter()
    refusal_of(porter, Knocker(KEY, KNOCK).data_to_send() + b"!")


@given(st.binary(max_size=200), st.sampled_from(list(MAY_COME)))
def test_noise_is_refused_or_waited_for_and_nothing_else(noise: bytes, state: State) -> None:
    side: Knocker | Porter = (
        Knocker(KEY, KNOCK) if state.name in ("CHALLENGE", "OPEN") else Porter()
    )
    if state is State.PROOF:
        side = challenged(Knocker(KEY, KNOCK))
    if state is State.OPEN:
        side.receive_data(challenged(Knocker(KEY, KNOCK)).data_to_send())
    side.data_to_send()
    try:
        side.receive_data(noise)
    except Refused:
        assert side.state is State.FAILED
    assert not side.done


@pytest.mark.parametrize(
    "changes",
    [{"uid": "xyz"}, {"uid": "ab"}, {"job": -1}, {"attempt": 2**32}, {"role": "guest"}],
)
def test_what_cannot_be_said_is_refused_in_words(changes: dict[str, Any]) -> None:
    with pytest.raises(HostError, match="cannot be said in a knock"):
        Knocker(KEY, dataclasses.replace(KNOCK, **changes))


def test_a_key_of_another_size_is_refused_on_both_sides() -> None:
    with pytest.raises(Refused, match="has 5 bytes"):
        Knocker(b"short", KNOCK)
    porter = Porter()
    porter.receive_data(Knocker(KEY, KNOCK).data_to_send())
    with pytest.raises(Refused, match="has 5 bytes"):
        porter.challenge(b"short")


def test_a_verdict_out_of_turn_is_a_defect() -> None:
    porter = Porter()
    for verdict in (porter.open, lambda: porter.challenge(KEY), lambda: porter.refuse(Reason.BUSY)):
        with pytest.raises(RuntimeError, match="takes no verdict"):
            verdict()
