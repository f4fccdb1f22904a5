"""A rank's report, as the parent reads it."""

from pathlib import Path

import msgspec
import pytest

from stallwatch.selftest.told_so_far import ReportLine
from stallwatch.selftest.worker.step_lines import StepReport, name_of, report_name, size_text


def test_each_step_is_two_lines_that_the_parent_understands(tmp_path: Path) -> None:
    report = StepReport(3, str(tmp_path))
    report.begin("gather", 64)
    report.end("wrong", "element 3 is 5", bus_bytes_per_second=7)
    report.finished()
    begun, ended, finished = (
        msgspec.json.decode(line, type=ReportLine) for line in (tmp_path / report_name(3)).read_bytes().splitlines()
    )
    assert (begun.kind, begun.rank, begun.key) == ("begin", 3, ("gather", 64))
    assert (ended.kind, ended.outcome, ended.facts) == ("end", "wrong", {"bus_bytes_per_second": 7})
    assert finished.kind == "finished"
    assert report.failures == ["gather 64 B: element 3 is 5"]


def test_a_crash_is_told_apart(tmp_path: Path) -> None:
    StepReport(0, str(tmp_path)).crash("IndexError")
    (line,) = (tmp_path / report_name(0)).read_bytes().splitlines()
    assert msgspec.json.decode(line, type=ReportLine).kind == "crash"


def test_a_file_of_somebody_else_is_not_written(tmp_path: Path) -> None:
    (tmp_path / report_name(0)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        StepReport(0, str(tmp_path))


def test_without_a_folder_nothing_is_written() -> None:
    report = StepReport(0, None)
    report.begin("init", None)
    report.end("ok")
    assert [line["outcome"] for line in report.lines] == ["ok"]


def test_sizes_as_people_write_them() -> None:
    assert [size_text(size) for size in (8, 1536, 256 << 20)] == ["8 B", "1.5 KiB", "256 MiB"]
    assert name_of("init", None) == "init"
