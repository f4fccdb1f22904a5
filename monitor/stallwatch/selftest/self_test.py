"""The whole self-test: choose interpreter and ranks, run one job, and on failure search for what makes it pass."""

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from stallwatch import __version__
from stallwatch.errors import StallwatchError, UsageError
from stallwatch.selftest import interpreter, link_speeds, nccl_tests
from stallwatch.selftest.bisect import Change, Setup, bisect
from stallwatch.selftest.launching import JobPlan
from stallwatch.selftest.result import (
    SCHEMA_VERSION,
    Bisection,
    Failure,
    NcclTests,
    SelfTestReport,
    TrialResult,
)
from stallwatch.selftest.trial import Tell, Trial

_CPU_RANKS = 4
_NCCL_MOST_BYTES, _GLOO_MOST_BYTES = 256 << 20, 4 << 20
# A trial that hangs costs this much; NCCL's start on eight GPUs takes some seconds.
_BISECT_STEP_SECONDS = 20.0


class SelfTestOptions(msgspec.Struct, frozen=True):
    """What the person asked for. None: to be found out (interpreter, ranks, most bytes) or not wanted (`keep`: the
    folder in which all files stay). Times are in seconds."""

    python: str | None = None
    ranks: int | None = None
    backend: str = "auto"
    most_bytes: int | None = None
    step_seconds: float = 30.0
    start_seconds: float = 120.0
    bisect: bool = False
    bisect_seconds: float = 600.0
    keep: Path | None = None
    program: str | None = None


class SelfTest:
    """One self-test of this node; it is told which variables the ranks get, and `tell` gets a line for people at each
    stage."""

    def __init__(self, options: SelfTestOptions, environment: Mapping[str, str], tell: Tell) -> None:
        self._options = options
        self._environment = environment
        self._tell = tell
        self._trials = 0
        self._python = ""

    def run(self) -> SelfTestReport:
        """Raise UsageError for what the caller must change. A fault of the test itself is a report with `ok` None."""
        began = time.monotonic()
        report = SelfTestReport(SCHEMA_VERSION, __version__, None, socket.gethostname())
        try:
            report = self._run(report)
        except UsageError:
            raise
        except (StallwatchError, OSError) as error:
            help_ = getattr(error, "help", "")
            report = msgspec.structs.replace(report, python=self._python, problem=f"{error}\n{help_}".strip())
        return msgspec.structs.replace(report, seconds=round(time.monotonic() - began, 2))

    def _run(self, report: SelfTestReport) -> SelfTestReport:
        python = self._python = interpreter.find_python(self._options.python, self._environment)
        report = msgspec.structs.replace(report, python=python)
        plan, failure = self._plan(python)
        if failure is not None:
            trial = TrialResult(plan.backend, plan.ranks, 0.0, (), (), failure)
            return msgspec.structs.replace(report, ok=False, trial=trial)
        with self._folder() as folder:
            trial = self._trial(plan, folder, self._environment, look=True)
            if trial.failure and "address already in use" in trial.failure.summary.lower():
                # Somebody took the port between our choice and its use.
                trial = self._trial(plan, folder, self._environment, look=True)
            bisection = self._bisect(plan, trial, folder) if trial.failure and self._options.bisect else None
        tests = self._nccl_tests(plan)
        ok = trial.ok and (tests is None or tests.ok)
        warnings = link_speeds.warnings(trial, link_speeds.read_gpus()) if plan.backend == "nccl" else ()
        return msgspec.structs.replace(
            report, ok=ok, trial=trial, warnings=warnings, bisection=bisection, nccl_tests=tests
        )

    def _plan(self, python: str) -> tuple[JobPlan, Failure | None]:
        options = self._options
        gpus = interpreter.Gpus(0)
        if options.backend != "gloo" and interpreter.may_have_gpus():
            self._tell("asking torch for GPUs")
            gpus = interpreter.count_gpus(python, self._environment)
        backend = options.backend
        if backend == "auto":
            backend = "nccl" if gpus.count or gpus.problem else "gloo"
        ranks = options.ranks or (gpus.count if backend == "nccl" and gpus.count else _CPU_RANKS)
        if backend == "nccl" and gpus.count and ranks > gpus.count:
            raise UsageError(
                f"{ranks} ranks with NCCL need {ranks} GPUs; torch sees {gpus.count}",
                f"Use --ranks {gpus.count}, or --backend gloo for the CPU.",
            )
        plan = JobPlan(
            python=python,
            ranks=ranks,
            backend=backend,
            step_seconds=options.step_seconds,
            start_seconds=options.start_seconds,
            most_bytes=options.most_bytes,
            devices=tuple(range(ranks)) if backend == "nccl" else (),
            program=options.program,
        )
        failure = Failure("error", "device", None, (), gpus.problem) if gpus.problem else None
        return plan, failure

    def _trial(self, plan: JobPlan, folder: Path, environment: Mapping[str, str], *, look: bool) -> TrialResult:
        self._trials += 1
        tell = self._tell if look else _silent
        return Trial(plan, folder / f"trial-{self._trials}", environment, tell, look=look).run()

    def _bisect(self, plan: JobPlan, trial: TrialResult, folder: Path) -> Bisection | None:
        failure = trial.failure
        assert failure is not None

        def run(change: Change, only: tuple[str, ...]) -> TrialResult:
            environment = {name: value for name, value in self._environment.items() if name not in change.environment}
            environment |= {name: value for name, value in change.environment.items() if value is not None}
            changed = msgspec.structs.replace(
                plan,
                ranks=change.ranks or plan.ranks,
                devices=change.devices or plan.devices[: change.ranks or plan.ranks],
                step_seconds=min(plan.step_seconds, _BISECT_STEP_SECONDS),
                most_bytes=_most_bytes(plan, failure),
                only=only,
            )
            return self._trial(changed, folder, environment, look=False)

        setup = Setup(plan.backend, plan.ranks, plan.devices, self._environment)
        return bisect(setup, failure, run, self._options.bisect_seconds, self._tell)

    def _nccl_tests(self, plan: JobPlan) -> NcclTests | None:
        program = nccl_tests.find(self._environment) if plan.backend == "nccl" else None
        if program is None:
            return None
        self._tell(f"nccl-tests: {program}")
        return nccl_tests.run(program, plan.ranks, plan.most_bytes or _NCCL_MOST_BYTES, self._environment)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        if self._options.keep is not None:
            folder = self._options.keep
            if folder.exists() and any(folder.iterdir()):
                raise UsageError(f"{folder} is not empty", "Give --keep a folder that is new.")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield folder.resolve()
            return
        made = Path(tempfile.mkdtemp(prefix="stallwatch-selftest-"))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _most_bytes(plan: JobPlan, failure: Failure) -> int:
    """As far as the size that failed: what lies above it was never reached."""
    most = plan.most_bytes or (_NCCL_MOST_BYTES if plan.backend == "nccl" else _GLOO_MOST_BYTES)
    return most if failure.bytes is None else min(most, max(8, failure.bytes))


def _silent(text: str) -> None:
    """Steps of a bisection's trials are not told one by one."""
