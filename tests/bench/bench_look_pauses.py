"""For how long a look holds ranks that communicate, measured in the ranks: no more than 50 ms before anything is told.

    python tests/bench/bench_look_pauses.py [--ranks 8] [--seconds 120] [--captures 10] [--every 5] [--backend nccl]

A job of ranks under a daemon in its default configuration. It moves all the time and is looked at on demand
(`stallwatch capture`), as any look before a verdict does; every so often rank 0 stands still for some seconds, so that
the job is suspected, and goes on. Each rank notes when one of its threads, woken a thousand times a second, did not
run, and what each step took (tests/programs/communicating.py). A machine with less than two free cores a rank makes
gaps of its own: those before the first look are shown beside those since then. A look at a suspicion that passed keeps
no note of itself, so every later gap may be of a look. Exit code 0 when none of these is longer than 50 ms, or than the
longest before.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.errors import StallwatchError
from stallwatch.model.evidence import Attempt
from tests.bench import jobs
from tests.bench.bench_footprint import has_gpu
from tests.bench.figures import Figure, percentile
from tests.bench.lanes import cores_of

PROGRAM = Path(__file__).parents[1] / "programs/communicating.py"
JOB = "pauses"
MOST_SECONDS = 0.05
SETTLE_SECONDS = 10.0
# An attempt says when it was asked; what it asked for is done soon after.
ATTEMPT_SECONDS = 0.6
WAKE_SECONDS = 0.001


class Gap(NamedTuple):
    at: float
    seconds: float
    kind: str
    rank: int


class Pauses(NamedTuple):
    """Gaps of threads and steps, what was asked of ranks when, and how often people were told."""

    gaps: list[Gap]
    looks: list[tuple[float, str]]
    told: int

    def of(self, kind: str) -> tuple[list[Gap], list[Gap]]:
        """Return the gaps of this kind since ranks were first looked at, and those before, the longest first."""
        some = sorted((gap for gap in self.gaps if gap.kind == kind), key=lambda gap: -gap.seconds)
        first = min((at for at, _ in self.looks), default=float("inf")) - MOST_SECONDS
        return [gap for gap in some if gap.at >= first], [gap for gap in some if gap.at < first]

    def steps(self) -> tuple[list[float], list[float]]:
        """Return the seconds of steps of which something was asked of ranks meanwhile, and of all others."""
        asked = sorted(at for at, _ in self.looks)
        looked_at: list[float] = []
        others: list[float] = []
        for gap in self.gaps:
            if gap.kind == "step":
                next_asked = bisect_left(asked, gap.at - ATTEMPT_SECONDS)
                is_looked_at = next_asked < len(asked) and asked[next_asked] <= gap.at + gap.seconds
                (looked_at if is_looked_at else others).append(gap.seconds)
        return looked_at, others


def main() -> int:
    options = _options()
    if options.cores:
        os.sched_setaffinity(0, cores_of(options.cores))
    pauses = _measure(options)
    for figure in _figures(pauses):
        print(figure)
    return _show(pauses)


def figures(quick: bool) -> list[Figure]:
    """8 ranks, of NCCL where there is a GPU."""
    options = _options(["--backend", "nccl" if has_gpu() else "gloo", *(["--seconds", "60"] if quick else [])])
    pauses = _measure(options)
    _show(pauses)
    return _figures(pauses)


def _figures(pauses: Pauses) -> list[Figure]:
    during, alone = (sorted(gap.seconds * 1e3 for gap in some) for some in pauses.of("thread"))
    beside = f"{len(during)} over 20 ms; before any {max(alone, default=0):.0f} ms at most, of {len(alone)}"
    found = [Figure("longest pause while looked at", max(during, default=0.0), "ms", detail=beside)]
    looked_at, others = pauses.steps()
    if looked_at and others:
        detail = f"{len(looked_at)} steps; p99.9 of {len(others)} others {percentile(others, 0.999) * 1e3:.0f} ms"
        found.append(Figure("step while looked at, p99.9", percentile(looked_at, 0.999) * 1e3, "ms", detail=detail))
        ratio = percentile(looked_at, 0.999) / percentile(others, 0.999)
        found.append(Figure("step while looked at, p99.9 against others", ratio, "×"))
    return found


def _measure(options: argparse.Namespace) -> Pauses:
    with tempfile.TemporaryDirectory(prefix="stallwatch-") as name, jobs.server() as server:
        folder = Path(name)
        daemon = DaemonChild(
            folder, os.environ, {"capture": {"pause_for_stacks": "false"}} if options.no_pause else None
        )
        daemon.start()
        try:
            job = server.launch(
                PROGRAM,
                [str(folder), str(options.seconds), "pause"],
                options.ranks,
                {"STALLWATCH_DIR": str(daemon.rank_directory), "STALLWATCH_JOB": JOB, **_environment(options.backend)},
                folder / "job.log",
            )
            _look_now_and_then(daemon, options)
            if job.wait(options.seconds + 120) != 0:
                raise RuntimeError((folder / "job.log").read_text(errors="replace")[-3000:])
            looks = list(_attempts(folder / "state/incidents"))
            said = [one for one in daemon.client.incidents().incidents if one.training_job == JOB]
        finally:
            daemon.stop()
        told = sum(one.severity != "none" for one in said)
        return Pauses(_gaps(folder, options.ranks), looks, told)


def _look_now_and_then(daemon: DaemonChild, options: argparse.Namespace) -> None:
    time.sleep(SETTLE_SECONDS)
    for _ in range(options.captures):
        with contextlib.suppress(StallwatchError):  # one is under way
            daemon.client.capture(JOB)
        time.sleep(options.every)


def _attempts(incidents: Path) -> Iterator[tuple[float, str]]:
    """When what was asked of any rank, on the clock of the ranks."""
    offset = time.time() - time.monotonic()
    for path in incidents.glob("**/attempts.json"):
        for attempt in msgspec.json.decode(path.read_bytes(), type=list[Attempt]):
            if attempt.asked_at_ns is not None:
                at = attempt.asked_at_ns / 1e9
                yield (at - offset if at > 1e9 else at), f"{attempt.what} {attempt.detail}"


def _gaps(folder: Path, ranks: int) -> list[Gap]:
    return [
        Gap(at, seconds, kind, rank)
        for rank in range(ranks)
        for at, seconds, kind in map(json.loads, (folder / f"gaps-{rank}.jsonl").read_text().splitlines())
    ]


def _show(pauses: Pauses) -> int:
    during, alone = pauses.of("thread")
    print(f"{len(pauses.looks)} things asked of ranks; told: {pauses.told}; load {os.getloadavg()[0]:.1f}")
    for name, some in (("since a look", during), ("before", alone)):
        over = sum(gap.seconds > MOST_SECONDS for gap in some)
        longest = ", ".join(f"{gap.seconds * 1e3:.0f} ms (rank {gap.rank})" for gap in some[:5])
        print(f"{name:16}: {len(some)} gaps over 20 ms, {over} over 50 ms; longest {longest or 'none'}")
    for gap in during[:5]:
        print(f"  {gap.seconds * 1e3:.0f} ms on rank {gap.rank} beside: {', '.join(_beside(gap, pauses.looks)[:6])}")
    usual = max((gap.seconds for gap in alone), default=0.0)
    longest_seconds = max((gap.seconds for gap in during), default=0.0)
    return 0 if longest_seconds <= max(MOST_SECONDS, usual) + WAKE_SECONDS else 1


def _beside(gap: Gap, looks: list[tuple[float, str]]) -> list[str]:
    """What was asked of ranks at the time of a gap."""
    end = gap.at + gap.seconds + MOST_SECONDS
    return sorted({what for at, what in looks if at <= end and gap.at <= at + ATTEMPT_SECONDS})


def _environment(backend: str) -> dict[str, str]:
    source = str(Path(__file__).parents[2] / "monitor")
    return {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COMMUNICATING_BACKEND": backend}


def _options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--captures", type=int, default=10)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between captures")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--cores", default="", help="0-15; default: all that we may use")
    parser.add_argument("--no-pause", action="store_true", help="capture.pause_for_stacks = false")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
