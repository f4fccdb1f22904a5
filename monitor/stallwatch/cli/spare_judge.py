"""`python -m stallwatch.cli.spare_judge`: `stallwatch analyze --json`, started before there is a bundle.

The daemon keeps one while there are ranks, so that imports (half a second of CPU) cost the verdict no time; the bundle
comes as one line on standard input, whose end ends it. An empty line before it says that something is looked at: then
the child that parses is started, too. Nothing else differs from the command, whose arguments it takes.
"""

import contextlib
import sys

from stallwatch.bundle import (
    reader,  # noqa: F401  what analyze imports when it is called
    report,  # noqa: F401
    workers,
)
from stallwatch.cli import analyze  # noqa: F401
from stallwatch.cli.app import run
from stallwatch.node.capabilities import drop_unless_root


def main() -> int:
    """Judge the bundle that standard input names, once it does; 0 without one."""
    drop_unless_root()
    line = sys.stdin.readline()
    if line == "\n":
        with contextlib.suppress(OSError):  # it is started when it is needed, then
            workers.start_ahead()
        line = sys.stdin.readline()
    path = line.rstrip("\n")
    return run(["analyze", "--json", *sys.argv[1:], path]) if path else 0


if __name__ == "__main__":
    sys.exit(main())
