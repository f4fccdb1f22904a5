"""What a rank is told by its environment and arguments."""

import sys
from pathlib import Path

import msgspec
import pytest

from stallwatch.selftest.launching import JobPlan, LaunchedRanks
from stallwatch.selftest.result import OwnFailure

SHOW = """\
import json, os, sys
json.dump([sys.argv[1:], dict(os.environ)], open(os.environ["SHOW"] + os.environ["RANK"], "w"))
"""


def shown(tmp_path: Path, environment: dict[str, str], **plan: object) -> tuple[list[str], dict[str, str]]:
    program = tmp_path / "show.py"
    program.write_text(SHOW, encoding="ascii")
    fields = {"python": sys.executable, "ranks": 1, "backend": "nccl", "step_seconds": 5.0, "start_seconds": 9.0}
    made = msgspec.convert(fields | {"program": str(program)} | plan, JobPlan)
    folder = tmp_path / "job"
    folder.mkdir()
    ranks = LaunchedRanks(made, folder, environment | {"SHOW": str(tmp_path / "seen-")}, tmp_path / "records")
    for process in ranks.processes:
        process.wait(30)
    ranks.stop()
    arguments, seen = msgspec.json.decode((tmp_path / "seen-0").read_bytes(), type=tuple[list[str], dict[str, str]])
    return arguments, seen


def test_what_an_outer_launcher_left_is_gone(tmp_path: Path) -> None:
    outer = {
        "RANK": "7",
        "WORLD_SIZE": "16",
        "TORCHELASTIC_RUN_ID": "x",
        "SLURM_PROCID": "3",
        "STALLWATCH_DISABLE": "1",
    }
    _, seen = shown(tmp_path, outer)
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == ("0", "1", "0")
    assert not {"TORCHELASTIC_RUN_ID", "SLURM_PROCID", "STALLWATCH_DISABLE"} & set(seen)


def test_nccl_settings_stay_as_the_environment_says(tmp_path: Path) -> None:
    given = {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "eth7"}
    _, seen = shown(tmp_path, given)
    assert {name: value for name, value in seen.items() if name.startswith("NCCL_")} == given


def test_nothing_of_nccl_is_set_that_was_not(tmp_path: Path) -> None:
    _, seen = shown(tmp_path, {})
    assert not [name for name in seen if name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_"))]


def test_a_job_of_ours_alerts_nobody(tmp_path: Path) -> None:
    _, seen = shown(tmp_path, {})
    assert seen["STALLWATCH_NOTIFY"] == "off"
    assert seen["STALLWATCH_DIR"] == str(tmp_path / "records")


def test_devices_and_steps_are_passed_on(tmp_path: Path) -> None:
    arguments, _ = shown(tmp_path, {}, devices=(2, 5), only=("all_reduce",), most_bytes=64)
    assert {"--devices=2,5", "--only=all_reduce", "--most-bytes=64", "--backend=nccl"} <= set(arguments)


def test_a_report_of_another_version_is_our_failure(tmp_path: Path) -> None:
    ranks = LaunchedRanks(JobPlan(sys.executable, 0, "gloo", 5.0, 9.0), tmp_path, {}, tmp_path)
    line = b'{"kind":"begin","rank":0,"at_ns":1,"schema_version":99,"step":"init"}'
    with pytest.raises(OwnFailure, match="version 99"):
        ranks._line(line)
    with pytest.raises(OwnFailure, match="cannot be read"):
        ranks._line(b"{")
