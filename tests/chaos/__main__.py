"""Breaks a node on purpose, and says what was lost.

python -m tests.chaos kills --kills 500 --seconds 2100 [--seed N]   daemon, privileged side, children killed
python -m tests.chaos soak --seconds 3600                           nothing is broken: does anything of ours grow?
python -m tests.chaos scenarios [NAME …]                            disks, clocks, floods, corrupt state, …
"""

import argparse
import random
import signal
import sys
from pathlib import Path

from tests.chaos import kills, scenarios, soak


def end(*_: object) -> None:
    """Raise, so that what was started is ended too; a shell's `&` has us ignore Ctrl-C."""
    raise SystemExit(143)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--keep", type=Path, help="leave the node's logs and state there")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    commands = parser.add_subparsers(dest="command", required=True)
    killing = commands.add_parser("kills", help="daemon, privileged side and children at random moments")
    killing.add_argument("--kills", type=int, default=500)
    killing.add_argument("--seconds", type=float, default=2100.0)
    soaking = commands.add_parser("soak", help="faults and healthy stretches for a long time")
    soaking.add_argument("--seconds", type=float, default=3600.0)
    soaking.add_argument("--ranks", type=int, default=soak.RANKS)
    playing = commands.add_parser("scenarios", help=", ".join(scenarios.SCENARIOS))
    playing.add_argument("names", nargs="*", metavar="NAME", help="all without one")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, end)
    if options.command == "scenarios":
        return scenarios.run(options.names, options.seed, options.keep)
    result = (
        kills.run(options.kills, options.seconds, options.seed, options.keep)
        if options.command == "kills"
        else soak.run(options.seconds, options.seed, options.ranks, options.keep)
    )
    print("\n".join(result.lines()))
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
