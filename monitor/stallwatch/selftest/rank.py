"""One rank of the self-test: `torchrun … -m stallwatch.selftest.rank`, or by srun, or by `stallwatch selftest`.

Exit code: 0 every step is right, 10 one is not, 70 our own crash, which says nothing about the node.
"""

import argparse
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from datetime import timedelta
from typing import Any, Optional

from stallwatch.selftest.worker.collectives import TrialGroup
from stallwatch.selftest.worker.known_results import ELEMENT_BYTES
from stallwatch.selftest.worker.launcher_env import (
    NotLaunched,
    RankPlace,
    choose_backend,
    device_facts,
    free_bytes,
    open_device,
    place_of,
)
from stallwatch.selftest.worker.rank_store import Meeting, RanksMissing, first_line, ranks_text
from stallwatch.selftest.worker.step_lines import IMPORT, NO_TORCH, StepReport, size_text
from stallwatch.selftest.worker.walk import GroupBroken, Walk

EXIT_OK, EXIT_NOT, EXIT_USAGE, EXIT_CRASH = 0, 10, 64, 70
DEFAULT_MOST_BYTES = {"nccl": 256 << 20, "gloo": 4 << 20}
IMPORT_SECONDS = 300.0  # torch from a cold network file system
_OTHERS_READ_SECONDS = 5.0  # the store goes with rank 0
# Input, output, the expected result and what comparing them takes.
_COPIES = 6
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)  # prctl(2)
_PR_SET_PDEATHSIG = 1


class Deadline:
    """Ends the process when a step does not; says first which ranks the others wait for, as far as they told."""

    def __init__(self, report: StepReport, place: RankPlace, seconds: float) -> None:
        self._report, self._place, self._seconds = report, place, seconds
        self.meeting: Optional[Meeting] = None
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="selftest-deadline", daemon=True).start()

    def step(self) -> None:
        """To be called when a step begins: arms faulthandler, which ends the process even where the step keeps the
        GIL."""
        # A step that holds the GIL holds the thread below as well; this one needs no GIL, and ends with exit code 1.
        limit = max(self._seconds, IMPORT_SECONDS) if self._report.index < 0 else self._seconds
        faulthandler.dump_traceback_later(limit + 20.0, exit=True)

    def stop(self) -> None:
        """End the watch: nothing ends the process from now on."""
        self._stop.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            limit = max(self._seconds, IMPORT_SECONDS) if self._report.step == IMPORT else self._seconds
            if self._report.index >= 0 and time.monotonic() - self._report.since > limit:
                break
        else:
            return
        detail = f"did not end within {self._seconds:.0f} s{self._others()}"
        _say(f"stallwatch selftest: rank {self._place.rank}: {self._report.where} {detail}")
        self._report.end("error", detail)
        if self._place.rank == 0:
            time.sleep(_OTHERS_READ_SECONDS)
        os._exit(EXIT_NOT)

    def _others(self) -> str:
        if self.meeting is None:
            return ""
        try:
            standing = self.meeting.standing()
        except Exception as error:
            return f"; the store does not answer any more: {first_line(error)}"
        silent = [rank for rank, words in standing.items() if words is None]
        if silent:
            return f"; {ranks_text(silent)} never came"
        indices = {rank: int((words or "0").split(" ", 1)[0]) for rank, words in standing.items()}
        behind = [rank for rank, index in indices.items() if index < max(indices.values())]
        if not behind:
            return "; all ranks have begun it: a stallwatch daemon, or `stallwatch selftest` on a node, tells more"
        where = (standing[behind[0]] or "").split(" ", 1)[-1]
        return f"; {ranks_text(behind)} had not come that far, and stood in {where}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stallwatch.selftest.rank", description=__doc__)
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    parser.add_argument("--most-bytes", type=int, help="largest size that is tried; default: 256 MiB, 4 MiB on gloo")
    parser.add_argument("--step-seconds", type=float, default=60.0, help="deadline of one step")
    parser.add_argument("--ladder-seconds", type=float, default=8.0, help="time for all sizes of one operation")
    parser.add_argument("--report", help="folder for this rank's file of JSON lines")
    parser.add_argument("--devices", help="GPU of each local rank, as 2,5; default: its local rank")
    parser.add_argument("--only", action="append", default=[], help="keep to steps of this name; may be repeated")
    parser.add_argument("--parent", action="store_true", help="the parent reads our stacks, and we end with it")
    return parser.parse_args()


def main() -> int:
    """Run this rank's part of the self-test and return its exit code, as the module's text has it; 64 where nobody said
    which rank it is."""
    options = _arguments()
    try:
        place = place_of(dict(os.environ))
    except NotLaunched as error:
        _say(f"stallwatch selftest: {error}")
        return EXIT_USAGE
    report = StepReport(place.rank, options.report)
    try:
        return _run(options, place, report)
    except (RanksMissing, RuntimeError) as error:  # the store went away, or torch (whose errors these are) failed us
        report.begin(f"after {report.where}", None)
        return _failed(report, error)
    except Exception as error:
        traceback.print_exc()
        _say(f"stallwatch selftest: rank {place.rank}: own crash, which says nothing about this node")
        report.crash(f"{type(error).__name__}: {error}")
        return EXIT_CRASH


