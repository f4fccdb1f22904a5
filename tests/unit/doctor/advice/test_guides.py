"""Guides: prose with variables, code blocks, commands; and how scripts start their jobs."""

from collections.abc import Mapping

import pytest

from stallwatch.doctor.advice.launch_checks import FewerGpusThanRanks, LoopbackLaunch
from stallwatch.doctor.advice.scripts import HarmfulAdvice
from stallwatch.doctor.advice.variables import VariablesInScripts
from stallwatch.doctor.check import Check
from stallwatch.doctor.surroundings import Question
from tests.unit.doctor.fakes import Node, one

GUIDE = (HarmfulAdvice(), VariablesInScripts(), LoopbackLaunch(), FewerGpusThanRanks())


def found(node: Node, text: str, name: str, checks: tuple[Check, ...] = GUIDE) -> list[tuple[str, int]]:
    path = node.write(name, text)
    around = node.around(question=Question(scripts=(path,)))
    return [(record.seen, int(record.subject.rsplit(":", 1)[1])) for check in checks for record in check.look(around)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("- Set `NCCL_TIMEOUT` to 1800 seconds", "NCCL_TIMEOUT=1800: no such variable"),
        ("* `NCCL_SOCKET_TIMEOUT`: set to 60", "NCCL_SOCKET_TIMEOUT=60: no such variable"),
        ("**`TORCH_NCCL_BLOCKING_WAIT`**: Enable blocking wait", "blocking wait"),
        ("Disable InfiniBand with `NCCL_IB_DISABLE=1`.", "InfiniBand disabled"),
        ("- `NCCL_P2P_DISABLE`: Disable peer to peer", "P2P disabled"),
        ("| `NCCL_IB_TIMEOUT` | 1000 | longer |", "NCCL_IB_TIMEOUT=1000 is outside 1 to 31"),
        ("Increase `NCCL_IB_RETRY_CNT` to 15", "NCCL_IB_RETRY_CNT=15 is outside 0 to 7"),
        ("Run `export NCCL_DEBUG_LEVEL=INFO` first", "NCCL_DEBUG_LEVEL=INFO: no such variable"),
        ("Use pkill -9 -f train.py between runs", "killed by name"),
        ("Then run `kill -9 $(lsof -t -i:29500)`", "killed unseen"),
        ("6. Set **NCCL_TIMEOUT** to 600", "NCCL_TIMEOUT=600: no such variable"),
        ("First set `NCCL_P2P_DISABLE` to `1`. If that does not help, restart.", "P2P disabled"),
        ("If NCCL picks the wrong interface, set `NCCL_IB_DISABLE=1`", "InfiniBand disabled"),
        ("| `NCCL_TIMEOUT` | 1800 | avoid timeouts |", "NCCL_TIMEOUT=1800: no such variable"),
        ("Set `NCCL_SOCKET_TIMEOUT=600` so that it never hangs", "NCCL_SOCKET_TIMEOUT=600: no such variable"),
        ("Do not use `pkill -f`. Set `NCCL_P2P_DISABLE=1`.", "P2P disabled"),
        ("A cure is setting NCCL_P2P_DISABLE to 1, says the forum.", "P2P disabled"),
        ("`unset $(env | awk -F= '/^NCCL/{print $1}')` clears it.", "all variables of CUDA"),
        ("A full port is dangerous, free it by `fuser -k 29500/tcp`", "killed unseen"),
        ("| Problem | Do |\n|---|---|\n| hang | `setenforce 0` |", "SELinux"),
        ("| Don't | Do instead |\n|---|---|\n| wait | `setenforce 0` |", "SELinux"),
    ],
)
def test_what_a_guide_says_in_its_sentences_is_found(node: Node, line: str, words: str) -> None:
    ((seen, at),) = found(node, f"# Hangs\n\n{line}\n", "guide.md")
    assert words in seen
    assert at == 3 + line.count("\n")


