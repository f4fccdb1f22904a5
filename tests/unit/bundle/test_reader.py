"""Incidents as they lie on disk: bundles, torch's flat folders, node folders; and all that can be wrong with them."""

import gzip
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from stallwatch.bundle.reader import load
from stallwatch.errors import UnusableInput
from stallwatch.model.evidence import Evidence, HeldBack, RankEvidence
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Slowness
from tests.builders.heartbeat import heartbeat
from tests.builders.node import sample, snapshot

BUNDLES = Path(__file__).parents[2] / "bundles"
NCCL = BUNDLES / "nccl-tp_dp"
GLOO = BUNDLES / "gloo-two_backends"


def rank_of(evidence: Evidence, rank: int) -> RankEvidence:
    return next(each for each in evidence.ranks if each.rank == rank)


def ranks_with_recorders(evidence: Evidence) -> list[int]:
    return [rank.rank for rank in evidence.ranks if rank.recorders]


@pytest.mark.parametrize("folder", sorted(path for path in BUNDLES.iterdir() if path.is_dir()), ids=lambda p: p.name)
def test_real_bundle_is_read_whole(folder: Path) -> None:
    evidence = load([folder])
    said = json.loads((folder / "bundle.json").read_text())
    assert evidence.caveats == ()
    assert evidence.world_size == said["world_size"] == len(evidence.ranks)
    assert evidence.backend == said["backend"]
    for rank in evidence.ranks:
        files = folder / "ranks" / str(rank.rank)
        assert rank.pid == said["pids"][str(rank.rank)]
        assert rank.host == "node0"
        assert rank.captured_at_ns == said["captured_at_ns"][str(rank.rank)]
        assert rank.last_step == said["last_step"][str(rank.rank)]
        assert len(rank.recorders) == len(list(files.glob("flight_recorder*")))
        assert len(rank.stacks) == len(list(files.glob("stacks*")))
        assert len(rank.processes) == len(list(files.glob("process*")))
        assert bool(rank.log) == (files / "log.txt").exists()


def test_second_look_is_known_by_its_suffix() -> None:
    evidence = load([GLOO])
    assert evidence.looks == 2
    assert {stacks.look for rank in evidence.ranks for stacks in rank.stacks} == {1, 2}
    assert {recorder.look for rank in evidence.ranks for recorder in rank.recorders} == {1, 2}


def test_source_lines_of_every_look_are_read(bundle: Path) -> None:
    for look, line in (("", 7), ("-2", 8)):
        told = [{"file": "/srv/job/train.py", "line": line, "text": "load()"}]
        (bundle / "ranks" / "1" / f"sources{look}.json").write_text(json.dumps(told))
    assert {line.line for line in rank_of(load([bundle]), 1).sources} == {7, 8}


def test_evidence_of_the_node_is_read() -> None:
    (node,) = load([NCCL]).nodes
    assert node.host == "node0"
    assert node.ranks == (0, 1, 2, 3)
    assert node.gpus
    assert node.ras
    assert node.kernel_log is None, "not read is not the same as nothing there"


@pytest.mark.parametrize("prefix", ["nccl_trace_rank_", "comm_lib_trace_rank_", "my.run-7_", "x"])
def test_flat_folder_of_any_prefix(flat: Path, prefix: str) -> None:
    for path in list(flat.iterdir()):
        path.rename(flat / path.name.replace("nccl_trace_rank_", prefix))
    evidence = load([flat])
    assert ranks_with_recorders(evidence) == [0, 1, 2, 3]
    assert evidence.caveats == ()
    assert evidence.backend == "nccl"


def test_dumps_as_single_files(flat: Path) -> None:
    evidence = load([flat / "nccl_trace_rank_3", flat / "nccl_trace_rank_1"])
    assert ranks_with_recorders(evidence) == [1, 3]


def test_a_missing_file_leaves_the_others(flat: Path) -> None:
    (flat / "nccl_trace_rank_2").unlink()
    assert ranks_with_recorders(load([flat])) == [0, 1, 3]


