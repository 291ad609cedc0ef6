"""Machines that go down under running jobs: crashes and power losses."""

from __future__ import annotations

import pytest

from tests.kit.machines import BOOT_ID_DROP_IN
from tests.machines.site import Site

pytestmark = [pytest.mark.needs("root", "machines", "disks"), pytest.mark.timeout(600)]

RESTART = 'restart = { max = 1, on = ["node-lost"], backoff = "0.1s" }'


def test_a_job_of_a_crashed_machine_is_over_and_restarted_by_its_policy(site: Site) -> None:
    lost, _ = site.running()
    kept, _ = site.running(policy=RESTART)
    site.machine.crash()
    site.machine.boot()
    ended = site.ended(lost)
    assert ended["job"]["state"] == "failed"
    assert "the machine restarted" in ended["job"]["why"]
    site.restarted(kept)


def test_a_job_of_a_machine_that_was_shut_down_is_restarted_by_its_policy(site: Site) -> None:
    """systemd ends everything with SIGTERM then: that is the machine's end, not the job's fault."""
    kept, _ = site.running(policy=RESTART)
    site.machine.shut_down()
    site.machine.boot()
    site.restarted(kept)


def test_a_container_that_shows_its_hosts_boot_id_loses_its_jobs_too(site: Site) -> None:
    """As in docker: there pid and start time alone tell that the job is gone."""
    drop_in = f"/etc/systemd/system/{BOOT_ID_DROP_IN}"
    text = site.machine.run("cat", drop_in).stdout
    site.machine.run("rm", drop_in)
    try:
        site.systemctl("daemon-reload")
        site.systemctl("restart", "wiiiiided")
        kept, _ = site.running(policy=RESTART)
        site.machine.crash()
        site.machine.boot()
        site.restarted(kept)
    finally:
        if not site.machine.is_on():
            site.machine.boot()
        site.machine.write(drop_in, text)


def test_what_was_acknowledged_survives_a_power_loss(site: Site) -> None:
    running, _ = site.running(policy=RESTART)
    ended = site.submit("sh", "-c", "exit 3")
    site.ended(ended)
    last = site.submit("cat", "words", files={"words": "still here"}, hold=True)
    site.machine.power_loss()
    site.machine.boot()
    assert site.show(ended)["job"]["code"] == 3
    assert site.state(last) == "held"
    site.machine.wiiiiide("release", str(last))
    assert site.ended(last)["job"]["state"] == "done"
    assert "still here" in site.log(last)
    site.restarted(running)
