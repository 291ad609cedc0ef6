"""`wiiiiide service`: what it writes and runs, in which order, and when it refuses.

The machine is a directory and a list of commands here; tests/machines has real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from wiiiiided.errors import HostError
from wiiiiided.ui.cli import main as cli
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.service import access, files
from wiiiiided.ui.cli.service import install as service_install
from wiiiiided.ui.cli.service import system as service_system
from wiiiiided.ui.cli.service.install import put
from wiiiiided.ui.cli.service.system import System
from wiiiiided.ui.cli.service.uninstall import uninstall_service

DAEMON = Path("/opt/wiiiiide/bin/wiiiiided")


class World:
    """A machine whose commands are written down, and answer as told."""

    def __init__(self, root: Path, *, user: bool = False) -> None:
        self.root = root
        self.ran: list[str] = []
        self.said: list[str] = []
        self.answers: dict[str, tuple[int, str]] = {}
        (root / "run/systemd/system").mkdir(parents=True)
        self.system = System(user, self.run, self.said.append, root)

    def run(self, argv: Sequence[str]) -> tuple[int, str]:
        line = " ".join(argv).replace(str(self.root), "")
        self.ran.append(line)
        return next((said for part, said in self.answers.items() if part in line), (0, ""))

    @property
    def words(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def wanted(world: World) -> list[files.ServiceFile]:
    return files.system_files(files.templates(), DAEMON, world.root)


# ---- install


def test_install_makes_files_users_and_directories_before_it_starts_anything(world: World) -> None:
    put(world.system, wanted(world), start=True)
    assert world.ran == [
        "systemd-sysusers /etc/sysusers.d/wiiiiide.conf",
        "systemd-tmpfiles --create /etc/tmpfiles.d/wiiiiide.conf",
        "systemctl daemon-reload",
        "systemctl enable --quiet wiiiiided.service",
        "systemctl is-active wiiiiided.service",
        "systemctl start wiiiiided.service",
    ]
    unit = world.root / "etc/systemd/system/wiiiiided.service"
    assert f"ExecStart={DAEMON} --system\n" in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644
    assert "u wiiiiide-job" in (world.root / "etc/sysusers.d/wiiiiide.conf").read_text()


def test_a_second_install_changes_nothing_and_restarts_nothing(world: World) -> None:
    put(world.system, wanted(world), start=True)
    world.ran.clear()
    world.said.clear()
    world.answers["is-active"] = (0, "active\n")
    put(world.system, wanted(world), start=True)
    assert not [line for line in world.ran if "restart" in line]
    assert world.words.count("unchanged") == 3
    assert "runs already" in world.words


def test_a_changed_unit_restarts_a_running_daemon(world: World) -> None:
    world.answers["is-active"] = (0, "active\n")
    put(world.system, wanted(world), start=True)
    assert world.ran[-1] == "systemctl restart wiiiiided.service"
    assert "jobs went on" in world.words


def test_no_start_enables_without_starting(world: World) -> None:
    put(world.system, wanted(world), start=False)
    assert world.ran[-1] == "systemctl enable --quiet wiiiiided.service"


def test_a_daemon_that_does_not_start_is_quoted(world: World) -> None:
    world.answers = {"systemctl start": (1, "Job failed."), "journalctl": (0, "bad key limits.x\n")}
    with pytest.raises(CommandFailed, match="did not start") as stop:
        put(world.system, wanted(world), start=True)
    assert (stop.value.code, stop.value.hint) == (1, "bad key limits.x")
    world.answers["StatusText"] = (0, "cannot listen\n")
    with pytest.raises(CommandFailed) as stop:
        put(world.system, wanted(world), start=True)
    assert stop.value.hint == "cannot listen"


def test_a_failing_step_is_named_and_ends_it(world: World) -> None:
    world.answers["systemd-sysusers"] = (1, "Failed to write /etc/passwd")
    with pytest.raises(
        CommandFailed, match=r"systemd-sysusers .* failed: Failed to write /etc/passwd"
    ):
        put(world.system, wanted(world), start=True)
    assert len(world.ran) == 1


def test_a_person_gets_one_unit_and_a_word_about_lingering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WIIIIIDE_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    world = World(tmp_path, user=True)
    world.answers["loginctl"] = (0, "no\n")
    service_install.install_user(world.system, start=True)
    unit = tmp_path / "config/systemd/user/wiiiiided.service"
    assert "--system" not in unit.read_text()
    assert world.ran[0] == "systemctl --user show --value -p Version"
    assert "systemctl --user start wiiiiided.service" in world.ran
    assert not [line for line in world.ran if "sysusers" in line]
    assert "loginctl enable-linger" in world.words


def test_a_person_without_a_session_is_told_how_to_get_one(tmp_path: Path) -> None:
    world = World(tmp_path, user=True)
    world.answers["systemctl --user"] = (1, "Failed to connect to bus")
    with pytest.raises(CommandFailed, match="Failed to connect to bus") as stop:
        service_install.install_user(world.system, start=True)
    assert "enable-linger" in stop.value.hint
    assert stop.value.code == 7


def test_a_private_daemon_is_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIIIIIDE_HOME", str(tmp_path))
    with pytest.raises(CommandFailed, match="WIIIIIDE_HOME is set") as stop:
        service_install.install_user(World(tmp_path, user=True).system, start=True)
    assert stop.value.code == 2


def test_a_machine_without_systemd_is_told_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="not booted with systemd") as stop:
        service_system.check_systemd(System(False, lambda _: (0, ""), print, tmp_path))
    assert stop.value.code == 7
    assert "foreground" in stop.value.hint


def test_without_systemd_nothing_is_there_to_uninstall(tmp_path: Path) -> None:
    system = System(False, lambda _: (0, ""), print, tmp_path)
    with pytest.raises(CommandFailed, match="there is no service to uninstall"):
        uninstall_service(system, purge=False, force=False)


def test_only_root_installs_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CommandFailed, match="root's to install") as stop:
        service_system.check_root("install")
    assert stop.value.code == 5
    assert "--user" in stop.value.hint


def test_a_command_that_is_not_there_or_hangs_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert service_system.run_command(["no-such-command"])[0] == 127
    monkeypatch.setattr(service_system, "COMMAND_S", 0.01)
    assert service_system.run_command(["sleep", "10"]) == (124, "no answer within 0.01 s")


def test_help_of_the_command_needs_no_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["service", "uninstall", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("--user", "--purge", "--force"):
        assert option in shown


# ---- uninstall


def installed(world: World, processes: str = "41\n") -> None:
    put(world.system, wanted(world), start=True)
    group = world.root / "sys/fs/cgroup/system.slice/wiiiiided.service"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(processes)
    for kept in ("var/lib/wiiiiide", "var/lib/wiiiiide-jobs"):
        (world.root / kept).mkdir(parents=True)
    world.answers = {
        "ControlGroup": (0, "/system.slice/wiiiiided.service\n"),
        "MainPID": (0, "41\n"),
        "LoadState": (0, "loaded\n"),
    }
    world.ran.clear()
    world.said.clear()


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("as_root")
def test_uninstall_stops_and_removes_the_service_and_keeps_the_state(world: World) -> None:
    installed(world)
    uninstall_service(world.system, purge=False, force=False)
    assert "systemctl disable --quiet --now wiiiiided.service" in world.ran
    assert world.ran[-1] == "systemctl daemon-reload"
    assert not (world.root / "etc/systemd/system/wiiiiided.service").exists()
    assert not (world.root / "etc/sysusers.d/wiiiiide.conf").exists()
    assert (world.root / "var/lib/wiiiiide").exists()
    assert "kept" in world.words


@pytest.mark.usefixtures("as_root")
def test_uninstall_refuses_while_jobs_run(world: World) -> None:
    installed(world, "41\n99\n100\n")
    with pytest.raises(CommandFailed, match="2 processes of jobs") as stop:
        uninstall_service(world.system, purge=False, force=False)
    assert stop.value.code == 1
    assert "--force" in stop.value.hint
    assert not [line for line in world.ran if "disable" in line]


@pytest.mark.usefixtures("as_root")
def test_force_uninstalls_and_says_what_goes_on(world: World) -> None:
    installed(world, "41\n99\n")
    uninstall_service(world.system, purge=False, force=True)
    assert "1 process of jobs" in world.words
    assert not (world.root / "etc/systemd/system/wiiiiided.service").exists()


@pytest.mark.usefixtures("as_root")
def test_purge_removes_the_state_but_never_under_a_running_job(world: World) -> None:
    installed(world, "41\n99\n")
    with pytest.raises(CommandFailed, match="1 process"):
        uninstall_service(world.system, purge=True, force=True)
    assert (world.root / "var/lib/wiiiiide-jobs").exists()
    (world.root / "sys/fs/cgroup/system.slice/wiiiiided.service/cgroup.procs").write_text("41\n")
    uninstall_service(world.system, purge=True, force=False)
    assert not (world.root / "var/lib/wiiiiide-jobs").exists()


@pytest.mark.usefixtures("as_root")
def test_uninstalling_what_is_not_there_is_said_and_harmless(world: World) -> None:
    world.answers = {"LoadState": (0, "not-found\n")}
    uninstall_service(world.system, purge=False, force=False)
    assert "was not installed" in world.words


@pytest.mark.usefixtures("as_root")
def test_a_service_that_cannot_be_stopped_is_not_removed(world: World) -> None:
    installed(world)
    world.answers["disable"] = (1, "Access denied")
    with pytest.raises(CommandFailed, match="Access denied"):
        uninstall_service(world.system, purge=False, force=False)
    assert (world.root / "etc/systemd/system/wiiiiided.service").exists()


# ---- files


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/opt/w/bin/wiiiiided", "/opt/w/bin/wiiiiided"),
        ("/opt/my venv/wiiiiided", '"/opt/my venv/wiiiiided"'),
        ("/opt/100%/w", "/opt/100%%/w"),
        ("/opt/$HOME/w", "/opt/$HOME/w"),
    ],
)
def test_a_path_is_one_word_of_a_unit(path: str, word: str) -> None:
    assert files.quoted(Path(path)) == word


@pytest.mark.needs("systemd-analyze")
def test_systemd_reads_a_difficult_path_as_it_was_meant(tmp_path: Path) -> None:
    odd = tmp_path / "my 100% $HOME venv"
    odd.mkdir()
    program = odd / "wiiiiided"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "odd.service"
    unit.write_text(f"[Service]\nExecStart={files.quoted(program)}\n")
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    program.chmod(0o644)  # or else it had not looked at all
    done = subprocess.run(command, capture_output=True, text=True)
    assert str(program) in done.stderr


@pytest.mark.parametrize("path", ["/opt/a\nExecStartPre=/bin/rm", "/opt/o'neil/w", '/opt/a"b/w'])
def test_a_path_that_no_unit_can_hold_is_refused(path: str) -> None:
    with pytest.raises(HostError, match="move it"):
        files.quoted(Path(path))


def test_the_daemon_is_found_beside_the_interpreter_or_the_command(tmp_path: Path) -> None:
    for place in ("venv", "bin"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "wiiiiided").touch()
    interpreter, command = str(tmp_path / "venv/python"), str(tmp_path / "bin/wiiiiide")
    assert files.program(interpreter, command) == tmp_path / "venv/wiiiiided"
    (tmp_path / "venv/wiiiiided").unlink()
    assert files.program(interpreter, command) == tmp_path / "bin/wiiiiided"


# ---- access


def test_a_closed_directory_is_found_through_links(tmp_path: Path) -> None:
    (tmp_path / "closed/lib").mkdir(parents=True)
    (tmp_path / "closed/lib/python").touch()
    (tmp_path / "closed").chmod(0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "open/python").symlink_to("../closed/lib/python")
    assert str(tmp_path / "closed") in access.closed(str(tmp_path / "open/python"))
    (tmp_path / "closed").chmod(0o755)
    assert str(tmp_path / "closed") not in access.closed(str(tmp_path / "open/python"))


def test_the_refusal_names_user_directory_mode_and_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o700)
    account = access.Account("wiiiiide", 990, 990)
    message, hint = access.refusal(account, "Permission denied", [tmp_path / "home/python"])
    assert "the user wiiiiide" in message
    assert f"{tmp_path / 'home'} is 0700" in message
    assert "/opt/wiiiiide" in hint
    assert "--user" in hint


def test_a_user_that_is_not_there_yet_is_tried_as_the_user_nobody() -> None:
    (account,) = access.accounts(["no-such-user"])
    assert (account.uid, account.gid) == (access.NOBODY, access.NOBODY)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user can enter; pytest's own are closed."""
    path = Path(tempfile.mkdtemp(prefix="w"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.needs("root")
def test_the_trial_asks_the_kernel_and_not_the_mode_bits(public: Path) -> None:
    nobody = access.Account("wiiiiide", access.NOBODY, access.NOBODY)
    interpreter, daemon = public / "python", public / "wiiiiided"
    interpreter.write_text('#!/bin/sh\ncat "$4"\n')  # -I -c TRIAL DAEMON
    interpreter.chmod(0o755)
    daemon.touch(mode=0o600)
    assert "Permission denied" in access.can_run(nobody, str(interpreter), daemon)
    daemon.chmod(0o644)
    assert access.can_run(nobody, str(interpreter), daemon) == ""
    interpreter.chmod(0o700)
    assert "Permission denied" in access.can_run(nobody, str(interpreter), daemon)
