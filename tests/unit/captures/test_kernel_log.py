import os
from pathlib import Path

import pytest

from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.kernel_log import as_dmesg, read_kernel_log
from stallwatch.node.kmsg import parse_record


def test_record_reads_as_dmesg_prints_it() -> None:
    record = b"4,1234,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>'\n SUBSYSTEM=pci\n DEVICE=+pci:x\n"
    assert as_dmesg(parse_record(record)) == "[    5.140900] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>'"


def test_line_without_a_head_stays_readable() -> None:
    assert as_dmesg(parse_record(b"odd;text")) == "text"


def test_log_that_is_not_there_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotCaptured) as caught:
        read_kernel_log(str(tmp_path / "kmsg"))
    assert "CAP_SYSLOG" in caught.value.help


def test_reading_ends_where_the_log_ends_now(tmp_path: Path) -> None:
    """A FIFO that somebody holds open answers as /dev/kmsg does: EAGAIN when there is no more."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    holder = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(holder, b"6,1,2000000,-;only line\n")
        assert read_kernel_log(str(fifo)) == ["[    2.000000] only line"]
    finally:
        os.close(holder)
