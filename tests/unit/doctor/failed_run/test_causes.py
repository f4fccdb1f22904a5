"""First causes of many kinds, each among what the other ranks and the launcher say of it."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable

import pytest

from stallwatch.bundle.reader import read
from stallwatch.bundle.workers import Limits
from tests.unit.doctor.failed_run.test_logs import PEER_LOST, RAISED, TORCHRUN, WATCHDOG, diagnose, first
from tests.unit.doctor.fakes import Node

NCCL = "[rank{}]: torch.distributed.DistBackendError: NCCL error in: ../c10d/ProcessGroupNCCL.cpp:1970, {}\n"
RAISES = '[rank{}]: Traceback (most recent call last):\n[rank{}]:   File "/job/train.py", line 9, in main\n'


def raised(rank: int, exception: str) -> str:
    return RAISES.format(rank, rank) + f"[rank{rank}]: {exception}\n"


def of_nccl(rank: int, what: str) -> str:
    return RAISES.format(rank, rank) + NCCL.format(rank, what)


SYSTEM_ERROR = of_nccl(0, "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5")
CUDA_FAILURE = of_nccl(3, "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5")
PEER_OF_NCCL = of_nccl(1, "remote process exited or there was a network error, NCCL version 2.21.5")
ENDED = TORCHRUN.replace("exitcode  : -9", "exitcode  : {}")


@pytest.mark.parametrize(
    ("log", "told", "remedy"),
    [
        ("n1:30:31 [3] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'\n" + CUDA_FAILURE + PEER_OF_NCCL,
         "Cuda failure 'out of memory'", "smaller batch"),
        ("n1:30:31 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n" + SYSTEM_ERROR,
         "no socket interface", "NCCL_SOCKET_IFNAME"),
        ("n1:30:31 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.1.2.3<41235> failed : Connection "
         "refused\n" + SYSTEM_ERROR, "10.1.2.3", "NCCL_SOCKET_IFNAME"),
        ("n1:30:31 [0] misc/socket.cc:580 NCCL WARN socketPollConnect: connect to 172.17.0.2<41235> returned No route "
         "to host(113)\n" + SYSTEM_ERROR, "172.17.0.2", "NCCL_SOCKET_IFNAME"),
        ("n1:30:31 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12Cd to 33030528 bytes, "
         "error: No space left on device (28)\n" + SYSTEM_ERROR, "/dev/shm/nccl-Ab12Cd", "--shm-size"),
        ("n1:30:31 [1] misc/ibvwrap.cc:120 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
         + SYSTEM_ERROR, "ibv_reg_mr", "memlock"),
        (SYSTEM_ERROR + PEER_OF_NCCL, "unhandled system error", "NCCL_DEBUG=WARN"),
        ("[rank1]:[E902 12:16:32.6 ProcessGroupNCCL.cpp:1897] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group "
         "watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
         + WATCHDOG + ENDED.format(-6), "illegal memory access", "CUDA_LAUNCH_BLOCKING"),
        ('  File "/job/train.py", line 12\n    def f(:\n          ^\nSyntaxError: invalid syntax\n' + ENDED.format(1),
         "SyntaxError: invalid syntax at /job/train.py:12", "mend the line"),
        ("/usr/bin/python: can't open file '/job/trian.py': [Errno 2] No such file or directory\n" + ENDED.format(2),
         "can't open file", "by hand"),
        ("python: symbol lookup error: /lib/libnccl.so.2: undefined symbol: ncclCommRegister\n" + ENDED.format(127),
         "undefined symbol", "by hand"),
        ("slurmstepd: error: execve(): torchrun: No such file or directory\n", "torchrun", "by hand"),
        (raised(1, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"), "RendezvousTimeoutError",
         "nc -zv"),
        ("[W902 01:02:03.4 socket.cpp:752] [c10d] The IPv4 network addresses of (node-a, 29500) cannot be retrieved "
         "(gai error: -2 - Name or service not known).\n"
         + raised(1, "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying "
         "to connect to (node-a, 29500)."), "Name or service not known", "getent hosts"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
         "FOR DETAILS ***\n", "NODE FAILURE", "sinfo"),
        ("srun: error: Node failure on n7\n" + PEER_LOST, "Node failure on n7", "sinfo"),
        ("srun: error: n1: task 3: Exited with exit code 1\nsrun: error: n1: tasks 0-2: Killed\n", "task 3", "own log"),
        ("srun: error: n1: task 3: Segmentation fault (core dumped)\n" + PEER_LOST, "task 3", "PYTHONFAULTHANDLER"),
        ("srun: error: n1: task 3: Bus error\n", "task 3", "/dev/shm"),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi.\n" + PEER_LOST,
         "low on resource", "kubectl describe"),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n", "TERM_RUNLIMIT", "more time"),
        ("=>> PBS: job killed: walltime 3610 exceeded limit 3600\n", "walltime", "more time"),
        ("=>> PBS: job killed: mem 300gb exceeded limit 256gb\n", "exceeded limit", "--mem"),
        ("ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing "
         "it.\n", "29500", "MASTER_PORT"),
        ("W0101 03:04:05.0 7 torch/distributed/elastic/agent/server/api.py:741] Received Signals.SIGTERM death signal, "
         "shutting down workers\n", "SIGTERM", "ended the launcher"),
        ("NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: fallen off the bus and is not responding to commands.\n" + WATCHDOG,
         "fallen off the bus", "drain"),
        ("INFO: task nvidia smi:42 blocked for more than 120 seconds.\n" + WATCHDOG, "blocked for more than", "wchan"),
        ("pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer\n" + WATCHDOG,
         "PCIe Bus Error", "lspci"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
         + ENDED.format(-6), "std::bad_alloc", "memory"),
        ("Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n" + ENDED.format(-11),
         "Segmentation fault", "below this line"),
        (raised(3, "KeyboardInterrupt") + WATCHDOG, "Watchdog caught", "flight recorder"),
        ("gpu04:2231:2299 [3] misc/nvmlwrap.cc:183 NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch\n"
         + of_nccl(3, "unhandled cuda error, NCCL version 2.27.3"), "nvmlInit_v2()", "reboot"),
        (of_nccl(4, "unhandled cuda error, NCCL version 2.27.3") + "[rank4]: ncclUnhandledCudaError: Call to CUDA "
         "function failed.\n[rank4]: Last error:\n[rank4]: Cuda failure 999 'unknown error'\n",
         "Cuda failure 999", "nvidia_uvm"),
        (of_nccl(1, "unhandled system error, NCCL version 2.27.3") + "[rank1]: Last error:\n[rank1]: ibv_reg_mr "
         "failed with error Cannot allocate memory\n", "ibv_reg_mr", "ulimit -l"),
        (raised(1, "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to "
         "connect to (172.20.4.9, 29500)."), "172.20.4.9", "--network=host"),
        (raised(1, "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to "
         "connect to (::1, 29500)."), "::1", "SELinux"),
        ("trainer-1  | OSError: [Errno 98] Address already in use\n", "Address already in use", "MASTER_PORT"),
    ],
)  # fmt: skip
def test_a_cause_is_told_with_its_remedy(node: Node, log: str, told: str, remedy: str) -> None:
    found = diagnose(node, log)[0]
    assert found.seen.startswith(("First cause", "Only a warning")), found
    assert (told in found.seen, remedy in found.remedy + found.why) == (True, True), found


@pytest.mark.parametrize(
    ("exception", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device: '/ckpt/step_100/model.pt'", "df -h"),
        ("ValueError: trying to initialize the default process group twice!", "is_initialized"),
        ("RuntimeError: Error(s) in loading state_dict for Net:", "missing and unexpected"),
        ("TypeError: Unconvertible NCCL type Short", "cast the tensor"),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/u/x'", "quota"),
        ("OSError: [Errno 116] Stale file handle: '/mnt/nfs/x'", "NFS"),
        ("RuntimeError: can't start new thread", "pids"),
        ("RuntimeError: [3]: params[0] in this process with sizes [10, 4] appears not to match sizes of the same param "
         "in process 0.", "same model"),
        ("RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss",
         "find_unused_parameters"),
        ("RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "nvidia-smi"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "reset"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "architecture"),
        ("RuntimeError: CUDA error: device-side assert triggered", "index"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory"),
        ("ImportError: /env/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister", "LD_LIBRARY_PATH"),
        ("socket.gaierror: [Errno -2] Name or service not known", "getent hosts"),
        ("wandb.errors.CommError: Run initialization has timed out after 90.0 sec.", "before the first collective"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 68719476736 bytes.", "free -g"),
        ("pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.", "reboot"),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", "nvidia_uvm"),
        ("RuntimeError: No CUDA GPUs are available", "--gpus all"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/mnt/store/restore.pt'", "every node"),
    ],
)  # fmt: skip
def test_an_exception_whose_text_says_more_gets_its_own_remedy(node: Node, exception: str, remedy: str) -> None:
    found = diagnose(node, raised(2, exception) + WATCHDOG)[0]
    assert f"First cause: rank 2: {exception}"[:120] in found.seen
    assert remedy in found.remedy + found.why, found


@pytest.mark.parametrize(
    "exception",
    ["RuntimeError: Error in restoring the checkpoint", "ValueError: watchdog interval must be positive",
     "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by "
     "peer'))"],
)  # fmt: skip
def test_words_of_lost_peers_in_an_exception_of_its_own_do_not_hide_it(node: Node, exception: str) -> None:
    assert exception in first(node, PEER_LOST + raised(2, exception))


@pytest.mark.parametrize("head", ["Exception ignored in: <function Dataset.__del__ at 0x7f>", "Error in atexit._run:"])
def test_exceptions_that_python_ignored_are_no_cause(node: Node, head: str) -> None:
    ignored = f"[rank0]: {head}\n" + raised(0, "AssertionError: can only test a child process")
    assert "KeyError" in first(node, ignored + RAISED)


def test_how_a_spawned_process_ended_is_told_and_not_who_noticed(node: Node) -> None:
    noticed = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"
    found = diagnose(node, raised(0, noticed))[0]
    assert "First cause: rank 1: ended with signal 9" in found.seen
    assert "pid" not in found.seen
    assert "dmesg" in found.remedy


def test_what_wraps_another_exception_is_not_the_cause(node: Node) -> None:
    spawn = (
        'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\n'
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 2 terminated with the following error:\n"
        'Traceback (most recent call last):\n  File "/job/train.py", line 9, in f\nValueError: x\n'
    )
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/job/train.py", line 4, in <module>\n  | ExceptionGroup: x (1 sub-exception)\n'
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        '    |   File "/job/train.py", line 9, in f\n    | ValueError: x\n    +------------------------------------\n'
    )
    for log in (spawn, group):
        assert "ValueError: x at /job/train.py:9 in f" in first(node, log + WATCHDOG)


def test_a_traceback_in_a_box_is_read(node: Node) -> None:
    box = (
        "╭─────── Traceback (most recent call last) ───────╮\n│ /job/train.py:42 in main                        │\n"
        "│                                                 │\n│ ❱ 42     x = d['labels']                        │\n"
        "╰─────────────────────────────────────────────────╯\nKeyError: 'labels'\n"
    )
    assert "KeyError: 'labels' at /job/train.py:42 in main" in first(node, box + WATCHDOG)


RETRIED = "[W902 01:02:03.4 socket.cpp:752] [c10d] The client socket has failed to connect to [n0]:29500 (errno: {}).\n"


def test_a_connection_that_was_tried_again_is_only_a_warning(node: Node) -> None:
    found = diagnose(node, RETRIED.format("111 - Connection refused"))
    assert [(one.severity, one.seen.partition(":")[0]) for one in found] == [
        ("warning", "Only a warning stands in these logs")
    ]
    assert "KeyError" in first(node, RETRIED.format("111 - Connection refused") + RAISED)


@pytest.mark.parametrize(
    "line",
    [RETRIED.format("97 - Address family not supported by protocol"),
     "n3:77:91 [0] NCCL INFO nvmlDeviceGetP2PStatus(0,1,NVML_P2P_CAPS_INDEX_READ) failed: Not Supported\n"],
)  # fmt: skip
def test_what_healthy_runs_say_too_is_not_shown_as_what_looks_like_an_error(node: Node, line: str) -> None:
    (found,) = diagnose(node, line + "step 10 loss 2.2\nevaluating\n")
    assert "look like errors" not in found.seen


def test_an_address_family_that_is_tried_in_vain_means_nothing(node: Node) -> None:
    log = RETRIED.format("97 - Address family not supported by protocol")
    assert "KeyError" in first(node, log + RAISED)
    assert not [one for one in diagnose(node, log + RAISED) if "errno: 97" in one.seen]


def test_a_port_at_which_another_agent_listens_is_no_cause_beside_an_exception(node: Node) -> None:
    """The second agent of a host finds the first one's store there, and becomes its client."""
    log = (
        "[W902 01:02:03.4 socket.cpp:460] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - "
        "Address already in use).\n"
    )
    assert "KeyError" in first(node, log + RAISED)
    assert "Address already in use" in first(node, log)


