"""`wiiiiide init`, `token`, `join`, `leave`, `renew`: what this machine becomes, and when."""

from __future__ import annotations

import dataclasses
import os
import pty
import select
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon, status
from tests.ui.cli.kit import PATIENCE_S, Cli, Program
from wiiiiided.cluster.client import machines
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.config import Paths
from wiiiiided.ui.cli.membership import endpoint_of

TOKEN = "wiiiiide1.c2VjcmV0LXNlY3JldA"
MADE = m.TokenCreated(TOKEN, "10.0.0.1:9461", 0.0, 10)
LINE = f"wiiiiide join 10.0.0.1:9461 {TOKEN}\n"
FIRST = m.ClusterView("lab", "coordinator", "a", "10.0.0.1:9461")
SECOND = m.ClusterView("lab", "member", "b", "10.0.0.2:9461", "a", "10.0.0.1:9461")


def becomes(daemon: FakeDaemon, kind: type, view: m.ClusterView, **at_last: Any) -> list[str]:
    """The request is answered, and the role taken up only after a look or two."""
    looks: list[str] = []
    last = msgspec.structs.replace(status(), **{"role": view.role, **at_last})

    def look(_: m.GetStatus, link: FakeConnection) -> None:
        looks.append("look")
        link.say(status() if len(looks) == 1 and view.role != "alone" else last)

    def take(_: object, link: FakeConnection) -> None:
        daemon.does(m.GetStatus, look)
        link.say(view)

    daemon.does(kind, take)
    return looks


def created(daemon: FakeDaemon, **changes: Any) -> None:
    fresh = {"expires_at": time.time() + 3600, **changes}
    daemon.answers(m.CreateToken, msgspec.structs.replace(MADE, **fresh))


# ---- init and token


