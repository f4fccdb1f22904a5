import os

import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.host.storage import DiskSpace, NetworkCaches, SharedMemory, StaleBuildLocks
from stallwatch.doctor.surroundings import Question, Space
from tests.unit.doctor.fakes import FakeDisks, Node, one, rank

MIB, GIB = 1 << 20, 1 << 30
SHM = "/dev/shm"


@pytest.mark.parametrize(
    ("space", "severity"),
    [
        (Space(64 * MIB, 60 * MIB, True), "error"),  # what docker gives
        (Space(512 * MIB, 500 * MIB, True), "warning"),
        (Space(16 * GIB, 10 * MIB, True), "error"),
        ("/dev/shm: No such file or directory", "error"),
    ],
)
def test_shared_memory_too_small_full_or_absent_is_told(node: Node, space: Space | str, severity: str) -> None:
    assert one(SharedMemory().look(node.around(disks=FakeDisks({SHM: space})))).severity == severity


def test_enough_shared_memory_is_silent_until_workers_need_more(node: Node) -> None:
    disks = FakeDisks({SHM: Space(8 * GIB, 8 * GIB, True)})
    assert SharedMemory().look(node.around(disks=disks)) == ()
    many = Question(workers=16, local_ranks=8)
    assert "--shm-size=32g" in one(SharedMemory().look(node.around(disks=disks, question=many))).remedy


def test_a_file_system_that_does_not_answer_is_told(node: Node) -> None:
    disks = FakeDisks({"/scratch/job": "the file system of /scratch/job has not answered for 2 s"})
    around = node.around(ranks=(rank(0, working_directory="/scratch/job"),), disks=disks)
    assert "has not answered" in one(DiskSpace().look(around)).seen


def test_little_room_for_dumps_and_checkpoints_is_told(node: Node) -> None:
    small = Space(100 * GIB, 100 * MIB, True)
    assert one(DiskSpace().look(node.around(disks=FakeDisks({"/tmp": small})))).severity == "warning"
    around = node.around({"TORCH_FR_DUMP_TEMP_FILE": "/dumps/rank_"}, disks=FakeDisks({"/dumps": small}))
    assert one(DiskSpace().look(around)).subject == "/dumps"
    assert DiskSpace().look(node.around()) == ()


def test_a_pipe_folder_that_is_not_writable_would_abort_the_rank(node: Node) -> None:
    around = node.around(
        {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/run/pipes/r"}, disks=FakeDisks({"/run/pipes": Space(GIB, GIB, False)})
    )
    found = one(DiskSpace().look(around))
    assert found.severity == "error"
    assert "aborts the rank" in found.why


def lock(node: Node, age_seconds: float) -> None:
    path = node.write("home/u/.cache/torch_extensions/py311_cu128/fused_adam/lock", "")
    os.utime(path, (1_000_000 - age_seconds, 1_000_000 - age_seconds))


def test_a_build_lock_that_nobody_holds_is_told(node: Node) -> None:
    lock(node, 7300)
    found = one(StaleBuildLocks().look(node.around({"HOME": "/home/u"})))
    assert "2 hours old, that no process has open" in found.seen
    assert found.remedy == f"rm {found.subject}"


def test_a_build_that_runs_is_left_alone(node: Node) -> None:
    lock(node, 5)
    assert StaleBuildLocks().look(node.around({"HOME": "/home/u"})) == ()
    lock(node, 7300)
    folder = node.root / "proc/9/fd"
    folder.mkdir(parents=True)
    os.symlink(node.root / "home/u/.cache/torch_extensions/py311_cu128/fused_adam/lock", folder / "3")
    assert StaleBuildLocks().look(node.around({"HOME": "/home/u"})) == ()


@pytest.mark.parametrize("kind", ["nfs4", "wekafs", "virtiofs", "fuse.sshfs"])
def test_build_caches_on_a_network_file_system_are_told(node: Node, kind: str) -> None:
    line = "30 1 0:40 / {} rw - {} server:/home rw\n"
    node.write("proc/self/mountinfo", line.format("/", "ext4") + line.format("/home", kind))
    found = one(NetworkCaches().look(node.around({"TRITON_CACHE_DIR": "/home/u/triton"})))
    assert found.severity == "warning"
    assert found.remedy.startswith("export TRITON_CACHE_DIR=/tmp/")
    assert NetworkCaches().look(node.around({"TRITON_CACHE_DIR": "/local/triton"})) == ()
    node.write("proc/self/mountinfo", "")
    with pytest.raises(Inapplicable):
        NetworkCaches().look(node.around())
