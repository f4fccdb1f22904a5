"""Texts as consoles, collectors of logs and forum pages leave them: words of another process within a line, paragraphs
filled anew, headers before headers; and what their sentences say of them. Made from the forms of public reports
(pytorch#143536, milabench#269, litData#340, nccl#1029, verl#472, WeatherGenerator#1572, axolotl#1473, sichek#51,
Megatron-Bridge#3986, autocast#381, Lightning#20832)."""

import pytest

from tests.builders.texts import (
    AGENT,
    PEER_LOST,
    RAISED,
    SUMMARY,
    VERSIONS,
    header,
    marked,
    ranked,
    timed_out,
    told,
    verdict,
)

NAMED = [version for version in VERSIONS if version not in ("1.13", "2.0", "2.1")]
LAST = "ValueError: shard 17 is empty"
FOREIGN = "WARNING of another process` goes here"


def _interrupted(text: str) -> str:
    """Another process wrote into the middle of the words before what timed out."""
    return text.replace("collective operation timeout", f"collective operat{FOREIGN}ion timeout")


def _filled(text: str) -> str:
    """As a tool that fills paragraphs breaks it."""
    return text.replace("operation timeout: ", "operation timeout: \n").replace("detected by", "detected\nby")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("spoil", [_interrupted, _filled])
def test_a_time_out_whose_words_were_broken_says_the_same(version: str, spoil: object) -> None:
    alike = "".join(timed_out(version, rank, 7, size=100) for rank in range(3))
    assert callable(spoil)
    whole, spoiled = verdict(alike), verdict(spoil(alike))
    assert (spoiled.cause, spoiled.culprits, spoiled.waiting) == (whole.cause, whole.culprits, whole.waiting)
    assert (spoiled.operation, spoiled.seq) == ("all_reduce", 7)


def test_sizes_that_differ_are_seen_through_words_of_another_process() -> None:
    sizes = timed_out("2.5", 0, 9, size=40) + timed_out("2.5", 1, 9, size=90)
    found = verdict(_interrupted(sizes))
    assert (found.cause, found.culprits) == ("collective_mismatch", ())
    assert "40 elements" in found.summary
    assert "gloo" not in found.next_steps[0]


def test_a_line_that_is_whole_or_goes_on_elsewhere_is_not_filled_with_the_next() -> None:
    cut = timed_out("2.6", 1, 7).splitlines()[0].partition("Work")[0].rstrip() + "\n"
    assert "wait in" not in verdict(cut + ranked(PEER_LOST, 0)).summary
    assert told(cut + "\n" + timed_out("2.6", 2, 7))[1] == ()


@pytest.mark.parametrize("version", NAMED)
def test_a_group_that_only_the_last_line_names_is_that_of_the_first(version: str) -> None:
    """Of a report that has no line of the group's status."""
    log = ""
    for rank in range(4):
        first, status = timed_out(version, rank, 7).splitlines()
        mark = status[: status.index("] ", status.index("[PG")) + 2]
        told_again = first[first.index("[Rank") :]
        log += f"{first}\n{mark}Process group watchdog thread terminated with exception: {told_again}\n"
    found = verdict(log)
    assert (found.cause, found.waiting, found.operation, found.seq) == ("undecided", "0-3", "all_reduce", 7)


def test_nccls_own_lines_teach_what_a_launcher_puts_before_all() -> None:
    """Pods have the same pids: a line is of the one that NCCL names."""
    log = "".join(
        f"job-worker-{pod}: job-worker-{pod}:{4270 + gpu}:{4300 + gpu} [{gpu}] NCCL INFO comm 0x{gpu} rank "
        f"{2 * pod + gpu} nranks 4 cudaDev {gpu} busId {gpu}e000 commId 0x26b3 - Init START\n"
        for pod in range(2)
        for gpu in range(2)
    )
    failed = (
        "job-worker-1: job-worker-1:4271:4301 [1] transport/net_ib.cc:1020 NCCL WARN Cuda failure 'invalid value'\n"
    )
    assert told(log + failed) == ("rank_raised", (3,))
    for mark in ("", "[1] ", "pytorch | "):
        bare = (log + failed).replace("job-worker-1: ", "").replace("job-worker-0: ", "")
        assert told(marked(bare, mark)) == ("rank_raised", (3,)), mark


@pytest.mark.parametrize("repeated", ["", " [repeated 2x across cluster] (Ray deduplicates logs by default.)"])
def test_what_rays_handler_says_of_c_plus_plus_is_the_reason_of_the_actors_death(repeated: str) -> None:
    log = (
        "(Actor pid=274) [2026-03-04 19:28:30,014 E 274 274] logging.cc:113: Unhandled exception: "
        f"N5boost10wrapexceptINS_6system12system_errorEEE. what(): thread: Resource temporarily unavailable "
        f"[system:11]{repeated}\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes.\n"
    )
    found = verdict(log)
    assert (found.cause, found.culprits) == ("rank_raised", ())
    assert "boost::wrapexcept: thread: Resource temporarily unavailable" in found.summary
    assert "ulimit -u" in found.next_steps[0]
    waited = log.replace("thread: Resource temporarily unavailable [system:11]", "[Rank 0] Watchdog caught it")
    assert told(waited.replace("N5boost10wrapexceptINS_6system12system_errorEEE", "N3c1016DistBackendErrorE"))[1] == ()


