"""What is advised fits the launcher; containers whose shared memory was set too small."""

import pytest

from stallwatch.doctor.advice.containers import SharedMemorySize
from stallwatch.doctor.advice.launch_checks import FewerGpusThanRanks, LoopbackLaunch
from stallwatch.doctor.check import Check
from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.surroundings import Question
from tests.unit.doctor.fakes import Node

TWO = "export CUDA_VISIBLE_DEVICES=0,1\n"


def look(node: Node, check: Check, text: str, name: str = "run.sh") -> tuple[FindingRecord, ...]:
    return check.look(node.around(question=Question(scripts=(node.write(name, text),))))


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (TWO + "torchrun --nproc-per-node=4 train.py\n", "--nproc-per-node=2"),
        (TWO + "python -m torch.distributed.launch --nproc_per_node=4 --use_env train.py\n", "--nproc-per-node=2"),
        (TWO + "accelerate launch --multi_gpu --num_processes 4 train.py\n", "--num_processes=2"),
        (TWO + "accelerate launch --num_processes=8 --num_machines=2 train.py\n", "--num_processes=4"),
        (TWO + "mpirun -np 4 python train.py\n", "-np 2"),
        (TWO + "horovodrun -np 4 -H localhost:4 python train.py\n", "-np 2"),
        (TWO + "srun --ntasks-per-node=4 python train.py\n", "--ntasks-per-node=2"),
        ("#SBATCH --ntasks-per-node=8\n" + TWO + "srun python train.py\n", "--ntasks-per-node=2"),
        (TWO + "srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=4 train.py\n", "--nproc-per-node=2"),
        (TWO + "fabric run --devices=4 train.py\n", "--devices=2"),
        (TWO + "composer -n 4 train.py --nproc 4\n", "-n 2"),
    ],
)
def test_fewer_gpus_than_ranks_is_mended_by_the_launchers_own_option(node: Node, text: str, option: str) -> None:
    (found,) = look(node, FewerGpusThanRanks(), text)
    assert found.severity == "error"
    assert found.remedy.startswith(f"{option}, or name ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "services:\n  t:\n    environment:\n      CUDA_VISIBLE_DEVICES: \"0,1\"\n"
         "    command: torchrun --nproc-per-node=8 t.py\n"),
        ("p.yaml", "command: [\"torchrun\", \"--nproc-per-node=4\"]\nenv:\n- name: CUDA_VISIBLE_DEVICES\n"
         "  value: \"0,1\"\n"),
        ("Dockerfile", "ENV CUDA_VISIBLE_DEVICES=0,1\nCMD [\"torchrun\", \"--nproc-per-node=4\", \"t.py\"]\n"),
    ],
)  # fmt: skip
def test_manifests_say_it_too(node: Node, name: str, text: str) -> None:
    assert len(look(node, FewerGpusThanRanks(), text, name)) == 1


def test_as_many_gpus_as_ranks_are_silent(node: Node) -> None:
    text = (
        TWO + "torchrun --nproc-per-node=2 a.py\naccelerate launch --num_processes 4 --num_machines 2 a.py\n"
        "srun --ntasks-per-node=1 --gpus-per-node=8 torchrun --nproc-per-node=2 a.py\n"
    )
    assert look(node, FewerGpusThanRanks(), text) == ()


IMAGE = "    image: pytorch\n    command: torchrun --nproc-per-node=4 t.py\n"
VOLUME = "volumes:\n- name: shm\n  emptyDir:\n    medium: Memory\n    sizeLimit: {}\nmountPath: /dev/shm\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "docker run --gpus all --shm-size=64m img torchrun --nproc_per_node=8 t.py\n"),
        ("a.sh", "docker run --gpus all \\\n  --shm-size 512M \\\n  img accelerate launch t.py\n"),
        ("a.sh", "podman run --device nvidia.com/gpu=all --shm-size=8 img deepspeed t.py\n"),
        ("a.sh", "mount -o remount,size=128M /dev/shm\ntorchrun t.py\n"),
        ("a.sh", "docker run --gpus all --tmpfs /dev/shm:rw,size=64m img python train.py\n"),
        ("c.yaml", 'services:\n  t:\n    shm_size: "256mb"\n' + IMAGE),
        ("k.yaml", IMAGE + VOLUME.format("64Mi")),
        ("g.md", "Start it:\n\n```bash\ndocker run --gpus all --shm-size=64m img python train.py\n```\n"),
    ],
)
def test_a_container_with_too_little_shared_memory_is_told(node: Node, name: str, text: str) -> None:
    (found,) = look(node, SharedMemorySize(), text, name)
    assert found.severity == "warning"
    assert "16g" in found.remedy


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "docker run --gpus all --ipc=host --shm-size=1m img torchrun t.py\n"),
        ("a.sh", "docker run --shm-size=256m postgres:16\ndocker run --gpus all --shm-size=16GB img torchrun t.py\n"),
        ("c.yaml", "services:\n  t:\n    shm_size: 16gb\n" + IMAGE),
        ("k.yaml", IMAGE + VOLUME.format("32Gi") + "- name: cache\n  emptyDir:\n    sizeLimit: 100Mi\n"),
    ],
)
def test_enough_or_the_hosts_is_silent(node: Node, name: str, text: str) -> None:
    assert look(node, SharedMemorySize(), text, name) == ()


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (
            "accelerate launch --num_machines 2 --num_processes 16 --main_process_ip 127.0.0.1 t.py\n",
            "--main_process_ip=",
        ),
        ("torchrun --nnodes=2 --nproc-per-node=8 --master-addr=localhost t.py\n", "--master-addr="),
        ("deepspeed --num_nodes 2 --master_addr=127.0.0.1 t.py\n", "--master_addr="),
        ("export MASTER_ADDR=localhost\ntorchrun --nnodes=2 t.py\n", "export MASTER_ADDR="),
    ],
)
def test_a_loopback_address_for_several_nodes_is_mended_where_it_is_set(node: Node, text: str, option: str) -> None:
    (found,) = look(node, LoopbackLaunch(), text)
    assert found.remedy.startswith(option)


def operator(kind: str, role: str, replicas: int, container: str) -> str:
    one = "Launcher" if kind == "MPIJob" else "Master"
    return (
        f"kind: {kind}\nspec:\n  replicaSpecs:\n    {one}:\n      replicas: 1\n      template:\n        {container}\n"
        f"    {role}:\n      replicas: {replicas}\n"
    )


BY_NAME = "env:\n        - name: NCCL_SOCKET_IFNAME\n          value: lo"
BY_LIST = 'command: ["mpirun", "-np", "16", "-x", "NCCL_SOCKET_IFNAME=lo", "python", "t.py"]'
IN_FLOW = "{containers: [{command: [mpirun, -x, NCCL_SOCKET_IFNAME=lo, python, t.py]}]}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (operator("PyTorchJob", "Worker", 3, BY_NAME), 1),
        (operator("MPIJob", "Worker", 2, BY_LIST), 1),
        (operator("MPIJob", "Worker", 2, IN_FLOW), 1),
        (operator("MPIJob", "Worker", 1, BY_LIST), 0),
        (operator("PyTorchJob", "Worker", 0, BY_NAME), 0),
        (operator("Deployment", "Worker", 4, BY_NAME), 0),
    ],
)
def test_a_loopback_interface_for_several_pods_of_an_operator_is_told(node: Node, text: str, told: int) -> None:
    path = node.write("job.yaml", text)
    found = LoopbackLaunch().look(node.around(question=Question(scripts=(path,))))
    assert [record.severity for record in found] == ["error"] * told
