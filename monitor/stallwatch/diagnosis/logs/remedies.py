"""What a log's event means and what to do: by kind of event, in words."""

import re
from signal import SIGABRT, SIGBUS, SIGKILL, SIGSEGV

from stallwatch.diagnosis.logs.blame import detail_sides, mismatch_words, what_differs
from stallwatch.diagnosis.logs.consequence import NOT_AT_BARRIER, NOT_WHICH, PEER_GONE, LoggedFailure, of_others
from stallwatch.diagnosis.logs.remedies_by_text import (
    BY_TEXT,
    FORKED,
    LOADER,
    LOST,
    NO_DEVICE,
    NOT_INITIALISED,
    SILENT_STORAGE,
    UNKNOWN_CUDA,
    Words,
    gpu_words,
    is_lost,
)
from stallwatch.diagnosis.logs.remedies_of_handshakes import handshake_words
from stallwatch.diagnosis.logs.remedies_of_memory import memory_words
from stallwatch.formats.addresses import AddressWords, address_words, kind_of_address, peer_address
from stallwatch.model.log_event import PROCESS_ENDS

# The store of torch before 1.9, that is before torchrun, says no more; later ones name the port.
_OLD_STORE = re.compile(r"(?:Runtime|Value)Error: Address already in use\s*$")
_OLD_LAUNCHER = (
    "ss -ltnp names who holds the port now; take another one on all ranks: python -m torch.distributed.launch "
    "--master_port=<free port>, or that of init_method=tcp://<rank 0>:<port>"
)
# What is said more by the launcher that was seen: remedies_by_origin.
OWN_LOG = "look at this rank's own log before this line"
RAISED = "mend the line that raised"
_ENDED_FIRST = Words("This process ended first, and the launcher stopped the others.", OWN_LOG)
_WORDS: dict[str, Words] = {
    "address_in_use": Words(
        "Another process held the rendezvous' port, so rank 0's store did not begin and everybody else could not "
        "connect.",
        "stallwatch doctor names who holds MASTER_PORT now; take another port on all ranks (--master_port, "
        "accelerate's --main_process_port, or that of init_method); torchrun on one node: --rdzv-endpoint=localhost:0 "
        "takes a free one",
        "start",
    ),
    "shared_memory": Words(
        "The shared memory of /dev/shm was too small: a data-loader worker, or NCCL, could not place its data.",
        "docker run --shm-size=8g (or --ipc=host); Kubernetes: emptyDir medium Memory at /dev/shm; or fewer workers",
    ),
    "dataloader_killed": LOADER,
    "open_files": Words(
        "The limit of open files was reached on this rank.",
        'ulimit -n 1048576 before the launch, or torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    "collective_mismatch": Words(
        "Ranks called different collectives at the same place.",
        "make every rank call the same collectives in the same order; look for `if rank == 0:` around one of them",
    ),
    "size_mismatch": Words(
        "A peer sent more or fewer bytes than this rank expected. The rank that ends first is the receiver, not the "
        "guilty one.",
        "compare shapes and dtypes before the collective: print(rank, tensor.shape, tensor.dtype)",
    ),
    "nccl_version_mismatch": Words(
        "Ranks run different NCCLs.",
        "start every rank from the same environment: python -c 'import torch; print(torch.cuda.nccl.version())' on "
        "each node",
        "start",
    ),
    "barrier_absent": Words(
        "The ranks that this line names never reached the barrier.",
        "look at what those ranks did: their logs and stacks",
    ),
    "desync_absent": Words(
        "The ranks that this line names had not joined the collective in which the others waited.",
        "look at what those ranks did: their logs and stacks",
    ),
    "exception": Words(
        "This rank raised and left; the others waited for it.",
        RAISED,
    ),
    "launcher_failure": Words(
        "This process ended first, and the others lost their peer.",
        OWN_LOG,
    ),
    "process_failed": _ENDED_FIRST,
    "worker_died": _ENDED_FIRST,
    "nccl_completion_error": Words(
        "A packet was retried until the adapter gave up: cable, switch, or a peer that was gone.",
        "ibstat and perfquery on both ends, dmesg for the adapter; if the peer had died before, it is a consequence",
    ),
    "nccl_async_event": Words(
        "The adapter reported a port or device event.", "ibstat, dmesg; check the link and the subnet manager"
    ),
    "gloo_connect": Words(
        "gloo could not connect the ranks: a host name that resolves to the loopback address, or an interface that is "
        "not there.",
        "export GLOO_SOCKET_IFNAME=<interface, plain name>; stallwatch doctor on each node",
        "start",
    ),
    "init_timeout": Words(
        "Not all ranks came to the rendezvous.",
        "find the rank that is missing: is its process there, does it reach MASTER_ADDR:MASTER_PORT (nc -zv), is "
        "WORLD_SIZE right",
        "start",
    ),
    "store_unreachable": Words(
        "This rank could not connect to the store of rank 0.",
        "getent hosts $MASTER_ADDR; nc -zv $MASTER_ADDR $MASTER_PORT; is rank 0 up, is a firewall between",
        "start",
        of_the_living=True,
    ),
    "heartbeat_stuck": Words(
        "The watchdog of this rank did not get on: something held the GIL or a CUDA call did not return.",
        "look at this rank's stacks: py-spy dump --pid <pid> --native",
        of_the_living=True,
    ),
    "gil_clue": Words(
        "This rank could not take the GIL at its end: native code held it.", "look for C extensions that hold the GIL"
    ),
    "collective_timeout": Words(
        "Ranks waited in a collective that some rank never entered. The rank that reports it is a waiting one.",
        "stallwatch analyze on the flight recorder's dumps names the absent rank; TORCH_FR_BUFFER_SIZE=2000 for the "
        "next run",
    ),
    "gloo_timeout": Words(
        "Ranks waited in a collective that some rank never entered. gloo's text never names the one that is missing.",
        "stallwatch.attach() in the script, and stallwatch analyze on what it keeps",
    ),
    "recorder_disabled": Words(
        "The flight recorder was off, so the call site of the stuck collective is not known.",
        "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    ),
    "memory_killed": Words(
        "The kernel killed a process of this step for lack of host memory (the scheduler's or container's limit); the "
        "other ranks waited for it.",
        "ask for more (Slurm --mem, Kubernetes resources.limits.memory), or use fewer data-loader workers; `sacct -j "
        "JOB --format=MaxRSS,State`",
    ),
    "cancelled": Words(
        "The scheduler ended the job. If its steps had stopped long before, it hung, and the limit only ended that.",
        "look at the time of the last step: `stallwatch incidents` has the hang; else ask for more time, or save "
        "before the limit (sbatch --signal=USR1@300)",
    ),
    "gpu_xid": Words(
        "The driver reported an error of this GPU or switch; ranks on it fail or wait for ever, and the others too.",
        "nvidia-smi -q -i <bus id>; drain the node and reset the GPU; with the same XID again, have it replaced",
        "without_node",
    ),
    "gpu_lost": LOST,
    "pcie_error": Words(
        "A device on the PCIe bus failed; calls that wait for it do not come back.",
        "lspci -s <device> and nvidia-smi -q: which card is it? Drain the node, reseat or replace it",
        "without_node",
    ),
    "hung_task": Words(
        "The kernel says that this process waits or spins in it without end: a disk or a network file system that does "
        "not answer, or the driver. Its rank holds the others up, and not even SIGKILL ends it.",
        "cat /proc/<pid>/wchan /proc/<pid>/stack (root); mount and dmesg for the file system; nvidia-smi for the "
        "driver",
        "without_node",
        of_the_living=True,
    ),
    "storage_silent": SILENT_STORAGE,
    "node_failed": Words(
        "The scheduler lost this node; its ranks are gone, and the others waited for them.",
        "sinfo -R; the node's console and power log; start again without it (sbatch --exclude=<node>)",
        "without_node",
    ),
    "evicted": Words(
        "Kubernetes ended the pod because its node ran out of this resource; the other ranks waited for it.",
        "kubectl describe pod <pod>; kubectl describe node <node>: set requests that are as large as what is used",
    ),
    "locked_memory": Words(
        "InfiniBand's buffers must be locked in memory, and the limit of that is too low.",
        "ulimit -l unlimited; Slurm: PropagateResourceLimitsExcept=MEMLOCK; docker run --ulimit memlock=-1; systemd: "
        "LimitMEMLOCK=infinity",
        "start",
    ),
    "native_crash": Words(
        "The process crashed in native code.",
        "the Python stack below this line tells from where; the newest extension there is the first suspect",
    ),
    "native_exception": Words(
        "C++ code raised and nobody caught it, so the process aborted; the others waited for it.",
        "std::bad_alloc: host memory (free -g, the cgroup's limit); else the lines before it tell which library",
    ),
    "not_started": Words(
        "The training program did not even begin on this rank, and the others wait at the rendezvous.",
        "run the same command by hand on this node, as the launcher does (environment, working directory, PATH)",
        "start",
    ),
    "name_unresolved": Words(
        "This rank could not look up the name of rank 0's node, so it never reached the store.",
        "getent hosts $MASTER_ADDR on this node; repair DNS or /etc/hosts, or set MASTER_ADDR to the address itself",
        "start",
    ),
    "nccl_no_interface": Words(
        "NCCL found no network interface that it may use on this rank; the others wait for it.",
        "unset NCCL_SOCKET_IFNAME, or name an interface that every node has (`ip -br addr`); stallwatch doctor checks "
        "it",
        "start",
    ),
    "nccl_no_adapter": Words(
        "NCCL's plug-in could not open the network adapter (EFA, by libfabric) on this rank; the others wait for it.",
        "on that node: fi_info -p efa, ulimit -l, ls /dev/infiniband; the adapter's security group must let all pass "
        "within itself; EFA's driver, libfabric and aws-ofi-nccl of versions that fit each other",
        "start",
    ),
    "nccl_connect": Words(
        "NCCL told this rank an address that it cannot reach: an interface that is no way between the nodes "
        "(docker0, a virtual bridge, link-local IPv6), a firewall, or a peer that was gone.",
        "export NCCL_SOCKET_IFNAME=<the interface between the nodes>, and let the firewall pass its subnet; nc -zv to "
        "that address",
        "start",
    ),
    "nccl_error": Words(
        "A call of NCCL failed on this rank; torch's text does not say why.",
        "NCCL_DEBUG=WARN for the next run: the line before this exception tells the reason",
    ),
    "actor_died": Words(
        "Ray tells its driver that an actor's process is gone; why it died stands in the actor's own log, or nowhere.",
        "on the node that the line names: `ray logs`, or /tmp/ray/session_latest/logs/worker-*-<pid>.err and "
        "raylet.out; `dmesg -T | grep -i 'killed process'` for memory",
    ),
    "link_down": Words(
        "The kernel saw a network port go down; collectives over it wait, retry, and fail.",
        "on that node: ibstat, rdma link show, ethtool -m <port> (cable, optics); leave the port or the node out until "
        "it is repaired",
        "without_node",
    ),
    "adapter_error": Words(
        "The kernel's driver of a network adapter reports that it does not work any more.",
        "on that node: dmesg for the adapter, mlxfwmanager or the vendor's tool for its firmware; drain the node and "
        "power it off and on",
        "without_node",
    ),
    "memory_allocation": Words(
        "The kernel could not give memory to this process: host memory, its fragments, or a limit of the container ran "
        "out.",
        "free -g; cat /proc/buddyinfo; ulimit -v; cat /sys/fs/cgroup/memory.max; fewer data-loader workers and less "
        "pinned memory; after a page allocation failure of a high order: sysctl vm.min_free_kbytes higher, or a fresh "
        "node",
    ),
    "node_memory": Words(
        "The kernel found no free pages for a thread of its own or for a daemon of the node, which is no rank: the "
        "node's memory is short or in fragments. It hurts the job where a driver (network, storage) asked.",
        "free -g; cat /proc/buddyinfo; dmesg -T for the call trace below the line: whose driver asked; sysctl "
        "vm.min_free_kbytes higher; less pinned memory and page cache on this node",
        "without_node",
    ),
    "interrupted": Words(
        "Somebody pressed Ctrl-C or sent SIGINT: the run stood already, or was not wanted.",
        "each rank's traceback tells where it stood then: look for the one that stands elsewhere",
    ),
    "duplicate_gpu": Words(
        "Two ranks chose the same GPU, and NCCL refuses that.",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group; do not set '
        "CUDA_VISIBLE_DEVICES to the same GPU for all ranks",
        "start",
    ),
    "cuda_error": Words(
        "A CUDA call failed on this rank.",
        '"invalid device ordinal": LOCAL_RANK is not smaller than the number of visible GPUs; other errors: '
        "CUDA_LAUNCH_BLOCKING=1 "
        "for one run on one GPU, and dmesg for XIDs",
    ),
}
_CUDA: tuple[tuple[str, Words], ...] = (
    ("initialization error", FORKED),
    ("Error 802", NOT_INITIALISED),
    ("system not yet initialized", NOT_INITIALISED),
    ("Error 999", UNKNOWN_CUDA),
    ("CUDA error: unknown error", UNKNOWN_CUDA),
    ("CUDA unknown error", UNKNOWN_CUDA),
    ("Cuda failure 999", UNKNOWN_CUDA),
    ("Cuda failure 'unknown error'", UNKNOWN_CUDA),
    ("no CUDA-capable device", NO_DEVICE),
    ("No CUDA GPUs are available", NO_DEVICE),
    ("CUDA_ERROR_NO_DEVICE", NO_DEVICE),
)
# Kinds of which the text may say more than the kind does.
_WITH_TEXT = frozenset(
    (
        "exception",
        "native_exception",
        "cuda_error",
        "nccl_completion_error",
        "cancelled",
        "store_unreachable",
        "not_started",
    )
)
_OF_ADDRESSES = ("nccl_connect", "gloo_connect", "store_unreachable")
_SHOWN = "mend the line that raised; if its data did it, look for the sample in this rank's own log"
_LOST_A_PEER = Words(
    "This rank lost a peer, or had no answer from it: the cause stands elsewhere.",
    "look for the rank whose log ends first, or with an error of its own (the address in this line is the peer's); "
    "give all logs to stallwatch",
)
# What an exception says of others is not mended at its line.
_OF_OTHERS = {
    PEER_GONE: _LOST_A_PEER,
    NOT_AT_BARRIER: Words(
        "This rank came to the barrier, and another one did not, or rank 0 gave up.",
        'rank 0\'s log names who did not come: look there for "failed to pass monitoredBarrier", and at what that rank '
        "did; where it works for long before (a download, tokenising), a longer timeout of the barrier",
    ),
    NOT_WHICH: Words(
        "Ranks compared themselves, and differ; the text does not tell which of them is wrong.",
        "print on each rank what they compare (the loss, the gradient's norm, the batch) a step before; look for one "
        "that skips a step (overflow, an exception that is caught) or has other data",
    ),
}
_OTHERWISE = Words("It belongs to the failure.", "read the lines around it")


_BY_SIGNAL: dict[int | None, Words] = {
    SIGKILL: Words(
        "SIGKILL comes from outside: the kernel's out-of-memory killer, a cgroup's limit, or somebody's kill. A bare "
        '"Killed" proves none of them.',
        "dmesg -T | grep -i 'killed process'; cat /sys/fs/cgroup/memory.events; scheduler's log; then less memory "
        "or a higher limit",
    ),
    SIGBUS: Words(
        "A page of a mapped file was not there (SIGBUS): /dev/shm is full more often than not, or a file was truncated "
        "while it was mapped.",
        "df -h /dev/shm; look for what rewrites the files that the job maps",
    ),
    SIGSEGV: Words(
        "The process crashed in native code.",
        "PYTHONFAULTHANDLER=1 shows where; ulimit -c unlimited keeps a core",
    ),
    SIGABRT: Words(
        "The process ended itself (abort): torch's watchdog after a time-out, a failed assertion in native code, "
        "or glibc. Its lines stand in this rank's own log.",
        "read the end of this rank's own log; a watchdog's abort means that it waited for another rank",
    ),
}


def words_for(told: LoggedFailure) -> Words:
    """Meaning and remedy; a signal says more than "it ended first"."""
    if told.kind in (*PROCESS_ENDS, "program_died") and told.event.exit_signal in _BY_SIGNAL:
        return _BY_SIGNAL[told.event.exit_signal]
    if told.kind == "init_timeout" and told.event.ranks and "ncclUniqueId" not in told.event.text:
        return Words(
            f"Rank {told.event.ranks[0]} had not come to the rendezvous when the others gave up.",
            f"look at rank {told.event.ranks[0]}'s own log: is its process there, does it reach "
            "MASTER_ADDR:MASTER_PORT (nc -zv)? If it only starts slowly: init_process_group(timeout=…)",
        )
    if told.kind == "address_in_use" and _OLD_STORE.search(told.event.text):
        return _WORDS[told.kind]._replace(remedy=_OLD_LAUNCHER)
    text = f"{told.event.exception or ''} {told.event.message or ''} {told.event.text}"
    if told.kind == "gpu_xid" and is_lost(text):
        return LOST
    if told.kind == "gpu_unreachable":
        return gpu_words(text)
    if told.kind == "out_of_memory":
        return memory_words(text)
    if told.kind in ("nccl_handshake", "nccl_stranger"):
        return handshake_words(text)
    if told.kind == "collective_mismatch" and (differs := what_differs(detail_sides([told]))):
        return mismatch_words(differs)
    if told.kind in _OF_ADDRESSES and (address := peer_address(text)):
        reached = address_words(address)
        if told.kind == "gloo_connect":
            return _of_gloo(address, reached)
        if told.kind != "store_unreachable":
            return Words(*reached, "start")
        of_store = _WORDS[told.kind]
        return of_store._replace(why=f"{of_store.why} {reached.why}", remedy=f"{of_store.remedy}; {reached.remedy}")
    if said := next((words for phrase, words in _CUDA if phrase in text), None):
        return said
    said = next((words for phrase, words in BY_TEXT if phrase in text), None) if told.kind in _WITH_TEXT else None
    # A program that did not begin lacks its own file: that of a rank that trains is another.
    if said is not None and (told.kind != "not_started" or said.then == "start"):
        return said
    of_peer = told.kind == "watchdog_end" and of_others(told.event.message or "") == PEER_GONE
    if of_peer or told.kind in ("nccl_peer_closed", "gloo_peer_closed"):
        return _LOST_A_PEER
    if told.kind == "exception" and told.consequence in _OF_OTHERS:
        return _OF_OTHERS[told.consequence]
    words = _WORDS.get(told.kind, _OTHERWISE)
    return words._replace(remedy=_SHOWN) if told.kind == "exception" and told.event.frame is not None else words


def _of_gloo(address: str, reached: AddressWords) -> Words:
    """gloo tells its peers the address of the host's own name, where no interface is named to it."""
    own = "GLOO_SOCKET_IFNAME"
    remedy = reached.remedy if own in reached.remedy else reached.remedy.replace("NCCL_SOCKET_IFNAME", own)
    if kind_of_address(address) != "loopback":
        return Words(reached.why, remedy, "start")
    return Words(
        "gloo told this address to its peers because the peer's host name resolves to it (Debian's and Ubuntu's "
        f"/etc/hosts: 127.0.1.1). {reached.why}",
        f"in /etc/hosts give the host's name its address in the training network, or export {own}=<the interface "
        f"between the nodes>; with one node alone: {remedy}",
        "start",
    )
