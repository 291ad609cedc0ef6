"""What lies on the disk: private from its first moment, whole or not there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.trust.kit import a_certificate, a_cluster, a_member, a_membership
from wiiiiided.cluster.trust import private_files
from wiiiiided.cluster.trust.authority import Authority
from wiiiiided.cluster.trust.identity import Identity, adopt_membership, forget, replace_certificate
from wiiiiided.cluster.trust.tls import server_context
from wiiiiided.errors import HostError, UsageError

COORDINATOR = {"cluster.json", "authority.pem", "node.key", "authority.key", "job-keys.secret"}
MEMBER = {"cluster.json", "authority.pem", "node.key"}


class Crash(BaseException):
    """The machine loses its power here."""


def modes(directory: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in directory.iterdir()}


def test_a_machine_without_the_directory_is_alone(tmp_path: Path) -> None:
    assert Identity.load(tmp_path) is None


def test_what_was_created_is_loaded_again(tmp_path: Path) -> None:
    made = a_cluster(tmp_path)
    assert Identity.load(tmp_path) == made
    assert (made.role, made.cluster, made.node) == ("coordinator", "lab", "a")
    assert made.coordinator.endpoint == made.endpoint == "127.0.0.1:9461"


def test_a_member_has_the_authority_but_not_its_key(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path / "a")
    member = a_member(tmp_path / "b", coordinator)
    assert Identity.load(tmp_path / "b") == member
    assert member.authority == Authority.load(coordinator.directory).certificate
    assert set(modes(member.directory)) == MEMBER
    assert member.certificate.fingerprint != coordinator.certificate.fingerprint


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_is_for_this_user_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = a_cluster(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700
    assert modes(made.directory) == dict.fromkeys(COORDINATOR, 0o600)


def test_no_file_is_ever_open_to_others_not_even_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[int, int]] = []
    real = os.open

    def watched(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            opened.append((flags, mode))
        return real(path, flags, mode)

    monkeypatch.setattr(private_files.os, "open", watched)
    a_cluster(tmp_path)
    assert len(opened) == len(COORDINATOR)
    assert all(mode == 0o600 and flags & os.O_EXCL for flags, mode in opened)


def test_a_second_cluster_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    made = a_cluster(tmp_path)
    with pytest.raises(UsageError, match="wiiiiide leave"):
        a_cluster(tmp_path)
    assert Identity.load(tmp_path) == made


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "x" * 64, "a b", "a\n", "é"])
def test_a_name_that_could_be_anything_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        a_cluster(tmp_path, node=name)
    assert list(tmp_path.iterdir()) == []


def test_after_forgetting_the_machine_is_alone_and_the_keys_are_gone(tmp_path: Path) -> None:
    a_cluster(tmp_path)
    forget(tmp_path)
    assert Identity.load(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    forget(tmp_path)  # once more changes nothing


@pytest.mark.parametrize("step", range(8))
def test_a_crash_while_it_is_made_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    crash_at(monkeypatch, step)
    # Power loss runs no clean-up either.
    monkeypatch.setattr(private_files, "remove_leftovers", lambda state: None)
    with pytest.raises(Crash):
        a_cluster(tmp_path)
    monkeypatch.undo()
    found = Identity.load(tmp_path)
    if found is None:
        assert list(tmp_path.iterdir()) == []
        found = a_cluster(tmp_path)
    else:
        assert step == 7  # the rename had happened, and was not yet on the disk
    assert set(modes(found.directory)) == COORDINATOR
    server_context(found)


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Before the write, the sync or the rename of that number: 5 writes, sync, rename, sync."""
    count = iter(range(100))

    def counted(name: str, owner: object) -> None:
        real = getattr(owner, name)

        def instead(*arguments: object) -> object:
            if next(count) == step:
                raise Crash
            return real(*arguments)

        monkeypatch.setattr(owner, name, instead)

    counted("write", private_files)
    counted("sync", private_files)
    counted("rename", Path)


@pytest.mark.parametrize("step", range(2))
def test_a_crash_while_it_is_forgotten_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    made = a_cluster(tmp_path)
    crash_at(monkeypatch, step)
    with pytest.raises(Crash):
        forget(tmp_path)
    monkeypatch.undo()
    assert Identity.load(tmp_path) == (made if step == 0 else None)
    assert len(list(tmp_path.iterdir())) == (1 if step == 0 else 0)


