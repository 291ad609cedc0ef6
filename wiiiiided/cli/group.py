"""typer, loaded with as little as a command needs.

    wiiiiide ps ──► group: a table of names ──► import wiiiiided.cli.ps ──► its function

A command's module is imported when the command is called, not before. A module offers `command`, a
function in typer's way that returns an exit code or None, with typer's settings for it in CONTEXT
where it needs some; or `app`, a typer.Typer with commands of its own.

From 0.20-something on typer asks pydantic whether a string is a string. Importing that takes 60 ms,
two thirds of everything else, so parameters that are plain text or flags are passed on as they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# The commands by what they are about: name → (module, what it does).
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run jobs": {
        "run": ("wiiiiided.cli.run", "Run a command as a job: run -n 2 -- python train.py"),
        "new": ("wiiiiided.cli.new", "Write a job file for the script in this folder."),
        "check": ("wiiiiided.cli.check", "Say whether a job file is right, without running it."),
        "submit": ("wiiiiided.cli.submit", "Queue a job; -f shows its output until it ends."),
        "ps": ("wiiiiided.cli.ps", "List the jobs; -a also those that ended."),
        "top": ("wiiiiided.cli.top", "Watch nodes and jobs; who is slow, and why."),
        "show": ("wiiiiided.cli.show", "Everything about a job."),
        "why": ("wiiiiided.cli.why", "One sentence: why a job waits, runs or ended."),
        "logs": ("wiiiiided.cli.logs", "What its workers wrote; -f goes on showing it."),
        "wait": ("wiiiiided.cli.wait", "Wait until jobs are over; end with their exit code."),
        "pull": ("wiiiiided.cli.pull", "Fetch files that a job made."),
        "report": ("wiiiiided.cli.report", "How a job ran; -o FILE makes an HTML page of it."),
        "history": ("wiiiiided.cli.history", "Jobs that are over, the latest first."),
        "stacks": ("wiiiiided.cli.stacks", "Where each worker of a job is right now."),
    },
    "Change jobs": {
        "cancel": ("wiiiiided.cli.cancel", "End jobs; returns when nothing of them is left."),
        "requeue": ("wiiiiided.cli.requeue", "Run jobs again that ended or are running."),
        "hold": ("wiiiiided.cli.hold", "Keep queued jobs from starting."),
        "release": ("wiiiiided.cli.release", "Let held jobs start."),
    },
    "Machines": {
        "init": ("wiiiiided.cli.init", "Make this machine the first of a cluster."),
        "token": ("wiiiiided.cli.token", "Print the command that lets another machine join."),
        "join": ("wiiiiided.cli.join", "Make this machine a member of a cluster."),
        "leave": ("wiiiiided.cli.leave", "Take this machine out of its cluster."),
        "nodes": ("wiiiiided.cli.nodes", "List the machines; remove one, or declare it lost."),
        "drain": ("wiiiiided.cli.drain", "Give a machine no new jobs; those on it go on."),
        "resume": ("wiiiiided.cli.resume", "Give a machine jobs again that was drained."),
        "renew": ("wiiiiided.cli.renew", "Get a new certificate for this machine now."),
    },
    "This machine": {
        "doctor": ("wiiiiided.cli.doctor", "Check this machine and say what to mend."),
        "metrics": ("wiiiiided.cli.metrics", "Print figures of nodes and jobs for Prometheus."),
        "service": ("wiiiiided.cli.service", "Install the daemon as a systemd service."),
        "completion": ("wiiiiided.cli.completion", "Print what lets a shell complete commands."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
HIDDEN = {"__complete": ("wiiiiided.cli.candidates", "")}  # what the shells' scripts call


class Light:
    """Of commands and the group: their parameters do not need pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            descriptor = getattr(param, "type_descriptor", None)  # older ones use click's types
            if descriptor is not None and descriptor.annotation in (bool, str, list[str]):
                param.process_value = partial(_as_it_is, param)
                if param.param_type_name == "argument":
                    param.display_type_rich = _nothing  # "ID <str>" says nothing more than "ID"
        return params


def _nothing(ctx: Any) -> None:
    return None


def _as_it_is(param: Any, ctx: Any, value: Any) -> Any:
    if value is None and (param.multiple or param.nargs == -1):
        value = ()
    if param.required and param.value_is_missing(value):
        return type(param).process_value(param, ctx, value)  # it has the words for that
    return value if param.callback is None else param.callback(ctx, param, value)


class Command(Light, TyperCommand):
    """A command whose parameters are plain text and flags."""


class Group(Light, TyperGroup):
    """A command that has commands of its own, and options besides."""


class Commands(Light, TyperGroup):
    """The table of commands, as typer wants it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        return None if entry is None else load(cmd_name, entry[0])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and args[0] not in HIDDEN:
            self.commands = dict.fromkeys(COMMANDS, Command("any"))  # names to suggest from
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, help) for name, (_, help) in commands.items()])


def load(name: str, module: str) -> Any:
    """The command of a module, as an object of typer's."""
    loaded = importlib.import_module(module)
    app: typer.Typer | None = getattr(loaded, "app", None)
    if app is None:
        app = plain_app()
        function: Callable[..., int | None] = loaded.command
        context = getattr(loaded, "CONTEXT", None)
        app.command(name, cls=Command, context_settings=context)(function)
    else:
        app._add_completion = False
        app.rich_markup_mode = None
    made = typer.main.get_command(app)
    made.name = name
    return made


def plain_app(**settings: Any) -> typer.Typer:
    """Without rich, which takes long to import, and without options to install completion."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )
