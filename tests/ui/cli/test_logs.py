"""`wiiiiide logs`: whose line it is, and what must not be overlooked."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, line, view
from tests.ui.cli.kit import PATIENCE_S, Cli, Program
from wiiiiided.cluster.rpc import messages as m


def writes(daemon: FakeDaemon, *lines: m.LogLine, workers: int = 2, attempt: int = 1) -> None:
    job = view(workers=workers, attempt=attempt)
    daemon.answers(m.Show, m.JobDetail(job, {}, (), (), ""))
    daemon.answers(m.Logs, m.LogLines(lines), m.EndOfAnswers())


def test_every_line_has_its_rank_and_its_stream(cli: Cli, daemon: FakeDaemon) -> None:
    writes(
        daemon,
        line("epoch 1"),
        line("a warning", 1, stream="err"),
        line("log rotated", stream="note"),
        line("", 1),
    )
    result = cli("logs", "17")
    assert result.out == "0 │ epoch 1\n1 ! a warning\n0 · log rotated\n1 │\n"
    assert (result.code, result.err) == (0, "")
    assert daemon.asked(m.Logs) == [m.Logs(17)]


def test_ranks_are_as_wide_as_the_largest(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon, line("a", 7), line("b", 100), workers=128)
    assert cli("logs", "17").out == "  7 │ a\n100 │ b\n"


def test_a_traceback_stands_out_on_stdout_too(cli: Cli, daemon: FakeDaemon) -> None:
    writes(
        daemon,
        line("Traceback (most recent call last):"),
        line("other rank", 1),
        line('  File "x.py", line 1'),
        line(""),
        line("ValueError: no"),
        line("after"),
    )
    assert cli("logs", "17").out.splitlines() == [
        "0 ! Traceback (most recent call last):",
        "1 │ other rank",
        '0 !   File "x.py", line 1',
        "0 !",
        "0 ! ValueError: no",
        "0 │ after",
    ]


def test_control_characters_are_escaped_and_tabs_stay(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon, line("\x1b[2J[red]\tx\u202e\x00"))
    assert cli("logs", "17").out == "0 │ \\x1b[2J[red]\tx\\u202e\\x00\n"


def test_of_a_progress_bar_the_last_state_is_shown(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon, line("\r 10%\r 55%\r100%\r", stream="err"))
    assert cli("logs", "17").out == "0 ! 100%\n"


def test_colours_are_for_terminals(program: Program, daemon: FakeDaemon) -> None:
    error = line("Traceback (most recent call last):", stream="err")
    writes(daemon, line("out"), line("err", stream="err"), error, line("note", 1, stream="note"))
    shown = program.on_terminal("logs", "17").out.splitlines()
    assert shown == [
        "\x1b[2m0 │\x1b[0m out",
        "\x1b[31m0 !\x1b[0m err",
        "\x1b[31m0 ! Traceback (most recent call last):\x1b[0m",
        "\x1b[2m1 · note\x1b[0m",
    ]
    plain = program.on_terminal("logs", "17", NO_COLOR="1").out
    assert "\x1b" not in plain


def test_colours_of_a_script_pass_on_a_terminal_and_end_with_their_line(
    program: Program, daemon: FakeDaemon
) -> None:
    writes(daemon, line("\x1b[1;32mgood\x1b[2J\x1b]0;title\x07"), line("next"))
    assert program.on_terminal("logs", "17").out.splitlines() == [
        "\x1b[2m0 │\x1b[0m \x1b[1;32mgood\\x1b[2J\\x1b]0;title\\x07\x1b[0m",
        "\x1b[2m0 │\x1b[0m next",
    ]
    without = "0 │ good\\x1b[2J\\x1b]0;title\\x07"
    assert program.on_terminal("logs", "17", NO_COLOR="1").out.splitlines()[0] == without
    assert program.run("logs", "17").out.splitlines()[0] == without


def test_ascii_terminals_get_ascii_marks(program: Program, daemon: FakeDaemon) -> None:
    writes(daemon, line("café"), line("n", stream="note"))
    env = {**program.env, "PYTHONIOENCODING": "ascii"}
    assert program.run("logs", "17", env=env).out == "0 | caf\\xe9\n0 - n\n"


def on_nodes(daemon: FakeDaemon, *lines: m.LogLine, nodes: tuple[str, ...]) -> m.JobView:
    job = view(workers=11, nodes=nodes)
    daemon.answers(m.Show, m.JobDetail(job, {}, (), (), ""))
    daemon.answers(m.Logs, m.LogLines(lines), m.EndOfAnswers())
    daemon.answers(m.Wait, job, ended(workers=11, nodes=nodes), m.EndOfAnswers())
    return job


@pytest.mark.parametrize("words", [("logs", "17"), ("logs", "-f", "17")])
def test_a_job_on_several_nodes_has_the_node_before_the_rank(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    on_nodes(
        daemon,
        line("one", 0, node="a"),
        line("two", 10, node="lab2", stream="err"),
        line("three", 9, node="\x1b[2J"),
        line("four", 1),
        nodes=("a", "lab2"),
    )
    assert cli(*words).out.splitlines() == [
        "   a: 0 │ one",
        "lab2:10 ! two",
        "\\x1b[2J: 9 │ three",
        "      1 │ four",
    ]


def test_a_job_on_one_node_needs_no_name_of_it(cli: Cli, daemon: FakeDaemon) -> None:
    on_nodes(daemon, line("one", 0, node="a"), nodes=("a",))
    assert cli("logs", "17").out == " 0 │ one\n"


@pytest.mark.parametrize("words", [("logs", "17"), ("logs", "-f", "17")])
def test_lines_of_one_node_only(cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    on_nodes(daemon, line("x", 0, node="a"), line("y", 1, node="b"), nodes=("a", "b"))
    assert cli(*words, "--node", "b").out == "b: 1 │ y\n"


@pytest.mark.parametrize("words", [("logs", "17"), ("logs", "-f", "17")])
def test_only_the_wanted_node_is_asked(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    on_nodes(daemon, line("y", 1, node="b"), nodes=("a", "b"))
    cli(*words, "--node", "b")
    assert [request.nodes for request in daemon.asked(m.Logs)] == [("b",)]


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize("words", [("logs", "-t", "17"), ("logs", "-f", "--time", "17")])
def test_lines_have_their_times_if_wanted(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    today = 86400.0 * 20_000
    real = time.localtime
    monkeypatch.setattr(time, "localtime", lambda at=today + 7200: real(at))
    on_nodes(
        daemon,
        line("late", 0, today - 0.5),
        line("early", 1, today + 3723.004),
        line("odd", 2, 1e300, stream="err"),
        nodes=("a",),
    )
    assert cli(*words).out.splitlines() == [
        "2024-10-03 23:59:59.500  0 │ late",
        "01:02:03.004  1 │ early",
        "-  2 ! odd",
    ]


def test_a_machine_alone_answers_to_its_name(cli: Cli, daemon: FakeDaemon) -> None:
    on_nodes(daemon, line("x"), nodes=("a",))
    assert cli("logs", "17", "--node", "a").out == " 0 │ x\n"


def test_a_node_without_a_share_is_told(cli: Cli, daemon: FakeDaemon) -> None:
    on_nodes(daemon, line("x", node="a"), nodes=("a", "b"))
    sentence = "attempt 1 of job 17 has no allocation on c: it is on a, b"
    result = cli("logs", "17", "--node", "c")
    assert (result.code, result.out, result.err) == (6, "", f"wiiiiide: {sentence}\n")
    followed = cli("logs", "-f", "17", "--node", "c")
    assert (followed.code, followed.out) == (0, "")
    assert followed.err.splitlines()[0] == f"note: {sentence}"


def test_options_are_passed_on(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon, workers=8, attempt=2)
    cli("logs", "17", "--rank", "1", "--rank", "3,4", "-n", "5", "--attempt", "2")
    cli("logs", "17", "--all", "--tail", "1")
    assert daemon.asked(m.Logs) == [m.Logs(17, (1, 3, 4), False, 5, 2), m.Logs(17, tail=1)]


def test_no_lines_at_all_is_no_claim_that_nothing_was_written(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon, line("hello"))
    result = cli("logs", "17", "-n", "0")
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize(
    ("made", "asked", "has"),
    [
        (0, "1", "has not been started yet"),
        (1, "5", "has had attempt 1 only"),
        (3, "4", "has had attempts 1 to 3"),
        (3, "0", "has had attempts 1 to 3"),
    ],
)
def test_an_attempt_that_was_never_made_is_not_silent(
    cli: Cli, daemon: FakeDaemon, made: int, asked: str, has: str
) -> None:
    writes(daemon, attempt=made)
    result = cli("logs", "17", "--attempt", asked)
    assert result.code == 6
    assert result.err == f"wiiiiide: there is no attempt {asked}: job 17 {has}\n"


def test_an_interrupt_says_that_the_job_goes_on(program: Program, daemon: FakeDaemon) -> None:
    def stay(_: m.Request, link: FakeConnection) -> None:
        link.say(view() if isinstance(_, m.Wait) else m.LogLines((line("hello"),)))
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.Wait, stay)
    daemon.does(m.Logs, stay)
    process = program.start("logs", "-f", "17")
    assert process.stdout is not None
    assert process.stdout.readline() == "0 │ hello\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err.endswith("wiiiiide: detached; job 17 goes on\n")


@pytest.mark.parametrize(
    "words",
    [
        ("--rank", "x"),
        ("--rank", "-1"),
        ("--rank", "1", "--all"),
        ("-n", "many"),
        ("-f", "--attempt", "1"),
    ],
)
def test_options_that_make_no_sense_are_usage(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    assert cli("logs", "17", *words).code == 2
    assert daemon.requests == []


def test_a_rank_that_the_job_does_not_have_is_told(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon)
    daemon.answers(m.Wait, view(), ended(), m.EndOfAnswers())
    for words in (("--rank", "2"), ("-f", "--rank", "2")):
        result = cli("logs", "17", *words)
        assert (result.code, result.out) == (2, "")
        assert result.err == "wiiiiide: job 17 has ranks 0 to 1\n"


def test_without_lines_it_says_what_the_job_does(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon)
    result = cli("logs", "17")
    assert (result.code, result.out) == (0, "")
    assert result.err == "nothing was written; job 17 (digits): runs on a\n"


def test_json_is_a_line_per_line(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon, line("a\x1b", 0, 1.5), line("b", 1, 2.5, stream="err", attempt=2, node="b"))
    assert cli("logs", "17", "--json").jsons == [
        {"at": 1.5, "rank": 0, "stream": "out", "text": "a\x1b", "attempt": 1, "node": ""},
        {"at": 2.5, "rank": 1, "stream": "err", "text": "b", "attempt": 2, "node": "b"},
    ]


def test_following_ends_with_the_job_and_its_code(cli: Cli, daemon: FakeDaemon) -> None:
    queued = view(state="queued", why="waits for a", started_at=None)
    over = ended(17, "failed", 3, why="rank 1 ended with code 3")
    daemon.answers(m.Wait, queued, view(), view(), over, m.EndOfAnswers())
    daemon.answers(m.Logs, m.LogLines((line("a"), line("b", 1))), m.EndOfAnswers())
    result = cli("logs", "-f", "17", "--rank", "0", "-n", "9")
    assert result.code == 3
    assert result.out.splitlines() == ["0 │ a", "1 │ b"]
    assert result.err.splitlines() == [
        "job 17 (digits): waits for a",
        "job 17 (digits): runs on a",
        "job 17 (digits) failed: rank 1 ended with code 3; it ran for 3m10s",
    ]
    assert daemon.asked(m.Logs) == [m.Logs(17, (0,), True, 9)]


def test_following_as_json_ends_with_the_job(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Wait, view(), ended(), m.EndOfAnswers())
    daemon.answers(m.Logs, m.LogLines((line("a"),)), m.EndOfAnswers())
    result = cli("logs", "-f", "--json", "17")
    first, last = result.jsons
    assert (first["text"], last["job"]["state"]) == ("a", "done")
    assert result.err == ""


def test_lines_come_at_once_while_following(program: Program, daemon: FakeDaemon) -> None:
    def lines(_: m.Logs, link: FakeConnection) -> None:
        link.say(m.LogLines((line("first"),)))
        with pytest.raises(EOFError):
            link.frame()

    def states(_: m.Wait, link: FakeConnection) -> None:
        link.say(view())
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.Logs, lines)
    daemon.does(m.Wait, states)
    process = program.start("logs", "-f", "17")
    assert process.stdout is not None
    assert process.stdout.readline() == "0 │ first\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130


def test_a_restart_of_the_daemon_does_not_end_it(program: Program, daemon: FakeDaemon) -> None:
    away: list[int] = []

    def lines(request: m.Logs, link: FakeConnection) -> None:
        seen = (line("a", at=1.0), line("b", at=2.0))
        if away:
            link.say(m.LogLines((*seen, line("c", at=3.0))), m.EndOfAnswers())
            return
        link.say(m.LogLines(seen))
        with pytest.raises(EOFError):
            link.frame()

    def states(_: m.Wait, link: FakeConnection) -> None:
        if away:
            link.say(ended(), m.EndOfAnswers())
            return
        link.say(view())
        with pytest.raises(EOFError):
            link.frame()

    daemon.does(m.Logs, lines)
    daemon.does(m.Wait, states)
    process = program.start("logs", "-f", "17")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["0 │ a\n", "0 │ b\n"]
    away.append(1)
    daemon.restart()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "0 │ c\n")
    assert "wiiiiide: the daemon went away; jobs go on" in err
    assert "wiiiiide: the daemon is back" in err


def test_a_pipe_that_is_closed_is_no_error(program: Program, daemon: FakeDaemon) -> None:
    writes(daemon, *(line("x" * 100) for _ in range(5000)))
    process = program.start("logs", "17")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (141, "")
    wait_until(lambda: process.poll() is not None, PATIENCE_S, "it ended")


# ---- which lines


def test_grep_chooses_lines_as_they_are_shown(cli: Cli, daemon: FakeDaemon) -> None:
    writes(daemon, line("epoch 1"), line("10%\repoch 2", 1), line("Epoch 3\r 99%"), line("loss"))
    assert cli("logs", "17", "--grep", "^epoch [0-9]$").out == "0 │ epoch 1\n1 │ epoch 2\n"
    writes(daemon, line("\x1b[32mstep\x1b[0m 300"), line("step 30"), line("loss"))
    assert cli("logs", "17", "--grep", "^step 300$").out == "0 │ step 300\n"
    (found,) = cli("logs", "17", "--grep", "(?i)LOSS", "--json").jsons
    assert found["text"] == "loss"
    nothing = cli("logs", "17", "--grep", "nowhere")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "no line is as asked for; job 17 (digits): runs on a\n"


@pytest.mark.parametrize("bad", ["(", "[z-a]", "*x", "(?P<n>.)(?P<n>.)"])
def test_a_pattern_that_is_none_is_refused_before_anything_is_asked(
    cli: Cli, daemon: FakeDaemon, bad: str
) -> None:
    result = cli("logs", "17", "--grep", bad)
    assert result.code == 2
    assert "is not a regular expression: " in result.err
    assert daemon.requests == []


def test_since_shows_what_was_written_from_then_on(cli: Cli, daemon: FakeDaemon) -> None:
    now = time.time()
    writes(daemon, line("old", at=now - 700), line("new", 1, at=now - 500))
    assert cli("logs", "17", "--since", "10m").out == "1 │ new\n"
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now - 600))
    assert cli("logs", "17", "--since", at).out == "1 │ new\n"
    assert cli("logs", "17", "--since", at.replace("T", " ")).out == "1 │ new\n"
    for bad in ("yesterday", "25:00", "2026-13-01", "10", "", "12", "99999999999d"):
        result = cli("logs", "17", "--since", bad)
        assert (result.code, "is no time such as 10m" in result.err) == (2, True), bad


def test_following_chooses_lines_too(cli: Cli, daemon: FakeDaemon) -> None:
    def lines(request: m.Logs, link: FakeConnection) -> None:
        link.say(m.LogLines((line("epoch 1", at=5.0), line("noise", at=6.0))))
        link.say(m.LogLines((line("epoch 2", at=7.0),)), m.EndOfAnswers())

    daemon.does(m.Logs, lines)
    daemon.answers(m.Wait, view(), ended(), m.EndOfAnswers())
    words = ("-n", "5", "--grep", "epoch", "--since", "1970-01-01T00:00:06Z")
    assert cli("logs", "-f", "17", *words).out == "0 │ epoch 2\n"
    assert daemon.asked(m.Logs) == [m.Logs(17, follow=True, tail=5)]
