"""Breaks a node on purpose, and says what was lost.

python -m tests.chaos kills --kills 500 --seconds 2100 [--seed N]   daemon, privileged side, children killed
python -m tests.chaos soak --seconds 3600                           nothing is broken: does anything of ours grow?
python -m tests.chaos churn --seconds 420                           ranks come and go: does their reader grow?
python -m tests.chaos scenarios [NAME …]                            disks, clocks, floods, corrupt state, …
python -m tests.chaos allocations --ticks 100                       ticks of the loop without memory
python -m tests.chaos fleet --incidents 1000 [--place redis]        nodes that die, are late, cut off, say things twice
"""

import argparse
import random
import signal
import sys
from pathlib import Path
from typing import get_args

from tests.chaos import allocations, churn, fleet, kills, scenarios, soak
from tests.chaos.fleet_places import PlaceKind


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
    soaking.add_argument("--at-once", type=int, help="so many faults all the time, for an hour's in minutes")
    churning = commands.add_parser("churn", help="ranks that come and go, and their reader alone")
    churning.add_argument("--seconds", type=float, default=420.0)
    churning.add_argument("--every", type=float, default=20.0, help="seconds between what it gives back")
    failing = commands.add_parser("allocations", help="ticks of the loop in which allocations fail")
    failing.add_argument("--ticks", type=int, default=100)
    playing = commands.add_parser("scenarios", help=", ".join(scenarios.SCENARIOS))
    playing.add_argument("names", nargs="*", metavar="NAME", help="all without one")
    meeting = commands.add_parser("fleet", help="simulated incidents of whole fleets, by seeds from --seed on")
    meeting.add_argument("--incidents", type=int, default=1000)
    meeting.add_argument("--place", choices=get_args(PlaceKind), default="memory", help="redis needs a C compiler")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, end)
    if options.command == "scenarios":
        return scenarios.run(options.names, options.seed, options.keep)
    if options.command == "allocations":
        lines = list(allocations.run(options.ticks, options.seed))
        print("\n".join(lines))
        return 1 if len(lines) > 1 else 0
    if options.command == "churn":
        for line in churn.run(options.seconds, options.seed, options.every):
            print(line, flush=True)
        return 0
    if options.command == "fleet":
        count = fleet.incidents(options.incidents, options.seed, options.place)
        print("\n".join(count.lines()))
        return 0 if count.good else 1
    result = (
        kills.run(options.kills, options.seconds, options.seed, options.keep)
        if options.command == "kills"
        else soak.run(options.seconds, options.seed, options.ranks, options.keep, options.at_once)
    )
    print("\n".join(result.lines()))
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
