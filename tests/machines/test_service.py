"""The service on a real machine: installed, started, stopped, broken, and its jobs meanwhile."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.kit.conditions import wait_until
from tests.kit.machines import BIN, Machine
from tests.machines.site import CONFIG, SECONDS, Site

pytestmark = [pytest.mark.needs("root", "machines", "disks"), pytest.mark.timeout(600)]

SOCKET = "/run/wiiiiide/wiiiiided.sock"

# ---- installing


def test_install_leaves_a_running_enabled_service_with_closed_directories(site: Site) -> None:
    machine = site.machine
    assert (machine.show("ActiveState"), machine.show("UnitFileState")) == ("active", "enabled")
    places = ("/var/lib/wiiiiide", "/var/lib/wiiiiide-jobs", "/run/wiiiiide", SOCKET)
    stat = machine.run("stat", "--format=%n %U %G %a", *places)
    assert stat.stdout.splitlines() == [
        "/var/lib/wiiiiide wiiiiide wiiiiide 700",
        "/var/lib/wiiiiide-jobs wiiiiide wiiiiide-job 750",
        "/run/wiiiiide wiiiiide wiiiiide 750",
        "/run/wiiiiide/wiiiiided.sock wiiiiide wiiiiide 660",
    ]


def test_installing_again_changes_nothing(site: Site) -> None:
    before = site.main_pid()
    words = site.machine.wiiiiide("service", "install").stderr
    assert words.count("unchanged") == 3
    assert site.main_pid() == before


def test_no_device_is_kept_from_jobs(site: Site) -> None:
    assert site.machine.show("DeviceAllow") == ""
    assert site.machine.show("DevicePolicy") == "auto"


def test_the_doctor_finds_nothing_wrong(site: Site) -> None:
    done = site.machine.wiiiiide("doctor", "--json", user="ada", check=False)
    findings = json.loads(done.stdout)["findings"]
    wrong = [finding for finding in findings if finding["level"] == "fail"]
    assert wrong == []
    assert {f["title"] for f in findings} >= {"daemon", "socket", "group", "service", "job user"}


def test_an_installation_that_the_service_could_not_read_is_refused_before_anything(
    site: Site,
) -> None:
    with Machine("closed") as machine:
        machine.run("chmod", "0700", BIN)
        done = machine.wiiiiide("service", "install", check=False)
        assert done.returncode == 5
        assert f"{BIN} is 0700" in done.stderr
        assert machine.run("id", "wiiiiide", check=False).returncode != 0
        assert machine.show("LoadState") == "not-found"


# ---- people


def test_a_member_of_the_group_runs_jobs_as_the_jobs_user(site: Site) -> None:
    job = site.submit("id", "--user", "--name")
    shown = site.ended(job)
    assert shown["job"]["state"] == "done"
    assert shown["job"]["owner"] == "ada"
    assert "wiiiiide-job" in site.log(job)


def test_another_user_is_refused_with_a_sentence(site: Site) -> None:
    folder = site.folder(("true",), "bob")
    done = site.machine.wiiiiide(
        "submit", f"{folder}/job.toml", user="bob", cwd=folder, check=False
    )
    assert done.returncode == 5
    assert "group wiiiiide" in done.stderr
    assert "Traceback" not in done.stderr
    health = json.loads(site.machine.wiiiiide("doctor", "--json", user="bob", check=False).stdout)[
        "findings"
    ]
    daemon = next(one for one in health if one["title"] == "daemon")
    assert daemon["sentence"].startswith("it is there, but you may not use this machine's daemon")
    assert "usermod" in daemon["do"]
    assert "hostname" not in [one["title"] for one in health]


# ---- the daemon comes and goes, jobs stay


def test_a_restart_leaves_jobs_with_the_same_processes(site: Site) -> None:
    job, pids = site.running()
    before = site.main_pid()
    site.systemctl("restart", "wiiiiided")
    assert site.main_pid() != before
    site.goes_on(job, pids)
    assert site.alive(pids)


def test_stop_says_what_goes_on_and_start_takes_it_up_again(site: Site) -> None:
    job, pids = site.running()
    site.systemctl("stop", "wiiiiided")
    assert site.machine.show("ActiveState") == "inactive"
    assert site.alive(pids)
    site.tells(rf"stopping; job {job} \(.*\) goes on running")
    done = site.machine.wiiiiide("ps", user="ada", check=False)
    assert done.returncode == 4
    site.systemctl("start", "wiiiiided")
    site.goes_on(job, pids)


def test_a_job_that_ended_while_the_daemon_was_stopped_is_known_afterwards(site: Site) -> None:
    job, pids = site.running()
    site.systemctl("stop", "wiiiiided")
    for pid in pids:
        site.machine.run("kill", "-KILL", str(pid))
    wait_until(lambda: not site.alive(pids), SECONDS, "the rank has ended")
    site.systemctl("start", "wiiiiided")
    assert site.ended(job)["job"]["code"] == 128 + signal.SIGKILL


def test_a_killed_daemon_is_started_again_and_adopts_its_jobs(site: Site) -> None:
    job, pids = site.running()
    before = site.main_pid()
    site.machine.run("kill", "-KILL", str(before))
    wait_until(
        lambda: site.main_pid() not in (0, before) and site.machine.show("ActiveState") == "active",
        SECONDS,
        "systemd has started it again",
    )
    site.goes_on(job, pids)


def test_a_daemon_that_hangs_is_replaced_by_the_watchdog(site: Site) -> None:
    # Five seconds: a busy host can keep a healthy daemon from its processor for one.
    site.set("WatchdogSec=5", "TimeoutAbortSec=1", "RestartSec=0")
    site.systemctl("restart", "wiiiiided")
    job, pids = site.running()
    before = site.main_pid()
    site.machine.run("kill", "-STOP", str(before))
    # The pid is read first: "active" read before it could still be the one that hangs.
    wait_until(
        lambda: site.main_pid() not in (0, before) and site.machine.show("ActiveState") == "active",
        SECONDS,
        "the watchdog has replaced it",
    )
    site.tells("Watchdog timeout")
    site.goes_on(job, pids)


# ---- configuration


def test_a_broken_configuration_ends_it_with_78_and_no_restarts(site: Site) -> None:
    site.machine.write(CONFIG, 'lgo = "verbose"\n')
    site.systemctl("restart", "wiiiiided", check=False)
    wait_until(lambda: site.machine.show("ActiveState") == "failed", SECONDS, "it has given up")
    assert site.machine.show("ExecMainStatus") == "78"
    assert site.machine.show("NRestarts") == "0"
    site.tells(re.escape(f"{CONFIG}: lgo: unknown"))


def test_reload_reads_the_configuration_again_and_refuses_a_broken_one(site: Site) -> None:
    before = site.main_pid()
    site.machine.write(CONFIG, 'log = "verbose"\n')
    site.systemctl("reload", "wiiiiided")
    site.tells("settings read again")
    site.machine.write(CONFIG, "log = 3\n")
    site.systemctl("reload", "wiiiiided")
    site.tells("stay as they were")
    assert site.main_pid() == before


# ---- its log


def test_the_journal_can_be_asked_for_a_job(site: Site) -> None:
    first, second = site.submit("true"), site.submit("false")
    site.ended(first)
    site.ended(second)

    def told(job: int) -> str:
        ask = ("journalctl", "--no-pager", "-o", "cat", "-u", "wiiiiided", f"WIIIIIDE_JOB={job}")
        return site.machine.run(*ask).stdout

    ended = "failed: rank 0 ended"
    wait_until(lambda: ended in told(second), SECONDS, "its end is in the journal")
    assert f"job {second} " in told(second)
    assert f"job {first} " not in told(second)
    fields = site.machine.run("journalctl", "-o", "json", "-n", "1", f"WIIIIIDE_JOB={first}")
    line = json.loads(fields.stdout)
    assert line["SYSLOG_IDENTIFIER"] == "wiiiiided"
    assert line["PRIORITY"] == "6"
    assert line["WIIIIIDE_NODE"] == site.show(first)["job"]["nodes"][0]


# ---- uninstalling


def test_uninstall_refuses_while_a_job_runs_and_leaves_it_alone_when_forced(site: Site) -> None:
    machine = site.machine
    job, pids = site.running()
    refused = machine.wiiiiide("service", "uninstall", check=False)
    assert refused.returncode == 1
    assert machine.show("ActiveState") == "active"
    forced = machine.wiiiiide("service", "uninstall", "--force")
    assert "of jobs run" in forced.stderr
    assert machine.show("ActiveState") in ("inactive", "failed")
    assert site.alive(pids)
    machine.wiiiiide("service", "install")
    site.goes_on(job, pids)


# ---- memory


def test_a_worker_killed_for_want_of_memory_leaves_the_daemon_up(site: Site) -> None:
    hungry = "import time\nheld = []\nwhile True: held.append(b'x' * (1 << 20))\n"
    wait = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)\n"
    job, (pid,) = site.running("python", "eat.py", files={"eat.py": wait + hungry})
    before = site.main_pid()
    with site.machine.memory_limit(pid, 64 << 20):
        site.machine.run("touch", "/tmp/go")
        shown = site.ended(job)
    site.machine.run("rm", "/tmp/go")
    assert shown["job"]["code"] == 128 + signal.SIGKILL
    assert site.main_pid() == before
