"""What a job can reach of the daemon's: tried from inside a job, not read off mode bits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.machines.shared import Shared
from tests.machines.site import Site

pytestmark = [pytest.mark.needs("root", "machines", "disks"), pytest.mark.timeout(600)]

# Each attempt prints its name and what came of it.
ATTEMPTS = """
import errno, json, os, socket, sys

def connect(path):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)

def write(path):
    open(path, "w").close()

daemon = int(sys.argv[1])
attempts = {
    "list the state": lambda: os.listdir("/var/lib/wiiiiide"),
    "read the store": lambda: open("/var/lib/wiiiiide/state.db", "rb"),
    "list the socket's directory": lambda: os.listdir("/run/wiiiiide"),
    "connect to the daemon": lambda: connect("/run/wiiiiide/wiiiiided.sock"),
    "write the configuration": lambda: write("/etc/wiiiiide/wiiiiided.toml"),
    "write into the jobs' directory": lambda: write("/var/lib/wiiiiide-jobs/planted"),
    "write beside its own attempts": lambda: write("../../planted"),
    "become root": lambda: os.setuid(0),
    "become the daemon": lambda: os.setuid(os.stat("/proc/%d" % daemon).st_uid),
    "join the daemon's group": lambda: os.setgroups([os.stat("/proc/%d" % daemon).st_gid]),
    "read the daemon's memory": lambda: open("/proc/%d/mem" % daemon, "rb"),
    "read the daemon's environment": lambda: open("/proc/%d/environ" % daemon, "rb").read(),
    "list the daemon's descriptors": lambda: os.listdir("/proc/%d/fd" % daemon),
    "kill the daemon": lambda: os.kill(daemon, 0),
    "write to the system": lambda: write("/usr/bin/planted"),
    "write a sysctl": lambda: write("/proc/sys/vm/swappiness"),
}
done = {}
for name, attempt in attempts.items():
    try:
        attempt()
        done[name] = "done"
    except OSError as problem:
        done[name] = errno.errorcode[problem.errno]
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "done": done,
    "capabilities": {key: status[key].strip() for key in ("CapPrm", "CapEff", "CapAmb")},
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "groups": os.getgroups(),
    "gid": os.getgid(),
    "uids": os.getresuid(),
    "umask": os.umask(0),
    "environment": sorted(os.environ),
    "home_is_writable": os.access(os.environ["HOME"], os.W_OK),
    "oom": int(open("/proc/self/oom_score_adj").read()),
    "descriptors": sorted(os.readlink("/proc/self/fd/" + fd)
                          for fd in os.listdir("/proc/self/fd")
                          if os.path.lexists("/proc/self/fd/" + fd)),
}))
"""


@pytest.fixture(scope="module")
def report(sites: Shared[Site]) -> dict[str, object]:
    with sites.lent() as site:
        daemon = site.main_pid()
        job = site.submit("python", "try.py", str(daemon), files={"try.py": ATTEMPTS})
        assert site.ended(job)["job"]["state"] == "done", site.log(job)
        line = next(line for line in site.log(job).splitlines() if '"done"' in line)
        found: dict[str, object] = json.loads(line[line.index("{") :])
        return found


def test_a_job_reaches_nothing_of_the_daemons(report: dict[str, dict[str, str]]) -> None:
    refusals = {"EACCES", "EPERM", "EROFS"}
    assert {name: how for name, how in report["done"].items() if how not in refusals} == {}


def test_a_job_has_none_of_the_daemons_powers(report: dict[str, Any]) -> None:
    assert set(report["capabilities"].values()) == {"0000000000000000"}
    assert report["no_new_privileges"] == "1"
    assert report["groups"] in ([], [report["gid"]])
    assert len(set(report["uids"])) == 1


def test_a_job_does_not_hear_of_the_service_manager(report: dict[str, list[str]]) -> None:
    assert not {
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "LISTEN_FDS",
    } & set(report["environment"])


def test_a_job_has_a_home_and_is_first_to_go_when_memory_is_short(
    report: dict[str, object],
) -> None:
    assert report["home_is_writable"] is True
    assert report["oom"] == 200


def test_a_job_has_no_descriptor_of_the_daemons(report: dict[str, list[str]]) -> None:
    assert not [path for path in report["descriptors"] if path.startswith("/var/lib/wiiiiide/")]