def test_mixed_versions_are_read_together(flat: Path) -> None:
    path = flat / "nccl_trace_rank_1"
    path.write_bytes(path.read_bytes().replace(b"\x04\x00\x00\x002.10", b"\x03\x00\x00\x002.4"))
    evidence = load([flat])
    assert {recorder.version for rank in evidence.ranks for recorder in rank.recorders} == {"2.10", "2.4"}


def test_json_dumps_of_a_resiliency_tool(tmp_path: Path) -> None:
    dump = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [{"profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"], "record_id": 0}],
    }
    for rank in range(2):
        (tmp_path / f"_dump_{rank}.json").write_text(json.dumps(dump))
    evidence = load([tmp_path])
    assert ranks_with_recorders(evidence) == [0, 1]
    assert evidence.world_size == 2


def test_node_folders_are_one_incident_whatever_their_order(tmp_path: Path) -> None:
    nodes = []
    for node, ranks in enumerate(((0, 1), (2, 3))):
        folder = tmp_path / f"node{node}"
        shutil.copytree(NCCL, folder)
        said = json.loads((folder / "bundle.json").read_text())
        said["nodes"] = {f"host{node}": list(ranks)}
        for key in ("pids", "captured_at_ns", "last_step"):
            said[key] = {rank: value for rank, value in said[key].items() if int(rank) in ranks}
        (folder / "bundle.json").write_text(json.dumps(said))
        for rank in range(4):
            if rank not in ranks:
                shutil.rmtree(folder / "ranks" / str(rank))
        nodes.append(folder)
    evidence = load(nodes)
    assert evidence == load(nodes[::-1])
    assert [(rank.rank, rank.host) for rank in evidence.ranks] == [
        (0, "host0"),
        (1, "host0"),
        (2, "host1"),
        (3, "host1"),
    ]
    assert evidence.caveats == ()
    together = load([tmp_path])
    assert [rank.rank for rank in together.ranks] == [0, 1, 2, 3]


