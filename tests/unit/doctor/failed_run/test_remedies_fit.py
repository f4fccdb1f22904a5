"""What a log's line says to do, and what follows after it: nothing that does not fit the cause."""

import pytest

from stallwatch.diagnosis import judge
from stallwatch.formats.training_log import parse
from stallwatch.model.verdict import Verdict
from tests.unit.doctor.failed_run.test_logs import diagnose, logs
from tests.unit.doctor.fakes import Node

FINALLY = "out of `finally`"
LEAVE_OUT = "Leave "
NVML = "[rank1]: RuntimeError: nvmlInit_v2() failed: {}\n"
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
FINGERPRINT = "CollectiveFingerPrint(SequenceNumber=3, OpType={}, TensorShape=[{}], TensorDtypes={})"
DETAIL = "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: {}, but "


def detail(one: tuple[str, str, str], other: tuple[str, str, str]) -> str:
    sides = FINGERPRINT.format(*one), FINGERPRINT.format(*other)
    return DETAIL.format(sides[0]) + f"Rank 0 is running collective: {sides[1]}.\n"


def verdict(text: str) -> Verdict:
    return judge(logs(parse(text.encode()))).verdicts[0]


@pytest.mark.parametrize(
    ("text", "fits", "does_not"),
    [
        (NVML.format("Driver/library version mismatch"), "Leave the node of rank 1 out", FINALLY),
        (NVML.format("Insufficient Permissions"), "start it again: it had not begun", LEAVE_OUT),
        ("[rank1]: RuntimeError: nvmlDeviceGetHandleByIndex(0) failed: Unknown Error\n", "last checkpoint", LEAVE_OUT),
        ("[rank1]: RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n",
         "Leave the node of rank 1 out", FINALLY),
        ("[rank1]: RuntimeError: No CUDA GPUs are available\n", "had not begun to train", LEAVE_OUT),
        (OOM + "\n", "from its last checkpoint", FINALLY),
        ("[rank1]: KeyError: 'labels'\n", "from its last checkpoint", "its victims"),
        ("torch.distributed.DistNetworkError: port: 29500, code: -98, name: EADDRINUSE, message: address already in "
         "use\n", "had not begun to train", LEAVE_OUT),
        ("n1:22:31 [0] NCCL WARN socketStartConnect: Connect to 10.88.0.7<39871> failed : Connection refused\n",
         "--network=host", "stallwatch capture"),
        ("our_lib: error 17\n", "log0.txt:1", "stallwatch capture"),
        (detail(("ALLREDUCE", "8", "Float"), ("ALLGATHER", "8", "Float")), "same collectives in the same order",
         "TORCH_DISTRIBUTED_DEBUG"),
        (detail(("ALLREDUCE", "8", "Float"), ("ALLREDUCE", "9", "Float")), "tensor.shape", "if rank == 0"),
        (detail(("ALLREDUCE", "8", "Float"), ("ALLREDUCE", "8", "Half")), "autocast", "if rank == 0"),
    ],
)  # fmt: skip
def test_steps_fit_the_cause(text: str, fits: str, does_not: str) -> None:
    steps = " ".join(verdict(text).next_steps)
    assert fits in steps
    assert does_not not in steps


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ("If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
         "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"),
        ("try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
         " PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ("", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("Of the allocated memory 60.00 GiB is allocated by PyTorch, and 12.00 GiB is reserved by PyTorch but "
         "unallocated.", "ALLOC_CONF"),
    ],
)  # fmt: skip
def test_out_of_memory_names_the_setting_that_this_pytorch_knows(node: Node, said: str, setting: str) -> None:
    remedy = diagnose(node, OOM + said + "\n")[0].remedy
    assert setting in remedy
    for word in ("smaller batch", "checkpointing", "FSDP", "ZeRO", "offload"):
        assert word in remedy


def test_where_nothing_is_in_fragments_the_allocator_is_not_advised(node: Node) -> None:
    said = (
        "GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free. Process 4711 has 30.50 GiB memory in use. "
        "Including non-PyTorch memory, this process has 47.00 GiB memory in use. Of the allocated memory 45.00 GiB is "
        "allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
    )
    found = diagnose(node, OOM + said + "\n")[0]
    assert "ALLOC_CONF" not in found.remedy
    assert "ps -o pid,user,args -p 4711" in found.remedy
    assert "4711 (30.50 GiB)" in found.why


@pytest.mark.parametrize("name", ["kworker/u64:2", "kswapd0", "ksoftirqd/3", "containerd-shim", "systemd-journal"])
def test_a_thread_of_the_kernel_is_no_rank(node: Node, name: str) -> None:
    text = f"[ 8812.120011] {name}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL), nodemask=(null)\n"
    (found,) = diagnose(node, text)
    assert (found.severity, "no rank" in found.why.lower()) == ("warning", True)
    told = verdict(text)
    assert (told.cause, told.culprits) == ("undecided", ())
    of_rank = verdict(text + "[rank2]: KeyError: 'x'\n")
    assert (of_rank.cause, of_rank.culprits) == ("rank_raised", (2,))
    assert verdict(text.replace(name, "python3.11")).cause == "rank_raised"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("RuntimeError: Input tensor data type is not supported for NCCL process group: Short", "cast the tensor"),
        ("RuntimeError: No backend type associated with device type cpu", "cpu:gloo"),
        ("RuntimeError: Expected to mark a variable ready only once. This error is caused by", "use_reentrant=False"),
        ("ValueError: Default process group has not been initialized, please make sure to call", "init_process_group"),
        ('RuntimeError: torch_shm_manager at "x": could not generate a random directory', "TMPDIR"),
        ("AssertionError: Check batch related parameters. train_batch_size is not equal to", "leave one of the three"),
        ("DistNetworkError: Failed to connect to any network address of (trainer-0.svc, 29500)", "getent hosts"),
    ],
)
def test_errors_that_guides_name_have_remedies_of_their_own(node: Node, text: str, remedy: str) -> None:
    assert remedy in diagnose(node, f"[rank0]: torch.{text}\n")[0].remedy


