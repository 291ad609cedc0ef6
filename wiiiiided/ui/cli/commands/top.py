"""`wiiiiide top`: the screen on a terminal; one snapshot, or a stream of metrics, elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from dataclasses import replace
from typing import Annotated, Any

import typer

from wiiiiided.cluster.client import Client, ClientError, DaemonLost, NoDaemon
from wiiiiided.cluster.client.connection import expect
from wiiiiided.cluster.rpc.messages import Snapshot
from wiiiiided.config import Paths, colour_count, terminal_known
from wiiiiided.errors import WiiiiideError
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import fields
from wiiiiided.ui.cli.option_values import seconds
from wiiiiided.ui.top.ui import LEAST_S, MOST_S, LogView, Scene, Ui

ENDLESS = 1 << 16  # columns of a file: rows are written whole
PICTURE_COLUMNS = 120  # where neither COLUMNS nor a terminal says another width
PICTURE_LINES = 10  # of each rank's log
CURVES = 8  # jobs whose loss is asked for
RETURN_S = 30.0  # how long a daemon may be away in a restart, as for `logs -f`
AGAIN_S = 0.2
SIGNS = "▸…–─│◄▁█▾↑·●✓▶╭━"  # what the screen is drawn with


def command(
    every: Annotated[
        str,
        typer.Option(
            "-i", "--interval", metavar="TIME", help="250ms to 1m (seconds: 2); 1s by itself."
        ),
    ] = "1",
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, a line per interval; one with --once.")
    ] = False,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="No key can change a job or a node.")
    ] = False,
    in_ascii: Annotated[
        bool, typer.Option("--ascii", help="Draw with plain characters only.")
    ] = False,
    svg: Annotated[
        str | None,
        typer.Option("--svg", metavar="FILE", help="Write one picture as SVG; - is stdout."),
    ] = None,
) -> None:
    """Show what every node and job does now, and which rank is slow.

    On a terminal it goes on until q; ? explains keys and columns. Elsewhere it prints once.
    """
    every_s = _interval(every)
    if svg is not None and as_json:
        raise typer.BadParameter("--svg and --json exclude each other")
    client = Client(Paths.for_client())
    if as_json:
        _json(client, every_s, once)
        return
    in_ascii = in_ascii or not (svg or screen.can_print(SIGNS, sys.stdout))
    ui = Ui(every_s=every_s, readonly=readonly, ascii=in_ascii)
    if svg is not None:
        _picture(client, ui, svg)
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty() and terminal_known()):
        _print(client, ui)
    else:
        _screen(client, ui)


def _interval(text: str) -> float:
    found = seconds(text, "-i")
    if not LEAST_S <= found <= MOST_S:
        raise typer.BadParameter(f"-i {text!r} is not within {LEAST_S:g} to {MOST_S:g} seconds")
    return found


def _screen(client: Client, ui: Ui) -> None:
    from wiiiiided.ui.top.loop import run
    from wiiiiided.ui.top.paint import Painter
    from wiiiiided.ui.top.terminal import Terminal

    connection = client.watching(ui.every_s)  # a missing daemon is said before drawing
    terminal = Terminal(sys.stdin.fileno(), sys.stdout.fileno())
    try:
        run(client, connection, terminal, ui, Painter(colour_count(), ui.ascii))
    finally:
        terminal.close()


def _scene(client: Client, ui: Ui) -> Scene:
    snapshot = client.snapshot()
    return Scene(snapshot, ui, offset_s=time.localtime(snapshot.at).tm_gmtoff)


def _print(client: Client, ui: Ui) -> None:
    from wiiiiided.ui.top.paint import Painter, texts
    from wiiiiided.ui.top.view import view

    width = screen.width() or ENDLESS
    made = view(_scene(client, replace(ui, once=True)), width, 0)
    if screen.colourful(sys.stdout):
        rows = Painter(colour_count(), ui.ascii).rows(made, width, None)
    else:
        rows = texts(made, width, None, ui.ascii)
    for row in rows:
        screen.put(row.rstrip())


def _picture(client: Client, ui: Ui, path: str) -> None:
    """The screen as it would be, as high as it needs to be."""
    from wiiiiided.ui.top.paint import picture
    from wiiiiided.ui.top.view import natural, view

    scene = _told(client, _scene(client, ui))
    width = min(250, max(40, shutil.get_terminal_size((PICTURE_COLUMNS, 0)).columns))
    height = natural(scene, width)
    text = picture(view(scene, width, height), width, height, ui.ascii)
    if path == "-":
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        raise WiiiiideError(f"cannot write {path}: {problem.strerror}") from problem
    screen.say(f"wrote {path}")


def _told(client: Client, scene: Scene) -> Scene:
    """The scene with the losses of jobs that run and the log of the first job, which the screen
    would have asked for by now; without them where the daemon does not answer."""
    from wiiiiided.ui.top.losses import LossHistory

    assert scene.snapshot is not None
    history = LossHistory()
    history.take(scene.snapshot)
    log = None
    with contextlib.suppress(ClientError):
        for row in [row for row in scene.snapshot.jobs if row.now is not None][:CURVES]:
            history.begin(row.job.id, client.records(row.job.id).runs)
        if scene.snapshot.jobs:
            number = scene.snapshot.jobs[0].job.id
            lines = sorted(client.logs(number, tail=PICTURE_LINES), key=lambda line: line.at)
            log = LogView(number, tuple(lines))
    return replace(scene, losses=history.values(), log=log)


def _json(client: Client, every_s: float, once: bool) -> None:
    if once:
        screen.put_json(_fields(client.snapshot()))
        return
    away_at: float | None = None
    while True:
        try:
            with client.watching(every_s) as connection:
                while True:
                    answer = expect(connection.answer(), Snapshot)
                    if away_at is not None:
                        screen.say("wiiiiide: the daemon is back")
                    away_at = None
                    screen.put_json(_fields(answer))
                    sys.stdout.flush()
        except (DaemonLost, NoDaemon) as problem:
            away_at = _away(problem, away_at)


def _fields(snapshot: Snapshot) -> dict[str, Any]:
    made = fields(snapshot)
    for row in made["jobs"]:
        row["job"].pop("type")
    return made


def _away(problem: ClientError, since: float | None) -> float:
    """When the daemon went away; raises the problem if it was never there, or is away too long."""
    now = time.monotonic()
    if since is None:
        if isinstance(problem, NoDaemon):
            raise problem
        screen.say(f"wiiiiide: the daemon went away; waiting up to {RETURN_S:.0f} s for it")
        since = now
    if now - since > RETURN_S:
        raise problem
    time.sleep(AGAIN_S)
    return since
