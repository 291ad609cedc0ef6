"""Lines in systemd's journal: the bytes of its protocol, and no line lost without it."""

from __future__ import annotations

import array
import contextlib
import fcntl
import io
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import private_daemon
from wiiiiided.cluster.system.journal import SEALS, JournalHandler, encode, priority
from wiiiiided.config import under_journal
from wiiiiided.log import about

Fields = dict[str, list[str]]


class Journal:
    """The socket journald would listen on, and a reader of what comes."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/socket"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(30)
        self.socket.bind(self.path)

    def heard(self) -> Fields:
        """The next line."""
        data, rights, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        if not rights:
            return decode(data)
        assert data == b""
        (fd,) = array.array("i", rights[0][2])
        with open(fd, "rb") as file:
            assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == SEALS
            file.seek(0)
            return decode(file.read())

    @contextlib.contextmanager
    def listening(self) -> Iterator[list[Fields]]:
        """All that is said inside the block: few datagrams wait for a reader that does not read."""
        heard: list[Fields] = []

        def listen() -> None:
            while "END" not in (line := self.heard()):
                heard.append(line)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"END=1\n", self.path)
            thread.join()


def decode(data: bytes) -> Fields:
    """A datagram's fields, as journald reads them."""
    fields: Fields = {}
    stream = io.BytesIO(data)
    while line := stream.readline():
        name, equals, value = line.removesuffix(b"\n").partition(b"=")
        if not equals:
            (size,) = struct.unpack("<Q", stream.read(8))
            value = stream.read(size)
            assert len(value) == size
            assert stream.read(1) == b"\n"
        fields.setdefault(name.decode(), []).append(value.decode())
    return fields


@pytest.fixture
def folder() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="w")
    yield made
    shutil.rmtree(made)


@pytest.fixture
def journal(folder: str) -> Iterator[Journal]:
    made = Journal(folder)
    with made.socket:
        yield made


@pytest.fixture
def fallback() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(folder: str, fallback: io.StringIO) -> Iterator[logging.Logger]:
    """A logger of its own, that writes to that journal."""
    made = logging.Logger("test")  # not of the tree: nothing has to be undone
    handler = JournalHandler(logging.StreamHandler(fallback), f"{folder}/socket")
    made.addHandler(handler)
    yield made
    handler.close()


def test_a_line_has_its_fields(lines: logging.Logger, journal: Journal) -> None:
    lines.warning("job %d: %s", 17, "is slow", extra=about(17, rank=3, node=("a", "b")))
    assert journal.heard() == {
        "MESSAGE": ["job 17: is slow"],
        "PRIORITY": ["4"],
        "SYSLOG_IDENTIFIER": ["wiiiiided"],
        "WIIIIIDE_JOB": ["17"],
        "WIIIIIDE_RANK": ["3"],
        "WIIIIIDE_NODE": ["a", "b"],
    }


def test_a_line_about_nothing_has_only_the_daemons_node(
    lines: logging.Logger, journal: Journal
) -> None:
    lines.info("first")
    assert not [name for name in journal.heard() if name.startswith("WIIIIIDE_")]
    lines.handlers[0].node = "c"  # type: ignore[attr-defined]
    lines.info("second")
    assert journal.heard()["WIIIIIDE_NODE"] == ["c"]
    lines.info("third", extra=about(1, node=("a",)))
    assert journal.heard()["WIIIIIDE_NODE"] == ["a"]


def test_a_text_of_several_lines_cannot_make_fields(
    lines: logging.Logger, journal: Journal
) -> None:
    lines.info("x\nWIIIIIDE_JOB=99\n=\ud800")
    heard = journal.heard()
    assert heard["MESSAGE"] == ["x\nWIIIIIDE_JOB=99\n=?"]
    assert "WIIIIIDE_JOB" not in heard


def test_a_traceback_is_part_of_the_message(lines: logging.Logger, journal: Journal) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        lines.exception("a defect")
    heard = journal.heard()
    assert heard["PRIORITY"] == ["3"]
    assert heard["MESSAGE"][0].startswith("a defect\nTraceback")
    assert heard["MESSAGE"][0].endswith("ValueError: boom")


def test_what_no_datagram_holds_goes_as_sealed_memory(
    lines: logging.Logger, journal: Journal
) -> None:
    lines.info("x" * 900_000, extra=about(17))
    heard = journal.heard()
    assert heard["MESSAGE"] == ["x" * 900_000]
    assert heard["WIIIIIDE_JOB"] == ["17"]
    lines.info("y" * 3_000_000)
    assert len(journal.heard()["MESSAGE"][0]) == 1 << 20


def test_without_a_journal_the_line_goes_to_stderr(
    lines: logging.Logger, fallback: io.StringIO
) -> None:
    lines.info("job %d: runs", 17)
    lines.info("z" * 900_000)
    assert fallback.getvalue() == "job 17: runs\n" + "z" * 900_000 + "\n"


