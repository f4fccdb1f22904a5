import pytest

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.host.resource_limits import CgroupMemory, Cpus, LockedMemory, OpenFiles, cpus_allowed
from stallwatch.doctor.surroundings import Question
from tests.unit.doctor.fakes import LIMITS, Node, one, rank

GIB = 1 << 30


def test_a_low_limit_of_open_files_is_told_with_what_can_be_had(node: Node) -> None:
    node.write("proc/self/limits", LIMITS.replace("20000 ", "256 "))
    found = one(OpenFiles().look(node.around()))
    assert found.seen.startswith("256 open files are allowed")
    assert found.remedy == "ulimit -n 1048576"


def test_a_low_hard_limit_needs_the_administrator(node: Node) -> None:
    node.write("proc/self/limits", LIMITS.replace("20000                1048576", "256                  256"))
    assert "limits.conf" in one(OpenFiles().look(node.around())).remedy


def test_workers_raise_what_is_needed(node: Node) -> None:
    node.write("proc/self/limits", LIMITS.replace("20000 ", "4096 "))
    assert OpenFiles().look(node.around()) == ()
    assert "16 workers" in one(OpenFiles().look(node.around(question=Question(workers=16)))).seen


def test_the_limits_of_a_running_rank_count_before_ours(node: Node) -> None:
    node.write("proc/101/limits", LIMITS.replace("20000 ", "128 "))
    assert one(OpenFiles().look(node.around(ranks=(rank(1),)))).subject == "rank 1 (pid 101)"


def test_a_shell_with_fewer_files_than_usual_is_told_beside_ranks_that_have_enough(node: Node) -> None:
    node.write("proc/101/limits", LIMITS)
    for files, told in (("256 ", 1), ("1024 ", 0)):
        node.write("proc/self/limits", LIMITS.replace("20000 ", files))
        assert len(OpenFiles().look(node.around(ranks=(rank(1),)))) == told


def test_limits_that_cannot_be_read_are_unknown(node: Node) -> None:
    node.write("proc/self/limits", "")
    with pytest.raises(Undetermined):
        OpenFiles().look(node.around())


def test_locked_memory_counts_where_there_is_infiniband(node: Node) -> None:
    with pytest.raises(Inapplicable):
        LockedMemory().look(node.around())
    node.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    assert "8192 KiB" in one(LockedMemory().look(node.around())).seen
    node.write("proc/self/limits", LIMITS.replace("8388608              8388608", "unlimited            unlimited"))
    assert LockedMemory().look(node.around()) == ()


def test_cpus_are_counted_by_affinity_and_quota(node: Node) -> None:
    assert cpus_allowed(node.around()) == 8
    node.write("sys/fs/cgroup/cpu.max", "250000 100000\n")
    assert cpus_allowed(node.around()) == 2.5
    node.write("sys/fs/cgroup/cpu.max", "max 100000\n")
    node.write("proc/self/status", "Cpus_allowed_list:\t0-1,4,6-7\n")
    assert cpus_allowed(node.around()) == 5


def test_fewer_cpus_than_ranks_and_workers_are_told(node: Node) -> None:
    with pytest.raises(Inapplicable):
        Cpus().look(node.around())
    assert Cpus().look(node.around(question=Question(local_ranks=8))) == ()
    assert one(Cpus().look(node.around(question=Question(local_ranks=8, workers=4)))).severity == "warning"
    assert one(Cpus().look(node.around({"LOCAL_WORLD_SIZE": "32"}))).severity == "error"


def test_threads_that_oversubscribe_are_told(node: Node) -> None:
    found = one(Cpus().look(node.around({"OMP_NUM_THREADS": "8"}, question=Question(local_ranks=4))))
    assert found.remedy == "export OMP_NUM_THREADS=2"


def cgroup(node: Node, *, limit: int, used: int, cache: int = 0, killed: int = 0, pids: int = 10) -> None:
    node.write("sys/fs/cgroup/memory.max", f"{limit}\n")
    node.write("sys/fs/cgroup/memory.current", f"{used}\n")
    node.write("sys/fs/cgroup/memory.stat", f"anon 5\ninactive_file {cache}\n")
    node.write("sys/fs/cgroup/memory.events", f"low 0\noom 0\noom_kill {killed}\n")
    node.write("sys/fs/cgroup/pids.current", f"{pids}\n")
    node.write("sys/fs/cgroup/pids.max", "100\n")


def test_memory_that_is_nearly_used_up_is_told_and_page_cache_is_not(node: Node) -> None:
    cgroup(node, limit=10 * GIB, used=10 * GIB - 5)
    assert "of 10.0 GiB are used" in one(CgroupMemory().look(node.around())).seen
    cgroup(node, limit=10 * GIB, used=10 * GIB - 5, cache=6 * GIB)
    assert CgroupMemory().look(node.around()) == ()


def test_kills_of_the_past_are_a_clue_for_a_failed_run_only(node: Node, tmp_path: object) -> None:
    from pathlib import Path

    cgroup(node, limit=10 * GIB, used=GIB, killed=2)
    assert one(CgroupMemory().look(node.around())).severity == "info"
    assert one(CgroupMemory().look(node.around(question=Question(logs=(Path("x"),))))).severity == "warning"


def test_processes_that_are_nearly_used_up_are_told(node: Node) -> None:
    cgroup(node, limit=10 * GIB, used=GIB, pids=95)
    assert "95 of 100 processes" in one(CgroupMemory().look(node.around())).seen


def test_version_1_of_cgroups_is_read_too(node: Node) -> None:
    node.write("proc/self/cgroup", "4:memory:/jobs/7\n1:cpu:/\n")
    node.write("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", str(GIB))
    node.write("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", str(GIB))
    assert "of 1.0 GiB are used" in one(CgroupMemory().look(node.around())).seen
    node.write("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712")
    assert CgroupMemory().look(node.around()) == ()
