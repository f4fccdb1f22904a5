"""What a kind of failure means and what mends it, by the line that tells it."""

from typing import Any

import pytest

from stallwatch.diagnosis.logs.consequence import is_consequence, meaning
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.remedies import words_for
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.log_event import LogEvent, SideOfMismatch
from tests.builders.texts import RAISED, verdict

SIDES = (SideOfMismatch(0, "ALLREDUCE", 5, "[8]", "Float"), SideOfMismatch(1, "BROADCAST", 5, "[8]", "Float"))


def event(kind: str, text: str = "", **fields: Any) -> LogEvent:
    return LogEvent(kind=kind, line=1, text=text, **fields)


@pytest.mark.parametrize(
    ("kind", "text", "fields", "remedy"),
    [
        ("launcher_failure", "", {"exit_signal": 9}, "killed process"),
        ("process_failed", "", {"exit_signal": 7}, "df -h /dev/shm"),
        ("process_failed", "", {"exit_signal": 11}, "PYTHONFAULTHANDLER=1"),
        ("launcher_failure", "", {"exit_signal": 6}, "this rank's own log"),
        ("init_timeout", "", {"ranks": (3,)}, "rank 3's own log"),
        ("out_of_memory", "CUDA out of memory. Tried to allocate 2.00 GiB", {}, "smaller batch"),
        ("nccl_connect", "connect to 127.0.0.1<29500> failed : Connection refused", {}, "NCCL_SOCKET_IFNAME"),
        ("gloo_connect", "connectFullMesh failed with SocketTimeout: 127.0.0.1:29500", {}, "GLOO_SOCKET_IFNAME"),
        ("gloo_connect", "SocketTimeout local=[127.0.0.1]:9 remote=[127.0.1.1]:4711", {}, "in /etc/hosts"),
        ("gloo_connect", "SocketTimeout remote=[10.0.0.1]:4711", {}, "GLOO_SOCKET_IFNAME=<the interface"),
        ("store_unreachable", "socket has failed to connect to [10.0.0.1]:29500", {}, "ip route get"),
        ("address_in_use", "RuntimeError: Address already in use", {}, "torch.distributed.launch"),
        ("gpu_unreachable", "Failed to initialize NVML: Unknown Error", {}, "nvidia-ctk"),
        ("collective_mismatch", "Detected mismatch", {"sides": SIDES}, "the same collectives in the same order"),
        (
            "exception",
            "ValueError: bad shard",
            {"frame": CodeFrame("load", "/srv/job/data.py", 7)},
            "look for the sample",
        ),
        ("cuda_error", "CUDA error: an illegal memory access was encountered", {}, "compute-sanitizer"),
        ("exception", "", {"exception": "x.rendezvous.api.RendezvousClosedError"}, "other nodes' logs"),
        ("no_such_kind", "", {}, "read the lines around it"),
    ],
)
def test_a_line_tells_what_mends_it(kind: str, text: str, fields: dict[str, Any], remedy: str) -> None:
    assert remedy in words_for(LoggedFailure(event(kind, text, **fields), 2, kind)).remedy


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("OSError", "[Errno 98] Address already in use", "address_in_use"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("ValueError", "bad shard", "exception"),
        ("KeyboardInterrupt", "", "interrupted"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException", "Process 7 got signal: 15", "cancelled"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "", "init_timeout"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError", "The connection", "store_unreachable"),
        ("RuntimeError", "nvmlDeviceGetHandleByIndex failed", "gpu_unreachable"),
        ("RuntimeError", "NCCL error: unhandled system error", "nccl_error"),
        ("RuntimeError", "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:838", "out_of_memory"),
    ],
)
def test_an_exception_is_taken_as_what_its_text_tells(exception: str, message: str, kind: str) -> None:
    told = meaning(event("exception", f"{exception}: {message}", exception=exception, message=message))
    assert (told.kind, told.consequence) == (kind, "")


