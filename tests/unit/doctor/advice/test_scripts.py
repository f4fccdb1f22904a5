from pathlib import Path

import pytest

from stallwatch.doctor.advice.scripts import HarmfulAdvice, TrainingCalls, VariablesInScripts
from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.surroundings import Question, Surroundings
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
        "getenforce",
    ],
)
def test_harmless_lines_are_silent(node: Node, line: str) -> None:
    assert HarmfulAdvice().look(around(node, line + "\n")) == ()


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


def test_variables_that_somebody_reads_are_silent(node: Node) -> None:
    text = "export NCCL_DEBUG=INFO\nexport MY_NCCL_THING=1\nexport CUDA_MY_OWN=2\nexport NCCL_QUANTUM_LINK=1\n"
    assert VariablesInScripts().look(around(node, text)) == ()


def test_a_process_group_without_a_device_is_told(node: Node) -> None:
    text = 'import torch.distributed as dist\ndist.init_process_group("nccl", timeout=t)\n'
    found = one(TrainingCalls().look(around(node, text, "train.py")))
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
    assert TrainingCalls().look(around(node, text, "train.py")) == ()


def test_a_missing_timeout_is_only_mentioned(node: Node) -> None:
    assert one(TrainingCalls().look(around(node, 'init_process_group("gloo")', "train.py"))).severity == "info"


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
