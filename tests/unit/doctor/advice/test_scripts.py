from pathlib import Path

import pytest

from stallwatch.doctor.advice.scripts import HarmfulAdvice
from stallwatch.doctor.advice.variables import VariablesInScripts
from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.surroundings import Question, Surroundings
from stallwatch.doctor.training_script.process_group import ProcessGroupCall
from tests.unit.doctor.fakes import Node, one, rank


def around(node: Node, text: str, name: str = "run.sh") -> Surroundings:
    return node.around(question=Question(scripts=(node.write(name, text),)))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("export TORCH_NCCL_BLOCKING_WAIT=1  # as the forum says", "blocking wait"),
        ("NCCL_BLOCKING_WAIT=1 torchrun train.py", "blocking wait"),
        ('os.environ["NCCL_BLOCKING_WAIT"] = "1"', "blocking wait"),
        ("export NCCL_P2P_DISABLE=1", "P2P disabled"),
        ("docker run -e NCCL_P2P_DISABLE=1 image", "P2P disabled"),
        ("ENV NCCL_IB_DISABLE=1", "InfiniBand disabled"),
        ("export NCCL_SHM_DISABLE=1", "shared memory disabled"),
        ("export NCCL_DEBUG=WARN NCCL_IB_DISABLE=1", "InfiniBand disabled"),
        ("srun --export=ALL,NCCL_P2P_DISABLE=1 python train.py", "P2P disabled"),
        ("setenv NCCL_IB_DISABLE 1", "InfiniBand disabled"),
        ('os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")', "CUDA_LAUNCH_BLOCKING"),
        ('- {name: TORCH_NCCL_BLOCKING_WAIT, value: "1"}', "blocking wait"),
        ("kill -9 $(pgrep -f train.py)", "killed by name"),
        ("fuser -k 29500/tcp", "killed unseen"),
        ("rm -rf /dev/shm/*", "shared memory of all jobs"),
        ("sudo setenforce 0", "SELinux"),
        ("SELINUX=disabled", "SELinux"),
        ("sudo ufw disable", "firewall"),
        ("systemctl stop firewalld", "firewall"),
        ("systemctl disable --now firewalld", "firewall"),
        ("iptables -F", "firewall"),
        ("pkill -f train.py torchrun", "killed by name"),
        ("pkill -9 python", "killed by name"),
        ("killall -9 python3", "killed by name"),
        ("ps aux | grep train.py | awk '{print $2}' | xargs kill -9", "killed by name"),
        ("sysctl -w net.ipv4.tcp_fin_timeout=15", "tcp_fin_timeout"),
        ("sysctl -w net.ipv4.tcp_tw_reuse=1", "TIME_WAIT reuse"),
        ("model = DDP(model, find_unused_parameters=True)", "find_unused_parameters"),
        ("export CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING"),
        ("export NCCL_ASYNC_ERROR_HANDLING=0", "watchdog"),
        ("dist.init_process_group(timeout=timedelta(hours=6))", "time-out of hours"),
        ("--ddp_timeout 180000", "time-out of hours"),
    ],
)
def test_advice_that_harms_is_found_with_its_line(node: Node, line: str, what: str) -> None:
    found = one(HarmfulAdvice().look(around(node, f"#!/bin/bash\n{line}\n")))
    assert what in found.seen
    assert found.subject.endswith("run.sh:2")


@pytest.mark.parametrize(
    "line",
    [
        "# never: export NCCL_P2P_DISABLE=1",
        "export NCCL_P2P_DISABLE=0",
        "export TORCH_NCCL_BLOCKING_WAIT=0",
        "unset NCCL_P2P_DISABLE",
        "kill $LAUNCHER_PID",
        "pkill -P $$",
        "ufw allow from 10.0.0.0/8",
        "iptables -I INPUT -i lo -j ACCEPT",
        "DDP(model, find_unused_parameters=False)",
        "init_process_group(timeout=timedelta(minutes=30))",
        "echo setup",
        'echo "pkill -f is bad on shared nodes; NCCL_P2P_DISABLE=1 too"',
        "fuser -v 29500/tcp",
        "rm -rf /dev/shm/my-job-4711",
        "getenforce",
    ],
)
def test_harmless_lines_are_silent(node: Node, line: str) -> None:
    assert HarmfulAdvice().look(around(node, line + "\n")) == ()


