"""One rank of a real job becomes slow, and fast again, beside a daemon in its default configuration: when is it told?

    python -m tests.bench.bench_slow_ranks --cells sleep/0.3/0.2 [--runs 1] [--at-once 1] [--cores 0-3] [--seconds 540]
    python -m tests.bench.lanes --lanes 4 --cores 0-15 --seconds 560 --out FOLDER -- tests.bench.bench_slow_ranks \\
        --cells sleep,cpu/0.2,0.3,1/0.05,0.2,1/4,8 gpu/0.3,1/0.2/4/nccl --runs 10 --at-once 2 --done FOLDERS
    python -m tests.bench.bench_slow_ranks --cells jitter,heavy/0.1,0.3,0.6/0.2,1,5 pipeline/0/0.2 --slow-seconds 540 \\
        --at-once 6 --seconds 4200
    python -m tests.bench.bench_slow_ranks --table FOLDERS   (--each FOLDERS: a line for each run)

A cell is `by/extra/step seconds[/ranks[/back end]]`, each a list; the first cells are played first, all of them before
the second run of any. What stands in the files beneath `--done` is not played again. Each run is slow until it was told
and as long again, and ends when it is over: told after, whom, how often, taken back while it lasted, over after the
last slow step, what it is said to cost and what it does, and the reason that is named. Extra 0 is a calm job, and so is
what is uneven by design. Exit code 0 when nobody was told of a calm one, and every slow rank was told once and rightly.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

# Started as a script, perhaps where nothing is installed: neither root is on the path yet.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "monitor"))

from stallwatch.demo.daemon_child import DaemonChild
from stallwatch.model.verdict import Verdict
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument
from tests.bench import jobs, lanes
from tests.bench.slow_runs import (
    AFTER_CALM_SECONDS,
    PROGRAM,
    Cell,
    Run,
    cells_of,
    each,
    line_of,
    places,
    played,
    table,
)

SOURCE = str(Path(__file__).parents[2] / "monitor")
POLL_SECONDS = 0.5
_ENOUGH_SECONDS = 6.0  # after it was over: is it told again?


def main() -> int:
    options = parser().parse_args()
    if options.table or options.each:
        print(each(played(options.each)) if options.each else table(played(options.table)))
        return 0
    if options.cores:
        os.sched_setaffinity(0, lanes.cores_of(options.cores))  # the daemon's and the ranks', too
    wanted = _wanted(options)
    lines_file = lanes.Lines(options.lines, [run.name for run in wanted])
    until = time.monotonic() + options.seconds
    ended: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="slow-") as folder, jobs.server() as server:
        daemon = DaemonChild(Path(folder), dict(os.environ))
        daemon.start()
        watch = _Watch(daemon)
        try:
            with ThreadPoolExecutor(options.at_once) as pool:
                play = partial(_play, watch=watch, server=server, folder=Path(folder), options=options, until=until)
                for run in filter(None, pool.map(play, wanted)):
                    ended.append(run)
                    print(f"{'right' if run.is_right else 'WRONG'}: {line_of(run)}", flush=True)
                    seconds = run.told_after
                    lines_file.add(
                        run.name, right=run.is_right, said=line_of(run), seconds_to_verdict=seconds, detail=run
                    )
        finally:
            watch.close()
            daemon.stop()
            if options.keep:
                shutil.copytree(Path(folder), options.keep, ignore=_without_sockets)
            if options.log:
                print((Path(folder) / "daemon.log").read_text()[-20_000:])
    print(table(ended))
    right = sum(run.is_right for run in ended)
    print(f"right {right}/{len(ended)}; load {os.getloadavg()[0]:.1f}")
    return 0 if ended and right == len(ended) else 1


def _wanted(options: argparse.Namespace) -> list[Run]:
    done = {run.name for run in played(options.done)}
    every = [
        run
        for number in range(options.first_run, options.first_run + options.runs)
        for cell in cells_of(options.cells)
        if (run := Run(cell, number, sorted(options.slow_rank))).name not in done
    ]
    return lanes.part_of(every, options.lane, lambda run: run.cell.usual_seconds(options.slow_seconds))


class _Watch:
    """What the daemon says now, asked once for all jobs that run."""

    def __init__(self, daemon: DaemonChild) -> None:
        self.daemon = daemon
        self.incidents: Sequence[IncidentDocument] = ()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                self.incidents = self.daemon.client.incidents().incidents
            except DaemonUnreachable:
                continue


class _Played:
    """A run under way: what was seen of it so far."""

    def __init__(self, run: Run, name: str, log: Path, control: Path) -> None:
        self.run, self.name = run, name
        self.log, self.control = log, control
        self.marks: dict[str, tuple[float, int]] = {}
        self._told: dict[str, IncidentDocument] = {}
        self._ended: dict[str, float] = {}

    def see(self, incidents: Sequence[IncidentDocument]) -> None:
        """Note what is said of it now, and have it be fast again, or end, when it has been so for long enough."""
        self.marks = _marks(self.log)
        now = time.monotonic()
        began = self.marks["slow"][0] if "slow" in self.marks else None
        for incident in incidents:
            if incident.training_job == self.name:
                self._see(incident, now, began)
        run, over = self.run, self.marks.get("over")
        if began is None or run.cell.calm:
            return
        told_after = run.told_after
        if over is None and told_after is not None:
            if now - began > told_after + run.cell.stays_seconds(told_after):
                self._say("fast")
        elif over is not None and not run.is_over:
            if told_after is None or now - over[0] > run.cell.after_seconds(told_after):
                self._say("end")
        elif over is not None and run.over_after is not None and now - over[0] > run.over_after + _ENOUGH_SECONDS:
            self._say("end")

    def _see(self, incident: IncidentDocument, now: float, began: float | None) -> None:
        run, identity = self.run, incident.incident_id
        after = round(now - began, 1) if began is not None else -1.0
        if began is not None and run.suspected_after is None:
            run.suspected_after = after
        verdict = incident.verdicts[0] if incident.verdicts else None
        untold = f"{' and '.join(f'{found.detector} {found.stage}' for found in incident.findings)}; "
        untold += f"{verdict.cause if verdict else 'no verdict'}; {incident.tell_reason or incident.state}"
        if incident.severity == "none" and (not run.untold or run.untold[-1][1] != untold):
            run.untold.append((after, untold))
        if incident.severity != "none" and identity not in self._told:
            self._told[identity] = incident
            run.told.append((after, list(verdict.culprits) if verdict else [], verdict.summary if verdict else "none"))
        if identity in self._told and began is not None and "over" not in self.marks and verdict is not None:
            _shown(run, verdict, after)
        if identity in self._told and incident.state in ("resolved", "ended") and identity not in self._ended:
            self._ended[identity] = now
            run.resolved.append(after)
            over = self.marks.get("over")
            run.over_after = round(now - over[0], 1) if over is not None else -1.0

    def _say(self, text: str) -> None:
        if not self.control.exists() or self.control.read_text() != text:
            draft = self.control.with_suffix(".draft")
            draft.write_text(text)
            draft.rename(self.control)


def _play(
    run: Run, watch: _Watch, server: jobs.Server, folder: Path, options: argparse.Namespace, until: float
) -> Run | None:
    cell = run.cell
    if time.monotonic() + cell.usual_seconds(options.slow_seconds) > until:
        return None  # not even begun when it would not end in time
    name = f"slow-{os.getpid()}-{cell.by}-{cell.extra:g}-{cell.step_seconds:g}-{cell.ranks}-{run.number}"
    log, control = folder / f"{name}.log", folder / f"{name}.control"
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH", "")))),
        "STALLWATCH_DIR": str(watch.daemon.rank_directory),
        "STALLWATCH_JOB": name,
    }
    run.places = sorted(places(cell.by))
    job = server.launch(
        PROGRAM, [*_arguments(cell, control, options), f"--draw={run.name}"], cell.ranks, environment, log
    )
    began, under_way = time.monotonic(), _Played(run, name, log, control)
    while job.exit_code() is None:
        time.sleep(POLL_SECONDS)
        under_way.see(watch.incidents)
        if time.monotonic() > until:
            job.stop()
            return None
    _measure(run, _marks(log))
    run.exit_code, run.load, run.ran_seconds = job.exit_code(), os.getloadavg()[0], round(time.monotonic() - began, 1)
    if run.exit_code:
        print(log.read_text(errors="replace")[-3000:])
    return run


def _arguments(cell: Cell, control: Path, options: argparse.Namespace) -> list[str]:
    healthy = cell.healthy_seconds if options.healthy_seconds is None else options.healthy_seconds
    slow = options.slow_seconds or (cell.most_seconds if not cell.calm else cell.healthy_seconds + 60.0)
    after = AFTER_CALM_SECONDS if cell.calm else cell.after_seconds(slow)
    return [
        f"--by={cell.by}", f"--extra={cell.extra}", f"--step-seconds={cell.step_seconds}", f"--seconds={slow}",
        f"--jitter={options.jitter}", f"--backend={cell.backend}", f"--after-seconds={after}",
        f"--healthy-seconds={healthy}", f"--control={control}", *(["--heavy"] if options.heavy else []),
        "--slow-rank", *map(str, options.slow_rank),
    ]  # fmt: skip


def _without_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not ((path := Path(folder) / name).is_file() or path.is_dir())]


def _shown(run: Run, verdict: Verdict, after: float) -> None:
    """What a person sees of it now."""
    frame = verdict.culprit_processes[0].frame if verdict.culprit_processes else None
    line = f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}" if frame else ""
    if not run.lines or run.lines[-1][1] != line:
        run.lines.append((after, line))
    run.sentence, run.steps, run.where = verdict.summary, list(verdict.next_steps), verdict.where or ""
    run.because = [fact.fact for fact in verdict.because]
    if verdict.slowness is not None:
        run.cost_told, run.step_told = verdict.slowness.cost_seconds, verdict.slowness.step_seconds


def _measure(run: Run, marks: dict[str, tuple[float, int]]) -> None:
    """The truth: how long a step took while it was slow, and before and after that."""
    if "slow" not in marks or "over" not in marks:
        return
    (began, first), (ended, last) = marks["slow"], marks["over"]
    run.slow_seconds = round(ended - began, 1)
    run.step_true = (ended - began) / max(1, last - first)
    seconds, steps = 0.0, 0
    for start, end in (("settled", "slow"), ("over", "ended")):
        if start in marks and end in marks and marks[end][1] > marks[start][1]:
            seconds += marks[end][0] - marks[start][0]
            steps += marks[end][1] - marks[start][1]
    if steps:
        run.cost_true = run.step_true - seconds / steps


def _marks(log: Path) -> dict[str, tuple[float, int]]:
    """(time, step) when it had settled, became slow, was over, and ended."""
    found = {}
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if line.startswith('{"mark"') and line.endswith("}"):
            mark = json.loads(line)
            found[mark["mark"]] = (mark["at"], mark["step"])
    return found


def parser() -> argparse.ArgumentParser:
    """What may be asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=["sleep/0.3/0.2"], help="by/extra/step seconds/ranks/back end")
    parser.add_argument("--runs", type=int, default=1, help="of each cell")
    parser.add_argument("--first-run", type=int, default=0, help="its number")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--slow-rank", nargs="+", type=int, default=[2])
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--heavy", action="store_true")
    parser.add_argument("--healthy-seconds", type=float, help="before it becomes slow; 0: it is slow from the start")
    parser.add_argument("--slow-seconds", type=float, help="at most; default: by the length of a step")
    parser.add_argument("--cores", help="CPUs of the daemon and of the ranks: 0-3,8")
    lanes.add_options(parser)
    parser.add_argument("--done", type=Path, nargs="*", default=[], help="files of lanes, or folders of them")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files or folders, play nothing")
    parser.add_argument("--each", type=Path, nargs="+", help="the same with a line for each run")
    parser.add_argument("--keep", type=Path, help="a folder that is made: the daemon's, with the evidence")
    parser.add_argument("--log", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
