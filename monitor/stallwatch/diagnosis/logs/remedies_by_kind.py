"""What a log's event means and what to do, by its kind alone. What its text says more: remedies_by_text."""

from stallwatch.diagnosis.logs.remedies_by_text import LOADER, Words
from stallwatch.diagnosis.logs.remedies_of_gpus import LOST

# What is said more by the launcher that was seen: remedies_by_origin.
OWN_LOG = "look at this rank's own log before this line"
RAISED = "mend the line that raised"
_ENDED_FIRST = Words("This process ended first, and the launcher stopped the others.", OWN_LOG)
BY_KIND: dict[str, Words] = {
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
    "storage_silent": Words(
        "The kernel says that a file server or a disk does not answer: a rank that reads or writes there stands until "
        "it does, and the others wait for that rank.",
        "on that node: mount, and `timeout 5 stat <mount>` of each; `ps -eo pid,stat,wchan:32,cmd | awk '$2 ~ /D/'` "
        "shows who stands there; then the server's own state, and the network to it",
        of_the_living=True,
    ),
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
    "store_closed": Words(
        "The store of rank 0 (or of the launcher's agent) went away while this rank asked it: who served it had ended.",
        "read how rank 0's process and its node's agent ended, before this line: their own logs tell it",
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
