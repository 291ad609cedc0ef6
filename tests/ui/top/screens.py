"""The golden screens: what each is drawn from. `python -m tests.ui.top.screens` draws them anew.

Look at every change of a golden file before it is kept: they are how the screen looks to people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.ui.top import snapshots as s
from tests.ui.top.kit import drawn
from wiiiiided.cluster.rpc.messages import NodeView
from wiiiiided.domain.node import Node
from wiiiiided.ui.top.paint import Painter, picture
from wiiiiided.ui.top.ui import (
    Detail,
    Draining,
    Gone,
    LogView,
    Question,
    Resuming,
    RowOrder,
    Scene,
    Ui,
)
from wiiiiided.ui.top.view import natural, view

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (40, 59, 60, 79, 80, 99, 100, 140, 250)
LOG = LogView(
    17,
    (
        s.line("epoch 1 loss 0.412"),
        s.line("UserWarning: slow\x1b[31m", rank=1, stream="err"),
        s.line(" 10%|█\r 20%|██", rank=0),
        s.line("rotated", rank=1, stream="note"),
    ),
)
FAR = LogView(
    17,
    (
        s.line("epoch 1 loss 0.412", node="a"),
        s.line("epoch 1 loss 0.407", rank=2, node="b"),
        s.line("Traceback", rank=10, stream="err", node="a-machine-with-a-long-name"),
    ),
)
NODES = Ui(focus="nodes")
WHY = "the fan is broken and the new one comes on Tuesday, says the shop"

SIZES = ((40, 16), (60, 20), (80, 24), (120, 34), (200, 50))
TRAINING = Scene(s.training(), log=s.training_log(), losses=s.training_losses())
BALANCED = replace(TRAINING, snapshot=s.balanced())
JOB = replace(TRAINING, ui=Ui(page="details"), detail=Detail(job=s.training_detail()))
NODE = replace(
    TRAINING,
    ui=Ui(focus="nodes", node="m3", page="details"),
    detail=Detail(
        node=NodeView(
            Node("m3", 8, 1 << 34, 0, "", "10.0.0.3", 9461, "0.1.0", "eth0"), "ok", "runs job 17"
        )
    ),
)


def _scenes() -> dict[str, tuple[Scene, int, int]]:
    three = Scene(s.three())
    return {
        **{f"three-{width}": (three, width, 24) for width in WIDTHS},
        **{f"alone-{width}": (Scene(s.alone()), width, 12) for width in (40, 80, 120)},
        **{f"eight-{width}": (Scene(s.many(8), NODES), width, 20) for width in (60, 100)},
        "many-begin": (Scene(s.many(200), NODES), 100, 24),
        "many-middle": (Scene(s.many(200), replace(NODES, node="node-100")), 100, 24),
        "many-end": (Scene(s.many(200), replace(NODES, node="node-199")), 100, 24),
        "ascii": (Scene(s.three(), Ui(ascii=True), log=LOG), 100, 24),
        "ascii-nasty": (Scene(s.nasty(), Ui(ascii=True)), 140, 16),
        "nasty": (Scene(s.nasty()), 140, 16),
        "nasty-60": (Scene(s.nasty()), 60, 16),
        "lost": (Scene(s.with_lost(), NODES), 100, 20),
        **{f"troubled-{w}": (Scene(s.troubled(), NODES), w, 16) for w in (40, 60, 80, 100, 140)},
        **{f"lost-one-{width}": (Scene(s.lost_one()), width, 16) for width in (40, 80, 140)},
        "drain": (Scene(s.three(), replace(NODES, question=Draining("b", "fan bro"))), 80, 16),
        "drain-long": (Scene(s.three(), replace(NODES, question=Draining("b", WHY))), 80, 16),
        "drain-40": (Scene(s.three(), replace(NODES, question=Draining("b", WHY))), 40, 12),
        "resume": (
            Scene(s.with_lost(), replace(NODES, question=Resuming("e", "fan broken"))), 80, 16,
        ),
        "log-nodes": (Scene(s.three(), Ui(focus="log"), log=FAR), 80, 24),
        "mixed-units": (Scene(s.mixed()), 100, 16),
        "log": (Scene(s.three(), Ui(focus="log"), log=LOG), 80, 24),
        "log-small": (Scene(s.three(), Ui(focus="log"), log=LOG), 40, 6),
        "help": (Scene(s.three(), Ui(page="help")), 80, 34),
        "help-40": (Scene(s.three(), Ui(page="help", page_top=4)), 40, 12),
        "filter-typing": (Scene(s.three(), Ui(typing=True, jobs=RowOrder(filter="d"))), 80, 16),
        "filter-kept": (Scene(s.three(), Ui(jobs=RowOrder(filter="lm"))), 80, 16),
        "sorted": (
            Scene(
                s.three(), Ui(nodes=RowOrder(column=3, reverse=True), jobs=RowOrder(column=2)),
            ), 100, 16,
        ),
        "confirm": (Scene(s.three(), Ui(question=Question(17, "digits"))), 80, 16),
        "confirm-kill": (Scene(s.three(), Ui(question=Question(17, "digits", True))), 60, 16),
        "gone": (Scene(s.three(), gone=Gone("no daemon answers on /run/x", 3.2)), 80, 16),
        "silent": (Scene(s.three(), gone=Gone("the daemon has said nothing for 7 s")), 80, 16),
        "problem": (
            Scene(s.snapshot(s.node(), problem="cannot write its state: the disk is full")), 80, 12,
        ),
        "paused-readonly": (Scene(s.three(), Ui(paused=True, readonly=True)), 100, 16),
        "message": (Scene(s.three(), Ui(message="job 17 is being cancelled")), 80, 16),
        **{f"stragglers-{width}": (Scene(s.two_slow()), width, 12) for width in (40, 60, 80)},
        **{f"turns-{width}": (Scene(s.turns()), width, 12) for width in (40, 80)},
        **{f"reporting-{width}": (Scene(s.reporting()), width, 16) for width in (60, 100)},
        "reporting-silent": (Scene(s.reporting(), Ui(job=18)), 80, 16),
        "unmeasured": (Scene(s.unmeasured()), 140, 12),
        "diverged": (Scene(s.snapshot(s.node(), jobs=(s.doing(diverged=True),))), 80, 12),
        "no-match": (
            Scene(s.three(), Ui(nodes=RowOrder(filter="zz"), jobs=RowOrder(filter="x'y"))), 80, 12,
        ),
        "sorted-by-id": (Scene(s.three(), Ui(jobs=RowOrder(column=1))), 80, 16),
        "waiting": (Scene(None), 80, 8),
        "empty": (Scene(s.snapshot(s.idle("box"), cluster="box")), 80, 10),
        "five-lines": (Scene(s.three(), NODES), 80, 5),
        "once": (Scene(s.three(), Ui(once=True)), 1 << 16, 0),
        "once-60": (Scene(s.three(), Ui(once=True)), 60, 0),
        **{f"training-{w}x{h}": (TRAINING, w, h) for w, h in SIZES},
        "training-ascii": (replace(TRAINING, ui=Ui(ascii=True)), 100, 34),
        "no-log": (replace(TRAINING, ui=Ui(log=False)), 80, 24),
        **{f"job-{w}x{h}": (JOB, w, h) for w, h in ((40, 12), (80, 24), (120, 60))},
        **{f"balanced-{w}": (BALANCED, w, 36) for w in (80, 120)},
        **{f"balanced-job-{w}": (replace(BALANCED, ui=JOB.ui), w, 34) for w in (60, 100)},
        "rounds-job": (replace(JOB, snapshot=s.rounds()), 100, 30),
        **{f"node-{w}x{h}": (NODE, w, h) for w, h in ((40, 12), (80, 24), (120, 40))},
    }  # fmt: skip


SCENES = _scenes()


def _plain(name: str) -> str:
    return "".join(f"{line}\n" for line in drawn(*SCENES[name]))


def _painted(name: str) -> str:
    """With the codes of the 16 colours, in a form that can be read."""
    scene, width, height = SCENES[name]
    rows = Painter(16).rows(view(scene, width, height), width, height)
    return "".join(f"{row}\n" for row in rows).replace("\x1b", "ESC")


def _picture(scene: Scene, width: int) -> str:
    height = natural(scene, width)
    return picture(view(scene, width, height), width, height)


SCREENS: dict[str, Callable[[], str]] = {
    **{f"{name}.txt": lambda name=name: _plain(name) for name in SCENES},  # type: ignore[misc]
    **{
        f"{name}.colours.txt": lambda name=name: _painted(name)  # type: ignore[misc]
        for name in ("training-80x24", "diverged", "gone", "lost", "confirm", "troubled-100")
    },
    "training-120.svg": lambda: _picture(TRAINING, 120),
    "balanced-job.svg": lambda: _picture(replace(BALANCED, ui=JOB.ui), 100),
    "training-60.svg": lambda: _picture(TRAINING, 60),
}


if __name__ == "__main__":
    for path in GOLDEN.iterdir():
        path.unlink()
    for name, draw in SCREENS.items():
        (GOLDEN / name).write_text(draw())
