"""NVML and the training interpreter, each asked once, in a child that starts at once and may be lost."""

import time
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TypeVar

import msgspec

from stallwatch.doctor.live.lost import Promise, run_child
from stallwatch.doctor.surroundings import CommandResult, RankFacts, TrainingInterpreter
from stallwatch.model.gpu import GpuState
from stallwatch.model.reading import Known, Unavailable
from stallwatch.node import nvml_once

_TRAINING = msgspec.json.Decoder(TrainingInterpreter)

T = TypeVar("T")

_NVML_SECONDS = 3.5
_TRAINING_SECONDS = 3.5


class ChildCommands:
    """Satisfies doctor.surroundings.Commands: each command is a child that may be lost."""

    def run(self, argv: Sequence[str], seconds: float) -> Known[CommandResult] | Unavailable:
        """Run a command; Unavailable where it cannot be started or has not ended within so many seconds."""
        return run_child(argv, seconds)


class NvmlChild:
    """Satisfies doctor.surroundings.GpuProbe: NVML in a child that is started at once and asked once."""

    def __init__(
        self,
        seconds: float = _NVML_SECONDS,
        argv: Sequence[str] = nvml_once.COMMAND,
        release_file: str | Path = "",
    ) -> None:
        self._promise = Promise(lambda: nvml_once.ask(seconds, argv, release_file), seconds + 0.2, "NVML")

    def state(self) -> Known[GpuState] | Unavailable:
        """Wait for NVML's answer, the same for everybody who asks; Unavailable says why there is none."""
        answer = self._promise.get()
        return answer.value if isinstance(answer, Known) else answer


class TrainingChild:
    """`--python`, else a running rank's interpreter, else our own."""

    def __init__(self, executable: str, environment: Mapping[str, str], seconds: float = _TRAINING_SECONDS) -> None:
        program = (
            resources.files("stallwatch.doctor.frameworks").joinpath("versions_probe.py").read_text(encoding="utf-8")
        )
        # As training would start: its own environment, and no user's start-up file of ours.
        self._promise = Promise(
            lambda: run_child((executable, "-c", program), seconds, environment=dict(environment), what=executable),
            seconds + 0.2,
            executable,
        )

    def ask(self) -> Known[TrainingInterpreter] | Unavailable:
        """Wait for the interpreter's answer; Unavailable where it failed, is late or wrote what we cannot read."""
        return _decode(self._promise.get(), _TRAINING, "the training interpreter")


class WrittenVersions:
    """Versions as a rank's hook wrote them down; nothing is started."""

    def __init__(self, rank: RankFacts) -> None:
        self._rank = rank

    def ask(self) -> Known[TrainingInterpreter] | Unavailable:
        """Return what the rank's hook wrote; conflicts between packages are not known from it."""
        versions = self._rank.versions
        written = TrainingInterpreter(
            executable=self._rank.executable,
            python=versions.get("python", ""),
            versions={name.replace("_", "-"): version for name, version in versions.items()},
            cuda=versions.get("cuda", ""),
            hip=versions.get("hip", ""),
            nccl=versions.get("nccl", ""),
            not_compared="the interpreter is another user's, and its hook wrote versions alone",
        )
        return Known(written, time.monotonic_ns())


def _decode(
    reading: Known[Known[CommandResult] | Unavailable] | Unavailable, decoder: msgspec.json.Decoder[T], what: str
) -> Known[T] | Unavailable:
    inner = reading.value if isinstance(reading, Known) else reading
    if not isinstance(inner, Known):
        return inner
    now, outcome = time.monotonic_ns(), inner.value
    if outcome.exit_code != 0:
        last = (outcome.stderr.strip().splitlines() or [f"exit code {outcome.exit_code}"])[-1]
        return Unavailable(f"{what} failed: {last[:300]}", now)
    try:
        # A library that prints at import must not spoil the answer: it is the last line.
        return Known(decoder.decode(outcome.stdout.splitlines()[-1]), now)
    except (msgspec.MsgspecError, IndexError) as error:
        return Unavailable(f"{what} answered nonsense: {error}", now)
