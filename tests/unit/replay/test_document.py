"""What `stallwatch replay` makes of a bundle: of one that a daemon recorded, of others, and of what anybody wrote."""

import json
import shutil
from pathlib import Path

import pytest

from stallwatch.bundle.writer import BundleWriter
from stallwatch.cli.app import run
from stallwatch.replay.document import Replay, replay_bundle
from tests.builders.running_job import four, job_run
from tests.unit.loop.fakes import Bench

BUNDLES = Path(__file__).parents[2] / "bundles"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A hang at second 20.3 as the daemon recorded it, with the evidence of a real one."""
    shots = job_run(four(stuck_at=20.3), 40)
    (incident,) = Bench(tmp_path, shots).run().latest.incidents
    folder = Path(incident.bundle)
    BundleWriter(folder, incident.node).write_timeline(shots)
    (folder / "bundle.json").unlink()  # it names other processes than the evidence
    shutil.copytree(BUNDLES / "nccl-tp_dp" / "ranks", folder / "ranks", dirs_exist_ok=True)
    return folder


def stages(replay: Replay) -> list[tuple[float, str, str]]:
    return [
        (one.after_seconds, finding.detector, finding.stage) for one in replay.detection for finding in one.findings
    ]


def test_what_was_decided_and_told_comes_again(bundle: Path) -> None:
    replay = replay_bundle(bundle)
    assert stages(replay)[0] == (26.0, "stall", "suspect")
    assert [(one.step, one.severity, one.outputs) for one in replay.told] == [("told", "warning", ("page and log",))]
    assert replay.told[0].line.startswith(f"incident={bundle.name} job=train")
    assert 20 < replay.told[0].after_seconds < 40
    (look,) = replay.looks
    assert look.verdict is not None
    assert look.verdict.culprits == (1,)
    assert replay.timeline is not None
    assert replay.timeline.history_seconds is not None
    assert replay.timeline.history_seconds > 15
    assert any(one.what.startswith("told as ") for one in replay.at_the_time)


def test_what_a_daemon_recorded_of_a_real_job_comes_again() -> None:
    """Of a demo's checkpoint that does not end: tests/replay/recorded-checkpoint."""
    replay = replay_bundle(Path(__file__).parents[2] / "replay" / "recorded-checkpoint")
    assert [stage for _, detector, stage in stages(replay) if detector == "stall"] == ["suspect", "confirmed"]
    assert not replay.told
    first = replay.incidents[0]
    assert (first.state, first.verdicts[0].cause, first.verdicts[0].culprits) == ("open", "not_entered", (0,))
    assert first.tell_at is not None
    assert not any("cannot" in caveat for caveat in replay.caveats)


