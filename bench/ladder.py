"""How far is it from the first WIIIIIDE to today's, on the first one's own work?

Its documents report six stages of a parameter server with ten nodes. Here they run again, beside
DDP, `wide.parallel` and the bound: the same ten processes without any exchange.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from lib import machine, program, report
from lib.fleet import FleetError, free_port
from lib.ladder import table
from lib.ladder.contenders import CONTENDERS, Contender, LadderStage
from lib.ladder.counts import NEVER, LadderRound, NodeSetup
from lib.ladder.processes import NODE, SERVER, Processes
from lib.measure import in_turns
from lib.report import BenchResult, console

NODES, ROUNDS, SECONDS, QUICK_SECONDS = 10, 3, 10.0, 1.0
_START_SECONDS, _LATE_SECONDS = 120.0, 60.0
METHOD = (
    "A network of 64-20-10, cross-entropy, SGD, batches of 32 of 1,000 samples whose labels the"
    " inputs say nothing about; {nodes} nodes of one thread, all forked from one process that has"
    " imported torch. Contenders take turns in {rounds} rounds of {seconds:g} s, after 30 steps"
    " that do not count, each round beginning with another one. Batches/s: of all nodes, the"
    " median over rounds, in brackets the least and the most; ratios are medians of the rounds'"
    " own; all else is over all rounds, of nodes the least and the most. Stages: a parameter"
    " server with a thread for each node, blocking sockets over loopback, asynchronous. Their MB/s"
    " are what nodes send and receive; network time is in socket calls, waiting for the server"
    " included; compression time is from tensors to bytes and back, pickle included, on the node."
    " Today's ways: MB/s are the gradients handed to the exchange; network time is what the"
    " backend counts as exchange (of gloo all of the forward and backward), waiting for other"
    " ranks included. Memory is that of all processes, with the stages' server, shared pages"
    " counted once. Loss is over all samples at a round's end, of the bound the mean over its"
    " nodes, each of which has trained alone."
)


def _round(contender: Contender, nodes: int, seconds: float) -> LadderRound:
    with Processes() as processes:
        server, port = None, free_port()
        if isinstance(contender, LadderStage):
            server = processes.start(SERVER, contender, nodes)
            (port,) = processes.hear([server], _START_SECONDS)
        last_step = processes.shared_word(NEVER)
        setups = [NodeSetup(number, nodes, port, last_step) for number in range(nodes)]
        lines = [processes.start(NODE, contender, setup) for setup in setups]
        processes.hear(lines, _START_SECONDS)
        before = 0.0 if server is None else processes.cpu_seconds(server)
        for line in lines:
            line.send(seconds)
        counts = processes.hear(lines, seconds + _LATE_SECONDS)
        used = None if server is None else (processes.cpu_seconds(server) - before) / seconds
        memory = processes.memory_bytes()
        for line in lines:
            line.send("leave")
        losses = [count.loss for count in counts]
        if server is not None:
            server.send("leave")
            losses = processes.hear([server], _LATE_SECONDS)
        return LadderRound(counts, memory, sum(losses) / len(losses), used)


def _measure(
    contenders: Sequence[Contender], given: Any, say: Callable[[str], None]
) -> dict[Contender, list[LadderRound]]:
    taken: dict[Contender, list[LadderRound]] = {contender: [] for contender in contenders}
    for number, contender in in_turns(contenders, given.rounds):
        say(f"round {number} of {given.rounds}: {contender.title}")
        try:
            taken[contender].append(_round(contender, given.nodes, given.seconds))
        except FleetError as problem:
            raise FleetError(f"{contender.title}: {problem}") from None
    return taken


def _arguments() -> Any:
    parser = program.parser(__doc__ or "", rounds=ROUNDS)
    parser.add_argument("--nodes", type=program.positive, default=NODES)
    parser.add_argument("--seconds", type=float, help=f"of a round (default {SECONDS:g})")
    parser.add_argument("--only", default="", help="contenders with one of these texts: '6 ,gloo'")
    given = program.arguments(parser)
    if given.seconds is not None and given.seconds <= 0:
        parser.error(f"--seconds {given.seconds:g}: a round takes more than 0 s")
    given.rounds = given.rounds or ROUNDS
    given.seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
    words = given.only.split(",")
    given.contenders = [each for each in CONTENDERS if any(word in each.title for word in words)]
    if not given.contenders:
        parser.error(f"no contender has {given.only!r} in its name")
    return given


def main() -> int:
    given = _arguments()
    about = machine.about()
    screen = console()
    with screen.status("") as status:
        taken = _measure(given.contenders, given, status.update)
    judged = not given.quick and given.nodes == NODES
    targets = table.targets(taken)
    sheets = [table.sheet(taken, given.nodes, given.rounds * given.seconds)]
    if targets.measures:
        sheets.append(targets.sheet(judged))
    data = table.data(taken) | {"targets": [each.data(judged) for each in targets.measures]}
    method = METHOD.format(nodes=given.nodes, rounds=given.rounds, seconds=given.seconds)
    result = BenchResult("ladder", about, method, sheets, table.notes(taken), data)
    report.finish(result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
