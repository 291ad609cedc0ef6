"""The environment variables: read once, and refused by name when they make no sense."""

from __future__ import annotations

import pytest

from wiiiiided.config import Config, JobHere, OnePort
from wiiiiided.errors import UsageError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Config.read({}) == Config()
    empty = dict.fromkeys(
        ["WIIIIIDE_STALL_WARNING_S", "WIIIIIDE_SPIN", "WIIIIIDE_STATS", "WIIIIIDE_LOG"], ""
    )
    assert Config.read(empty) == Config()


def test_every_variable_is_read() -> None:
    read = Config.read(
        {
            "WIIIIIDE_STALL_WARNING_S": "0.25",
            "WIIIIIDE_SPIN": "never",
            "WIIIIIDE_STATS": "/some/file",
            "WIIIIIDE_LOG": "verbose",
        }
    )
    assert read == Config(
        stall_warning_s=0.25, spin="never", stats_file="/some/file", log="verbose"
    )


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIIIIIDE_SPIN", "always")
    assert Config.read().spin == "always"


@pytest.mark.parametrize("text", ["0", "-1", "five", "nan", "inf", "1e12", "5 s", " "])
def test_a_number_of_seconds_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=f"WIIIIIDE_STALL_WARNING_S='{text}'"):
        Config.read({"WIIIIIDE_STALL_WARNING_S": text})


@pytest.mark.parametrize("name", ["WIIIIIDE_SPIN", "WIIIIIDE_LOG"])
def test_a_word_that_is_no_choice_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}='often' is not one of \w+, \w+, \w+"):
        Config.read({name: "often"})


UNDER_A_DAEMON = {
    "WIIIIIDE_DOOR": "10.0.0.5:9461",
    "WIIIIIDE_JOB_ID": "17",
    "WIIIIIDE_ATTEMPT": "2",
    "WIIIIIDE_ATTEMPT_DIR": "/some/jobs/17/2",
    "WIIIIIDE_DAEMON_UID": "990",
}


def test_the_one_port_is_read_with_its_company() -> None:
    port = OnePort("10.0.0.5", 9461, 17, 2, "/some/jobs/17/2", 990)
    assert Config.read(UNDER_A_DAEMON) == Config(one_port=port)
    six = Config.read({**UNDER_A_DAEMON, "WIIIIIDE_DOOR": "[fd00::5]:9461"}).one_port
    assert six is not None
    assert (six.address, six.port) == ("fd00::5", 9461)


def test_a_machine_alone_has_no_one_port() -> None:
    assert Config.read({**UNDER_A_DAEMON, "WIIIIIDE_DOOR": ""}).one_port is None


def test_a_rank_of_a_daemon_knows_its_job() -> None:
    given = {"WIIIIIDE_JOB": "17-19a2b3c4d5e", "WIIIIIDE_WORK": "/jobs/17/files/work"}
    job = JobHere("17-19a2b3c4d5e", "/jobs/17/files/work", "")
    assert Config.read(given).job == job
    resuming = Config.read({**given, "WIIIIIDE_RESUMES": "12"}).job
    assert resuming is not None
    assert resuming.resumes == "12"
    with pytest.raises(UsageError, match="WIIIIIDE_JOB='17'"):
        Config.read({**given, "WIIIIIDE_JOB": "17"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WIIIIIDE_DOOR", "10.0.0.5"),
        ("WIIIIIDE_DOOR", "10.0.0.5:"),
        ("WIIIIIDE_DOOR", "10.0.0.5:65536"),
        ("WIIIIIDE_JOB_ID", "-1"),
        ("WIIIIIDE_JOB_ID", "1" * 100),
        ("WIIIIIDE_ATTEMPT", ""),
        ("WIIIIIDE_ATTEMPT", "²"),
        ("WIIIIIDE_DAEMON_UID", "root"),
    ],
)
def test_a_broken_variable_of_the_daemons_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        Config.read({**UNDER_A_DAEMON, name: text})
