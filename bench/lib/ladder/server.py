"""The first WIIIIIDE's server: it has the weights, hands out batches and applies what comes back.

    server                                    node
      │ ── the network's widths ─────────────► │  once
      │ ── inputs, labels, weights ──────────► │  forward, backward
      │ ◄── gradients, loss ────────────────── │
      ⋮   applied as they come, in whatever order: asynchronous, without a bound

A thread for each node, with blocking sockets: the documents tried others and went back.
"""

import itertools
import socket
import threading
from contextlib import closing, suppress
from multiprocessing.connection import Connection

import torch

from lib.ladder import work
from lib.ladder.channel import Channel
from lib.ladder.contenders import LadderStage
from lib.ladder.messages import Message


class ParameterServer:
    """The weights and the batches of one run."""

    def __init__(self, stage: LadderStage) -> None:
        self._stage = stage
        self.model = work.network()
        self._optimizer = work.optimizer(self.model)
        self._batches = itertools.cycle(work.batches())
        self._turn = threading.Lock()

    def serve(self, line: socket.socket) -> None:
        """One node, until it closes its connection."""
        channel = Channel(line, self._stage)
        with closing(channel), suppress(ConnectionError):
            channel.send({"widths": work.WIDTHS})
            while True:
                channel.send(self._next())
                self._apply(channel.receive())

    def _next(self) -> Message:
        with self._turn:
            inputs, labels = next(self._batches)
        return {"inputs": inputs, "labels": labels, "weights": dict(self.model.state_dict())}

    def _apply(self, answer: Message) -> None:
        with self._turn:
            for name, parameter in self.model.named_parameters():
                parameter.grad = answer["gradients"][name]
            self._optimizer.step()


def run(stage: LadderStage, nodes: int, control: Connection) -> None:
    """Says its port, serves so many nodes, and says the loss once all have gone."""
    torch.set_num_threads(1)
    server = ParameterServer(stage)
    with socket.create_server(("127.0.0.1", 0), backlog=nodes) as listener:
        control.send(listener.getsockname()[1])
        threads = []
        for _ in range(nodes):
            line, _ = listener.accept()
            threads.append(threading.Thread(target=server.serve, args=(line,), daemon=True))
            threads[-1].start()
    control.recv()  # all nodes have closed their connections, or the benchmark is gone
    for thread in threads:
        thread.join()
    control.send(work.loss(server.model))
