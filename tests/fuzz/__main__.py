"""Feeds what we read of others with anything at all.

    python -m tests.fuzz [--minutes M] [TARGET …]              by hypothesis, from real captures
    python -m tests.fuzz --atheris FOLDER [--minutes M] [TARGET …]   guided by coverage (pip install atheris)

What breaks something is kept in tests/fuzz/corpus, which the unit tests run.
"""

import argparse
import random
import sys
from pathlib import Path

from tests.fuzz import engine
from tests.fuzz.targets import HTTP, TARGETS


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--atheris", type=Path, metavar="FOLDER", help="where it keeps what it learns")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    options = parser.parse_args(argv)
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    broken = 0
    print(f"seed {options.seed}")
    for name in options.targets or TARGETS:
        if options.atheris is not None:
            broken += engine.with_atheris(name, options.minutes * 60, options.atheris) != 0
            continue
        found = engine.fuzz(name, options.minutes * 60, options.seed)
        print(engine.said(name, found), flush=True)
        if found.crash is not None:
            broken += 1
            print(f"  kept as {engine.keep(name, found.crash)}", flush=True)
    HTTP.close()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
