"""`wiiiiide completion`: a script that lets a shell complete commands, options, jobs and machines.

The scripts ask `wiiiiide __complete WORD...`, which prints a candidate and what it is per line, and
treat the answer as text: job names are somebody else's words and must never be evaluated.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wiiiiided.cli import screen

BASH = r"""
_wiiiiide() {
    local candidate _
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("$candidate")
    done < <(wiiiiide __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _wiiiiide wiiiiide
"""

ZSH = r"""
#compdef wiiiiide
_wiiiiide() {
    local candidate about
    local -a values shown
    while IFS=$'\t' read -r candidate about; do
        values+=("$candidate")
        shown+=("$candidate${about:+  -- $about}")
    done < <(wiiiiide __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#values )); then
        compadd -l -d shown -a values
    else
        _files
    fi
}
compdef _wiiiiide wiiiiide
"""

FISH = r"""
function __wiiiiide_candidates
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    wiiiiide __complete -- $words[2..-1] "$last" 2>/dev/null
end
complete -c wiiiiide -a '(__wiiiiide_candidates)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
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
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that lets your shell complete commands, options and job numbers."""
    if shell not in SCRIPTS:
        raise typer.BadParameter(f"{shell!r} is not one of {', '.join(SCRIPTS)}")
    screen.put(SCRIPTS[shell].strip())
    if sys.stdout.isatty():  # else it is being saved or evaluated: in every new shell, perhaps
        screen.say(f"# save it as {PLACES[shell]}, or for this shell only: {NOW[shell]}")
