import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.rank_log import files_of, read_tail, read_tail_of_ended
from stallwatch.node.procfs import ProcessDirectory


@contextmanager
def writing_to(stdout: int | IO[Any], stderr: int | IO[Any]) -> Iterator[ProcessDirectory]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)
    with ProcessDirectory(process.pid) as directory:
        yield directory
    process.communicate(b"\n")


def test_file_that_both_streams_go_to_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("step 1\nHF_TOKEN=S3CR3T\nstep 2\n")
    with path.open("a") as file, writing_to(file, subprocess.STDOUT) as process:
        assert read_tail(process) == ["step 1", "HF_TOKEN=(redacted)", "step 2"]


def test_only_the_tail_of_a_long_log_is_read_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number:07d}\n" for number in range(100_000)))
    with path.open("a") as file, writing_to(file, subprocess.STDOUT) as process:
        lines = read_tail(process)
    assert lines[-1] == "line 0099999"
    assert all(len(line) == 12 for line in lines)
    assert len(lines) < 20_000


def test_output_that_is_no_file_says_so(tmp_path: Path) -> None:
    with writing_to(subprocess.PIPE, subprocess.DEVNULL) as process, pytest.raises(NotCaptured) as caught:
        read_tail(process)
    assert str(caught.value) == "its output is no file (a pipe and a terminal or device)"
    assert "--log-dir" in caught.value.help


def test_the_log_of_a_process_that_ended_is_read_by_its_path(tmp_path: Path) -> None:
    path, link = tmp_path / "log", tmp_path / "link"
    path.write_text("step 1\nHF_TOKEN=S3CR3T\nMemoryError: 96 GiB\n")
    link.symlink_to(path)
    with path.open("a") as file, writing_to(file, subprocess.STDOUT) as process:
        alive = files_of(process)
    lines, files = read_tail_of_ended((str(path), str(link)), uid=os.geteuid())
    assert lines == ["step 1", "HF_TOKEN=(redacted)", "MemoryError: 96 GiB"]
    assert files == alive


def test_a_log_that_went_with_its_process_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(NotCaptured):
        read_tail_of_ended((str(tmp_path / "gone"), str(tmp_path / "fifo")), uid=os.geteuid())
