"""Where a shim begins: `python -I -S run.py …`, with nothing of the user's on its path."""

import os.path
import sys

sys.path.insert(0, os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 4)))

from wiiiiided.cluster.shim.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