def test_a_journal_that_does_not_read_does_not_hold_the_daemon_up(
    lines: logging.Logger, journal: Journal, fallback: io.StringIO
) -> None:
    for number in range(5000):  # more than its queue takes
        lines.info("line %d", number)
    assert "line 4999\n" in fallback.getvalue()
    assert journal.heard()["MESSAGE"] == ["line 0"]


@pytest.mark.parametrize(
    ("level", "number"),
    [("CRITICAL", 2), ("ERROR", 3), ("WARNING", 4), ("INFO", 6), ("DEBUG", 7)],
)
def test_levels_are_priorities_of_syslog(level: str, number: int) -> None:
    assert priority(getattr(logging, level)) == number


def test_the_bytes_are_those_of_the_protocol() -> None:
    assert encode([("A", "x"), ("B", "1\n2")]) == b"A=x\nB\n\x03" + bytes(7) + b"1\n2\n"


def test_only_a_stream_that_is_the_journals_counts(tmp_path: Path) -> None:
    with open(tmp_path / "stderr", "w") as file:
        about = os.fstat(file.fileno())
        here = {"JOURNAL_STREAM": f"{about.st_dev}:{about.st_ino}"}
        assert under_journal(here, file.fileno())
        assert not under_journal({"JOURNAL_STREAM": f"{about.st_dev}:1"}, file.fileno())
        assert not under_journal({"JOURNAL_STREAM": "8:x"}, file.fileno())
        assert not under_journal({}, file.fileno())
    assert not under_journal(here, 1 << 20)  # closed


# ---- a real daemon

WRAPPED = """
import os, sys
from wiiiiided.cluster.daemon import main
from wiiiiided.cluster.system import journal
about = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{about.st_dev}:{about.st_ino}"
class Patient(journal.JournalHandler):  # few datagrams wait for a test that is busy: it waits
    def __init__(self, fallback):
        super().__init__(fallback, sys.argv[1])
        self._socket.setblocking(True)
main.JournalHandler = Patient
sys.exit(main.main(sys.argv[2:]))
"""


def test_every_line_about_a_job_carries_it(journal: Journal) -> None:
    program = (sys.executable, "-c", WRAPPED, journal.path, "--log", "verbose")
    with journal.listening() as heard, private_daemon(program=program) as daemon:
        waits = "import os, time\nwhile not os.path.exists('end'): time.sleep(0.02)\n"
        job = daemon.submit(f"{waits}raise SystemExit(3)", workers=2)
        wait_until(lambda: len(daemon.pids(job)) == 2, 60, "the daemon knows of both ranks")
        (daemon.paths.jobs / str(job) / "files" / "work" / "end").touch()
        daemon.end_of(job)
        daemon.stop()
        assert daemon.said() == ""  # all of it went to the journal
    assert "socket" in heard[0]["MESSAGE"][0]
    assert heard[-1]["MESSAGE"][0].startswith("stopping")
    of_job = [line for line in heard if f"job {job} " in line["MESSAGE"][0]]
    assert len(of_job) >= 3
    assert all(line["WIIIIIDE_JOB"] == [str(job)] for line in of_job)
    assert all("WIIIIIDE_NODE" in line for line in heard)
    ranks = {line["WIIIIIDE_RANK"][0]: line for line in heard if "WIIIIIDE_RANK" in line}
    assert set(ranks) == {"0", "1"}
    assert ranks["0"]["PRIORITY"] == ["7"]
    assert not any("WIIIIIDE_JOB" in line for line in (heard[0], heard[-1]))


def test_elsewhere_lines_are_plain_text_with_time_and_job() -> None:
    with private_daemon() as daemon:
        job = daemon.submit("pass")
        daemon.end_of(job)
        said = daemon.said()
        assert f" job {job} (test): " in said
        assert all(line[:4].isdigit() for line in said.splitlines())
        assert "rank 0 runs as pid" not in said  # that is for verbose


def test_the_option_wins_over_the_settings_also_after_a_reload() -> None:
    program = (sys.executable, "-m", "wiiiiided.cluster.daemon.main", "--log", "silent")
    with private_daemon(start=False, program=program) as daemon:
        daemon.paths.config.write_text('log = "verbose"\n[limits]\nkeep = 5\n')
        daemon.start()
        assert daemon.process is not None
        daemon.paths.config.write_text("log = 3\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "stay as they were" in daemon.said(), 30, "it has read them")
        daemon.paths.config.write_text('log = "verbose"\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.end_of(daemon.submit("pass"))
        assert len(daemon.said().splitlines()) == 1  # errors alone are said


def test_a_tier_that_is_none_is_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wiiiiided.cluster.daemon.main", "--log", "loud"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "invalid choice: 'loud'" in done.stderr
