import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.captures import torch_dumps
from stallwatch.captures.folder import NotCaptured
from stallwatch.captures.torch_dumps import candidates, press_pipe, take
from stallwatch.model.snapshot import RankSample
from tests.builders.node import unread_rank
from tests.builders.records import start_ticks_of

DUMP = b"\x80\x02}q\x00."
UIDS = (os.getuid(),)
IDLES = "print('ready', flush=True); input()"
TELLS_ITS_THREAD = """
import os, pathlib, threading
pathlib.Path(os.environ["HOME"], f"thread-{os.getpid()}").write_text(str(threading.get_ident()))
print("ready", flush=True); input()
"""
TELLS_A_THREAD = """
import os, pathlib, threading
thread = threading.Thread(target=input)
thread.start()
pathlib.Path(os.environ["HOME"], f"thread-{os.getpid()}").write_text(str(thread.ident))
print("ready", flush=True)
"""
# Plays torch's thread: a byte in the pipe makes it write its file, in two parts.
ANSWERS_PIPE = """
import os, sys
pipe, path = sys.argv[1:]
os.mkfifo(pipe)
reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
import select
select.select([reader], [], [])
os.read(reader, 1)
with open(path, "wb", buffering=0) as file:
    file.write(b"\\x80\\x02}")
    file.write(b"q\\x00.")
sys.stdin.read()
"""


def recorded_by(thread: Path) -> bytes:
    """A dump with one entry, as torch's pickler writes it (protocol 2, texts as BINUNICODE)."""
    entry = {"profiling_name": "nccl:all_reduce", "thread_id": thread.read_text(), "collective_seq_id": 7}
    return pickle.dumps({"version": "2.10", "entries": [entry]}, protocol=2)


@contextlib.contextmanager
def rank(
    *arguments: str, program: str = "print('ready', flush=True); input()", **environment: str
) -> Iterator[RankSample]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **environment},
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    try:
        yield unread_rank(3, process.pid, start_ticks=start_ticks_of(process.pid))
    finally:
        process.kill()
        process.communicate()


def refusal(sample: RankSample) -> str:
    with pytest.raises(NotCaptured) as caught:
        take(sample, press=False, seconds=0)
    return str(caught.value)


@pytest.fixture(autouse=True)
def a_busy_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_dumps, "_READ_SECONDS", 60.0)


def test_dump_that_torch_wrote_lately_is_taken(tmp_path: Path) -> None:
    with rank(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "fr_")) as sample:
        (tmp_path / "fr_3").write_bytes(DUMP)
        dump = take(sample, press=False, seconds=0)
    assert (dump.path, dump.data) == (str(tmp_path / "fr_3"), DUMP)


def test_dump_of_another_day_is_not(tmp_path: Path) -> None:
    (tmp_path / "fr_3").write_bytes(DUMP)
    long_ago = time.time() - 3600
    os.utime(tmp_path / "fr_3", (long_ago, long_ago))
    with (
        rank(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "fr_")) as sample,
        pytest.raises(NotCaptured, match="not written lately"),
    ):
        take(sample, press=False, seconds=0)


def test_half_written_dump_is_said(tmp_path: Path) -> None:
    (tmp_path / "fr_3").write_bytes(DUMP[:-1])
    with (
        rank(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "fr_")) as sample,
        pytest.raises(NotCaptured, match="half-written"),
    ):
        take(sample, press=False, seconds=0)


def test_dump_of_an_earlier_life_is_not(tmp_path: Path) -> None:
    """The job hung, torch wrote its dump, and the job was started again: the file bears the same name."""
    (tmp_path / "fr_3").write_bytes(DUMP)
    before = time.time() - 60
    os.utime(tmp_path / "fr_3", (before, before))
    with rank(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "fr_")) as sample:
        assert "older than this process" in refusal(sample)


