"""The command as people and scripts call it."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from stallwatch.cli.app import run
from stallwatch.model.verdict import Report

BUNDLES = Path(__file__).parents[2] / "bundles"


def analyze_json(capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[int, Report]:
    code = run(["analyze", "--json", *map(str, paths)])
    return code, msgspec.json.decode(capsys.readouterr().out, type=Report)


@pytest.mark.parametrize("name", ["gloo-killed", "nccl-killed", "nccl-tp_dp", "gloo-python_sleep", "nccl-gil_held"])
def test_verdict_of_a_real_capture(capsys: pytest.CaptureFixture[str], name: str) -> None:
    truth = json.loads((BUNDLES / name / "truth.json").read_text())
    code, report = analyze_json(capsys, BUNDLES / name)
    assert code == 10
    assert report.verdicts[0].cause == truth["cause"]
    assert list(report.verdicts[0].culprits) == truth["culprits"]
    assert report.captured_at is not None
    assert report.captured_at.endswith("Z")


def test_json_has_the_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "--json", str(BUNDLES / "nccl-tp_dp")]) == 10
    said = json.loads(capsys.readouterr().out)
    assert said["schema_version"] == 1
    assert {
        "tool_version", "incident_id", "training_job", "epoch", "captured_at", "deadline", "evidence_complete",
        "verdicts", "stacks",
    } <= said.keys()  # fmt: skip
    assert {
        "cause", "culprits", "culprit_processes", "waiting", "where", "mismatch", "process_group", "operation", "seq",
        "confidence", "summary", "because", "rejected", "missing", "next_steps",
    } <= said["verdicts"][0].keys()  # fmt: skip


def test_people_read_the_sentence_first_and_no_colours_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(BUNDLES / "nccl-tp_dp")]) == 10
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[0].startswith("Rank 1 ")
    assert "\nbecause\n" in out
    assert "\nculprits\n  rank 1 " in out
    assert "\nstacks\n" in out


def test_time_left_is_the_first_pending_operations(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = analyze_json(capsys, BUNDLES / "nccl-tp_dp")
    assert report.deadline is not None
    assert report.captured_at is not None
    assert report.captured_at < report.deadline


def test_caveats_are_shown_with_the_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUNDLES / "nccl-tp_dp", tmp_path / "incident"))
    (folder / "ranks" / "2" / "process.json").write_text("{")
    assert run(["analyze", str(folder)]) == 10
    assert "\ncaveats\n  ranks/2/process.json: " in capsys.readouterr().out


def test_order_of_files_does_not_matter(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for rank in range(4):
        shutil.copy(
            BUNDLES / "nccl-tp_dp" / "ranks" / str(rank) / "flight_recorder.nccl-2.pickle", tmp_path / f"t_{rank}"
        )
    files = sorted(tmp_path.iterdir())
    assert analyze_json(capsys, *files) == analyze_json(capsys, *files[::-1])


def test_a_summarised_incident_gets_the_same_verdict() -> None:
    from stallwatch.bundle.reader import load
    from stallwatch.bundle.report import make_report

    for folder in sorted(path for path in BUNDLES.iterdir() if path.is_dir()):
        whole, summarised = make_report(load([folder])), make_report(load([folder], summarised_bytes=0))
        assert summarised == whole, folder.name


def test_an_archived_incident_gets_the_verdict_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stallwatch.bundle.archive_storage import put

    bundle = BUNDLES / "gloo-killed"
    put(str(tmp_path / "kept"), {}, "train-1", "n1", bundle, 10**18)
    code = run(["analyze", str(bundle), "--json"])
    here = capsys.readouterr().out
    for address in ("file://", ""):
        assert run(["analyze", f"{address}{tmp_path / 'kept'}/2001-09-09/train-1", "--json"]) == code
        assert msgspec.json.decode(capsys.readouterr().out)["verdicts"] == msgspec.json.decode(here)["verdicts"]


def test_unusable_input_is_65_and_says_what_to_give(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["analyze", str(tmp_path / "absent")]) == 65
    error = capsys.readouterr().err
    assert "absent" in error
    assert "Give an incident's folder" in error
