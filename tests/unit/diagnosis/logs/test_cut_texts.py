"""Texts that lost a part, as people paste them and as a full disk leaves them: what is lost accuses nobody."""

import textwrap

import pytest

from tests.builders.texts import (
    ABORTED,
    AGENT,
    KILL,
    PEER_LOST,
    RAISED,
    SUMMARY,
    header,
    ranked,
    timed_out,
    told,
    verdict,
)

LOST = PEER_LOST.splitlines()[-1]


@pytest.mark.parametrize("kept", [1, 8, 14, 30, 60, 90])
def test_an_exception_of_which_the_rest_is_lost_may_tell_of_another(kept: int) -> None:
    log = ranked(RAISED, 2) + ranked(PEER_LOST, 0) + ranked(PEER_LOST, 1)
    log = log[: log.rindex(LOST) + kept]
    assert told(log) == ("rank_raised", (2,))
    assert told(log.replace(ranked(RAISED, 2), ""))[1] == ()


def test_a_whole_exception_at_an_end_without_a_newline_is_its_ranks_own() -> None:
    for text in (
        "ValueError: shard 17 is empty",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        "KeyError",
    ):
        log = ranked(RAISED.replace("ValueError: shard 17 is empty", text), 2).rstrip("\n")
        assert told(log) == ("rank_raised", (2,)), text


def test_a_rank_whose_first_words_are_lost_is_not_silent() -> None:
    waits = "step 40 loss 2.1\n"
    waits += "".join(timed_out("2.8", rank, 9, "_ALLGATHER_BASE", size=10, out=40) for rank in (0, 1, 3))
    end = AGENT["2.4"].format(code=-6, rank=1, pid=5001)
    assert told(waits + end) == ("not_entered", (2,))
    its_end = header("2.8", 2) + ABORTED.splitlines()[0].partition("] ")[2] + "\n"
    assert told(waits + its_end + end)[1] == ()
    statuses = "".join(line + "\n" for line in waits.splitlines() if "Watchdog caught" not in line)
    assert told(statuses + end)[1] == ()


def test_who_left_after_others_had_asked_the_store_in_vain_waited_too() -> None:
    asked = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
    log = ranked(RAISED.replace("ValueError: shard 17 is empty", asked), 1)
    assert verdict(log + AGENT["2.4"].format(code=1, rank=0, pid=5000)).culprits == ()


def test_the_kernel_killed_the_one_that_its_launcher_saw_killed() -> None:
    kernel = "[99211.1] Memory cgroup out of memory: Killed process 7001 (python) total-vm:9kB, anon-rss:8kB, UID:0\n"
    assert told(kernel + "srun: error: n0: task 3: Killed\n") == ("rank_exited", (3,))
    assert told(kernel + "srun: error: n0: tasks 2-3: Killed\n")[1] in ((), (2, 3))


@pytest.mark.parametrize("mark", ["ops-0  | ", "2026-11-20T08:15:31.123456789Z stderr F ", "[pod/dmesg-x/main] "])
def test_the_kernels_own_stamp_tells_its_line_whoever_passes_it_on(mark: str) -> None:
    line = "[99211.1] NVRM: Xid (PCI:0000:9d:00): 79, pid=55012, name=python3, GPU has fallen off the bus.\n"
    assert told("step 7 | loss 2.1\n" + mark + line)[0] == "gpu_fault"


def test_what_was_raised_in_handling_an_exception_that_is_lost_is_no_cause() -> None:
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    second = RAISED.replace(
        "ValueError: shard 17 is empty", "AttributeError: 'NoneType' object has no attribute 'save'"
    )
    whole = ranked(PEER_LOST + between + second, 1)
    assert told(whole)[1] == ()
    assert told(whole[whole.index("[rank1]: During") :])[1] == ()
    assert told(ranked(RAISED + between + second, 1)) == ("rank_raised", (1,))


_DIFFER = (
    "RuntimeError: DDP expects same model across all ranks, but Rank 2 has 161 params, while rank 0 has 163 params."
)


@pytest.mark.parametrize("width", [66, 72, 80, 96])
def test_an_exception_that_a_terminal_or_a_table_cut_may_tell_of_another(width: int) -> None:
    log = ranked(RAISED.replace("ValueError: shard 17 is empty", _DIFFER), 2) + "step 8 | loss 2.1\n"
    wrapped = "".join(line[at : at + width] + "\n" for line in log.splitlines() for at in range(0, len(line), width))
    assert told(wrapped)[1] == ()
    assert told("".join(line[:width] + "\n" for line in log.splitlines()))[1] == ()


def test_an_exception_that_a_mail_broke_between_words_may_tell_of_another() -> None:
    log = ranked(RAISED.replace("ValueError: shard 17 is empty", _DIFFER), 2)
    assert told("".join(wrap + "\n" for line in log.splitlines() for wrap in textwrap.wrap(line, 72)))[1] == ()


@pytest.mark.parametrize("kept", [1, 3, 10, 20])
def test_of_what_differs_a_beginning_is_enough(kept: int) -> None:
    text = "AssertionError: Parameter hashes not matching across DP replicas"
    log = ranked(RAISED.replace("ValueError: shard 17 is empty", text), 1)
    assert told(log[: log.rindex("Parameter") + kept])[1] == ()


def test_a_rank_that_torchrun_killed_did_so_though_the_lines_that_say_it_are_cut() -> None:
    """It lists whom it ended beside the first that failed, where the exception of that one is its own."""
    killed = SUMMARY.format(rank=1, code=1, pid=5001, traceback="To enable traceback see: https://x").replace(
        "  <NO_OTHER_FAILURES>\n",
        "".join(
            f"[{place}]:\n  time      : 2026-11-28_21:20:00\n  host      : node0\n  rank      : {rank} "
            f"(local_rank: {rank})\n  exitcode  : {code} (pid: {5000 + rank})\n  error_file: <N/A>\n"
            "  traceback : Signal\n"
            for place, (rank, code) in enumerate(((0, -9), (2, -15)), 1)
        ),
    )
    assert told(ranked(RAISED, 1) + KILL + killed)[1] == (1,)
    assert told(ranked(RAISED, 1) + killed)[1] == (1,)
    assert told(killed)[1] == (1,)
    assert told(ranked(PEER_LOST, 1) + killed)[1] == (0,)


def test_whose_own_watchdog_called_for_dumps_had_waited_though_its_first_words_are_lost() -> None:
    waits = "step 40 loss 2.1\n"
    waits += "".join(timed_out("2.8", rank, 9, "_ALLGATHER_BASE", size=10, out=40) for rank in (0, 1, 3))
    end = AGENT["2.4"].format(code=-6, rank=1, pid=5001)
    for said in (
        "[PG ID 0 PG GUID 0(default_pg) Rank 2] First PG on this rank to signal dumping.",
        "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.",
    ):
        assert told(f"{waits}{header('2.8', 2)}{said}\n{end}")[1] == ()


def test_rays_word_of_a_worker_that_waited_accuses_it_not_wherever_it_stands() -> None:
    died = "(raylet) Worker PID: 833 Worker exit type: SYSTEM_ERROR Worker exit detail: It exits.\n"
    waits = "".join(f"(WorkerDict pid=833) {line}\n" for line in timed_out("2.6", 1, 9).splitlines())
    assert told(died + waits)[1] == () == told(waits + died)[1]
    elsewhere = waits.replace("pid=833", "pid=833, ip=10.0.0.9").splitlines()[1]
    assert told(died + elsewhere)[1] == ()  # the line that tells its host is lost


def test_what_nvidia_smi_wrote_into_a_line_of_torch_is_no_ranks() -> None:
    line = f"{header('2.8', 1)}[PG ID 0 (Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n"
    assert told(timed_out("2.8", 1, 9) + line) == ("gpu_fault", ())
