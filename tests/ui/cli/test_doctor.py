"""`wiiiiide doctor`: what it thinks of machines that are well, odd or broken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.messages import DaemonStatus
from wiiiiided.config import Paths
from wiiiiided.domain.node import Node
from wiiiiided.ui.cli.commands import doctor
from wiiiiided.ui.cli.doctor import facts as doctor_facts
from wiiiiided.ui.cli.doctor.checks import CHECKS, GIB, TORCH, examine, satisfies
from wiiiiided.ui.cli.doctor.model import Facts, Finding, JobUserFacts, PortProbe, Socket, Unit

DAEMON = DaemonStatus(
    version="1.0",
    pid=77,
    mode="system",
    node=Node("m1", 8, 32 * GIB, address="10.0.0.1", port=9461),
    started_at=0.0,
    state_directory="/var/lib/wiiiiide",
    jobs_directory="/var/lib/wiiiiide-jobs",
    job_user="wiiiiide-job",
    counts={},
    role="coordinator",
    cluster="lab",
)
MEMBER = msgspec.structs.replace(DAEMON, role="member", coordinator="m0")
WELL = Facts(
    version="1.0",
    mode="system",
    user="ada",
    python=(3, 11, 2),
    daemon=DAEMON,
    socket=Socket("/run/wiiiiide/wiiiiided.sock", True, 0o660, "wiiiiide"),
    groups=("ada", "wiiiiide"),
    listed=True,
    state="/var/lib/wiiiiide",
    state_free=100 * GIB,
    jobs="/var/lib/wiiiiide-jobs",
    jobs_free=100 * GIB,
    unit=Unit("loaded", "active", "enabled", user=False),
    interpreter="/opt/wiiiiide/bin/python",
    torch="2.13.0+cpu",
    torch_wanted="<2.14,>=2.13",
    cores=8,
    all_cores=8,
    memory=32 * GIB,
    shm=16 * GIB,
    open_files=65536,
    hostname="m1",
    addresses=("192.168.1.7",),
    boot_id="3f1c",
    loopback_up=True,
    job_user=JobUserFacts(exists=True),
    port=PortProbe(0.0004, mtu=1500),
)
DENIED = replace(WELL, daemon=None, denied=True, daemon_problem="you may not use it")
ALONE = replace(WELL, daemon=msgspec.structs.replace(DAEMON, role="alone", cluster=""), port=None)
PERSON = replace(
    WELL, mode="user", unit=Unit("loaded", "active", "enabled", user=True), lingers=True
)


def found(facts: Facts, title: str) -> Finding:
    return next(finding for finding in examine(facts) if finding.title == title)


def test_a_machine_that_is_well_has_no_complaint() -> None:
    for facts in (WELL, PERSON):
        assert [finding for finding in examine(facts) if finding.level != "ok"] == []


def test_every_check_speaks_about_a_service_that_is_well() -> None:
    # Lingering is a person's, and its hostname does not matter inside a cluster.
    assert len(examine(WELL)) == len(CHECKS) - 2


ILL: list[tuple[Facts, str, str, str, str]] = [
    (
        replace(WELL, daemon=None, daemon_problem="nobody answers"),
        "daemon",
        "fail",
        "nobody answers",
        "systemctl start wiiiiided",
    ),
    (
        replace(DENIED, groups=(), listed=False, unit=None),
        "daemon",
        "fail",
        "it is there, but you may not use it",
        "sudo usermod --append --groups wiiiiide ada",
    ),
    (replace(DENIED, groups=()), "daemon", "fail", "it is there", "log in again"),
    (
        replace(PERSON, daemon=None, unit=Unit("not-found", "", "", True)),
        "daemon",
        "fail",
        "",
        "wiiiiide service install",
    ),
    (replace(WELL, mode="private", daemon=None), "daemon", "fail", "", "WIIIIIDE_HOME"),
    (replace(WELL, version="1.1"), "daemon", "warn", "1.0, this command is 1.1", "restart"),
    (
        replace(WELL, daemon=msgspec.structs.replace(DAEMON, problem="disk full")),
        "daemon",
        "fail",
        "disk full",
        "log",
    ),
    (
        replace(WELL, daemon=msgspec.structs.replace(MEMBER, linked=False)),
        "cluster",
        "fail",
        "m0 coordinates it, and does not hear this machine",
        "is m0 on",
    ),
    (
        replace(WELL, port=PortProbe(problem="refused")),
        "one port",
        "fail",
        "10.0.0.1:9461 does not answer",
        "sport = 9461",
    ),
    (
        replace(WELL, socket=Socket("/s", True, 0o666, "wiiiiide")),
        "socket",
        "fail",
        "every user",
        "restart",
    ),
    (replace(WELL, groups=("ada",)), "group", "fail", "this session began before", "log in again"),
    (
        replace(WELL, groups=("ada",), listed=False),
        "group",
        "fail",
        "ada is not in",
        "usermod --append --groups wiiiiide ada",
    ),
    (replace(WELL, state_free=10 << 20), "state", "fail", "10 MiB free", "make room"),
    (replace(WELL, state_free=1 * GIB), "state", "warn", "1 GiB free", "make room"),
    (replace(WELL, jobs_free=1 * GIB), "jobs", "warn", "wiiiiide-jobs: 1 GiB", "make room"),
    (replace(PERSON, state_writable=False), "state", "fail", "cannot be written", "owner"),
    (
        replace(WELL, unit=Unit("not-found", "inactive", "", False)),
        "service",
        "warn",
        "not installed",
        "wiiiiide service install",
    ),
    (
        replace(WELL, unit=Unit("bad-setting", "inactive", "enabled", False)),
        "service",
        "fail",
        "bad-setting",
        "wiiiiide service install",
    ),
    (
        replace(WELL, unit=Unit("loaded", "failed", "enabled", False)),
        "service",
        "fail",
        "failed",
        "journalctl -e -u wiiiiided",
    ),
    (
        replace(WELL, unit=Unit("loaded", "inactive", "enabled", False)),
        "service",
        "warn",
        "inactive",
        "systemctl start wiiiiided",
    ),
    (
        replace(PERSON, unit=Unit("loaded", "active", "disabled", True)),
        "service",
        "warn",
        "does not come back",
        "systemctl --user enable wiiiiided",
    ),
    (
        replace(PERSON, lingers=False),
        "lingering",
        "warn",
        "end when you log out",
        "loginctl enable-linger ada",
    ),
    (replace(WELL, python=(3, 10, 4)), "python", "fail", "3.10.4", "3.11 or newer"),
    (
        replace(WELL, torch=None, torch_problem="No module named 'torch'"),
        "torch",
        "fail",
        "No module named 'torch'",
        "/opt/wiiiiide/bin/python -m pip install torch==2.13.0 --index-url",
    ),
    (
        replace(WELL, torch="2.9.1+cu128"),
        "torch",
        "warn",
        "2.9.1+cu128 in /opt/wiiiiide/bin/python; the backend wiiiiide needs <2.14,>=2.13",
        "/opt/wiiiiide/bin/python -m pip install torch==2.13.0 --index-url",
    ),
    (replace(WELL, cpu_quota=0.5), "cores", "warn", "by quota 0.5", "raise the quota"),
    (replace(WELL, swap_used=2 * GIB), "swap", "warn", "2 GiB in use", "memory"),
    (replace(WELL, shm=64 << 20), "/dev/shm", "warn", "64 MiB", "--shm-size"),
    (replace(WELL, shm=None), "/dev/shm", "warn", "none", "tmpfs"),
    (replace(WELL, open_files=1024), "open files", "warn", "1024", "LimitNOFILE"),
    (replace(ALONE, addresses=None), "hostname", "warn", "does not resolve", "/etc/hosts"),
    (replace(WELL, boot_id=None), "boot id", "fail", "cannot be read", "/proc"),
    (replace(WELL, clock_behind_s=3600.0), "clock", "warn", "3600 s before", "timedatectl"),
    (replace(WELL, loopback_up=False), "loopback", "fail", "lo is down", "ip link set lo up"),
    (replace(WELL, job_user=JobUserFacts(exists=False)), "job user", "fail", "no user", "install"),
    (
        replace(WELL, job_user=JobUserFacts(True, state_mode=0o755)),
        "job user",
        "fail",
        "could read",
        "0700",
    ),
    (
        replace(WELL, job_user=JobUserFacts(True, owns_state=True)),
        "job user",
        "fail",
        "could read",
        "chown",
    ),
    (
        replace(WELL, job_user=JobUserFacts(True, in_daemon_group=True)),
        "job user",
        "fail",
        "could read",
        "out of the group",
    ),
]


@pytest.mark.parametrize(("facts", "title", "level", "words", "do"), ILL)
def test_what_is_wrong_is_named_with_what_to_do(
    facts: Facts, title: str, level: str, words: str, do: str
) -> None:
    finding = found(facts, title)
    assert finding.level == level
    assert words in finding.sentence
    assert do in finding.do


def test_a_member_that_is_heard_is_well() -> None:
    finding = found(replace(WELL, daemon=MEMBER), "cluster")
    assert (finding.level, finding.sentence) == ("ok", "lab, a member; m0 coordinates it")


def test_a_machine_alone_has_no_port() -> None:
    alone = msgspec.structs.replace(DAEMON, role="alone", node=Node("m1", 8, 32 * GIB))
    findings = {f.title: f for f in examine(replace(WELL, daemon=alone, port=None))}
    assert findings["cluster"].sentence == "none: this machine is alone"
    assert "one port" not in findings


def test_a_machine_without_the_service_is_not_blamed_for_its_users() -> None:
    titles = {f.title for f in examine(replace(WELL, daemon=None, unit=None))}
    assert not titles & {"group", "job user"}


def test_a_limit_of_memory_is_shown_beside_the_whole() -> None:
    words = found(replace(WELL, memory_limit=4 * GIB), "memory").sentence
    assert words == "4 GiB by limit, of 32 GiB"


def test_a_hostname_on_loopback_is_fine_on_one_machine() -> None:
    finding = found(replace(ALONE, addresses=("127.0.1.1",)), "hostname")
    assert finding.level == "ok"
    assert "other machines" in finding.sentence


@pytest.mark.parametrize(
    ("version", "wanted", "right"),
    [
        ("2.13.0", ">=2.13,<2.14", True),
        ("2.13", ">=2.13.0", True),
        ("2.13.4+cpu", "<2.14,>=2.13", True),
        ("2.14.0", ">=2.13,<2.14", False),
        ("2.9.1", ">=2.13,<2.14", False),
        ("2.13.1", "==2.13.0", False),
        ("2.9.1", "", True),
        ("2.9.1", "~=2.13", True),  # no bound of ours: nothing is claimed
    ],
)
def test_a_version_is_compared_with_what_is_required(
    version: str, wanted: str, right: bool
) -> None:
    assert satisfies(version, wanted) is right


def test_what_is_required_is_read_and_what_is_recommended_fits_it() -> None:
    wanted = doctor_facts.torch_wanted()
    assert sorted(wanted.split(",")) == ["<2.14", ">=2.13"]
    assert satisfies(TORCH.removeprefix("torch==").split()[0], wanted)


def test_the_facts_of_this_machine_can_be_gathered(tmp_path: Path) -> None:
    facts = doctor_facts.gather(Paths.private(str(tmp_path)), None, "nobody answers")
    assert facts.torch is not None, facts.torch_problem
    assert facts.boot_id is not None
    assert facts.memory > 0
    assert facts.open_files is not None
    assert facts.state_writable is True
    assert facts.clock_behind_s == 0.0
    assert found(facts, "daemon").level == "fail"


def test_an_interpreter_without_torch_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    assert doctor_facts.torch_of(str(tmp_path / "python")) == (None, "No such file or directory")
    bad = tmp_path / "bad"
    bad.write_text("#!/bin/sh\necho 'ModuleNotFoundError: torch' >&2\nexit 1\n")
    bad.chmod(0o755)
    assert doctor_facts.torch_of(str(bad)) == (None, "ModuleNotFoundError: torch")


def test_json_has_every_finding_and_the_exit_code_says_whether_one_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WIIIIIDE_HOME", str(tmp_path))
    monkeypatch.setattr(doctor_facts, "torch_of", lambda _: ("2.13.0", ""))
    assert doctor.command(as_json=True) == 1  # there is no daemon
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == 1
    assert made["ok"] is False
    levels = {finding["title"]: finding["level"] for finding in made["findings"]}
    assert levels["daemon"] == "fail"
    assert levels["torch"] == "ok"


def test_lines_name_level_title_sentence_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show([Finding("warn", "swap", "much\x1b[2J in use", "end what fills it")])
    first, second = capsys.readouterr().out.splitlines()
    assert first == "warn  swap         much\\x1b[2J in use"
    assert second.strip() == "→ end what fills it"


def test_on_a_terminal_a_remedy_is_a_line_of_its_own_below_the_frame(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = "/srv/venvs/training/bin/python -m pip install torch, or name another in run.python"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    doctor.show([Finding("fail", "torch", "cannot be imported", remedy), Finding("ok", "a", "b")])
    *frame, title, last = capsys.readouterr().out.splitlines()
    assert frame[-1].startswith("╰")
    assert not any("pip" in line for line in frame)
    assert (title, last) == ("→ torch:", remedy)


def test_a_daemon_that_says_nothing_is_one_finding_among_others(
    monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon, cli: Cli
) -> None:
    def silent(_: m.GetStatus, link: FakeConnection) -> None:
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.GetStatus, silent)
    monkeypatch.setattr(doctor, "DAEMON_S", 0.2)
    monkeypatch.setattr(doctor_facts, "torch_of", lambda _: ("2.13.0", ""))
    result = cli("doctor")
    assert result.code == 1
    first, *rest = result.out.splitlines()
    assert first.startswith("fail  daemon       the daemon has not answered for")
    assert any(line.startswith("ok    torch") for line in rest)