def test_another_configuration_decides_otherwise(bundle: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.toml"
    changed.write_text("[stall]\nfloor_seconds = 12.0\n[slack]\nwebhook_url_file = '/etc/hook'\n")
    replay = replay_bundle(bundle, changed)
    assert stages(replay)[0] == (33.0, "stall", "suspect")
    assert [one.outputs for one in replay.told] == [("slack",)]
    assert [(one.key, one.recorded, one.replayed) for one in replay.changed] == [
        ("stall.floor_seconds", 5.0, 12.0),
        ("slack.webhook_url_file", "", "/etc/hook"),
    ]


def test_nobody_is_told_of_what_the_changed_configuration_does_not_watch(bundle: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.toml"
    changed.write_text("[stall]\nenabled = false\n")
    replay = replay_bundle(bundle, changed)
    assert not replay.detection
    assert not replay.told
    assert not replay.incidents


def test_a_mistyped_key_is_no_replay(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "changed.toml"
    changed.write_text("[stall]\nflor_seconds = 12.0\n")
    assert run(["replay", str(bundle), "--config", str(changed)]) == 64
    assert "stall.floor_seconds" in capsys.readouterr().err


def test_keys_of_another_version_are_named_and_left_out(bundle: Path) -> None:
    kept = json.loads((bundle / "config.json").read_text())
    kept["stall"]["of_old"] = 1
    (bundle / "config.json").write_text(json.dumps(kept))
    replay = replay_bundle(bundle)
    assert stages(replay)[0] == (26.0, "stall", "suspect")
    assert "config.json: this version has no stall.of_old" in replay.caveats


def test_a_timeline_that_begins_too_late_is_said_to(bundle: Path) -> None:
    path = bundle / "timeline.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[25:]))
    replay = replay_bundle(bundle)
    assert any("holds nothing of the time before" in caveat for caveat in replay.caveats)


def test_without_a_timeline_looks_are_judged_and_the_rest_is_said_to_be_unknown() -> None:
    replay = replay_bundle(BUNDLES / "gloo-killed")
    assert replay.timeline is None
    assert not replay.told
    assert [look.verdict.cause for look in replay.looks if look.verdict] == ["rank_exited"]
    assert any("holds no timeline" in caveat for caveat in replay.caveats)


@pytest.mark.parametrize("name", ["absent", "empty", "file"])
def test_what_holds_nothing_to_replay_is_unusable_and_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no bundle")
    assert run(["replay", str(tmp_path / name)]) == 65
    assert "folder" in capsys.readouterr().err


def test_lines_that_are_no_snapshot_or_go_back_in_time_cost_themselves(bundle: Path) -> None:
    path = bundle / "timeline.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    far = lines[9].replace(b'"wall_ns":', b'"wall_ns":9')
    path.write_bytes(b"".join([*lines[:10], b"[" * 100_000 + b"\n", b'{"tick": "x"}\n', far, lines[2], *lines[10:]]))
    replay = replay_bundle(bundle)
    assert stages(replay)[0] == (26.0, "stall", "suspect")
    assert any("4 lines of it cannot be used" in caveat for caveat in replay.caveats)


def test_a_link_is_not_followed(bundle: Path) -> None:
    elsewhere = bundle / "elsewhere"
    (bundle / "timeline.jsonl").rename(elsewhere)
    (bundle / "timeline.jsonl").symlink_to(elsewhere)
    replay = replay_bundle(bundle)
    assert replay.timeline is None
    assert any(caveat.startswith("timeline.jsonl: ") for caveat in replay.caveats)


def test_another_incident_of_the_job_is_not_judged_by_this_ones_evidence(bundle: Path) -> None:
    """A look at it would show what came long after."""
    kept = json.loads((bundle / "incident.json").read_text())
    kept["since_ns"] += 60_000_000_000
    (bundle / "incident.json").write_text(json.dumps(kept))
    for rank in (bundle / "ranks").iterdir():
        asked = kept["since_ns"] + 6_000_000_000
        attempt = {"what": "stacks", "look": 1, "asked_at_ns": asked, "answered": True, "detail": ""}
        (rank / "attempts.json").write_text(json.dumps([attempt]))
    replay = replay_bundle(bundle)
    assert stages(replay)
    assert not replay.told
    assert any("another incident than the bundle's" in caveat for caveat in replay.caveats)


def test_people_read_when_and_who(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle / "timeline.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"training_job":"train"', b'"training_job":"tr\\u001b[31main"'))
    kept = (bundle / "incident.json").read_text().replace('"train"', '"tr\\u001b[31main"')
    (bundle / "incident.json").write_text(kept)
    assert run(["replay", str(bundle)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    for part in ("Replay of job tr", "\ndetection\n", "+26.0 s  stall suspect: ", "\nwho would have been told\n"):
        assert part in out
    assert "told as warning by page and log: " in out


def test_the_document_is_json(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--json", str(bundle)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema_version"] == 1
    assert said["training_job"] == "train"
    assert {"timeline", "detection", "looks", "told", "incidents", "at_the_time", "caveats", "changed"} <= said.keys()