def test_a_renewed_certificate_takes_the_place_of_the_old_together_with_its_key(
    tmp_path: Path,
) -> None:
    coordinator = a_cluster(tmp_path / "a")
    member = a_member(tmp_path / "b", coordinator)
    key, certificate = a_certificate(coordinator)
    renewed = replace_certificate(member, key, certificate)
    assert renewed.certificate == certificate != member.certificate
    assert Identity.load(tmp_path / "b") == renewed
    assert modes(member.directory) == dict.fromkeys(MEMBER, 0o600)
    server_context(renewed)


@pytest.mark.parametrize("step", range(3))
def test_a_crash_while_it_is_renewed_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    coordinator = a_cluster(tmp_path / "a")
    member = a_member(tmp_path / "b", coordinator)
    key, certificate = a_certificate(coordinator)
    crash_at(monkeypatch, step)
    with pytest.raises(Crash):
        replace_certificate(member, key, certificate)
    monkeypatch.undo()
    found = Identity.load(tmp_path / "b")
    assert found is not None
    assert found.certificate == (certificate if step == 2 else member.certificate)
    server_context(found)
    assert replace_certificate(found, key, certificate).certificate == certificate


def test_a_certificate_for_another_key_changes_nothing(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path / "a")
    key, _ = a_certificate(coordinator)
    _, certificate = a_certificate(coordinator)
    told = a_membership(coordinator, "b")
    (tmp_path / "b").mkdir()
    with pytest.raises(HostError, match="not for this machine's key"):
        adopt_membership(tmp_path / "b", told, coordinator.authority, key, certificate)
    assert list((tmp_path / "b").iterdir()) == []
    member = a_member(tmp_path / "b", coordinator)
    with pytest.raises(HostError, match="not for this machine's key"):
        replace_certificate(member, key, certificate)
    assert Identity.load(tmp_path / "b") == member
    assert set(modes(member.directory)) == MEMBER


@pytest.mark.parametrize("name", ["cluster.json", "node.key"])
@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff" * 100, b"x" * 100_000])
def test_a_damaged_file_is_named_and_what_to_do(
    tmp_path: Path, name: str, data: bytes | None
) -> None:
    made = a_cluster(tmp_path)
    path = made.directory / name
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(HostError, match=f"{name} cannot be used .* Restore"):
        Identity.load(tmp_path)


def test_keys_of_attempts_are_all_different_and_always_the_same(tmp_path: Path) -> None:
    made, other = a_cluster(tmp_path / "a"), a_cluster(tmp_path / "b")
    pairs = [(1, 1), (1, 2), (2, 1), (2**63, 2**31), (256, 1), (1, 256)]
    keys = [one.attempt_key(*pair) for one in (made, other) for pair in pairs]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}
    again = Identity.load(tmp_path / "a")
    assert again is not None
    assert [again.attempt_key(*pair) for pair in pairs] == keys[: len(pairs)]


def test_a_damaged_secret_of_jobs_is_said_and_not_used(tmp_path: Path) -> None:
    made = a_cluster(tmp_path)
    (made.directory / "job-keys.secret").write_bytes(b"short")
    with pytest.raises(HostError, match=r"job-keys\.secret cannot be used"):
        made.attempt_key(1, 1)


def test_nothing_private_is_in_what_is_printed_of_an_identity(tmp_path: Path) -> None:
    made = a_cluster(tmp_path)
    key_line = (made.directory / "node.key").read_text().splitlines()[2]
    assert key_line not in repr(made)
    assert repr((made.directory / "job-keys.secret").read_bytes()) not in repr(made)


def test_an_idle_daemon_knows_its_identity_without_loading_cryptography(tmp_path: Path) -> None:
    a_cluster(tmp_path)
    script = (
        "import sys; from pathlib import Path\n"
        "from wiiiiided.cluster.trust.identity import Identity\n"
        "from wiiiiided.cluster.trust import tls\n"
        "from wiiiiided.cluster.trust.authority import Authority\n"
        "from wiiiiided.cluster.membership import joining, members\n"
        "made = Identity.load(Path(sys.argv[1])); tls.server_context(made)\n"
        "Authority.load(made.directory); made.attempt_key(1, 1)\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60)
    assert done.returncode == 0
