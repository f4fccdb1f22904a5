import json
from pathlib import Path
from typing import Any

import pytest

from stallwatch import config
from stallwatch.cli.app import run
from stallwatch.cli.doctor import seconds_left
from stallwatch.doctor import examine as examine_module
from stallwatch.doctor.examine import examine
from stallwatch.doctor.live import survey as survey_module
from stallwatch.doctor.surroundings import Question, Surroundings
from tests.builders.texts import dump_signal, timed_out
from tests.unit.doctor.fakes import Node


@pytest.fixture
def clean_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The command looks at a fake node; what is in `shell` is its environment."""
    shell: dict[str, str] = {}
    node = Node(tmp_path / "root")

    def fake_survey(question: Question, *others: Any, **named: Any) -> Surroundings:
        return node.around(shell, question=question)

    monkeypatch.setattr(survey_module, "survey", fake_survey)
    monkeypatch.setattr(examine_module, "examine", examine)
    return {"shell": shell}


def test_a_clean_node_is_0(clean_node: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_where_none_is_named_the_installed_configuration_says_where_nodes_meet(
    clean_node: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "config.toml"
    monkeypatch.setattr(config, "INSTALLED", installed)
    installed.write_text('[fleet]\nurl = "file:///nowhere/stallwatch"\nkey_file = "/nowhere/key"\n')
    assert run(["doctor"]) == 10
    assert "fleet.key_file /nowhere/key" in capsys.readouterr().out
    installed.write_text("[fleet\n")
    assert run(["doctor"]) == 0, "what is wrong with that is the daemon's own matter"


def test_findings_are_10_from_the_asked_severity_on(
    clean_node: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    clean_node["shell"]["NCCL_TIMEOUT"] = "3600"
    assert run(["doctor"]) == 10
    assert "unset NCCL_TIMEOUT" in capsys.readouterr().out
    assert run(["doctor", "--fail-on", "error"]) == 0
    clean_node["shell"]["GLOO_SOCKET_IFNAME"] = "^lo"
    assert run(["doctor", "--fail-on", "error"]) == 10


def test_json_is_one_document(clean_node: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    clean_node["shell"]["NCCL_TIMEOUT"] = "3600"
    assert run(["doctor", "--json"]) == 10
    said = json.loads(capsys.readouterr().out)
    assert said["schema_version"] == 1
    assert "invented_variable" in {finding["check"] for finding in said["findings"]}


def test_logs_may_follow_the_first_one(
    clean_node: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet, loud = tmp_path / "0.log", tmp_path / "1.log"
    quiet.write_text("step 1\n")
    loud.write_text("RuntimeError: DataLoader worker (pid 37) is killed by signal: Bus error. \n")
    assert run(["doctor", "--log", str(quiet), str(loud)]) == 10
    assert "First cause" in capsys.readouterr().out


def test_a_log_beside_what_is_not_read_is_judged_as_analyze_does(
    clean_node: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A packed file."""
    log = tmp_path / "train.log"
    log.write_text("[rank2]: Traceback (most recent call last):\n[rank2]: ValueError: no such shard\n")
    (tmp_path / "weights.zip").write_bytes(b"PK")
    assert run(["analyze", "--json", str(tmp_path)]) == 10
    analyzed = json.loads(capsys.readouterr().out)
    assert run(["doctor", "--json", "--log", str(tmp_path)]) == 10
    assert json.loads(capsys.readouterr().out)["verdicts"] == analyzed["verdicts"] != []


def test_the_finding_of_a_log_accuses_nobody_whom_the_verdict_does_not(
    clean_node: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "all.log"
    log.write_text("".join(timed_out("2.6", rank, 22) for rank in range(3)) + dump_signal("2.6", 3, 21, 0))
    assert run(["doctor", "--json", "--log", str(log)]) == 10
    said = json.loads(capsys.readouterr().out)
    assert (said["verdicts"][0]["cause"], said["verdicts"][0]["culprits"]) == ("not_entered", [3])
    (first, *_) = [one for one in said["findings"] if one["check"] == "first_cause"]
    assert first["severity"] == "warning"
    assert "First cause" not in first["seen"]


@pytest.mark.parametrize("option", ["--log", "--deepspeed", "--script"])
def test_a_named_file_that_is_absent_is_65(clean_node: dict[str, Any], option: str) -> None:
    assert run(["doctor", option, "/absent/file"]) == 65


def test_wrong_usage_is_64(clean_node: dict[str, Any]) -> None:
    assert run(["doctor", "--fail-on", "info"]) == 64
    assert run(["doctor", "stray.log"]) == 64


def test_schema_and_table_need_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--schema"]) == 0
    assert "FindingRecord" in json.loads(capsys.readouterr().out)["$defs"]
    assert run(["doctor", "--list"]) == 0
    assert "| `port_taken` | network |" in capsys.readouterr().out


def test_a_process_that_is_no_rank_is_unusable_input(
    clean_node: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--pid", "4711"]) == 65
    assert "No rank with pid 4711" in capsys.readouterr().err


@pytest.mark.parametrize(("spent", "left"), [(0.0, 4.0), (1.5, 2.5), (9.0, 2.0)])
def test_what_comes_before_the_checks_is_taken_from_their_time(spent: float, left: float) -> None:
    assert seconds_left(spent) == left
