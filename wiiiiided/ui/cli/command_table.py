"""The commands of `wiiiiide`, and typer with as little as one of them needs.

    wiiiiide ps ──► CommandTable: names ──► import …commands.ps ──► its function

A command's module is imported when the command is called, not before. A module offers `command`, a
function in typer's way that returns an exit code or None, with typer's settings for it in CONTEXT
where it needs some; or `app`, a typer.Typer with commands of its own.

On a terminal help is drawn in Rich's panels; into a pipe it is plain text.

typer 0.29 converts every value with pydantic, text into text too, also where `parser=` is given.
Importing pydantic takes longer than typer itself: with it `why` costs 1.22 times an empty typer
program, without it 0.64 (CPU time, medians of 9 in turns, with a daemon that answers). So a
parameter here calls pydantic only for a value that is wrong: its sentence says what.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


class CommandEntry(NamedTuple):
    """A command as the table knows it before its module is imported."""

    about: str
    example: str


# The commands by what they are about; each is the module of its name.
SECTIONS: dict[str, dict[str, CommandEntry]] = {
    "Run jobs": {
        "run": CommandEntry(
            "Run a command as a job: run -n 2 -- python train.py",
            "wiiiiide run -n 2 -- python train.py --lr 0.1",
        ),
        "new": CommandEntry(
            "Write a job file for the script in this folder.",
            "wiiiiide new src/train.py",
        ),
        "check": CommandEntry(
            "Say whether a job file is right, without running it.",
            "wiiiiide check job.toml",
        ),
        "submit": CommandEntry(
            "Queue a job; -f shows its output until it ends.",
            "wiiiiide submit -f job.toml --set run.env.LR=0.1",
        ),
        "plan": CommandEntry(
            "Say what a job would gain from which machines.",
            "wiiiiide plan job.toml --nodes a,b,c",
        ),
        "ps": CommandEntry(
            "List the jobs; -a also those that ended.",
            "wiiiiide ps -a --state failed",
        ),
        "top": CommandEntry(
            "Watch nodes and jobs; which rank is slow, and why.",
            "wiiiiide top",
        ),
        "show": CommandEntry(
            "Everything about a job.",
            "wiiiiide show 17",
        ),
        "why": CommandEntry(
            "One sentence: why a job waits, runs or ended.",
            "wiiiiide why 17",
        ),
        "logs": CommandEntry(
            "Its workers' lines; -f goes on showing them.",
            "wiiiiide logs -f 17 --rank 0",
        ),
        "wait": CommandEntry(
            "Wait until jobs are over; end with their exit code.",
            "wiiiiide wait 17 18 --timeout 2h",
        ),
        "pull": CommandEntry(
            "Fetch files that a job made.",
            "wiiiiide pull 17 'runs/**' -o results",
        ),
        "report": CommandEntry(
            "How a job ran; -o FILE makes an HTML page of it.",
            "wiiiiide report 17 -o run.html",
        ),
        "history": CommandEntry(
            "Jobs that are over, the latest first.",
            "wiiiiide history -n 10",
        ),
        "stacks": CommandEntry(
            "Where each worker of a job is right now.",
            "wiiiiide stacks 17",
        ),
    },
    "Change jobs": {
        "cancel": CommandEntry(
            "End jobs; returns when nothing of them is left.",
            "wiiiiide cancel 17 s3 --now",
        ),
        "requeue": CommandEntry(
            "Run jobs again that ended or are running.",
            "wiiiiide requeue 17",
        ),
        "hold": CommandEntry(
            "Keep queued jobs from starting.",
            "wiiiiide hold 17",
        ),
        "release": CommandEntry(
            "Let held jobs start.",
            "wiiiiide release 17",
        ),
    },
    "Machines": {
        "init": CommandEntry(
            "Make this machine the first of a cluster.",
            "sudo wiiiiide init --cluster lab",
        ),
        "token": CommandEntry(
            "Print the command that lets another machine join.",
            "sudo wiiiiide token create --ttl 10m",
        ),
        "join": CommandEntry(
            "Make this machine a member of a cluster.",
            "sudo wiiiiide join lab1 -",
        ),
        "leave": CommandEntry(
            "Take this machine out of its cluster.",
            "sudo wiiiiide leave",
        ),
        "nodes": CommandEntry(
            "List the machines; remove one, or declare it lost.",
            "wiiiiide nodes",
        ),
        "drain": CommandEntry(
            "Give a machine no new jobs; those on it go on.",
            "sudo wiiiiide drain b fan broken",
        ),
        "resume": CommandEntry(
            "Give a machine jobs again that was drained.",
            "sudo wiiiiide resume b",
        ),
        "renew": CommandEntry(
            "Get a new certificate for this machine now.",
            "sudo wiiiiide renew",
        ),
    },
    "This machine": {
        "doctor": CommandEntry(
            "Check this machine and say what to mend.",
            "wiiiiide doctor --peers",
        ),
        "metrics": CommandEntry(
            "Print metrics of nodes and jobs for Prometheus.",
            "wiiiiide metrics -o wiiiiide.prom",
        ),
        "service": CommandEntry(
            "Install the daemon as a systemd service.",
            "sudo wiiiiide service install",
        ),
        "completion": CommandEntry(
            "Print what lets a shell complete commands.",
            'eval "$(wiiiiide completion bash)"',
        ),
    },
}
DIGITS = re.compile(r"[0-9]{1,18}")
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


def _is_ready(param: Any, value: Any) -> bool:
    """Whether a parameter's value is of its type already, and not missing."""
    wanted, several = param.type_descriptor.annotation, param.multiple or param.nargs == -1
    if value is None:
        return not param.required
    if several:
        return wanted == list[str] and (bool(value) or not param.required)
    return isinstance(wanted, type) and isinstance(value, wanted)


