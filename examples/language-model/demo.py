"""Train one language model twice, over wiiiiide and over gloo, and compare the two runs.

This is what `make demo` starts. It exists so that somebody new sees within about a minute what
the backend does: train.py beside this file is the ordinary script that is run, and this one only
starts it, shows how it goes and puts the numbers next to each other.
"""

import os
import signal
import sys
from types import FrameType

STOPPED = "Stopped; no process is left running."


def stop_at_once(_number: int, _frame: FrameType | None) -> None:
    """For Ctrl-C while modules are still loading: nothing is started yet, so just leave."""
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop_at_once)

# What follows takes long enough to load for somebody to press Ctrl-C meanwhile.
import argparse  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from ranks import WORLD, RankFailed, Ranks, Stopped, StopRequest  # noqa: E402
from record import Record  # noqa: E402

if TYPE_CHECKING:
    from view import View


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small language model over two backends and compare the runs."
    )
    parser.add_argument("--steps", type=int, default=200, help="steps per run (%(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of both runs (%(default)s)")
    parser.add_argument(
        "--backends",
        nargs=2,
        default=["wiiiiide", "gloo"],
        metavar=("FIRST", "SECOND"),
        help="the two backends, in the order they run (wiiiiide gloo)",
    )
    options = parser.parse_args()
    if options.steps < 1 or options.batch < 1:
        parser.error("--steps and --batch must be at least 1")
    return options


def follow(record: Record, ranks: Ranks, shown: "View") -> None:
    """One run from its start to its end, shown as it goes."""
    record.start()
    try:
        with ranks:
            for event in ranks.events():
                if event is not None:
                    record.take(event)
                shown.tick(record, is_news=event is not None)
    except (Stopped, RankFailed):
        record.state = "stopped"
        raise


def demonstrate(options: argparse.Namespace, stop: StopRequest) -> int:
    # Imported here, so that main() can say in one line that Rich is missing.
    import view
    from rich.console import Console

    console = Console(highlight=False)
    arguments = [f"--{name}={getattr(options, name)}" for name in ("steps", "batch", "seed")]
    per_step = options.batch * WORLD
    records = [Record(backend, options.steps, per_step) for backend in options.backends]
    view.introduce(console, records)
    with view.View(console, records) as shown:
        for record in records:
            follow(record, Ranks(record.backend, arguments, stop), shown)
    return 0 if view.summarize(console, records) else 1


def main() -> int:
    stop = StopRequest()
    options = parse_arguments()
    # A terminal that cannot show a sign gets a question mark, and not a traceback.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return demonstrate(options, stop)
    except Stopped:
        print(STOPPED, file=sys.stderr)
        return 128 + (stop.signal or 0)
    except RankFailed as failure:
        print(failure, file=sys.stderr)
        for line in failure.last_lines or ["(it wrote nothing to stderr)"]:
            print(f"    {line}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"{error}. The demo needs Rich: pip install rich", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
