"""What a file is, by its content."""

import pytest

from stallwatch.bundle.guessing import guess
from stallwatch.formats.entry_templates import TemplateLibrary
from stallwatch.formats.unreadable import Unreadable


def test_a_log_with_holes_before_and_behind_it_is_a_log() -> None:
    text = b"[rank2]: ValueError: bad shard\n"
    kind, tail = guess(bytes(5_000) + text + bytes(9), "train.log", 0, TemplateLibrary())
    assert (kind, [event.rank for event in tail.events]) == ("log", [2])


def test_a_log_in_brackets_that_names_a_module_of_communicators_is_no_report_of_ras() -> None:
    text = b'[rank1]:   File "/app/device_communicators/base.py", line 35, in f\n[rank1]: ValueError: bad shard\n'
    kind, tail = guess(text, "train.log", 0, TemplateLibrary())
    assert (kind, [event.rank for event in tail.events]) == ("log", [1])


def test_a_log_that_somebody_pasted_a_report_of_ras_into_is_a_log() -> None:
    ras = b"Job summary\n===========\n\nCommunicators... (0.01s)\n\n    0   1   32   8   256   256   RUNNING   OK\n\n"
    waits = (
        b"[rank3]:[E603 17:48:01.005 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout"
        b": WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=60) ran for 61 milliseconds before timing out.\n"
    )
    kind, tail = guess(ras + waits, "job.txt", 0, TemplateLibrary())
    assert (kind, [event.rank for event in tail.events]) == ("log", [3])
    assert guess(ras, "job.txt", 0, TemplateLibrary())[0] == "ras"


# torch/csrc/DataLoader.cpp writes its messages with sizeof, that is with the NUL that ends them.
_OF_WORKERS = b"ERROR: Unexpected segmentation fault encountered in worker.\n\0"


@pytest.mark.parametrize("workers", [1, 4, 12])
def test_a_log_into_which_loaders_workers_wrote_as_they_crashed_is_a_log(workers: int) -> None:
    text = b"step 8 loss 0.5\n" + workers * _OF_WORKERS + b"[rank2]: ValueError: bad shard\n"
    kind, tail = guess(text, "train.log", 0, TemplateLibrary())
    assert (kind, tail.events[-1].rank) == ("log", 2)
    assert tail.events[0].kind == "dataloader_killed"


@pytest.mark.parametrize("data", [b"ustar\x0000abc\0\0\0\0\0", b"\x01\x02abc\0def" + 400 * b"x", b"ab\0\0cd" * 9])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        guess(data + b"z", "file", 0, TemplateLibrary())
