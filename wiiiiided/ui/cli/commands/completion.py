"""`wiiiiide completion`: a script that lets a shell complete commands, options, jobs and machines.

typer has the scripts: on Tab a shell calls `wiiiiide` with _WIIIIIDE_COMPLETE in its environment,
and typer asks the parameters what could stand there; `completion_candidates` answers for jobs and
machines.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from wiiiiided.ui.cli import screen

COMPLETE = "_WIIIIIDE_COMPLETE"  # set when it is a shell that asks
PLACES = {
    "bash": "~/.local/share/bash-completion/completions/wiiiiide",
    "zsh": "_wiiiiide in a folder of your fpath",
    "fish": "~/.config/fish/completions/wiiiiide.fish",
}
NOW = {
    "bash": 'eval "$(wiiiiide completion bash)"',
    "zsh": 'eval "$(wiiiiide completion zsh)"',
    "fish": "wiiiiide completion fish | source",
}


def command(
    shell: Annotated[
        Literal["bash", "zsh", "fish"],
        typer.Argument(metavar="SHELL", help="bash, zsh or fish."),
    ],
) -> None:
    """Print a script that lets your shell complete commands, options and job numbers."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    screen.put(get_completion_script(prog_name="wiiiiide", complete_var=COMPLETE, shell=shell))
    if sys.stdout.isatty():  # else it is being saved or evaluated: in every new shell, perhaps
        screen.say(f"# save it as {PLACES[shell]}, or for this shell only: {NOW[shell]}")


def complete(group: Any, instruction: str) -> int:
    """Print what could stand in place of a word, as the shell that asks wants it."""
    from typer.completion import get_completion_inspect_parameters, shell_complete

    get_completion_inspect_parameters()  # makes typer's shells known
    return shell_complete(group, {}, "wiiiiide", COMPLETE, instruction)
