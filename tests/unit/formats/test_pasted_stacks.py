"""Stacks of several ranks that somebody pasted into one text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.formats.pasted_stacks import parse
from tests.unit.formats.test_stack_texts import WAITS, fault_text, py_spy_text

QUEUES = (("wait", "threading.py", 320), ("get", "queue.py", 171), ("next_batch", "data.py", 55),
          ("main", "train.py", 210), ("<module>", "train.py", 230))  # fmt: skip

Stack = Callable[[int], str]


def of_rank(rank: int) -> str:
    return py_spy_text(QUEUES if rank == 2 else WAITS, 4000 + rank)


def by_faulthandler(rank: int) -> str:
    return fault_text(QUEUES if rank == 2 else WAITS)


def below_headings(heading: str, stack: Stack = of_rank) -> str:
    return "\n".join(f"{heading.format(rank=rank, pid=4000 + rank)}\n{stack(rank)}" for rank in range(4))


def marked(mark: str, stack: Stack = of_rank) -> str:
    return "".join(f"{mark.format(rank=rank)}{line}\n" for rank in range(4) for line in stack(rank).splitlines())


def quoted() -> str:
    return "".join(f"> {line}\n" for line in below_headings("rank {rank}:").splitlines())


TEXTS = {
    "a line": below_headings("rank {rank}:"),
    "a heading": "Our job hangs after an hour.\n" + below_headings("### Rank {rank}\n```") + "```\nAny idea?\n",
    "a command": below_headings("$ py-spy dump --pid {pid}  # rank {rank}"),
    "a file's name": below_headings("==> stacks_rank{rank}.txt <=="),
    "torch's mark": marked("[rank{rank}]: "),
    "torchrun's mark": marked("[default{rank}]:"),
    "srun's mark": marked("{rank}: "),
    "the command line": "".join(of_rank(rank).replace("--local_rank=0", f"--local_rank={rank}") for rank in range(4)),
    "faulthandler": below_headings("rank {rank}:", by_faulthandler),
    "a quotation": quoted(),
    "a heading of several": f"ranks 0-1,3:\n{of_rank(0)}\nrank 2:\n{of_rank(2)}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_who_stands_elsewhere_is_named_as_from_files_of_the_ranks(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text(text)
    verdict = judge(load([tmp_path / "report.txt"])).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.waiting) == ("not_entered", (2,), "0-1,3"), verdict.summary
    assert "data.py:55 in next_batch" in verdict.summary


def test_of_a_process_that_was_looked_at_twice_the_last_counts() -> None:
    first, last = py_spy_text(WAITS, 4001), py_spy_text(QUEUES, 4001)
    (_, _), (rank, stacks) = parse(f"rank 0:\n{of_rank(0)}\nrank 1:\n{first}\nrank 1 later:\n{last}".encode(), "x")
    assert rank == 1
    assert [thread.frames[0].name for thread in stacks.threads if thread.name == "MainThread"] == ["wait"]


def test_locals_of_a_frame_and_sentences_of_two_ranks_head_nothing() -> None:
    held = "        Locals:\n            rank: 7\n"
    text = f"rank 0:\n{of_rank(0)}{held}\nrank 1 waits for rank 5:\n{of_rank(1)}\nrank 2:\n{of_rank(2)}"
    assert [rank for rank, _ in parse(text.encode(), "x")] == [0, 2]


@pytest.mark.parametrize(
    "text",
    [
        of_rank(1),  # nobody says whose
        f"rank 1:\n{of_rank(1)}",
        f"rank 1:\n{of_rank(1)}\nFatal Python error: Segmentation fault\n\nrank 2:\n{of_rank(2)}",
        "rank 1:\nstep 4 Thread 7 (idle)\nrank 2:\nstep 4 Thread 7 (idle)\n",
    ],
)
def test_what_is_no_such_text_is_read_as_before(text: str) -> None:
    assert parse(text.encode(), "x") == ()