def test_how_a_rank_ended_is_told_with_what_it_died_of() -> None:
    """The first thing that its log tells, and not the last that it raised because of it."""
    watchdog = (
        f"{header('2.3', 3)}[Rank 3] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory "
        "access was encountered\n"
    )
    end = AGENT["2.4"].format(code=-6, rank=3, pid=147) + SUMMARY.format(
        rank=3, code=-6, pid=147, traceback="Signal 6 (SIGABRT) received by PID 147"
    )
    found = verdict(watchdog + end)
    assert (found.cause, found.culprits) == ("rank_exited", (3,))
    assert "SIGABRT" in found.summary
    assert "illegal memory access" in found.summary
    assert "ProcessGroupNCCL.cpp" not in found.summary
    forked = marked(
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: initialization error",
        "1: ",
    )
    loader = marked(
        'Traceback (most recent call last):\n  File "/job/t.py", line 4, in f\n    next(it)\n'
        "RuntimeError: DataLoader worker (pid(s) 44) exited unexpectedly",
        "1: ",
    )
    found = verdict(forked + loader + "srun: error: n1: task 1: Exited with exit code 1\n")
    assert (found.cause, found.culprits) == ("rank_exited", (1,))
    assert "initialization error" in found.summary
    assert "forked" in " ".join(fact.fact for fact in found.because)


def test_what_cuda_says_stands_before_what_torch_asks() -> None:
    """A sentence has no room for both."""
    text = (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
        "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"
    )
    assert "Error 802: system not yet initialized" in verdict(ranked(RAISED.replace(LAST, text), 1)).summary


def test_a_driver_that_asks_for_a_reset_without_an_xid_has_a_fault() -> None:
    said = (
        "[Sun Jan 11 09:52:01 2026] NVRM: nvAssertOkFailedNoLog: Assertion failed: {} returned from status @ "
        "kernel_channel.c:2874\n"
    )
    for status in ("Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)", "GPU lost from the bus [NV_ERR_GPU_IS_LOST]"):
        found = verdict(said.format(status))
        assert found.cause == "gpu_fault"
        assert "drain the node" in found.next_steps[0]
    assert told(said.format("Invalid argument [NV_ERR_INVALID_ARGUMENT] (0x0000001F)"))[0] != "gpu_fault"
    assert told("[5.1] NVRM: Reset[77]: segfault at 0 Reset required [NV_ERR_RESET_REQUIRED]\n")[0] != "gpu_fault"


def test_a_fault_of_the_hardware_is_told_before_those_of_programs() -> None:
    xid = "[Mon Aug  5 03:54:13 2026] NVRM: Xid (PCI:0000:00:0{}): {}, pid=2512125, name=python3, Ch 00000008\n"
    found = verdict(xid.format(7, 31) + xid.format(8, 79))
    assert found.cause == "gpu_fault"
    assert ": 79" in found.summary


def test_a_kill_for_memory_is_told_in_words_and_not_as_the_kernel_prints_it() -> None:
    kill = (
        "[91.5] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/u,"
        "task=python3,pid=7713,uid=1000\n"
    )
    found = verdict(timed_out("2.6", 0, 9) + timed_out("2.6", 1, 9), kill)
    assert (found.cause, found.culprits) == ("rank_exited", ())
    assert "killed it for lack of memory (pid 7713, python3)" in found.summary
    assert "nodemask" not in found.summary


def test_the_node_that_failed_is_the_one_that_srun_names() -> None:
    log = (
        "slurmstepd: error: *** JOB 8812 ON n001 CANCELLED AT 2026-11-29T03:11:00 DUE TO NODE FAILURE, SEE SLURMCTLD "
        "LOG FOR DETAILS ***\nsrun: error: Node failure on n003\n"
    )
    found = verdict(log)
    assert found.cause == "rank_exited"
    assert "n003" in found.summary
    assert "n001" not in found.summary


def test_ranks_under_other_numbers_of_detail_are_told_by_how_far_they_are_apart() -> None:
    side = "CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes=Long)"
    early, late = side.format(32, "BROADCAST", 5), side.format(1, "ALLREDUCE", 1)
    log = "".join(
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running "
        f"collective: {late}, but Rank 0 is running collective: {early}.\n"
        for rank in range(1, 8)
    )
    found = verdict(log)
    assert (found.cause, found.culprits) == ("collective_mismatch", (0,))
    assert found.summary.startswith("Ranks 1-7 are 31 collectives behind rank 0")


