"""A node of the first WIIIIIDE: takes a batch and weights, gives gradients and the loss back."""

import socket
import time
from collections.abc import Iterator

import torch

from lib.ladder import work
from lib.ladder.channel import Channel, Costs
from lib.ladder.contenders import LadderStage


class StageNode:
    """A node connected to the server at `port`."""

    backwards = 1

    def __init__(self, stage: LadderStage, port: int) -> None:
        self._channel = Channel(socket.create_connection(("127.0.0.1", port)), stage)
        self._model = work.network(self._channel.receive()["widths"])

    def step(self) -> None:
        task = self._channel.receive()
        self._model.load_state_dict(task["weights"])
        self._model.zero_grad()
        loss = torch.nn.functional.cross_entropy(self._model(task["inputs"]), task["labels"])
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: each.grad for name, each in self._model.named_parameters()}
        self._channel.send({"gradients": gradients, "loss": loss.item()})

    def steps(self, end: float) -> Iterator[None]:
        while time.monotonic() < end:
            yield

    def costs(self) -> Costs:
        return self._channel.costs

    def loss(self) -> None:
        """The server has the weights."""

    def close(self) -> None:
        self._channel.close()
