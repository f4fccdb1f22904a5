import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.gpu.use import LeftOverProcesses, SharedGpu, VisibleDevices
from stallwatch.doctor.surroundings import Question
from tests.unit.doctor.fakes import GIB, FakeGpus, Node, gpus, one, rank


def test_memory_held_without_a_job_is_told_with_its_holder(node: Node) -> None:
    node.write("proc/812/cmdline", "python\0old.py\0")
    node.write("proc/812/stat", "812 (python) D 1 " + "0 " * 48)
    held = gpus({"memory_used_bytes": 40 * GIB, "compute_pids": (812,)})
    found = one(LeftOverProcesses().look(node.around(gpus=FakeGpus(held))))
    assert "40.0 GiB are in use by pid 812 (python old.py, state D)" in found.seen
    assert found.remedy.startswith("kill 812")


def test_memory_of_a_running_job_and_small_contexts_are_usual(node: Node) -> None:
    small = gpus({"memory_used_bytes": 400 << 20, "compute_pids": (5,)})
    assert LeftOverProcesses().look(node.around(gpus=FakeGpus(small))) == ()
    with pytest.raises(Inapplicable):
        LeftOverProcesses().look(node.around(gpus=FakeGpus(gpus()), ranks=(rank(0),)))


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "2, 3 is not on this node"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-9"}, "GPU-9 is not on this node"),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, "names a GPU twice"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_WORLD_SIZE": "4"}, "2 GPUs are visible to 4 local ranks"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "2 GPUs are visible to 4 local ranks"),
    ],
)
def test_visible_devices_that_do_not_add_up_are_errors(node: Node, values: dict[str, str], seen: str) -> None:
    found = one(VisibleDevices().look(node.around(values, gpus=FakeGpus(gpus()))))
    assert found.severity == "error"
    assert seen in found.seen


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": "1,0"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "GPU-1"},
        {"CUDA_VISIBLE_DEVICES": "1", "LOCAL_WORLD_SIZE": "2"},
        {"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_visible_devices_that_add_up_are_silent(node: Node, values: dict[str, str]) -> None:
    assert VisibleDevices().look(node.around(values, gpus=FakeGpus(gpus()))) == ()


def test_two_ranks_on_one_gpu_are_an_error(node: Node) -> None:
    state = gpus({"compute_pids": (100, 101)})
    found = one(SharedGpu().look(node.around(gpus=FakeGpus(state), ranks=(rank(0), rank(1)))))
    assert found.severity == "error"
    assert "Ranks 0 (pid 100), 1 (pid 101) are on this GPU." in found.seen


def test_a_stray_context_is_a_warning(node: Node) -> None:
    state = gpus({"compute_pids": (100, 101)}, {"compute_pids": (101,)})
    found = one(SharedGpu().look(node.around(gpus=FakeGpus(state), ranks=(rank(0), rank(1)))))
    assert found.severity == "warning"
    assert "rank 1 also on another" in found.seen


def test_one_gpu_for_each_rank_is_silent(node: Node) -> None:
    state = gpus({"compute_pids": (100,)}, {"compute_pids": (101,)})
    assert SharedGpu().look(node.around(gpus=FakeGpus(state), ranks=(rank(0), rank(1)))) == ()
    with pytest.raises(Inapplicable):
        SharedGpu().look(node.around(gpus=FakeGpus(state)))


def test_ranks_of_two_jobs_may_share(node: Node) -> None:
    ranks = (rank(0), rank(1, environment={"MASTER_PORT": "9"}))
    assert SharedGpu().look(node.around(gpus=FakeGpus(gpus({"compute_pids": (100, 101)})), ranks=ranks)) == ()


def test_fewer_names_than_ranks_are_told_without_nvml_too(node: Node) -> None:
    question = Question(local_ranks=4)
    found = one(VisibleDevices().look(node.around({"CUDA_VISIBLE_DEVICES": "0,1"}, question=question)))
    assert found.seen == "2 GPUs are visible to 4 local ranks."
    assert one(VisibleDevices().look(node.around({"CUDA_VISIBLE_DEVICES": "0"}, question=question)))
    by_torchrun = {"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    assert "(LOCAL_RANK=3)" in one(VisibleDevices().look(node.around(by_torchrun))).seen


def test_names_enough_or_one_for_each_rank_are_right_without_nvml_too(node: Node) -> None:
    for values, ranks in (
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4),
        ({"CUDA_VISIBLE_DEVICES": "2", "LOCAL_WORLD_SIZE": "4"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, 4),
    ):
        with pytest.raises(Inapplicable):
            VisibleDevices().look(node.around(values, question=Question(local_ranks=ranks)))
    of_slurm = rank(1, environment={"CUDA_VISIBLE_DEVICES": "1"})
    with pytest.raises(Inapplicable):
        VisibleDevices().look(node.around(ranks=(of_slurm,), question=Question(local_ranks=4)))