def test_a_variable_whose_value_stands_below_it_is_told_once_with_both(node: Node) -> None:
    yaml = around(node, '- name: NCCL_P2P_DISABLE\n  value: "1"\n', "job.yaml")
    assert "P2P disabled for good: NCCL_P2P_DISABLE=1" in one(HarmfulAdvice().look(yaml)).seen
    assert VariablesInScripts().look(yaml) == ()


def test_the_same_advice_is_told_once_for_a_file(node: Node) -> None:
    found = one(HarmfulAdvice().look(around(node, "pkill -f a\n\npkill -f b\n")))
    assert "(also line 3)" in found.seen


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("export NCCL_TIMEOUT=3600", "init_process_group(timeout="),
        ("export DS_ACCELERATORATOR=cuda", "DS_ACCELERATOR"),
        ("export NCCL_DEBGU=INFO", "NCCL_DEBUG"),
        ('os.environ["CUDA_MEMORY_FRACTION"] = "0.8"', "set_per_process_memory_fraction"),
        ("mpirun -x NCCL_SOCKET_IFNAMES=eth0 python t.py", "NCCL_SOCKET_IFNAME"),
    ],
)
def test_variables_that_nobody_reads_are_found_in_scripts(node: Node, line: str, instead: str) -> None:
    assert instead in one(VariablesInScripts().look(around(node, line))).remedy


SBATCH = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export MASTER_PORT=29513 NCCL_IB_TIMEOUT=50
export GLOO_SOCKET_IFNAME="^lo,docker0"
export WORLD_SIZE=$((SLURM_NNODES * 8))
srun --export=ALL,NCCL_DEBUG=VERBOSE,NCCL_ALGO=$ALGO torchrun train.py
"""
KUBERNETES = """\
containers:
- name: pytorch
  env:
  - name: NCCL_P2P_DISABLE
    value: "1"
  - name: NCCL_SOCKET_IFNAMES
    value: eth0
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - {name: x}
"""
COMPOSE = """\
services:
  train:
    environment:
      NCCL_IB_RETRY_CNT: "15"
      TORCH_DISTRIBUTED_DEBUG: ALL
    command: torchrun train.py