def _as_number(param: Any, value: Any) -> Any:
    """A plain whole number within the parameter's bounds; anything else as it was given."""
    wanted = param.type_descriptor.annotation
    if wanted is not int or not isinstance(value, str) or not DIGITS.fullmatch(value):
        return value
    number = int(value)
    least, most = param.min, param.max
    fits = (least is None or least <= number) and (most is None or number <= most)
    return number if fits else value


class _Word:
    """A parameter that asks pydantic only for values that neither have its type nor are numbers."""

    def process_value(self: Any, ctx: Any, value: Any) -> Any:
        value = _as_number(self, value)
        if not _is_ready(self, value):
            return super().process_value(ctx, value)  # type: ignore[misc]
        if value is None and (self.multiple or self.nargs == -1):
            value = ()
        return value if self.callback is None else self.callback(ctx, self, value)


class WordOption(_Word, TyperOption):
    """An option of a command."""

    def display_type_rich(self, ctx: Any) -> str | None:
        return None if self.is_flag else super().display_type_rich(ctx)


class WordArgument(_Word, TyperArgument):
    """An argument of a command."""

    def display_type_rich(self, ctx: Any) -> str | None:
        return None  # "ID <str>" says nothing more than "ID"


def word_param(made: TyperOption | TyperArgument) -> WordOption | WordArgument:
    """The parameter that typer made, as one of ours: a copy, for typer takes no class for it."""
    cls: type[WordOption | WordArgument]
    cls = WordOption if isinstance(made, TyperOption) else WordArgument
    param = cls.__new__(cls)
    vars(param).update(vars(made))
    return param


class _Quick:
    """A command or group whose parameters are of the classes above."""

    help: str | None

    def __init__(self, *args: Any, params: list[Any] | None = None, **settings: Any) -> None:
        settings["params"] = [word_param(made) for made in params or ()]
        super().__init__(*args, **settings)
        # typer's panels keep the line breaks of a docstring, which are those of the source.
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)  # type: ignore[misc]
        option.default = False  # typer's is None, and it asks pydantic what bool None is
        option.metavar = ""  # a flag takes no value: "<bool>" says the contrary
        return option


class QuickCommand(_Quick, TyperCommand):
    """A command. Where it runs another one, that one's words are not completed."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        begun = not ctx.allow_interspersed_args and any(
            ctx.params.get(param.name) for param in self.params if isinstance(param, TyperArgument)
        )
        return [] if begun else super().shell_complete(ctx, incomplete)


class QuickGroup(_Quick, TyperGroup):
    """A command that has commands of its own, and options besides."""


class CommandTable(_Quick, TyperGroup):
    """All commands by name, each a stub until it is called: help, suggestions and completion need
    no more of it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for section, entries in SECTIONS.items():
            for name, (about, _) in entries.items():
                self.add_command(TyperCommand(name, help=about, rich_help_panel=section))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        return name, None if stub is None else load(str(name)), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, about) for name, (about, _) in commands.items()])


def load(name: str) -> Any:
    """The command of that name, as an object of typer's."""
    loaded = importlib.import_module(f"wiiiiided.ui.cli.commands.{name}")
    app: typer.Typer | None = getattr(loaded, "app", None)
    if app is None:
        app = plain_app()
        function: Callable[..., int | None] = loaded.command
        context = getattr(loaded, "CONTEXT", None)
        app.command(name, cls=QuickCommand, context_settings=context)(function)
    made = typer.main.get_command(app)
    made.name, made.epilog = name, f"Example: {COMMANDS[name].example}"
    return made


def plain_app(**settings: Any) -> typer.Typer:
    """typer's, without the options that install completion: `completion` is a command."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )
