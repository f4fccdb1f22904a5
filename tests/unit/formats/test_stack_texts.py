"""Stacks that people took by hand and kept as text."""

from pathlib import Path

import pytest

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.frames.code_origin import code_origin
from stallwatch.errors import UnusableInput
from stallwatch.formats import py_spy
from stallwatch.formats.stack_texts import is_stacks, parse
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import CodeFrame, Stacks
from tests.builders.texts import timed_out

BUNDLES = Path(__file__).parents[2] / "bundles"
CAPTURED = sorted(BUNDLES.glob("*[!y]/ranks/*/stacks.json"))  # not those of "…_without_py_spy"
READS = (("read_shard", "data.py", 55), ("__getitem__", "data.py", 80), ("main", "train.py", 210),
         ("<module>", "train.py", 230))  # fmt: skip
WAITS = (("wait", "threading.py", 324), ("all_reduce", "torch/distributed/distributed_c10d.py", 2806),
         ("wrapper", "torch/distributed/c10d_logger.py", 83), ("step", "train.py", 120), ("main", "train.py", 210),
         ("<module>", "train.py", 230))  # fmt: skip
HEAD = (
    "Process {pid}: /opt/conda/bin/python -u train.py --local_rank=0\nPython v3.10.14 (/opt/conda/bin/python3.10)\n\n"
)
MONITOR = 'Thread 4062 (idle): "Thread-1"\n    wait (threading.py:324)\n    run (tqdm/_monitor.py:60)\n'
FAULT = (
    "Timeout (0:10:00)!\n"
    "Thread 0x00007f5a3cdfe640 (most recent call first):\n"
    '  File "/usr/lib/python3.10/threading.py", line 324 in wait\n'
    '  File "/c/lib/python3.10/site-packages/tqdm/_monitor.py", line 60 in run\n\n'
    "Thread 0x00007f5b14c74000 (most recent call first):\n"
)


def py_spy_text(frames: tuple[tuple[str, str, int], ...], pid: int = 4002, state: str = "idle") -> str:
    stack = "".join(f"    {name} ({file}:{line})\n" for name, file, line in frames)
    return f'{HEAD.format(pid=pid)}Thread {pid} ({state}): "MainThread"\n{stack}{MONITOR}Thread 4063 (idle)\n'


def fault_text(frames: tuple[tuple[str, str, int], ...]) -> str:
    places = {
        "threading.py": "/usr/lib/python3.10/threading.py",
        "train.py": "/job/train.py",
        "data.py": "/job/data.py",
    }
    lines = [(places.get(file, file), line, name) for name, file, line in frames]
    return FAULT + "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in lines)


def shortened(path: str) -> str:
    """As py-spy prints it: what lies below the search path."""
    for part in ("/site-packages/", "/lib-dynload/"):
        path = path.rpartition(part)[2]
    return path.rpartition("/python3.11/")[2]


def as_text(stacks: Stacks) -> str:
    text = HEAD.format(pid=stacks.pid)
    for thread in stacks.threads:
        state = ("active" if thread.active else "idle") + ("+gil" if thread.owns_gil else "")
        text += f'Thread {thread.os_thread_id} ({state}): "{thread.name}"\n'
        text += "".join(f"    {frame.name} ({shortened(frame.filename)}:{frame.line})\n" for frame in thread.frames)
    return text


@pytest.mark.parametrize("path", CAPTURED[::7], ids=lambda p: f"{p.parts[-4]}-{p.parent.name}")
def test_the_text_says_what_the_json_says(path: Path) -> None:
    want = py_spy.parse(path.read_bytes(), "s")
    data = as_text(want).encode()
    assert is_stacks(data)
    got = parse(data, "s")
    assert got.pid == want.pid
    with_frames = [thread for thread in want.threads if thread.frames]
    for thread, wanted in zip(got.threads, with_frames, strict=True):
        assert (thread.name, thread.os_thread_id) == (wanted.name, wanted.os_thread_id)
        assert (thread.active, thread.owns_gil) == (wanted.active, wanted.owns_gil)
        assert [(frame.name, frame.line) for frame in thread.frames] == [(f.name, f.line) for f in wanted.frames]
        for frame, one in zip(thread.frames, wanted.frames, strict=True):
            assert code_origin(frame.filename)[0] == code_origin(one.filename)[0] or "site-packages" in one.filename


def test_python_s_own_modules_are_known_though_their_folder_is_not_printed() -> None:
    main = parse(py_spy_text(WAITS).encode(), "s").threads[0]
    assert main.frames[0] == CodeFrame("wait", "/usr/lib/python3.10/threading.py", 324)
    assert main.frames[-1] == CodeFrame("<module>", "train.py", 230)


def test_of_faulthandlers_dumps_the_last_counts_and_its_oldest_thread_is_the_main_one() -> None:
    twice = fault_text(WAITS) + "\n" + fault_text(READS)
    assert is_stacks(twice.encode())
    threads = parse(twice.encode(), "s").threads
    assert [thread.name for thread in threads] == ["", "MainThread"]
    assert threads[-1].frames[0] == CodeFrame("read_shard", "/job/data.py", 55)
    current = twice.replace("Thread 0x00007f5b", "Current thread 0x00007f5b").replace("Timeout (0:10:00)!\n", "")
    threads = parse(current.encode(), "s").threads
    assert [(thread.name, thread.frames[0].name) for thread in threads] == [("", "wait"), ("MainThread", "read_shard")]


@pytest.mark.parametrize("text", [py_spy_text, fault_text])
def test_the_rank_that_stands_apart_is_seen_apart(text, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for rank in range(4):
        (tmp_path / f"stacks_rank{rank}.txt").write_text(text(READS if rank == 2 else WAITS))
    evidence = load([tmp_path])
    assert [rank.rank for rank in evidence.ranks] == [0, 1, 2, 3]
    found = judge(evidence).verdicts[0]
    assert found.cause in ("undecided", "not_entered")
    assert (found.culprits, found.waiting) in (((), "0-1,3"), ((2,), "0-1,3"))


def test_with_the_recorders_dumps_the_line_of_the_absent_rank_is_named(tmp_path: Path) -> None:
    for rank in range(4):
        (dump, *_) = sorted((BUNDLES / "gloo-python_sleep" / "ranks" / str(rank)).glob("flight_recorder*.pickle"))
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump.read_bytes())
        (tmp_path / f"pyspy_rank{rank}.txt").write_text(py_spy_text(READS if rank == 2 else WAITS))
    found = judge(load([tmp_path])).verdicts[0]
    assert (found.cause, found.culprits) == ("not_entered", (2,))
    assert "data.py:55 in read_shard" in found.summary


def test_a_number_that_is_the_process_s_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "pyspy_4002.txt").write_text(py_spy_text(READS))
    with pytest.raises(UnusableInput, match="stacks_rank0"):
        load([tmp_path])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 7 | loss 2.1\n",
        "Process 7: exited\nPython is fine\n",
        "Fatal Python error: Segmentation fault\n\n" + FAULT,
    ],
)
def test_what_is_not_only_stacks_is_none(text: str) -> None:
    assert not is_stacks(text.encode())


def test_stacks_without_a_frame_are_none() -> None:
    with pytest.raises(Unreadable):
        parse(b"Thread 4063 (idle)\n", "s")


def test_stacks_at_the_end_of_a_rank_s_log_are_its_stacks(tmp_path: Path) -> None:
    """faulthandler.dump_traceback_later, or a signal that somebody sent, writes them where the log goes."""
    for rank in range(4):
        told = "step 100 | loss 2.1\n" + fault_text(WAITS) + "\n" + fault_text(READS if rank == 2 else WAITS)
        (tmp_path / f"rank{rank}.log").write_text(told)
    evidence = load([tmp_path])
    stand = [rank.stacks[0].threads[-1].frames[0].name for rank in evidence.ranks]
    assert stand == ["wait", "wait", "read_shard", "wait"]
    assert judge(evidence).verdicts[0].waiting == "0-1,3"


@pytest.mark.parametrize(
    ("before", "after"), [("Fatal Python error: Segmentation fault\n\n", ""), ("", "step 101 | loss 2.1\n")]
)
def test_stacks_of_a_crash_or_of_what_went_on_are_none(before: str, after: str, tmp_path: Path) -> None:
    stacks = fault_text(READS).removeprefix("Timeout (0:10:00)!\n")
    stacks = stacks.replace("Thread 0x00007f5b", "Current thread 0x00007f5b")
    (tmp_path / "rank0.log").write_text(f"step 100 | loss 2.1\n{before}{stacks}{after}")
    assert load([tmp_path]).ranks[0].stacks == ()


def test_a_log_that_ends_in_stacks_stays_a_log() -> None:
    assert not is_stacks(("step 100 loss 2.1\n" + fault_text(READS)).encode())


_ABORTED = "Fatal Python error: Aborted\n\n"


def _at_an_abort(frames: tuple[tuple[str, str, int], ...]) -> str:
    stacks = fault_text(frames).removeprefix("Timeout (0:10:00)!\n")
    return _ABORTED + stacks.replace("Thread 0x00007f5b", "Current thread 0x00007f5b")


def test_where_an_abort_from_outside_or_by_its_watchdog_found_a_rank_it_stood(tmp_path: Path) -> None:
    """`kill -ABRT`, and torch's watchdog, end what stands; faulthandler writes where."""
    for rank in range(4):
        before = "" if rank == 2 else timed_out("2.6", rank, 77)
        (tmp_path / f"rank{rank}.log").write_text(before + _at_an_abort(READS if rank == 2 else WAITS))
    verdict = judge(load([tmp_path])).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.waiting) == ("not_entered", (2,), "0-1,3")
    assert "data.py:55" in verdict.summary


@pytest.mark.parametrize(
    "own",
    [
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
        "free(): invalid pointer\n",
        "RuntimeError: CUDA error: device-side assert triggered\n",
    ],
)
def test_who_aborted_of_its_own_failure_stands_nowhere(own: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(own + _at_an_abort(READS))
    assert load([tmp_path]).ranks[0].stacks == ()