def test_who_waits_after_the_end_of_training_is_told_so() -> None:
    log = "`Trainer.fit` stopped: `max_epochs=40` reached.\n" + timed_out("2.6", 0, 41872)
    found = verdict(log)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "end of training" in found.summary
    assert "end of training" not in verdict(timed_out("2.6", 0, 41872)).summary


def test_ranks_that_wait_in_several_calls_are_told_where_each_does() -> None:
    log = "".join(timed_out("2.5", rank, 39, operation="BROADCAST", size=64) for rank in (1, 2, 3))
    found = verdict(log + timed_out("2.5", 0, 41, operation="_ALLGATHER_BASE", size=8, out=32))
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "rank 0 in all_gather_into_tensor number 41, ranks 1-3 in broadcast number 39" in found.summary


def test_what_is_missing_is_not_said_twice() -> None:
    steps = verdict(timed_out("2.5", 0, 39)).next_steps
    assert sum("flight recorder" in step for step in steps) == 1
    steps = verdict(ranked(PEER_LOST, 0)).next_steps
    assert sum("logs of all ranks" in step for step in steps) == 1


class TestAnAdapterThatGaveUp:
    """It stands at one end of a way that failed."""

    LINE = (
        "{host}:{pid}:99 [{gpu}] NCCL WARN NET/IB : Got completion from peer {peer}<48598> with status=12 opcode=0 "
        "len=0 vendor err 129 (Recv)\n"
    )

    def _log(self, *ends: tuple[int, str]) -> str:
        inits = "".join(
            f"n{rank}:{50 + rank}:99 [0] NCCL INFO comm 0x{rank} rank {rank} nranks 4 cudaDev 0 - Init COMPLETE\n"
            for rank in range(4)
        )
        return inits + "".join(
            self.LINE.format(host=f"n{rank}", pid=50 + rank, gpu=0, peer=peer) for rank, peer in ends
        )

    def test_of_two_ends_nothing_tells_which(self) -> None:
        found = verdict(self._log((2, "10.0.0.9")))
        assert (found.cause, found.culprits) == ("fabric_fault", ())
        assert "10.0.0.9" in found.summary
        assert told(self._log((2, "10.0.0.9"), (1, "10.0.0.9"))) == ("fabric_fault", ())

    def test_one_that_lost_several_is_the_end_that_they_have_in_common(self) -> None:
        assert told(self._log((2, "10.0.0.9"), (2, "10.0.0.8"))) == ("fabric_fault", (2,))


@pytest.mark.parametrize(
    "mark", ["- SimpleTuner - INFO - ", "2026-10-31 03:11:02,475 - root - ERROR - ", "- a.b - WARNING - "]
)
def test_what_pythons_loggers_put_before_a_ranks_mark_is_taken_off(mark: str) -> None:
    assert told(marked(ranked(RAISED, 3), mark)) == ("rank_raised", (3,))


@pytest.mark.parametrize("host", ["678c7278cb2d", "8h200-3", "-", "gpu7.example.org"])
def test_nccl_s_line_begins_with_a_host_whose_name_may_begin_with_a_digit(host: str) -> None:
    """A container's name is hexadecimal, and what people replace in a post is left as they left it."""
    began = f"{host}:12:44 [0] NCCL INFO comm 0x1 rank 3 nranks 4 cudaDev 0 busId 7000 commId 0x9 - Init START\n"
    text = began + f"{host}:12:44 [0] include/alloc.h:125 NCCL WARN Cuda failure 710 'device-side assert triggered'\n"
    assert told(marked(text, "| worker > ")) == ("rank_raised", (3,))


_TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: {rule} train.py FAILED {rule} Failures: "
    "{others}{rule} Root Cause (first observed failure): [0]: time : 2026-09-14_01:45:50 host : n1 {first} error_file: "
    "<N/A> traceback : Signal 9 (SIGKILL) received by PID 4002 {rule}\n"
)
_BLOCK = "rank : {0} (local_rank: {0}) exitcode : {1} (pid: 400{0})"


@pytest.mark.parametrize("others", ["<NO_OTHER_FAILURES> ", f"[1]: time : x host : n1 {_BLOCK.format(0, -15)} "])
def test_a_launchers_table_whose_line_breaks_were_lost_names_its_root(others: str) -> None:
    table = _TABLE.format(rule=60 * "=", others=others, first=_BLOCK.format(2, -9))
    assert told(table) == ("rank_exited", (2,))
    assert told(table + table.replace("-9", "-11")) == ("rank_exited", (2,))


def test_a_picture_of_a_launchers_table_is_read() -> None:
    table = "Root Cause (first observed failure) :\n[0]:\ntime\nhost\nrank2 (local rank: 2)exitcode: -9 (pid: 36071)\n"
    assert told(table) == ("rank_exited", (2,))
