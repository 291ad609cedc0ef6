"""The unit files as systemd reads them: valid, as closed as promised, and documented."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.machines import BIN, CHECKOUT
from wiiiiided.ui.cli.service import files as service_files

THRESHOLD = 31  # tenths; the score in docs/service.md
DOCS = CHECKOUT / "docs/service.md"
needs_systemd = pytest.mark.needs("systemd-analyze")


@pytest.fixture
def system_unit(tmp_path: Path) -> Path:
    return _written(tmp_path, CHECKOUT / "systemd/wiiiiided.service")


@pytest.fixture
def user_unit(tmp_path: Path) -> Path:
    return _written(tmp_path, CHECKOUT / "systemd/user/wiiiiided.service")


def _written(directory: Path, shipped: Path) -> Path:
    unit = directory / "wiiiiided.service"
    unit.write_text(service_files.with_program(shipped.read_text(), BIN / "wiiiiided"))
    return unit


def analyze(runtime: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime)},
    )


@needs_systemd
def test_the_system_unit_is_valid(system_unit: Path, tmp_path: Path) -> None:
    done = analyze(tmp_path, "verify", "--man=no", system_unit)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@needs_systemd
def test_the_user_unit_is_valid(user_unit: Path, tmp_path: Path) -> None:
    done = analyze(tmp_path, "--user", "verify", "--man=no", user_unit)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@needs_systemd
def test_verify_would_see_a_mistake(system_unit: Path, tmp_path: Path) -> None:
    system_unit.write_text(system_unit.read_text().replace("KillMode=", "KilMode="))
    assert "KilMode" in analyze(tmp_path, "verify", "--man=no", system_unit).stderr


@needs_systemd
def test_the_exposure_is_what_the_documentation_says(system_unit: Path, tmp_path: Path) -> None:
    command = ("security", "--offline=true", system_unit)
    done = analyze(tmp_path, f"--threshold={THRESHOLD}", *command)
    assert done.returncode == 0, done.stdout
    assert analyze(tmp_path, f"--threshold={THRESHOLD - 1}", *command).returncode == 1
    assert f"**{THRESHOLD / 10}**" in DOCS.read_text()


@needs_systemd
def test_every_missing_restriction_has_its_reason_in_the_documentation(
    system_unit: Path, tmp_path: Path
) -> None:
    done = analyze(tmp_path, "security", "--offline=true", "--json=short", system_unit)
    rows = {row["name"]: row["exposure"] for row in json.loads(done.stdout) if not row["set"]}
    documented = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "¦").split("|")]
        if len(cells) == 5 and re.fullmatch(r"\d\.\d", cells[2]):
            documented[cells[1].strip("`").replace("¦", "|")] = cells[2]
    missing = {name: exposure for name, exposure in rows.items() if exposure}
    assert documented == missing


def test_jobs_outlive_the_daemon_in_both_units() -> None:
    for name in ("wiiiiided.service", "user/wiiiiided.service"):
        lines = (CHECKOUT / "systemd" / name).read_text().splitlines()
        for wanted in ("KillMode=process", "OOMPolicy=continue", "TasksMax=infinity"):
            assert wanted in lines, f"{name} lacks {wanted}"
        assert "RestartPreventExitStatus=78" in lines


def test_a_machine_without_a_network_is_not_kept_waiting() -> None:
    unit = (CHECKOUT / "systemd/wiiiiided.service").read_text()
    settings = [line for line in unit.splitlines() if not line.startswith("#")]
    assert "After=network.target" in settings
    assert not any("network-online" in line for line in settings)


def test_nothing_that_hurts_training_is_on() -> None:
    lines = (CHECKOUT / "systemd/wiiiiided.service").read_text().splitlines()
    settings = {line.partition("=")[0] for line in lines if "=" in line and line[0] != "#"}
    hurting = {
        *("PrivateTmp", "ProtectHome", "DynamicUser", "MemoryDenyWriteExecute"),
        *("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"),  # GPUs
        *("ProtectProc", "ProcSubset", "PrivateUsers", "Delegate"),
    }
    assert not settings & hurting