@pytest.mark.parametrize(
    "line",
    [
        "Never set `NCCL_P2P_DISABLE=1` in production.",
        "`NCCL_TIMEOUT` is deprecated; remove it.",
        "Don't use `TORCH_NCCL_BLOCKING_WAIT=1` as a cure.",
        "Set `NCCL_DEBUG` to INFO for one run.",
        "Set NCCL_DEBUG to see more.",
        "`NCCL_P2P_DISABLE=1 torchrun t.py`  # just to see whether P2P is at fault",
        "`export NCCL_SHM_DISABLE=1` for the test.\nRemove it afterwards.",
        "`fuser -v /dev/nvidia0` tells who holds it.",
        "`NCCL_IB_TIMEOUT`: set to 22",
        "| `NCCL_SOCKET_IFNAME` | eth0 |",
        "`NCCL_P2P_DISABLE` turns peer to peer off.",
        "Avoid `pkill -f`: it takes every job.",
        "The `world_size` must match.",
        "Many guides say `NCCL_P2P_DISABLE=1`. Never do it.",
        "`NCCL_TIMEOUT=1800` does not exist.",
        "Remove `NCCL_P2P_DISABLE=1` from your scripts.",
        "Setting `NCCL_IB_DISABLE=1` is wrong on such nodes.",
        "`fuser -k 29500/tcp` is very dangerous, look who listens first.",
        "Do **not** stop the firewall (`systemctl stop firewalld`).",
        "_Never_ run `pkill -9 python`.",
        "`NCCL_IB_DISABLE=1` only hides the fault; leave it unset.",
        "There is no need for `NCCL_SHM_DISABLE=1`.",
        "You needn't set `NCCL_P2P_DISABLE=1`.",
        "`NCCL_P2P_DISABLE=1` must not be kept.",
        "| Tip of a forum | Why it is wrong |\n|---|---|\n| `pkill -9 python` | jobs |\n| `setenforce 0` | no |",
        "| Don't | Do instead |\n|:--|:--|\n| `iptables -F` | allow the subnet |",
    ],
)
def test_what_a_guide_warns_of_or_says_rightly_is_silent(node: Node, line: str) -> None:
    assert found(node, f"# Hangs\n\n{line}\n", "guide.md") == []


def test_code_blocks_are_read_in_their_own_language_with_the_lines_of_the_guide(node: Node) -> None:
    text = (
        "Setup:\n```bash\n# a comment: NCCL_TIMEOUT=5\nexport NCCL_TIMEOUT=1800\n```\nThen:\n```python\n"
        'os.environ["NCCL_BLOCKING_WAIT"] = "1"\n```\n~~~\nulimit -n 1024\n~~~\n'
    )
    assert sorted(at for _, at in found(node, text, "guide.md")) == [4, 8, 11]


@pytest.mark.parametrize("said", ["Wrong:", "Never do this:", "❌ Bad", "Do not copy this:"])
def test_a_block_under_a_warning_is_left_out(node: Node, said: str) -> None:
    assert found(node, f"{said}\n\n```bash\npkill -9 -f train\n```\n", "guide.md") == []
    assert found(node, "Like this:\n```bash\npkill -9 -f train\n```\n", "guide.md") != []


@pytest.mark.parametrize(
    "said", ["If that does not help:", "Before you start, set:", "To avoid the hang:", "When the wrong GPU is taken:"]
)
def test_a_block_under_a_condition_is_advice(node: Node, said: str) -> None:
    assert found(node, f"{said}\n\n```bash\npkill -9 -f train\n```\n", "guide.md") != []


def test_settings_of_two_blocks_are_ways_to_choose_from(node: Node) -> None:
    text = "A:\n```bash\nexport NCCL_IB_HCA==mlx5_0\n```\nB:\n```bash\nexport NCCL_IB_TIMEOUT=99\n```\n"
    assert [at for _, at in found(node, text, "guide.md")] == [7]


def test_every_value_that_a_script_sets_is_judged(node: Node) -> None:
    text = "NCCL_IB_TIMEOUT=99\nNCCL_IB_TIMEOUT=22\n"
    assert [at for _, at in found(node, text, "run.sh")] == [1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kill -9 `lsof -t -i tcp:29500`", "killed unseen"),
        ("lsof -ti:29500 | xargs -r kill -9", "killed unseen"),
        ("nvidia-smi --query-compute-apps=pid --format=csv,noheader | xargs kill -9", "killed unseen"),
        ("sudo kill -9 $(nvidia-smi | awk '/python/ {print $5}')", "killed unseen"),
        ("unset $(env | grep CUDA | cut -d= -f1)", "all variables of CUDA"),
        ("for v in $(env | grep NCCL_ | cut -d= -f1); do unset $v; done", "all variables of CUDA"),
        ("unset CUDA_VISIBLE_DEVICES CUDA_HOME", "all variables of CUDA"),
        ("unset CUDA_VISIBLE_DEVICES", "choice of GPUs"),
        ("fuser -v /dev/nvidia0 -k", "killed unseen"),
        ("unset $(env | awk -F= '/^NCCL/{print $1}')", "all variables of CUDA"),
        ("echo '* soft nofile 2048' | sudo tee -a /etc/security/limits.conf", "open files"),
        ("mamba install pytorch -c pytorch-nightly", "nightly"),
        ("nerdctl run --gpus all img torchrun t.py", "shared memory"),
        ("ulimit -n 1024", "open files"),
        ("ulimit -Sn 4096", "open files"),
        ("docker run --ipc=host --ulimit nofile=1024 img torchrun t.py", "open files"),
        ("docker run --gpus all img python train.py", "shared memory"),
        ("docker run --gpus all \\\n  -v /data:/data img \\\n  deepspeed train.py", "shared memory"),
        ("docker run --ipc=host img torchrun --nnodes=2 --nproc_per_node 8 t.py", "bridge network"),
        ("pip install --pre torch --index-url https://download.pytorch.org/whl/nightly/cu126", "nightly"),
        ("pip install torch==2.9.0.dev20250801+cu126", "nightly"),
    ],
)
def test_more_advice_that_harms_is_found(node: Node, line: str, words: str) -> None:
    ((seen, at),) = found(node, f"#!/bin/bash\n{line}\n", "run.sh")
    assert words in seen
    assert at == 2


