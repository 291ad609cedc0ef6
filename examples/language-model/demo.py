"""Run one job three ways through a private daemon, and compare: wide.parallel, DDP, DDP over gloo.

This is what `make demo` starts. It exists so that a newcomer sees within a minute how the
product is used and what the backend does: a daemon is started, jobs are submitted, their logs are
followed. job.toml and train.py beside this file are what a user would write; all else here only
shows how it goes and puts the numbers next to each other.
"""

import os
import signal
import sys
from types import FrameType

STOPPED = "Stopped: jobs cancelled, daemon stopped, nothing is left."


def stop_at_once(_number: int, _frame: FrameType | None) -> None:
    """For Ctrl-C while modules are still loading: nothing is started yet, so just leave."""
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop_at_once)

# These take long enough to load for a Ctrl-C to come meanwhile.
import argparse  # noqa: E402

from stop import Failed, Stopped, StopRequest  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small language model in several ways and compare the runs."
    )
    parser.add_argument("--steps", type=int, default=200, help="steps per run (%(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all runs (%(default)s)")
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["parallel", "ddp", "gloo"],
        choices=["parallel", "ddp", "gloo"],
        help="in the order they run (parallel ddp gloo)",
    )
    options = parser.parse_args()
    if options.steps < 1 or options.batch < 1:
        parser.error("--steps and --batch must be at least 1")
    return options


def main() -> int:
    stop = StopRequest()
    options = parse_arguments()
    # A terminal that cannot show a sign gets a question mark, and not a traceback.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        from play import play  # here, so that one line can say what is not installed

        return 0 if play(options, stop) else 1
    except Stopped:
        print(STOPPED, file=sys.stderr)
        return 128 + (stop.signal or 0)
    except Failed as failure:
        print(failure, file=sys.stderr)
        for line in failure.last_lines or ["(it left no words)"]:
            print(f"    {line}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"{error}. The demo needs what `make install` installs.", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