"""
DOCKERFILE = (
    "FROM nvcr.io/nvidia/pytorch:25.06-py3\nENV NCCL_TIMEOUT=1800 \\\n    NCCL_BUFFSIZE=4M\nENV CUDA_VISIBLE_DEVICE 0\n"
)
CONF = "# site\nNCCL_SOCKET_FAMILY=IPv4\nNCCL_NTHREADS = 4\n"
RAY = 'ray.init(runtime_env={"env_vars": {"NCCL_CUMEM_ENABLES": "0", "NCCL_DEBUG": "INFO"}})\n'


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("job.sbatch", SBATCH, {("NCCL_IB_TIMEOUT", 4), ("GLOO_SOCKET_IFNAME", 5), ("NCCL_DEBUG", 7)}),
        ("pod.yaml", KUBERNETES, {("NCCL_SOCKET_IFNAMES", 7)}),
        ("compose.yaml", COMPOSE, {("NCCL_IB_RETRY_CNT", 4), ("TORCH_DISTRIBUTED_DEBUG", 5)}),
        ("Dockerfile", DOCKERFILE, {("NCCL_TIMEOUT", 2), ("NCCL_BUFFSIZE", 3), ("CUDA_VISIBLE_DEVICE", 4)}),
        ("nccl.conf", CONF, {("NCCL_SOCKET_FAMILY", 2)}),
        ("train.py", RAY, {("NCCL_CUMEM_ENABLES", 1)}),
    ],
)
def test_files_of_every_kind_are_held_to_what_an_environment_is(
    node: Node, name: str, text: str, told: set[tuple[str, int]]
) -> None:
    found = VariablesInScripts().look(around(node, text, name))
    assert {(one.seen.split("=")[0], int(one.subject.rsplit(":", 1)[1])) for one in found} == told


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.py", "spawn(main, NCCL_TIMEOUT=30)"),
        ("train.py", "def f(world_size=int, master_port=29500): ..."),
        ("train.py", 'os.environ["LOCAL_RANK"] = f"{rank}"'),
        ("train.py", 'log("LOCAL_RANK=%s", rank)'),
        ("run.sh", "local_rank=0; world_size=8; master_port=29500"),
        ("run.sh", "export RANK=$SLURM_PROCID WORLD_SIZE=${N}"),
        ("pod.yaml", '- {name: RANK, value: "{{ .index }}"}'),
        ("pod.yaml", "RANK: {{ .Values.rank }}"),
    ],
)
def test_what_sets_no_variable_or_one_that_only_the_run_knows_is_silent(node: Node, name: str, line: str) -> None:
    assert VariablesInScripts().look(around(node, line, name)) == ()


OLD_NAME = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("run.sh", f"pip install 'torch==2.4.1'\nexport {OLD_NAME}\n", None),
        ("env.sh", f"conda install pytorch=2.5.1 -c pytorch\nexport {OLD_NAME}\n", None),
        ("Dockerfile", f"FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel\nENV {OLD_NAME}\n", None),
        ("Dockerfile", f"FROM nvcr.io/nvidia/pytorch:24.12-py3\nENV {OLD_NAME}\n", "with PyTorch 2.9 or newer: unset "),
        ("c.yaml", f"image: us.pkg.dev/x/train:3\nenvironment:\n  - {OLD_NAME}\n", "with PyTorch 2.9 or newer: unset "),
        ("Dockerfile", f"FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-devel\nENV {OLD_NAME}\n", "unset "),
        ("run.sh", f"export {OLD_NAME}\ntorchrun t.py\n", "unset "),
    ],
)
def test_a_new_name_is_advised_where_the_files_own_version_may_read_it(
    node: Node, name: str, text: str, remedy: str | None
) -> None:
    found = [record.remedy for record in VariablesInScripts().look(around(node, text, name))]
    told = f"{remedy}PYTORCH_CUDA_ALLOC_CONF; export PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert found == ([] if remedy is None else [told])


def test_settings_of_one_file_that_defeat_each_other_are_told(node: Node) -> None:
    text = "export NCCL_IB_DISABLE=1\nexport NCCL_IB_HCA=mlx5_0\n"
    assert "are both set" in one(VariablesInScripts().look(around(node, text))).seen


def test_variables_that_somebody_reads_are_silent(node: Node) -> None:
    text = "export NCCL_DEBUG=INFO\nexport MY_NCCL_THING=1\nexport CUDA_MY_OWN=2\nexport NCCL_QUANTUM_LINK=1\n"
    assert VariablesInScripts().look(around(node, text)) == ()


def test_a_process_group_without_a_device_is_told(node: Node) -> None:
    text = 'import torch.distributed as dist\ndist.init_process_group("nccl", timeout=t)\n'
    found = one(ProcessGroupCall().look(around(node, text, "train.py")))
    assert (found.severity, found.subject.rsplit(":", 1)[1]) == ("warning", "2")


@pytest.mark.parametrize(
    "text",
    [
        'torch.cuda.set_device(0)\ndist.init_process_group("nccl", timeout=t)',
        'dist.init_process_group(backend="nccl", device_id=d, timeout=t)',
        'dist.init_process_group("gloo", timeout=t)',
        "dist.init_process_group(**options)",
        "def (",
    ],
)
def test_a_process_group_with_what_it_needs_is_silent(node: Node, text: str) -> None:
    assert ProcessGroupCall().look(around(node, text, "train.py")) == ()


def test_scripts_of_own_running_ranks_are_read_and_those_of_others_not(node: Node) -> None:
    node.write("work/run.sh", "pkill -f python\n")
    own = rank(0, uid=1000, argv=("bash", "run.sh"), working_directory=str(node.root / "work"))
    assert one(HarmfulAdvice().look(node.around(ranks=(own,)))).subject.endswith("run.sh:1")
    other = rank(0, uid=0, argv=("bash", "run.sh"), working_directory=str(node.root / "work"))
    with pytest.raises(Inapplicable):
        HarmfulAdvice().look(node.around(ranks=(other,)))


def test_a_script_that_cannot_be_read_is_unknown(node: Node) -> None:
    with pytest.raises(Undetermined):
        HarmfulAdvice().look(node.around(question=Question(scripts=(Path("/absent/run.sh"),))))