@pytest.mark.parametrize(
    "mark",
    ["0: [default3]:", "[trainer3]:", "[pod/trainer-0/main] ", "[pod/t-0/main] 2026-01-02T03:04:05.123456789Z ",
     "2026-01-02T03:04:05.12Z stderr F ", "2026-01-02T03:04:05.123456789Z ", "[2026-01-02 03:04:05,123] ",
     "2026-01-02T03:04:05+0000 node1 python3.11[812]: ", "[1,mpirank:0,algo-1]<stderr>:", "node-1: ", "10.0.0.1: ",
     "[03:04:05] ", "Jan 02 03:04:05 ", "worker-1  | ", "1767323045.123 ", "<< Rank 3: ", "trainer/0 ",
     "2026-01-02T03:04:05.12Z\tnode\tmain\t", "\x1b[36m(Worker pid=77)\x1b[0m "],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_launchers_put_before_lines_hides_no_cause(node: Node, mark: str, end: str) -> None:
    plain = RAISED.replace("[rank2]: ", "")
    log = end.join(mark + line for line in (WATCHDOG + plain + PEER_LOST).splitlines())
    assert "KeyError: 'input_ids' at /job/train.py:77 in main" in first(node, log)


def test_a_log_of_dockers_json_is_read(node: Node) -> None:
    lines = (json.dumps({"log": line + "\n", "stream": "stderr"}) for line in RAISED.splitlines())
    assert "KeyError: 'input_ids'" in first(node, "\n".join(lines))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_is_read_and_of_a_cut_one_what_is_there(node: Node, pack: Callable[[bytes], bytes]) -> None:
    noise = "".join(f"step {number} loss {number * 7919 % 10007}\n" for number in range(40_000))
    packed = pack((RAISED + noise).encode())
    for data in (packed, packed[: len(packed) * 3 // 4] if pack is not bz2.compress else packed):
        found, _ = read([node.write("run.log.packed", data)], Limits(seconds=300.0))
        assert "KeyError" in {event.exception for rank in found.ranks for event in rank.log_events}


def test_a_log_packed_with_zstd_says_how_to_unpack_it(node: Node) -> None:
    found, _ = read([node.write("run.log.zst", b"\x28\xb5\x2f\xfd" + b"\0" * 20)])
    assert "zstd -d" in found.caveats[0]


def test_names_of_schedulers_logs_are_known_in_a_folder(node: Node) -> None:
    for name in ("slurm-7.out", "job.o7", "train.log.1", "stderr", "old.log.gz"):
        node.write(f"logs/{name}", gzip.compress(RAISED.encode()) if name.endswith("gz") else RAISED)
    node.write("logs/model.safetensors", RAISED)
    found, _ = read([node.root / "logs"])
    assert len({event.source for rank in found.ranks for event in rank.log_events}) == 5


@pytest.mark.parametrize(
    "line",
    ["NVRM: Xid (PCI:0000:61:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (0x0 0x0)",
     "NVRM: Xid (PCI:0000:61:00): 145, pid=1, name=x, RLW_SRC_TRACK caused by previous Xid 149",
     "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer"],
)  # fmt: skip
def test_errors_of_the_bus_that_are_no_outage_are_no_cause(node: Node, line: str) -> None:
    assert "KeyError" in first(node, line + "\n" + RAISED)


def test_a_traceback_that_torchrun_shows_of_record_is_the_cause(node: Node) -> None:
    shown = TORCHRUN.replace("exitcode  : -9", "exitcode  : 1").replace(
        "traceback : Signal 9 (SIGKILL) received by PID 16540",
        'traceback : Traceback (most recent call last):\n    File "/env/record.py", line 1, in wrapper\n'
        "    File \"/job/train.py\", line 77, in main\n  KeyError: 'input_ids'\n",
    )
    found = diagnose(node, shown)
    assert found[0].seen.startswith("First cause: rank 3")
    assert "KeyError: 'input_ids'" in found[0].seen
