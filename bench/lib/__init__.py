"""The benchmarks' common parts, and the programs that their ranks run.

Machines, networks and daemons are those of the tests: tests/kit is imported from beside bench/.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