PAIR = "{}RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/pair.cc:{}] connect [{}]:40112: {}\n"


@pytest.mark.parametrize(
    ("line", "why", "remedy"),
    [
        (PAIR.format("", 799, "127.0.1.1", "Connection refused"), "loopback", "/etc/hosts"),
        (PAIR.format("[rank1]: ", 144, "127.0.0.1", "Connection timed out"), "loopback", "export GLOO_SOCKET_IFNAME"),
        (PAIR.format("[rank3]: ", 878, "172.19.0.5", "Connection timed out"), "container", "--network=host"),
        (PAIR.format("", 799, "10.88.0.9", "Connection refused"), "container", "--network=host"),
        (PAIR.format("", 799, "192.168.7.20", "No route to host"), "firewall", "export GLOO_SOCKET_IFNAME"),
        (PAIR.format("[rank1]: ", 760, "10.4.1.9", "Connection refused"), "firewall", "ip route get"),
    ],
)
def test_a_pair_of_gloo_that_did_not_connect_is_told_by_its_address(
    node: Node, line: str, why: str, remedy: str
) -> None:
    for text in (line, f'Traceback (most recent call last):\n  File "run.py", line 7, in main\n{line}'):
        first = diagnose(node, text)[0]
        assert first.seen.startswith("First cause: ")
        assert why in first.why
        assert remedy in first.remedy
        assert "mend the line" not in first.remedy
        assert "NCCL_SOCKET_IFNAME=" not in first.remedy
        assert "mend the line" not in " ".join(verdict(text).next_steps)


@pytest.mark.parametrize(
    "said",
    [
        "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "misc/shmutils.cc:91 NCCL WARN Call to fallocate failed: No space left on device",
        "misc/shmutils.cc:73 NCCL WARN Call to ftruncate failed : No space left on device",
        "include/shm.h:41 NCCL WARN Error while creating shared memory segment nccl-shm-send-77ab-1-0-2 (size 4194304)",
    ],
)
def test_shared_memory_that_nccl_could_not_size_was_too_small(node: Node, said: str) -> None:
    (found,) = diagnose(node, f"gpu3:71:99 [2] {said}\n")
    assert "--shm-size" in found.remedy
    assert "shm-size" not in diagnose(node, f"gpu3:71:99 [2] {said}: Permission denied\n")[0].remedy
    reason = said.partition("WARN ")[2]
    raised = "[rank2]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error"
    raised += f"\n[rank2]: ncclSystemError: System call failed.\n[rank2]: Last error:\n[rank2]: {reason}\n"
    assert "--shm-size" in diagnose(node, raised)[0].remedy


@pytest.mark.parametrize("asked", ["DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &device)", "result"])
def test_an_assertion_of_the_allocators_report_is_memory_and_nvml(node: Node, asked: str) -> None:
    text = (
        f"[rank1]: RuntimeError: NVML_SUCCESS == {asked} INTERNAL ASSERT FAILED at "
        '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131, please report a bug to PyTorch.\n'
    )
    (found,) = diagnose(node, text)
    assert ("smaller batch" in found.remedy, "nvidia-smi" in found.remedy, "NVML" in found.why) == (True, True, True)
    assert verdict(text).cause == "rank_raised"
    other = text.replace("c10/cuda/CUDACachingAllocator", "torch/csrc/cuda/Module")
    assert "smaller batch" not in diagnose(node, other)[0].remedy


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:9d:00): 79, pid=881, name=python, GPU has fallen off the bus.\n",
        "NVRM: GPU at PCI:0000:9d:00 has fallen off the bus.\n",
        "NVRM: The NVIDIA GPU 0000:9d:00.0\nNVRM: fallen off the bus and is not responding to commands.\n",
        NVML.replace("nvmlInit_v2()", "nvmlDeviceGetHandleByIndex(3)").format("GPU is lost"),
    ],
)
def test_a_gpu_off_the_bus_answers_no_reset(node: Node, text: str) -> None:
    assert "drain the node and reboot it" in diagnose(node, text)[0].remedy
    steps = " ".join(verdict(text).next_steps)
    assert "reboot it" in steps
    assert "reset the GPU" not in steps


def test_another_xid_is_answered_by_a_reset(node: Node) -> None:
    text = "NVRM: Xid (PCI:0000:9d:00): 48, pid=881, name=python, DBE (double bit error) ECC error\n"
    assert "reset the GPU" in diagnose(node, text)[0].remedy
    assert "reset the GPU" in " ".join(verdict(text).next_steps)
