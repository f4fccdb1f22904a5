"""One fault played to its end: daemon up, job started, verdict read, everything that was started ended again."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from stallwatch.demo.catalogue import Fault, culprits
from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.demo.job import PROGRAMS, Launch, TorchrunJob, job_environment
from stallwatch.demo.outcome import DemoOutcome
from stallwatch.demo.watch import JOB_NAME, Tell, Watch
from stallwatch.encoding import json_of
from stallwatch.errors import StallwatchError


def play(
    fault: Fault,
    ranks: int,
    seed: int,
    tell: Tell,
    *,
    launch: Launch = TorchrunJob,
    backend: str | None = None,
    environment: Mapping[str, str],
    settings: Mapping[str, Mapping[str, str]] | None = None,
    linger: Callable[[DemoOutcome], None] = lambda outcome: None,
    keep: Path | None = None,
) -> DemoOutcome:
    """Play one fault in a folder of its own; `linger` is called while daemon and job still stand."""
    with _folder() as folder:
        daemon = DaemonChild(folder, environment, settings)
        with contextlib.ExitStack() as cleaning:
            cleaning.callback(daemon.stop)
            daemon.start()
            tell(f"daemon: ready, {daemon.client.page_url() or 'without a page'}")
            mark, scratch = folder / "mark", folder / "scratch"
            scratch.mkdir()
            arguments = [f"--seed={seed}", *([f"--backend={backend}"] if backend else [])]
            program = PROGRAMS / f"{fault.program}.py"
            surroundings = job_environment(environment, daemon.rank_directory, mark, scratch, JOB_NAME)
            job = launch(program, arguments, ranks, surroundings, folder / "job.log")
            cleaning.callback(job.stop)
            tell(f"job: {ranks} ranks of {program.name} start")
            outcome = Watch(fault, ranks, seed, mark, tell).run(daemon, job)
            linger(outcome)
            if keep is not None:
                _keep(folder, outcome, keep)
            return outcome


def unplayed(fault: Fault, ranks: int, seed: int, error: StallwatchError) -> DemoOutcome:
    """The outcome when daemon or job did not stand."""
    return DemoOutcome(
        fault=fault.name,
        seed=seed,
        ranks=ranks,
        agrees=False,
        expected_causes=fault.causes,
        expected_culprits=culprits(fault, seed, ranks),
        seconds_to_verdict=None,
        said=(),
        incident=None,
        page_url=None,
        problem=f"{error}\n{error.help}".strip(),
    )


def _keep(folder: Path, outcome: DemoOutcome, target: Path) -> None:
    """Copy incidents and logs, for somebody who wants to know why."""
    target.mkdir(parents=True, exist_ok=True)
    for log in ("job.log", "daemon.log"):
        with contextlib.suppress(OSError):
            shutil.copy(folder / log, target)
    (target / "outcome.json").write_bytes(msgspec.json.format(json_of(outcome)))
    with contextlib.suppress(shutil.Error, OSError):  # a file may be written at this moment
        shutil.copytree(folder / "state", target / "state", dirs_exist_ok=True)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # Short on purpose: a unix socket's path may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="stallwatch-"))
    folder.chmod(0o755)  # the job may run as somebody else
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