def test_a_rank_in_two_folders_is_a_contradiction(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(NCCL, tmp_path / name)
    evidence = load([tmp_path / "a", tmp_path / "b"])
    assert len(evidence.ranks) == 4
    assert [len(rank.recorders) for rank in evidence.ranks] == [2, 1, 2, 2], "one folder's, not both together"
    assert len([caveat for caveat in evidence.caveats if "is in 2 of the given folders" in caveat]) == 4


def test_two_different_dumps_of_one_rank_are_a_contradiction(flat: Path) -> None:
    shutil.copy(NCCL / "ranks" / "2" / "flight_recorder.nccl.pickle", flat / "old_trace_rank_0")
    evidence = load([flat])
    assert len(rank_of(evidence, 0).recorders) == 1
    assert any("rank 0 has two nccl dumps" in caveat for caveat in evidence.caveats)


def test_the_same_dump_twice_is_none(flat: Path) -> None:
    shutil.copy(flat / "nccl_trace_rank_0", flat / "copy_0")
    evidence = load([flat])
    assert len(rank_of(evidence, 0).recorders) == 1
    assert evidence.caveats == ()


def test_everything_but_one_rank_is_optional(tmp_path: Path) -> None:
    target = tmp_path / "ranks" / "2"
    target.mkdir(parents=True)
    shutil.copy(NCCL / "ranks" / "2" / "stacks.json", target)
    evidence = load([tmp_path])
    assert [rank.rank for rank in evidence.ranks] == [2]
    assert evidence.world_size is None


def _line(rank: int, step: int) -> bytes:
    """One line of timeline.jsonl in which this rank's record was read."""
    there = sample(rank, heartbeat(rank, step=step, pid=7))
    return msgspec.json.encode(snapshot(0, [there])) + b"\n"


def test_a_record_that_was_not_captured_is_in_the_timeline(bundle: Path) -> None:
    for name in ("heartbeat.json", "heartbeat-2.json"):
        (bundle / "ranks" / "1" / name).unlink(missing_ok=True)
    (bundle / "timeline.jsonl").write_bytes(_line(1, 41))
    assert [beat.step for beat in rank_of(load([bundle]), 1).heartbeat] == [41]


def test_a_timeline_alone_is_not_evidence_of_a_rank(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text('{"schema_version": 1, "world_size": 4}')
    (tmp_path / "timeline.jsonl").write_bytes(_line(1, 41))
    with pytest.raises(UnusableInput, match="nothing about any rank"):
        load([tmp_path])


def test_summaries_of_a_large_incident_replace_old_entries(flat: Path) -> None:
    whole, summarised = load([flat]), load([flat], summarised_bytes=0)
    assert [rank.summary for rank in whole.ranks] == [None] * 4
    assert all(rank.summary is not None and rank.recorders for rank in summarised.ranks)
    assert [rank.recorders[0].operations[-1] for rank in summarised.ranks] == [
        rank.recorders[0].operations[-1] for rank in whole.ranks
    ]


def test_log_of_a_launcher_tells_of_ranks(tmp_path: Path) -> None:
    log = tmp_path / "slurm-4711.out"
    log.write_text(
        "[rank2]:[E906 12:16:32.6 ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds\n"
        "E0906 api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 55017) of binary: /usr/bin/python\n"
    )
    evidence = load([log])
    assert [rank.rank for rank in evidence.ranks] == [2]
    assert evidence.ranks[0].log_events[0].kind == "collective_timeout"
    assert [event.kind for event in evidence.log_events] == ["process_failed"]


def test_log_named_by_a_rank_is_that_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank_3.log").write_text('Traceback (most recent call last):\n  File "a.py", line 1\nValueError: x\n')
    folder = tmp_path / "attempt_0" / "1"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("RuntimeError: Timed out waiting 5ms for send operation to complete\n")
    evidence = load([tmp_path])
    assert [(rank.rank, [event.kind for event in rank.log_events]) for rank in evidence.ranks] == [
        (1, ["gloo_timeout"]),
        (3, ["exception"]),
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lines", [1, 600_000])
def test_log_of_two_bytes_a_character_is_read_at_any_length(tmp_path: Path, packed: bool, lines: int) -> None:
    text = "step 7 loss 0.1\r\n" * lines + "[rank3]: ValueError: bad shard\r\n"
    data = text.encode("utf-16")
    (tmp_path / ("train.log.gz" if packed else "train.log")).write_bytes(gzip.compress(data, 1) if packed else data)
    (event,) = [event for event in rank_of(load([tmp_path]), 3).log_events if event.exception]
    assert (event.exception, event.line) == ("ValueError", lines + 1)


def test_what_detection_had_measured_of_slow_ranks_is_read_from_the_incident(bundle: Path) -> None:
    job = JobKey("train", "node0:29500/8/0")
    cost = Slowness(0.06, 0.05, 0.07, 0.26, 90, 24.0)
    finding = Finding("slow", "confirmed", job, (2,), 0, 0.0, "rank 2 holds the others back", slowness=cost)
    incident = Incident("train-1", job, "node0", "suspect", "none", 0, 0, (finding,), None, str(bundle))
    (bundle / "incident.json").write_bytes(msgspec.json.encode(incident))
    assert load([bundle]).held_back == HeldBack((2,), "rank 2 holds the others back", cost, sure=True)
    hang = msgspec.structs.replace(finding, detector="stall")
    (bundle / "incident.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(incident, findings=(hang,))))
    assert (load([bundle]).held_back, load([bundle]).went_on) == (None, ())
    for said, read in (((0, 1),), (0, 1)), (((0, 1), (), (0, 1)), (0, 1)), (((0, 1), (1,)), ()):  # an end, a quiet job
        found = tuple(msgspec.structs.replace(hang, went_on=ranks) for ranks in said)
        (bundle / "incident.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(incident, findings=found)))
        assert load([bundle]).went_on == read
