"""`python -m stallwatch.cli.warm`: `stallwatch analyze --json`, started before the bundle is complete.

The daemon starts it with a look at the ranks, so that imports (half a second of CPU) cost the verdict no time; the
bundle comes as one line on standard input. Nothing else differs from the command.
"""

import signal
import sys

from stallwatch.bundle import reader, report  # noqa: F401  what analyze imports when it is called
from stallwatch.cli import analyze  # noqa: F401
from stallwatch.cli.app import run
from stallwatch.node.capabilities import drop_unless_root

_UNUSED_SECONDS = 120  # a suspicion that came to nothing needs no verdict


def main() -> int:
    drop_unless_root()
    signal.alarm(_UNUSED_SECONDS)
    path = sys.stdin.readline().rstrip("\n")
    signal.alarm(0)
    return run(["analyze", "--json", path]) if path else 0


if __name__ == "__main__":
    sys.exit(main())