@pytest.mark.parametrize(
    "line",
    [
        "lsof -i :29500", "ss -ltnp sport = :29500", "nvidia-smi", "unset NCCL_P2P_DISABLE", "ulimit -n 65536",
        "ulimit -n 1048576", "ulimit -l unlimited", "docker run --gpus all img nvidia-smi",
        "docker run --gpus all --ipc=host img torchrun --nproc_per_node=8 t.py",
        "docker run --shm-size=16g img python train.py", "docker run --rm img python -c 'import torch'",
        "docker run --ipc=host --network=host img torchrun --nnodes=2 t.py", "docker build -t img .",
        "pip install torch==2.8.0 --index-url https://download.pytorch.org/whl/cu126", "env | grep NCCL_",
    ],
)  # fmt: skip
def test_what_does_no_harm_is_silent(node: Node, line: str) -> None:
    assert found(node, f"#!/bin/bash\n{line}\n", "run.sh") == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("export NCCL_SOCKET_IFNAME=lo\ntorchrun --nnodes=2 t.py\n", [1]),
        ("#SBATCH --nodes=4\nexport GLOO_SOCKET_IFNAME=lo\nsrun python t.py\n", [2]),
        ("torchrun --nnodes 2 --master_addr localhost t.py\n", [1]),
        ("torchrun --nnodes=1:4 --rdzv_endpoint=127.0.0.1:29500 t.py\n", [1]),
        ("NNODES=2\nMASTER_ADDR=localhost\ntorchrun --nnodes $NNODES --master_addr $MASTER_ADDR t.py\n", [2]),
        ("accelerate launch --num_machines 2 --main_process_ip 127.0.0.1 t.py\n", [1]),
        ("export MASTER_ADDR=::1\ndeepspeed --num_nodes=2 t.py\n", [1]),
        ("mpirun -H a:8,b:8 -x NCCL_SOCKET_IFNAME=lo python t.py\n", [1]),
    ],
)
def test_a_loopback_for_several_nodes_is_found(node: Node, text: str, lines: list[int]) -> None:
    assert [at for _, at in found(node, text, "run.sh", (LoopbackLaunch(),))] == lines


@pytest.mark.parametrize(
    "text",
    [
        "export NCCL_SOCKET_IFNAME=lo\ntorchrun --nproc_per_node=8 t.py\n",
        "torchrun --nnodes=1 --master_addr localhost t.py\n",
        "torchrun --standalone --nnodes=1 t.py\n",
        "export NCCL_SOCKET_IFNAME=eth0\nexport MASTER_ADDR=node1\ntorchrun --nnodes=2 t.py\n",
        "export NCCL_SOCKET_IFNAME=^lo,docker0\ntorchrun --nnodes=2 --rdzv_endpoint=node1:29500 t.py\n",
    ],
)
def test_a_loopback_for_one_node_and_a_real_address_are_silent(node: Node, text: str) -> None:
    assert found(node, text, "run.sh", (LoopbackLaunch(),)) == []


def test_the_number_of_nodes_may_be_said_on_the_command_line(node: Node) -> None:
    path = node.write("run.sh", "export NCCL_SOCKET_IFNAME=lo\npython t.py\n")
    assert one(LoopbackLaunch().look(node.around(question=Question(scripts=(path,), nodes=2)))).severity == "error"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=4 t.py\n", "4 ranks are started"),
        ("export CUDA_VISIBLE_DEVICES=0\ntorchrun --nproc-per-node 2 t.py\n", "(line 1) names 1 GPU."),
        ("CUDA_VISIBLE_DEVICES=2,3 accelerate launch --num_processes 4 t.py\n", "names 2 GPUs"),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --include localhost:0,1,2,3 t.py\n", "4 ranks"),
        ("CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.run --nproc_per_node=8 t.py\n", "8 ranks"),
    ],
)
def test_fewer_gpus_than_ranks_are_found(node: Node, text: str, words: str) -> None:
    ((seen, _),) = found(node, text, "run.sh", (FewerGpusThanRanks(),))
    assert words in seen