def test_init_prints_the_line_for_the_others_and_nothing_else(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = becomes(daemon, m.Init, FIRST)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # it stands still: seconds are shown
    created(daemon, expires_at=now + 3599.5)
    result = cli("init")
    assert (result.code, result.out) == (0, LINE)
    assert "a (10.0.0.1:9461) is the coordinator of the cluster lab" in result.err
    assert "on up to 10 other machines within 59m59s, until " in result.err
    assert TOKEN not in result.err
    assert daemon.asked(m.Init) == [m.Init()]
    assert daemon.asked(m.CreateToken) == [m.CreateToken(3600.0, 10)]
    assert looks == ["look", "look"]


def test_init_passes_its_options_on(cli: Cli, daemon: FakeDaemon) -> None:
    becomes(daemon, m.Init, FIRST)
    created(daemon)
    assert cli("init", "--address", "10.0.0.1", "--port", "7000", "--cluster", "lab").code == 0
    assert daemon.asked(m.Init) == [m.Init("lab", "10.0.0.1", 7000)]


def test_a_daemon_that_cannot_listen_says_why(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "PROBLEM_S", 0.05)
    becomes(daemon, m.Init, FIRST, problem="cannot listen on 10.0.0.1:9461: in use")
    result = cli("init")
    assert (result.code, result.out) == (1, "")
    assert "does not work as the coordinator yet: the daemon says: cannot listen" in result.err
    assert "wiiiiide doctor" in result.err


def test_token_create_prints_the_same_line(cli: Cli, daemon: FakeDaemon) -> None:
    created(daemon, uses=1)
    result = cli("token", "create")
    assert (result.code, result.out) == (0, LINE)
    assert "on another machine within" in result.err
    assert cli("token", "create", "--ttl", "10m", "--uses", "3").code == 0
    assert daemon.requests == [m.CreateToken(3600.0, 1), m.CreateToken(600.0, 3)]


def test_a_token_as_json(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.CreateToken, MADE)
    assert cli("token", "create", "--json").json == {
        "token": TOKEN,
        "address": "10.0.0.1:9461",
        "expires_at": 0.0,
        "uses": 10,
    }


# ---- whose daemon it is


@pytest.fixture
def own(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """It is a person's own, found as such."""
    paths = dataclasses.replace(Paths.private(daemon.home), mode="user")
    monkeypatch.setattr(Paths, "for_client", lambda: paths)
    return daemon


@pytest.mark.parametrize(
    ("words", "kind", "view"),
    [(("init",), m.Init, FIRST), (("join", "lab1", TOKEN), m.Join, SECOND)],
)
def test_a_daemon_of_ones_own_is_told_from_the_service(
    own: FakeDaemon,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    kind: type,
    view: m.ClusterView,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    becomes(own, kind, view)
    created(own)
    result = cli(*words)
    assert result.code == 0
    assert " (your own daemon, not the service)\n" in result.err


@pytest.mark.parametrize("words", [("init",), ("join", "lab1", TOKEN)])
def test_root_with_a_daemon_of_its_own_beside_the_service_is_refused(
    own: FakeDaemon,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    service = dataclasses.replace(Paths.system(), socket=tmp_path / "wiiiiided.sock")
    service.socket.touch()
    monkeypatch.setattr(Paths, "system", lambda: service)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = cli(*words)
    assert (result.code, result.out) == (1, "")
    assert "root has a daemon of its own" in result.err
    assert "stop that daemon (kill 1) and repeat the command" in result.err
    assert own.requests == [m.GetStatus()]


# ---- join


def test_join_returns_when_the_coordinator_hears_this_machine(cli: Cli, daemon: FakeDaemon) -> None:
    looks = becomes(daemon, m.Join, SECOND, cluster="lab", coordinator="a")
    result = cli("join", "lab1", TOKEN, "--name", "b", "--address", "10.0.0.2", "--port", "7000")
    assert (result.code, result.out) == (0, "")
    assert result.err == (
        "b (10.0.0.2:9461) is a member of the cluster lab, whose coordinator is a (10.0.0.1:9461)\n"
    )
    assert daemon.asked(m.Join) == [m.Join("lab1", 9461, TOKEN, "b", "10.0.0.2", 7000)]
    assert looks == ["look", "look"]


def test_a_member_that_is_not_heard_is_told(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines.settle, "__defaults__", (0.0,))
    looks = becomes(daemon, m.Join, SECOND, linked=False, coordinator="a")
    looks.append("one before")  # the role is taken up, but the coordinator does not hear it
    result = cli("join", "lab1", TOKEN)
    assert result.code == 1
    assert "does not work as a member yet: the coordinator a does not hear it" in result.err


def test_the_token_comes_from_a_pipe(program: Program, daemon: FakeDaemon, tmp_path: Path) -> None:
    becomes(daemon, m.Join, SECOND)
    (tmp_path / "token").write_text(f"  {TOKEN}\n")
    for words in (("-",), ()):
        daemon.answers(m.GetStatus, status())
        with open(tmp_path / "token") as file:
            assert program.run("join", "lab1", *words, stdin=file).code == 0
    assert [one.token for one in daemon.asked(m.Join)] == [TOKEN, TOKEN]


def test_a_person_types_the_token_unseen(program: Program, daemon: FakeDaemon) -> None:
    becomes(daemon, m.Join, SECOND)
    ours, theirs = pty.openpty()
    process = program.start(
        *("join", "lab1", "-"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            shown += os.read(ours, 1 << 16)
        except OSError:  # EIO: no process has the other end any more
            break
        if shown.endswith(b"token: "):
            os.write(ours, f"{TOKEN}\n".encode())
    os.close(ours)
    assert process.wait(PATIENCE_S) == 0
    assert shown.startswith(b"token: ")
    assert TOKEN.encode() not in shown
    assert [one.token for one in daemon.asked(m.Join)] == [TOKEN]


def test_the_token_is_not_to_be_seen_while_it_runs(program: Program, daemon: FakeDaemon) -> None:
    seen: list[bytes] = []
    started: list[int] = []

    def join(_: m.Join, link: FakeConnection) -> None:
        wait_until(lambda: bool(started), PATIENCE_S, "its number is known here")
        seen.append(Path(f"/proc/{started[0]}/cmdline").read_bytes())
        link.say(m.Refusal(5, "no"))

    daemon.does(m.Join, join)
    process = program.start("join", "lab1", TOKEN, "--name", "b")
    started.append(process.pid)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5
    assert [one.token for one in daemon.asked(m.Join)] == [TOKEN]
    assert TOKEN.encode() not in seen[0]
    assert b"\0join\0lab1\0" in seen[0]
    assert seen[0].endswith(b"\0--name\0b\0")
    assert TOKEN not in out + err


def test_an_interrupt_says_that_the_machine_may_still_join(
    program: Program, daemon: FakeDaemon
) -> None:
    def stay(_: m.Join, link: FakeConnection) -> None:
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.Join, stay)
    process = program.start("join", "lab1", TOKEN)
    wait_until(lambda: bool(daemon.asked(m.Join)), PATIENCE_S, "it waits")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == ("wiiiiide: stopped waiting; the daemon may still join: wiiiiide nodes says so\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((TOKEN, "lab1"), "comes first"),
        (("lab1", "s3cret"), "that is no token"),
        (("lab1:0", TOKEN), "no port"),
        (("lab1:x", TOKEN), "'x' is no port: 1 to 65535"),
        (("", TOKEN), "not a HOST"),
        (("lab1", TOKEN, "--port", "70000"), "less than or equal to 65535"),
    ],
)
def test_what_makes_no_sense_is_usage_and_repeats_no_secret(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...], said: str
) -> None:
    result = cli("join", *words)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "s3cret" not in result.err
    assert TOKEN not in result.err
    assert daemon.requests == []


def test_an_empty_stdin_is_usage(program: Program, daemon: FakeDaemon) -> None:
    with open(os.devnull) as nothing:
        result = program.run("join", "lab1", stdin=nothing)
    assert result.code == 2
    assert "there is no token" in result.err


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("lab1", ("lab1", 9461)),
        ("lab1.example.org:7000", ("lab1.example.org", 7000)),
        ("10.0.0.1:9461", ("10.0.0.1", 9461)),
        ("fd00::5", ("fd00::5", 9461)),
        ("[fd00::5]", ("fd00::5", 9461)),
        ("[fd00::5]:7000", ("fd00::5", 7000)),
    ],
)
def test_a_host_may_be_a_name_or_an_address(text: str, endpoint: tuple[str, int]) -> None:
    assert endpoint_of(text) == endpoint


# ---- leave and renew


def test_leave_returns_when_the_machine_is_alone(cli: Cli, daemon: FakeDaemon) -> None:
    looks = becomes(daemon, m.Leave, m.ClusterView("", "alone", "b"))
    result = cli("leave")
    assert (result.code, result.out, result.err) == (0, "", "b is a machine alone\n")
    assert cli("leave", "--force").code == 0
    assert daemon.asked(m.Leave) == [m.Leave(), m.Leave(True)]
    assert looks == ["look", "look"]


def test_renew_says_until_when(cli: Cli, daemon: FakeDaemon) -> None:
    until = msgspec.structs.replace(SECOND, certificate_until=1_767_225_600.0)
    daemon.answers(m.Renew, until)
    result = cli("renew")
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("the certificate of b is good until 20")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("init",), m.Init),
        (("join", "lab1", TOKEN), m.Join),
        (("leave",), m.Leave),
        (("token", "create"), m.CreateToken),
        (("renew",), m.Renew),
    ],
)
def test_a_refusal_has_the_daemons_words_and_code(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...], kind: type
) -> None:
    daemon.answers(kind, m.Refusal(5, "only root may", "sudo wiiiiide"))
    result = cli(*words)
    assert (result.code, result.out) == (5, "")
    assert result.err == "wiiiiide: only root may\nsudo wiiiiide\n"
