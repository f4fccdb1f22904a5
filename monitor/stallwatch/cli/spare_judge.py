"""`python -m stallwatch.cli.spare_judge`: `stallwatch analyze --json`, started before there is a bundle.

The daemon keeps one while there are ranks, so that imports (half a second of CPU) cost the verdict no time; the bundle
comes as one line on standard input, whose end ends it. Nothing else differs from the command, whose
arguments it takes.
"""

import sys

from stallwatch.bundle import reader, report  # noqa: F401  what analyze imports when it is called
from stallwatch.cli import analyze  # noqa: F401
from stallwatch.cli.app import run
from stallwatch.node.capabilities import drop_unless_root


def main() -> int:
    """Judge the bundle that standard input names, once it does; 0 without one."""
    drop_unless_root()
    path = sys.stdin.readline().rstrip("\n")
    return run(["analyze", "--json", *sys.argv[1:], path]) if path else 0


if __name__ == "__main__":
    sys.exit(main())
