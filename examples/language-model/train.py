"""Train a small byte-level language model, with wide.parallel or DistributedDataParallel.

This is an ordinary torch.distributed script; a job runs it, or torchrun:

    wiiiiide submit examples/language-model/job.toml -f
    torchrun --nproc-per-node 2 examples/language-model/train.py --backend wiiiiide

It exists to show that nothing else has to change, and to measure what an exchange costs. Two runs
with one seed see the same data in the same order, so their losses can be compared number by
number. The text is Python's own help, which every installation of Python has: no download.
"""

import argparse
import copy
import json
import os
import pydoc_data.topics
import sys
import time
from datetime import timedelta
from statistics import median
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from wiiiiided.torch import parallel, progress, stats

VOCABULARY = 256  # one token per byte value: no tokenizer to ship or to explain
CONTEXT = 64
WIDTH = 256
HEADS = 4
LAYERS = 4
NEARBY = 4
PEAK_RATE = 2e-3
WARMUP_STEPS = 20
COMPUTE_ONLY_EVERY = 5
PROMPT = b"The "
SAMPLE_BYTES = 200
SAMPLE_TEMPERATURE = 0.7


class Block(nn.Module):
    """One transformer layer: causal attention, then a feed-forward net, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + cast(Tensor, self.feed_forward(x))


class LanguageModel(nn.Module):
    """Predicts each next byte from at most CONTEXT bytes before it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        # Attention takes thousands of steps to discover that the last few bytes matter most;
        # a convolution over them knows it from the start, and this run has only hundreds.
        self.nearby = nn.Conv1d(WIDTH, WIDTH, NEARBY)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.token(tokens).transpose(1, 2)
        nearby = self.nearby(functional.pad(embedded, (NEARBY - 1, 0))).transpose(1, 2)
        x = self.blocks(nearby + self.position(torch.arange(tokens.shape[1])))
        return cast(Tensor, self.head(self.norm(x)))


def corpus() -> Tensor:
    """All of Python's help topics as one row of bytes, in an order that does not vary."""
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[key] for key in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def draw_batch(text: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows of the text, and the same windows one byte later."""
    starts = torch.randint(len(text) - CONTEXT, (size, 1), generator=generator)
    windows = text[starts + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


def learning_rate(step: int, steps: int) -> float:
    """A short rise, then a straight line towards zero: settles well in a short run."""
    return PEAK_RATE * min(1.0, step / WARMUP_STEPS) * (1.0 - 0.95 * step / steps)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, fused=True)


def train_on(
    batch: tuple[Tensor, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> Tensor:
    """One step, the same whatever the model is wrapped in; returns the loss."""
    inputs, targets = batch
    scores = model(inputs)
    loss = functional.cross_entropy(scores.view(-1, VOCABULARY), targets.reshape(-1))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


class Trainer:
    """Model, data and clocks of one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.steps: int = options.steps
        self.batch: int = options.batch
        self.world = dist.get_world_size()
        torch.manual_seed(options.seed)
        self.net: nn.Module = LanguageModel()
        # A step's cost without any exchange is measured with a copy that no other rank sees.
        self.alone = copy.deepcopy(self.net)
        self.alone_optimizer = adamw(self.alone)
        self.optimizer = adamw(self.net)
        self.model: nn.Module = self.net
        if options.wrap == "parallel":
            parallel(self.net, self.optimizer)
        else:
            self.model = DistributedDataParallel(self.net)
        self.text = corpus()
        # Each rank draws its own windows; the seed makes them the same ones in every run.
        self.draws = torch.Generator().manual_seed(options.seed * 1000 + 1 + dist.get_rank())

    def step(self, number: int) -> dict[str, Any]:
        """One training step, timed, and now and then one of the copy."""
        batch = draw_batch(self.text, self.batch, self.draws)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.steps)
        begin = time.perf_counter()
        loss = train_on(batch, self.model, self.optimizer)
        dist.all_reduce(loss)
        mean_loss = loss.item() / self.world
        progress(number, total=self.steps, loss=mean_loss, samples=self.batch)
        return {
            "event": "step",
            "step": number,
            "loss": mean_loss,
            "step_s": time.perf_counter() - begin,
            "compute_s": self.compute_only(batch) if number % COMPUTE_ONLY_EVERY == 0 else None,
        }

    def compute_only(self, batch: tuple[Tensor, Tensor]) -> float:
        """Seconds for the same step without any exchange.

        Every way to train can be measured like this, whatever it counts itself. Done all through
        the run and not once at its start, so that a machine that gets busier is busier for both.
        """
        begin = time.perf_counter()
        train_on(batch, self.alone, self.alone_optimizer)
        return time.perf_counter() - begin


