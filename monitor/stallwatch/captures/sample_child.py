"""A sample of a job that moves, in its own process: `python -m stallwatch.captures.sample_child` with a SampleSpec on
standard input. Asks every rank for its recorder's entries, without call sites, at one moment; nothing is kept."""

import contextlib
import os
import resource
import sys
import threading
import time
from pathlib import Path

import msgspec

from stallwatch.bundle.reader import load
from stallwatch.bundle.writer import write_json
from stallwatch.captures.flight_recorder import RecorderRequest
from stallwatch.captures.folder import NotCaptured, RankFolder
from stallwatch.captures.sample_spec import SampleResult, SampleSpec
from stallwatch.diagnosis.drifted import judge_sample
from stallwatch.errors import StallwatchError
from stallwatch.hook.layout import LayoutError
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import RankSample
from stallwatch.node.capabilities import drop_unless_root
from stallwatch.node.heartbeat_file import read_heartbeat
from stallwatch.node.no_network import give_up_network
from stallwatch.node.scratch import scratch_folder

_RUNGS = ("entries",)  # without stacks: 28 ms of the GIL for 2,000 entries under NCCL, not seconds
_MEMORY_BYTES = 2 << 30


def take(spec: SampleSpec, folder: Path) -> int:
    """Write what each rank answers below `folder`; return how many answered."""
    answered: list[int] = []

    def ask(sample: RankSample) -> None:
        if not isinstance(sample.heartbeat, Known):
            return
        rank = RankFolder(folder, sample.rank, 1)
        request = RecorderRequest(sample, rank, spec.seconds, spec.at_ns)
        with contextlib.suppress(OSError):
            request.ask(_RUNGS)
            if not request.missing:
                answered.append(sample.rank)
        # After the dump: its steps then cover the entries.
        with contextlib.suppress(OSError, NotCaptured, LayoutError, StallwatchError):
            rank.write_json("heartbeat.json", read_heartbeat(Path(sample.heartbeat.value.path)))

    threads = [threading.Thread(target=ask, args=(sample,), daemon=True) for sample in spec.targets]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + spec.seconds + 1
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return len(answered)


def judge(spec: SampleSpec, folder: Path, answered: int) -> SampleResult:
    """Compare what was written. Nothing here reads another user's files any more."""
    if not answered:
        return SampleResult(0, (), spec.before, "no rank's recorder answered")
    write_json(folder / "bundle.json", {"schema_version": 1, "world_size": spec.targets[0].world_size})
    wall_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
    try:
        evidence = load([folder])
    except StallwatchError as error:
        return SampleResult(answered, (), spec.before, str(error))
    verdicts, memory = judge_sample(evidence, spec.before, wall_minus_monotonic_ns)
    return SampleResult(answered, verdicts, memory)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=SampleSpec)
    give_up_network()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with scratch_folder() as name:
        answered = take(spec, Path(name))
        with contextlib.suppress(OSError):
            drop_unless_root()
        result = judge(spec, Path(name), answered)
    os.write(sys.stdout.fileno(), msgspec.json.encode(result))


if __name__ == "__main__":
    main()