@pytest.mark.parametrize(
    ("kind", "exception", "message", "taken_as", "why"),
    [
        ("exception", "torch.distributed.DistStoreError", "", "exception", "nobody had written"),
        ("exception", "torch.multiprocessing.spawn.ProcessRaisedException", "", "exception", "another process"),
        ("native_exception", "c10::Error", "", "native_exception", "its own lines say more"),
        ("native_exception", "c10::Error", "CUDA error: an illegal memory access", "cuda_error", ""),
        (
            "native_exception",
            "gloo::EnforceNotMet",
            "op.preamble.length <= op.nbytes. 9 vs 8",
            "native_exception",
            "more",
        ),
    ],
)
def test_an_exception_that_passes_on_or_lacks_its_words_is_no_first_cause(
    kind: str, exception: str, message: str, taken_as: str, why: str
) -> None:
    told = meaning(event(kind, f"{exception}: {message}", exception=exception, message=message))
    assert told.kind == taken_as
    assert why in told.consequence and bool(why) == bool(told.consequence)


@pytest.mark.parametrize(
    ("kind", "text", "fields", "taken_as", "follows"),
    [
        ("cuda_error", "CUDA error: out of memory", {}, "out_of_memory", False),
        ("cuda_error", "CUDA error: uncorrectable ECC error encountered", {}, "gpu_unreachable", False),
        ("memory_allocation", "kworker/3:1: page allocation failure: order:4", {}, "node_memory", False),
        ("memory_allocation", "python3: page allocation failure: order:4", {}, "memory_allocation", False),
        ("gpu_xid", "NVRM: Xid: 79", {"message": "79"}, "gpu_xid", False),
        ("gpu_xid", "NVRM: Xid: 45", {"message": "45"}, "gpu_xid", True),
        ("gpu_xid", "NVRM: Xid: 154, Nonfatal", {"message": "1154"}, "gpu_xid", True),
        ("process_failed", "", {"exit_signal": 15}, "process_failed", True),
        ("process_failed", "", {"exit_signal": 6}, "process_failed", True),
        ("process_failed", "", {"exit_signal": 6, "first": True}, "process_failed", False),
    ],
)
def test_a_line_is_a_cause_or_follows_by_what_it_says(
    kind: str, text: str, fields: dict[str, Any], taken_as: str, follows: bool
) -> None:
    told = meaning(event(kind, text, **fields))
    assert (told.kind, bool(told.consequence)) == (taken_as, follows)


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("KeyboardInterrupt", True),
        ("torch.distributed.DistNetworkError: no words of its own", True),
        ("RuntimeError: Connection closed by peer", True),
        ("requests.exceptions.ConnectionError: Connection reset by peer", False),
        ("torch.distributed.DistBackendError: CUDA out of memory", False),
        ("ValueError: bad shard", False),
    ],
)
def test_what_a_hook_saw_raised_follows_from_others_by_its_type_and_text(text: str, follows: bool) -> None:
    assert is_consequence(text) == follows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
         "from rank 0. Please check rank 0 logs for faulty rank.", "rank 0's log names who"),
        ("FloatingPointError: Fatal error: gradients are inconsistent between workers.", "on each rank"),
    ],
)  # fmt: skip
def test_what_an_exception_says_of_other_ranks_is_not_mended_at_its_line(text: str, says: str) -> None:
    found = verdict(RAISED.replace("ValueError: shard 17 is empty", text))
    assert found.culprits == ()
    assert says in found.next_steps[0]
    assert "mend the line" not in " ".join(found.next_steps)


_BROKE = (
    "[rank5]:[E207 19:37:09.9 ProcessGroupNCCL.cpp:681] [Rank 5] Some NCCL operations have failed or timed out. Due to "
    "the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
    "[rank5]:[E207 19:37:09.9 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog "
    "thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL 2.21.5\n"
    "Last error:\nsocketProgressOpt: Call to recv from 10.119.24.53<49901> failed : Broken pipe\n"
)


def test_a_communicator_that_broke_is_told_by_its_reason_and_the_peer_is_to_be_looked_for() -> None:
    found = verdict(_BROKE)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "remote process exited" in found.summary
    assert any("10.119.24.53" in fact.fact for fact in found.because)
    assert "whose log ends first" in found.next_steps[0]
