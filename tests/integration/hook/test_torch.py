"""The hook beside the real torch: imported later, its recorder, its optimizers, its launcher."""

import json
import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from stallwatch.hook.group_names import group_name
from stallwatch.model.snapshot import GroupCounter
from tests.integration.hook.programs import Program, eventually, records, running, script

pytest.importorskip("torch", reason="the hook is tested beside the real torch")
pytestmark = pytest.mark.torch

# One rank of a world of one, with a process group and two operations in its recorder.
RANK = """
import os, sys
import stallwatch
beat = stallwatch.attach({arguments})
assert "torch" not in sys.modules
print("attached")
sys.stdin.readline()
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dist.all_reduce(torch.ones(3))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("trained", flush=True)
sys.stdin.readline()
dist.destroy_process_group()
"""


def request(program: Program, request_id: int, rung: str) -> dict[str, Any]:
    """Ask as the daemon does, and return torch's own answer."""
    path = program.request_path()
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"id": request_id, "rung": rung}))
    part.rename(path)
    record = program.record(until=lambda record: record.answered_request == request_id)
    assert record.dump_started_ns is None
    answer = program.answer_path(request_id, "gloo")
    return dict(pickle.loads(answer.read_bytes()))  # noqa: TID251 - torch wrote it for this test


def frames_in(dump: dict[str, Any]) -> list[dict[str, Any]]:
    return [frame for entry in dump["entries"] for frame in entry.get("frames", ())]


def test_groups_are_named_by_what_they_are_for_and_their_members(tmp_path: Path, directory: Path) -> None:
    """In torch's own order of numbers, which no dump was asked for."""
    variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    own_group = 'tp = dist.new_group([0], group_desc="tp")\ndist.all_reduce(torch.ones(3), group=tp)\nmodel = torch'
    text = RANK.format(arguments="").replace("model = torch", own_group)
    with running(script(tmp_path, text), directory, variables=variables) as program:
        program.line()
        program.ask()
        facts = program.facts_path()

        def named() -> dict[str, str] | None:
            found = json.loads(facts.read_text()).get("process_groups", {})
            return found if len(found) == 2 else None

        assert eventually(named) == {"gloo 0": group_name("default_pg", [0]), "gloo 1": group_name("tp", [0])}


def test_a_rank_whose_torch_comes_later(tmp_path: Path, directory: Path) -> None:
    variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with running(script(tmp_path, RANK.format(arguments="")), directory, variables=variables) as program:
        assert program.line() == "attached"
        facts = program.facts_path()
        eventually(lambda: facts.exists() or None)
        assert "torch" not in json.loads(facts.read_text())["versions"]
        assert program.record().groups == ()

        assert program.ask() == "trained"
        record = program.record(until=lambda record: record.groups != ())
        assert record.groups == (GroupCounter("gloo", 0, 2, 2),)
        assert record.step == 0  # the job says that it counts, and did not
        eventually(lambda: "torch" in json.loads(facts.read_text())["versions"] or None)

        # gloo's recorder never completes an entry, so it takes all for active; they have no frames.
        active = request(program, 1, "active")
        assert {"entries", "pg_config", "pg_status", "version"} <= active.keys()
        assert not frames_in(active)
        entries = request(program, 2, "entries")
        assert [entry["profiling_name"] for entry in entries["entries"]] == ["gloo:all_reduce"] * 2
        assert not frames_in(entries)
        stacks = request(program, 3, "stacks")
        assert any(frame["filename"].endswith("train.py") for frame in frames_in(stacks))

        # A build with CUDA has NCCL's recorder, too, which tells of nothing here.
        dumps = {path for path in directory.glob("*.dump") if not path.name.endswith(".nccl.dump")}
        assert dumps == {program.answer_path(3, part) for part in ("gloo", "scene")}
        assert program.record().errors == 0
        status, _ = program.end()
    assert status == 0
    assert list(directory.glob("*.dump")) == []
    [record] = records(directory).values()
    assert (record.ended, record.exit_code) == (True, 0)


def test_a_rank_without_a_launcher_is_named_by_torch_distributed(tmp_path: Path, directory: Path) -> None:
    with running(script(tmp_path, RANK.format(arguments="auto=True")), directory, variables={}) as program:
        assert program.line() == "attached"
        before = program.record()
        assert (before.rank, before.world_size, before.step) == (0, 1, None)
        assert before.training_job == "train"  # its script's name
        assert program.ask() == "trained"
        after = program.record(until=lambda record: record.training_job != before.training_job)
        assert after.training_job == str(tmp_path / "store") + ":"
        assert program.record(until=lambda record: record.step is not None).step == 5
        assert program.end()[0] == 0


def test_torchrun_starts_a_program_that_knows_nothing_of_us(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "monitor.py").write_text("MINE = True\n")
    script(
        tmp_path,
        "import monitor\nassert monitor.MINE\nimport torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nmodel = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    model(torch.ones(1, 2)).sum().backward()\n    optimizer.step()\n"
        "dist.barrier()\ndist.destroy_process_group()\n",
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = Path(sys.executable).with_name("torchrun")
    ranks = ["--nproc-per-node", "2", "--master-port", str(port)]
    command = [str(torchrun), *ranks, "-m", "stallwatch.run", "train.py"]
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with running(command, directory, folder=tmp_path, variables=variables) as program:
        status, errors = program.end()
    assert status == 0, errors
    found = sorted(records(directory).values(), key=lambda record: record.rank)
    assert [(record.rank, record.step, record.ended, record.exit_code) for record in found] == [
        (0, 3, True, 0),
        (1, 3, True, 0),
    ]
    assert {record.world_size for record in found} == {2}
    assert len({record.epoch for record in found}) == 1
