from pathlib import Path

import msgspec
from msgspec.structs import replace

from stallwatch.bundle.reader import load
from stallwatch.bundle.report import make_report
from stallwatch.bundle.writer import BundleWriter
from stallwatch.config import Config
from stallwatch.config_sections import DeadmanSection, SlackSection, WebhookSection
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey, NodeSnapshot, RankSample
from stallwatch.model.verdict import Report
from tests.builders.node import process, sample, snapshot
from tests.builders.records import decoded, record_bytes


def hooked(rank: int, *, with_hook: bool = True) -> RankSample:
    """A rank whose record comes from the bytes that a hook writes."""
    beat = decoded(record_bytes(rank, 50 + rank, 1))
    return sample(rank, beat if with_hook else None, job=JobKey("job", "epoch", "anna"), pid=50 + rank)


def read(path: Path) -> object:
    return msgspec.json.decode(path.read_bytes())


def test_description_has_the_keys_of_the_contract(tmp_path: Path) -> None:
    bundle = BundleWriter(tmp_path / "b", "node0")
    bundle.write_description([hooked(1), hooked(0, with_hook=False)], incident_id="i", wall_ns=99)
    assert read(tmp_path / "b/bundle.json") == {
        "schema_version": 1,
        "incident_id": "i",
        "training_job": "job",
        "epoch": "epoch",
        "owner": "anna",
        "world_size": 4,
        "backend": "gloo",
        "nodes": {"node0": [0, 1]},
        "pids": {"0": 50, "1": 51},
        "captured_at_ns": {"0": 99, "1": 99},
        "last_step": {"1": 5},
    }


def test_folder_is_private(tmp_path: Path) -> None:
    bundle = BundleWriter(tmp_path / "b", "node0")
    bundle.write_config(Config())
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "b/config.json").stat().st_mode & 0o777 == 0o600


def test_configuration_is_kept_without_its_secrets(tmp_path: Path) -> None:
    config = Config(
        slack=SlackSection(webhook_url="https://hooks/S3CR3T", webhook_url_file="/etc/hook"),
        webhook=WebhookSection(url="https://else.where/S3CR3T"),
        deadman=DeadmanSection(url="https://hc/S3CR3T"),
    )
    BundleWriter(tmp_path, "node0").write_config(config)
    text = (tmp_path / "config.json").read_text()
    assert "S3CR3T" not in text
    assert "/etc/hook" in text
    assert msgspec.json.decode(text, type=Config).stall == config.stall


def test_a_stop_is_judged_before_any_look_has_come_to_anything(tmp_path: Path) -> None:
    """On a node that another user has filled with work a child of ours needs seconds to begin."""
    bundle = BundleWriter(tmp_path, "node0")
    ranks = [hooked(0), replace(hooked(1), process=Known(process(1, state="T"), 7))]
    bundle.write_stopped(ranks)
    bundle.write_description(ranks, incident_id="i", wall_ns=99)
    assert not (tmp_path / "ranks/0").exists(), "what moves is for the look"
    verdict = make_report(load([tmp_path])).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("process_stopped", (1,))


def test_timeline_is_a_snapshot_a_line(tmp_path: Path) -> None:
    snapshots = [snapshot(tick, [hooked(0)], tick=tick) for tick in range(3)]
    BundleWriter(tmp_path, "node0").write_timeline(snapshots)
    lines = (tmp_path / "timeline.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=NodeSnapshot) for line in lines] == snapshots


def test_a_long_timeline_is_handed_to_the_disk_in_pieces(tmp_path: Path) -> None:
    """Each is held several times over on its way there: the memory that this takes for a moment is not given back."""
    shot = snapshot(0, [hooked(rank) for rank in range(50)])
    snapshots = [replace(shot, tick=tick) for tick in range(90)]
    pieces: list[int] = []

    def put(path: Path, data: bytes) -> None:
        pieces.append(len(data))
        with path.open("ab" if len(pieces) > 1 else "wb") as file:
            file.write(data)

    writer = BundleWriter(tmp_path, "node0", write=put, append=put)
    size = writer.write_timeline(snapshots)
    assert size == (tmp_path / "timeline.jsonl").stat().st_size > 4 << 20
    assert max(pieces) < 3 << 20
    assert writer.write_timeline(snapshots[:1], goes_on=True) == pieces[-1]
    lines = (tmp_path / "timeline.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["tick"] for line in lines] == [*range(90), 0]


def test_verdict_is_the_report(tmp_path: Path) -> None:
    report = Report(
        schema_version=1,
        tool_version="0",
        incident_id="i",
        training_job="job",
        epoch="epoch",
        captured_at=None,
        deadline=None,
        evidence_complete=True,
        verdicts=(),
        stacks=None,
    )
    BundleWriter(tmp_path, "node0").write_verdict(report)
    assert msgspec.json.decode((tmp_path / "verdict.json").read_bytes(), type=Report) == report