def test_dump_of_another_job_under_the_same_name_is_not(tmp_path: Path) -> None:
    """Two jobs of one user have a rank 3 each, and one home directory; torch's default file is the same for both."""
    with rank(HOME=str(tmp_path), program=TELLS_ITS_THREAD) as sample:
        with rank(HOME=str(tmp_path), program=TELLS_ITS_THREAD) as other:
            dump = tmp_path / ".cache/torch/comm_lib_trace_rank_3"
            dump.parent.mkdir(parents=True)
            dump.write_bytes(recorded_by(tmp_path / f"thread-{other.pid}"))
            assert take(other, press=False, seconds=0).data == dump.read_bytes()
        assert "another process of its user" in refusal(sample)
        dump.write_bytes(recorded_by(tmp_path / f"thread-{sample.pid}"))
        assert take(sample, press=False, seconds=0).path == str(dump)


def test_dump_of_a_thread_without_python_is_taken(tmp_path: Path) -> None:
    """Autograd's threads make the collectives of DDP's backward."""
    with rank(HOME=str(tmp_path), program=TELLS_A_THREAD) as sample:
        dump = tmp_path / ".cache/torch/comm_lib_trace_rank_3"
        dump.parent.mkdir(parents=True)
        dump.write_bytes(recorded_by(tmp_path / f"thread-{sample.pid}"))
        assert take(sample, press=False, seconds=0).path == str(dump)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_dump_of_another_user_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "fr_3").write_bytes(DUMP)
    os.chown(tmp_path / "fr_3", 12345, 12345)
    with (
        rank(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "fr_")) as sample,
        pytest.raises(NotCaptured, match="another user"),
    ):
        take(sample, press=False, seconds=0)


def test_pipe_of_the_user_is_pressed_and_its_dump_awaited(tmp_path: Path) -> None:
    (tmp_path / "fr_3").write_bytes(b"old")
    os.utime(tmp_path / "fr_3", (1, 1))
    environment = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "p"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "fr_"),
    }
    with rank(str(tmp_path / "p3.pipe"), str(tmp_path / "fr_3"), program=ANSWERS_PIPE, **environment) as sample:
        assert take(sample, press=True, seconds=20).data == DUMP


def test_pipe_is_not_there_because_only_the_newer_name_is_set(tmp_path: Path) -> None:
    environment = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "p"), "TORCH_FR_BUFFER_SIZE": "2000"}
    with rank() as sample:
        assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in press_pipe(sample, environment, UIDS)
        environment["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"
        assert press_pipe(sample, environment, UIDS).endswith("is not there")


def test_pipe_without_a_reader_is_said_and_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p3.pipe")
    with rank() as sample:
        assert "nobody reads it" in press_pipe(sample, {"TORCH_FR_DEBUG_INFO_PIPE_FILE": str(tmp_path / "p")}, UIDS)


def test_pipe_that_is_a_file_is_not_written_to(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"data")
    (tmp_path / "p3.pipe").symlink_to(target)
    with rank() as sample:
        said = press_pipe(sample, {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "p")}, UIDS)
    assert "not a pipe of the rank's user" in said
    assert target.read_bytes() == b"data"


def test_pipe_of_somebody_else_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p3.pipe")
    reader = os.open(tmp_path / "p3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    with rank() as sample:
        said = press_pipe(sample, {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "p")}, (54321,))
    assert "not a pipe of the rank's user" in said
    assert os.read(reader, 1) == b"", "nothing was written"
    os.close(reader)


def test_user_without_a_pipe_gets_none_pressed(tmp_path: Path) -> None:
    with rank() as sample:
        assert "no dump pipe is set up" in press_pipe(sample, {}, UIDS)


def test_places_are_what_the_user_set_else_those_of_torchs_releases() -> None:
    assert candidates({"TORCH_FR_DUMP_TEMP_FILE": "/x/fr_", "HOME": "/h"}, 2) == ("/x/fr_2",)
    assert candidates({"HOME": "/h"}, 2)[0] == "/h/.cache/torch/comm_lib_trace_rank_2"
    assert candidates({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, 2)[0] == "/c/torch/comm_lib_trace_rank_2"
