"""What all_reduce_perf prints."""

from pathlib import Path

from stallwatch.selftest import nccl_tests

GOOD = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   268435456      67108864     float     sum      -1   1062.3  252.69  252.69      0   1060.1  253.22  253.22      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 98.3451
#
"""


def test_a_good_run() -> None:
    read = nccl_tests.read(0, GOOD)
    assert read.ok
    assert read.average_bus_bytes_per_second == 98_345_100_000


def test_wrong_values_are_a_failure_whatever_the_exit_code() -> None:
    read = nccl_tests.read(0, GOOD.replace(": 0 OK", ": 12 FAILED"))
    assert not read.ok
    assert "12 values" in read.detail


def test_an_nccl_error_is_told() -> None:
    read = nccl_tests.read(3, "node: Test NCCL failure common.cu:958 'unhandled system error'\n")
    assert not read.ok
    assert "unhandled system error" in read.detail


def test_an_installed_program_is_found_and_its_failure_told(tmp_path: Path) -> None:
    assert nccl_tests.find({"PATH": str(tmp_path)}) is None
    program = tmp_path / "all_reduce_perf"
    program.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
    program.chmod(0o755)
    assert nccl_tests.find({"PATH": str(tmp_path)}) == str(program)
    assert not nccl_tests.run(str(program), 2, 1024, {"PATH": "/usr/bin:/bin"}).ok