def _run(options: argparse.Namespace, place: RankPlace, report: StepReport) -> int:
    if options.parent:
        _belong_to_parent()
    beat = _attach()
    warnings.filterwarnings("ignore")  # torch's notices are not for who reads this report
    deadline = Deadline(report, place, options.step_seconds)
    deadline.step()
    report.begin(IMPORT, None)
    try:
        import torch  # noqa: TID251  this is a rank
        import torch.distributed as dist  # noqa: TID251
    except Exception as error:
        _say(f"stallwatch selftest: {sys.executable} {NO_TORCH}: {first_line(error)}")
        report.crash(f"{sys.executable} {NO_TORCH}: {first_line(error)}")
        return EXIT_CRASH
    report.end("ok")
    deadline.step()
    report.begin("device", None)
    try:
        backend = choose_backend(torch, options.backend)
        torch.set_num_threads(1)
        index = int(options.devices.split(",")[place.local_rank]) if options.devices else place.local_rank
        device = open_device(torch, backend, index)
    except Exception as error:
        return _failed(report, error)
    facts = device_facts(torch, device)
    report.end("ok", "", backend=backend, index=index, **facts)

    deadline.step()
    report.begin("store", None)
    try:
        meeting = Meeting(torch, place, options.step_seconds)
    except RanksMissing as error:
        return _failed(report, error)
    report.end("ok")
    deadline.meeting = meeting

    report.begin("meeting", None)
    try:
        on_gpu = f"GPU {index} {facts.get('device', '')} {facts.get('uuid', '')}".rstrip()
        meeting.gather_all(on_gpu if device.type == "cuda" else "CPU")
        if place.rank == 0 and not options.report:
            for line in meeting.who():
                _say(f"  {line}")
    except RanksMissing as error:
        return _failed(report, error)
    report.end("ok")

    most = _agreed_bytes(options, torch, device, backend, meeting)
    deadline.step()
    report.begin("init", None)
    meeting.say("at", f"{report.index} init")
    try:
        timeout = timedelta(seconds=options.step_seconds + 30)
        dist.init_process_group(
            backend, store=meeting.store, rank=place.rank, world_size=place.world_size, timeout=timeout
        )
        # NCCL makes its communicator at the first collective: a fault of it belongs to this step.
        dist.all_reduce(torch.ones(1, device=device))
        if device.type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        return _failed(report, error)
    report.end("ok")

    def on_step() -> None:
        beat.step()
        deadline.step()

    group = TrialGroup(torch, device, tuple(range(place.world_size)), place.rank)
    walk = Walk(
        group,
        meeting,
        report,
        most_bytes=most,
        ladder_seconds=options.ladder_seconds,
        on_step=on_step,
        only=tuple(options.only),
    )
    try:
        walk.everything()
    except GroupBroken as error:
        _say(f"stallwatch selftest: rank {place.rank}: {error}")
        return EXIT_NOT
    code = _part(options, place, report, meeting, most)
    report.begin("teardown", None)
    deadline.step()
    dist.destroy_process_group()
    report.end("ok")
    report.finished()
    deadline.stop()
    return code


def _agreed_bytes(options: argparse.Namespace, torch: Any, device: Any, backend: str, meeting: Meeting) -> int:
    wanted = options.most_bytes or DEFAULT_MOST_BYTES[backend]
    free = free_bytes(torch, device, int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])))
    mine = wanted if free is None else min(wanted, free // _COPIES)
    return max(8, meeting.least("most_bytes", mine) // ELEMENT_BYTES * ELEMENT_BYTES)


def _part(options: argparse.Namespace, place: RankPlace, report: StepReport, meeting: Meeting, most: int) -> int:
    """Tell rank 0, which keeps the store open and prints what all found; return the exit code of this rank."""
    meeting.say("failures", json.dumps(report.failures))
    if place.rank == 0:
        heard = [meeting.await_word("failures", rank) for rank in range(place.world_size)]
        failures = [f"rank {rank}: {text}" for rank, words in enumerate(heard) for text in json.loads(words)]
        if not options.report:
            _summary(report, place, failures, most)
        return EXIT_NOT if failures else EXIT_OK
    return EXIT_NOT if report.failures else EXIT_OK


def _summary(report: StepReport, place: RankPlace, failures: "list[str]", most: int) -> None:
    rates = [line for line in report.lines if "bus_bytes_per_second" in line["facts"]]
    for line in rates:
        _say(f"  {line['step']} {size_text(line['bytes'])}: {line['facts']['bus_bytes_per_second'] / 1e9:.2f} GB/s")
    for text in failures:
        _say(f"  {text}")
    verdict = f"{len(failures)} failure{'' if len(failures) == 1 else 's'}" if failures else "all right"
    _say(
        f"stallwatch selftest: {place.world_size} ranks, {len(report.lines)} steps, up to {size_text(most)}: {verdict}"
    )


def _failed(report: StepReport, error: Exception) -> int:
    detail = str(error) if isinstance(error, RanksMissing) else first_line(error)
    report.end("error", detail)
    _say(f"stallwatch selftest: rank {report.rank}: {report.where}: {detail}")
    if report.rank == 0:
        time.sleep(_OTHERS_READ_SECONDS)
    return EXIT_NOT


def _belong_to_parent() -> None:
    """End with the parent; let its py-spy, which is no ancestor of ours, read us where Yama guards that."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _attach() -> Any:
    import stallwatch

    return stallwatch.attach()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Threads of torch and of a hung driver must not keep a process whose answer is known.
    os._exit(code)
