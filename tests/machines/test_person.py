"""A person's own daemon under `systemctl --user`, with lingering and without."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.kit.conditions import wait_until
from tests.machines.site import SECONDS, Site

pytestmark = [pytest.mark.needs("root", "machines", "disks"), pytest.mark.timeout(600)]


def as_person(site: Site, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """With the variables that a login sets."""
    uid = site.machine.run("id", "--user", "eve").stdout.strip()
    return site.machine.run(
        "env", f"XDG_RUNTIME_DIR=/run/user/{uid}", *argv, user="eve", check=check
    )


def levels(site: Site) -> dict[str, str]:
    """What the doctor says of her daemon."""
    health = as_person(site, str(site.machine.bin / "wiiiiide"), "doctor", "--json", check=False)
    found = {f["title"]: f["level"] for f in json.loads(health.stdout)["findings"]}
    return {title: found[title] for title in ("daemon", "service", "lingering")}


@pytest.fixture
def eve(site: Site) -> Site:
    site.machine.run("useradd", "--create-home", "eve")
    return site


def test_a_person_installs_runs_and_removes_a_daemon_of_her_own(eve: Site) -> None:
    wiiiiide = str(eve.machine.bin / "wiiiiide")
    refused = as_person(eve, wiiiiide, "service", "install", "--user", check=False)
    assert refused.returncode == 7
    assert "enable-linger eve" in refused.stderr

    eve.machine.run("loginctl", "enable-linger", "eve")
    wait_until(
        lambda: (
            as_person(eve, "systemctl", "--user", "is-system-running", check=False).stdout.strip()
            in ("running", "degraded")
        ),
        SECONDS,
        "her manager runs",
    )
    installed = as_person(eve, wiiiiide, "service", "install", "--user")
    assert "lingering is on" in installed.stderr

    folder = eve.folder(("sleep", "10000"), "eve")
    job = json.loads(as_person(eve, wiiiiide, "submit", "--json", f"{folder}/job.toml").stdout)[
        "id"
    ]

    def ranks() -> list[dict[str, object]]:
        shown = json.loads(as_person(eve, wiiiiide, "show", "--json", str(job)).stdout)
        found: list[dict[str, object]] = shown["ranks"]
        return found

    def goes_on() -> None:
        """A daemon that was just started answers before it has heard of them from the shim."""
        wait_until(lambda: [rank["state"] for rank in ranks()] == ["running"], SECONDS, "it runs")

    goes_on()
    before = ranks()
    owner = eve.machine.run("stat", "--format=%U", f"/proc/{before[0]['pid']}").stdout.strip()
    assert owner == "eve"
    as_person(eve, "systemctl", "--user", "restart", "wiiiiided")
    goes_on()
    assert ranks() == before

    assert levels(eve) == {"daemon": "ok", "service": "ok", "lingering": "ok"}
    as_person(eve, "systemctl", "--user", "stop", "wiiiiided")
    assert levels(eve) == {"daemon": "fail", "service": "warn", "lingering": "ok"}
    as_person(eve, "systemctl", "--user", "start", "wiiiiided")
    goes_on()
    assert ranks() == before

    refused = as_person(eve, wiiiiide, "service", "uninstall", "--user", check=False)
    assert refused.returncode == 1
    as_person(eve, wiiiiide, "cancel", "--now", str(job))
    as_person(eve, wiiiiide, "service", "uninstall", "--user", "--purge")
    state = as_person(eve, "systemctl", "--user", "is-active", "wiiiiided", check=False)
    assert state.stdout.strip() == "inactive"
    assert "wiiiiide" not in eve.machine.run("ls", "/home/eve/.local/state").stdout.split()