@pytest.mark.parametrize(
    "text",
    [
        "CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node=4 t.py\n",
        "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=gpu t.py\n",
        "CUDA_VISIBLE_DEVICES=0,1 python t.py\n",
        "export CUDA_VISIBLE_DEVICES=0\nunset CUDA_VISIBLE_DEVICES\ntorchrun --nproc_per_node=8 t.py\n",
        "CUDA_VISIBLE_DEVICES=0 python a.py\ntorchrun --nproc_per_node=8 t.py\n",
        "CUDA_VISIBLE_DEVICES=$GPUS torchrun --nproc_per_node=8 t.py\n",
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_machines 2 --num_processes 4 t.py\n",
    ],
)
def test_gpus_enough_or_unknown_are_silent(node: Node, text: str) -> None:
    assert found(node, text, "run.sh", (FewerGpusThanRanks(),)) == []


def test_a_folder_is_read_with_what_people_write_in_it(node: Node) -> None:
    files: Mapping[str, str] = {
        "job/run.sh": "pkill -f train\n", "job/docs/guide.md": "Run `pkill -f train`\n",
        "job/.git/x.sh": "pkill -f y\n",
        "job/venv/x.sh": "pkill -f y\n", "job/notes.bin": "pkill -f y\n", "job/Dockerfile": "ENV NCCL_TIMEOUT=5\n",
    }  # fmt: skip
    for name, text in files.items():
        node.write(name, text)
    around = node.around(question=Question(scripts=(node.root / "job",)))
    places = [record.subject for check in GUIDE for record in check.look(around)]
    assert sorted(place.rsplit("/", 1)[1] for place in places) == ["Dockerfile:1", "guide.md:1", "run.sh:1"]


@pytest.mark.parametrize(
    ("name", "text", "at"),
    [
        ("pod.yaml", "command: [torchrun, --nnodes=4, t.py]\nenv:\n- name: NCCL_SOCKET_IFNAME\n  value: lo\n", 4),
        (
            "pod.yaml",
            '  command:\n  - torchrun\n  args:\n  - "--nnodes"\n  - "2"\n  env:\n  - name: GLOO_SOCKET_IFNAME\n'
            "    value: lo\n",
            8,
        ),
        ("Dockerfile", 'ENV NCCL_SOCKET_IFNAME=lo\nCMD ["torchrun", "--nnodes", "3", "t.py"]\n', 1),
    ],
)
def test_a_command_that_is_a_list_is_read_as_a_shell_would(node: Node, name: str, text: str, at: int) -> None:
    ((seen, line),) = found(node, text, name, (LoopbackLaunch(),))
    assert "_IFNAME=lo, and the job has" in seen
    assert line == at


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("horovodrun -np 4 -H localhost:4 python t.py", 4),
        ("mpirun -np 4 python t.py", 4),
        ("mpirun -np 8 -H a:4,b:4 python t.py", None),
        ("mpirun -np 8 --hostfile hosts python t.py", None),
    ],
)
def test_the_number_of_all_ranks_is_that_of_this_node_where_there_is_one(
    node: Node, line: str, ranks: int | None
) -> None:
    seen = found(node, f"export CUDA_VISIBLE_DEVICES=0,1,2\n{line}\n", "run.sh", (FewerGpusThanRanks(),))
    assert [one for one, _ in seen] == (
        [f"{ranks} ranks are started, and CUDA_VISIBLE_DEVICES=0,1,2 (line 1) names 3 GPUs."] if ranks else []
    )


COMPOSE = "services:\n  t:\n    image: img\n    command: torchrun --nproc_per_node=8 t.py\n"
POD = 'kind: Job\nspec:\n  containers:\n  - image: img\n    command: ["torchrun", "--nproc-per-node=8", "t.py"]\n'


@pytest.mark.parametrize(("text", "at"), [(COMPOSE, 4), (POD, 5)])
def test_a_container_of_a_manifest_without_shared_memory_is_told(node: Node, text: str, at: int) -> None:
    ((seen, line),) = found(node, text, "job.yaml")
    assert seen.startswith("a container with 64 MiB of shared memory")
    assert line == at


@pytest.mark.parametrize(
    "text",
    [
        COMPOSE + "    ipc: host\n", COMPOSE + "    shm_size: 16gb\n", COMPOSE.replace("=8", "=1"),
        POD + "    volumeMounts: [{name: shm, mountPath: /dev/shm}]\n", POD.replace("torchrun", "sleep"),
        "steps:\n  run: torchrun --nproc_per_node=8 t.py\n",
    ],
)  # fmt: skip
def test_a_manifest_with_shared_memory_is_silent(node: Node, text: str) -> None:
    assert found(node, text, "job.yaml") == []
