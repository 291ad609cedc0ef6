"""Checks of several keys together, each of which is right by itself.

Every rule sees the values that passed their own checks; where one of its keys is wrong or missing,
the rule says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from wiiiiided.domain.limits import MAX_TEXT
from wiiiiided.domain.quantities import write_duration
from wiiiiided.ui.jobfile.argv import TORCHRUN, knows_of_nodes, launcher_of, python_file
from wiiiiided.ui.jobfile.check import Values
from wiiiiided.ui.jobfile.describe import as_list, show
from wiiiiided.ui.jobfile.findings import Findings

Rule = Callable[[Values, Findings], None]

# Command and variables together. They travel in one file to the shim that has at most 1 MiB and in
# which a character may take six; and no kernel starts a program with more than 2 MiB of them.
START_BYTES = 128 << 10
INTO_A_FILE = "put long texts into a file of the working directory"


def passed_and_set(values: Values, findings: Findings) -> None:
    env = values.get(("run", "env"), {})
    for at, name in enumerate(values.get(("run", "pass_env"), ())):
        if name in env:
            message = f"{show(name)} is set in run.env, too"
            findings.add(("run", "pass_env", at), message, "leave one of them out")


def logged_twice(values: Values, findings: Findings) -> None:
    if ("output", "log") in values and "WIIIIIDE_LOG" in values.get(("run", "env"), {}):
        message = "run.env sets WIIIIIDE_LOG, which is the same"
        findings.add(("output", "log"), message, "leave one of them out")


def start_size(values: Values, findings: Findings) -> None:
    texts = [*values.get(("run", "command"), ())]
    for variable in values.get(("run", "env"), {}).items():
        texts += variable
    size = sum(len(text.encode(errors="replace")) + 1 for text in texts if text is not None)
    if size > START_BYTES:
        message = f"command and env together have {size} bytes; at most {START_BYTES} are possible"
        findings.add(("run",), message, INTO_A_FILE)


def notify_size(values: Values, findings: Findings) -> None:
    size = sum(len(text) for text in values.get(("notify", "command"), ()) if text is not None)
    if size > MAX_TEXT:
        message = f"has {size} characters, all its words together; at most {MAX_TEXT} are possible"
        findings.add(("notify", "command"), message, INTO_A_FILE)


def used_and_avoided(values: Values, findings: Findings) -> None:
    use = values.get(("resources", "use"), ())
    for at, name in enumerate(values.get(("resources", "avoid"), ())):
        if name in use:
            message = f"{show(name)} is in resources.use, too"
            findings.add(("resources", "avoid", at), message, "leave one of them out")


def too_few_used(values: Values, findings: Findings) -> None:
    use = values.get(("resources", "use"), ())
    least, _ = values.get(("resources", "nodes"), (1, 1))
    if use and len(use) < least:
        message = f"at least {least} nodes are wanted, but resources.use names only {len(use)}"
        findings.add(("resources", "nodes"), message, f"name {least} or more, or want fewer")


def warned_too_early(values: Values, findings: Findings) -> None:
    before = values.get(("policy", "warn_before"))
    most = values.get(("policy", "max_time"))
    if before is not None and most is not None and before >= most:
        message = f"is not shorter than max_time, {write_duration(most)}"
        findings.add(("policy", "warn_before"), message, "warn later, or allow more time")


def warned_of_nothing(values: Values, findings: Findings) -> None:
    before, most = ("policy", "warn_before"), ("policy", "max_time")
    if before in values and most not in values and not _wrong(most, findings):
        message = "max_time is missing, so no warning ever comes"
        findings.add(before, message, 'add max_time = "8h", or leave it out')


def several_launchers(values: Values, findings: Findings) -> None:
    """A launcher such as torchrun in every rank: each trains a copy, over the same checkpoints."""
    argv = values.get(("run", "command"), ())
    launcher = "" if not argv or None in argv else launcher_of(argv)
    if not launcher:
        return
    workers = values.get(("resources", "workers_per_node"), 1)
    _, most = values.get(("resources", "nodes"), (1, 1))
    told = knows_of_nodes(argv) or "PET_NNODES" in values.get(("run", "env"), {})
    if workers != 1:
        times = f"{workers} times" if isinstance(workers, int) else f"for each of its {workers}"
        message = f"{launcher} starts ranks itself, and is started {times} on a node"
        instead = "workers_per_node = 1"
    elif most != 1 and launcher in TORCHRUN and not told:
        message = f"{launcher} without --nnodes knows its own node alone, and several start it"
        instead = "nodes = 1"
    else:
        return
    script = python_file(argv)
    plain = as_list(["python", *argv[script.at :]]) if script else ""
    findings.add(
        ("run", "command"),
        f"{message}: each would be a training of its own, over the same checkpoints",
        f"write {plain}, or {instead}" if plain else f"write {instead}",
    )


def restarts_without_number(values: Values, findings: Findings) -> None:
    restart = ("policy", "restart")
    given = [name for name in ("on", "backoff") if (*restart, name) in values]
    if given and (*restart, "max") not in values and not _wrong((*restart, "max"), findings):
        message = f"max is missing, so nothing is ever restarted and {given[0]} has no use"
        findings.add(restart, message, "for example restart = { max = 3 }")


def notices_without_command(values: Values, findings: Findings) -> None:
    on, command = ("notify", "on"), ("notify", "command")
    if on in values and command not in values and not _wrong(command, findings):
        message = "nothing is run at these states: notify.command is missing"
        findings.add(on, message, 'add command = ["notify-send", "job {id} {state}"]')


def _wrong(path: tuple[str, ...], findings: Findings) -> bool:
    """Whether the key is there, but wrong."""
    return path in findings.places


RULES: tuple[Rule, ...] = (
    passed_and_set,
    logged_twice,
    start_size,
    notify_size,
    used_and_avoided,
    too_few_used,
    warned_too_early,
    warned_of_nothing,
    several_launchers,
    restarts_without_number,
    notices_without_command,
)


def check_together(values: Values, findings: Findings) -> None:
    """Apply every rule."""
    for rule in RULES:
        rule(values, findings)
