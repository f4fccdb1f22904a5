"""Judges a sample of a job that moves: `python -m stallwatch.captures.sample_child` with a SampleSpec on standard
input, and the number of the socket to captures.sample_look as argument. Nothing is kept."""

import os
import resource
import socket
import sys
import time
from pathlib import Path

import msgspec

from stallwatch.bundle.reader import load
from stallwatch.bundle.writer import write_json
from stallwatch.captures.allowance import Allowance, Limits
from stallwatch.captures.channel import messages
from stallwatch.captures.keeper import Keeper
from stallwatch.captures.sample_spec import SampleResult, SampleSpec
from stallwatch.diagnosis.drifted import judge_sample
from stallwatch.errors import StallwatchError
from stallwatch.node.capabilities import drop_unless_root
from stallwatch.node.no_network import give_up_network
from stallwatch.node.scratch import scratch_folder

_MEMORY_BYTES = 2 << 30
_LIMITS = Limits(rank=32 << 20, incident=256 << 20, owner=256 << 20, whole=256 << 20)  # of memory: nothing is kept


def judge(spec: SampleSpec, folder: Path, answered: int) -> SampleResult:
    """Compare what was written below `folder`, where `answered` ranks have."""
    if not answered:
        return SampleResult(0, (), spec.before, "no rank's recorder answered")
    write_json(folder / "bundle.json", {"schema_version": 1, "world_size": spec.world_size})
    wall_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
    try:
        evidence = load([folder])
    except StallwatchError as error:
        return SampleResult(answered, (), spec.before, str(error))
    verdicts, memory = judge_sample(evidence, spec.before, wall_minus_monotonic_ns)
    return SampleResult(answered, verdicts, memory)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=SampleSpec)
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    drop_unless_root()
    give_up_network()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with scratch_folder() as name:
        keeper = Keeper(Path(name), "node", spec.ranks, 1, Allowance(Path(name), "", _LIMITS))
        answered = 0
        for message in messages(channel):
            state = keeper.take(message)
            if state is not None:
                answered = len(set(spec.ranks)) - len(state.missing) + len(keeper.missing)
        result = judge(spec, Path(name), answered)
    os.write(sys.stdout.fileno(), msgspec.json.encode(result))


if __name__ == "__main__":
    main()