@torch.no_grad()
def sample(net: nn.Module, seed: int) -> str:
    """PROMPT and what the model writes after it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([list(PROMPT)])
    for _ in range(SAMPLE_BYTES):
        scores = net(tokens[:, -CONTEXT:])[0, -1] / SAMPLE_TEMPERATURE
        chosen = torch.multinomial(scores.softmax(0), 1, generator=generator)
        tokens = torch.cat([tokens, chosen[None]], dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def own_counters(backend: str) -> dict[str, float] | None:
    """The counters of wiiiiide in this process; other backends have no such thing."""
    if backend != "wiiiiide":
        return None
    counted = stats()
    names = ("operations", "bytes_shm", "exchange_s", "waiting_s")
    return {name: getattr(counted, name) for name in names}


class Reporter:
    """Prints progress from rank 0: lines for people, or one JSON object per line for a program."""

    def __init__(self, as_json: bool, samples_per_step: int, steps: int) -> None:
        self.silent = dist.get_rank() != 0
        self.as_json = as_json
        self.samples_per_step = samples_per_step
        self.steps = steps
        self.recent: list[float] = []

    def __call__(self, event: dict[str, Any]) -> None:
        if self.silent:
            return
        if self.as_json:
            print(json.dumps(event), flush=True)
        elif event["event"] == "start":
            print(f"{event['parameters']:,} parameters, {event['world']} ranks", flush=True)
        elif event["event"] == "step":
            self.step_for_people(event)
        else:
            print(f"\n{event['sample']}", flush=True)

    def step_for_people(self, event: dict[str, Any]) -> None:
        self.recent.append(event["step_s"])
        if event["step"] % 20 == 0 or event["step"] == self.steps:
            rate = self.samples_per_step / median(self.recent)
            place = f"step {event['step']:>4}/{self.steps}"
            print(f"{place}  loss {event['loss']:.4f}  {rate:6.1f} samples/s", flush=True)
            self.recent.clear()


def parse_arguments() -> argparse.Namespace:
    """Options; their defaults may come from the environment, so that a job can set them:

    wiiiiide submit job.toml --set run.env.STEPS=50
    """
    given = os.environ.get
    parser = argparse.ArgumentParser(
        description="Train a small language model on Python's own help text.",
        epilog="WRAP, STEPS, BATCH, SEED and PROGRESS=json in the environment change the defaults.",
    )
    backend = given("WIIIIIDE_BACKEND", "wiiiiide")  # a job's network.backend
    parser.add_argument("--backend", default=backend, help="wiiiiide, gloo (%(default)s)")
    parser.add_argument(
        "--wrap",
        choices=("parallel", "ddp"),
        default=given("WRAP"),
        help="wide.parallel or DDP (parallel over wiiiiide, else ddp)",
    )
    parser.add_argument(
        "--steps", type=int, default=given("STEPS", "200"), help="training steps (%(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=given("BATCH", "4"), help="sequences per rank (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=given("SEED", "1"), help="same seed, same losses (%(default)s)"
    )
    parser.add_argument(
        "--json-progress",
        action="store_true",
        default=given("PROGRESS") == "json",
        help="one JSON object per line",
    )
    options = parser.parse_args()
    options.wrap = options.wrap or ("parallel" if options.backend == "wiiiiide" else "ddp")
    if options.steps < 1 or options.batch < 1:
        parser.error("steps and batch must be at least 1")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        parser.error("RANK and WORLD_SIZE are not set: start it with wiiiiide submit or torchrun")
    return options


def main() -> None:
    options = parse_arguments()
    dist.init_process_group(options.backend, timeout=timedelta(seconds=60))
    trainer = Trainer(options)
    report = Reporter(options.json_progress, options.batch * trainer.world, options.steps)
    parameters = sum(p.numel() for p in trainer.net.parameters())
    report({"event": "start", "parameters": parameters, "world": trainer.world})
    for number in range(1, options.steps + 1):
        report(trainer.step(number))
    counters = own_counters(options.backend)
    is_first = dist.get_rank() == 0
    dist.barrier()  # the weights are of all ranks: none leaves while another still trains
    dist.destroy_process_group()
    if is_first:
        report({"event": "end", "sample": sample(trainer.net, options.seed), "counters": counters})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
