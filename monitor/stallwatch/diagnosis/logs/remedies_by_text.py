"""Errors whose text says more than their kind: what it means and what to do. The first that fits counts. Last, a GPU or
driver that does not answer, by what NVML, CUDA and ROCm say of it."""

from typing import Final, Literal, NamedTuple

# What follows the remedy: the job starts again from its last checkpoint; starts again, for it had not begun to train;
# starts without the node, until that is mended.
Then = Literal["resume", "start", "without_node"]


class Words(NamedTuple):
    """Why something failed, what mends it, and what to do with the job then."""

    why: str
    remedy: str
    then: Then = "resume"
    of_the_living: bool = False  # the remedy looks into processes of the job: nothing is left of it when that is over


LOADER: Final = Words(
    "A data-loader worker was killed; its rank fails and the others wait for it.",
    '"Bus error": enlarge /dev/shm; "Killed": host memory (dmesg -T | grep -i oom), fewer workers; else run with '
    "num_workers=0 to see the worker's own error",
)
_UNUSED: Final = Words(
    "Some parameters of a DistributedDataParallel module got no gradient on this rank: a branch that only some "
    "ranks or some batches take. On NCCL its peers wait.",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL for one run names the parameters; give every rank the same branch, or "
    "find_unused_parameters=True where they really go unused",
)
_OTHER_MODEL: Final = Words(
    "This rank built another model than rank 0: another configuration, seed, checkpoint or code.",
    "build the same model on every rank: print the names and shapes of its parameters by rank and compare them",
)
_TWICE_READY: Final = Words(
    "DistributedDataParallel got the gradient of one parameter twice in a step: a layer that is used twice under "
    "activation checkpointing, or a module called outside the wrapper's forward.",
    "checkpoint(…, use_reentrant=False); static_graph=True where the graph never changes; call the wrapped model, not "
    "parts of its .module",
)
_NCCL_TYPE: Final = Words(
    "NCCL has no such data type: int16, complex types and bool of older versions cannot be sent.",
    "cast the tensor before the collective (int32, float32; torch.view_as_real for complex), or use a gloo group",
)
_NO_BACKEND: Final = Words(
    "A tensor lies on a device for which the process group has no back end: with NCCL alone one on the CPU.",
    'move it to the GPU before the call, or init_process_group("cpu:gloo,cuda:nccl"), or a gloo group of its own '
    "(objects and CPU state of a checkpoint)",
)
_NO_GROUP: Final = Words(
    "A collective was called before init_process_group, after destroy_process_group, or in a process that is no rank.",
    "call init_process_group first, on every rank; guard by dist.is_initialized() what also runs without a job (not "
    "the collective of a rank that forgot it)",
    "start",
)
_SHM_MANAGER: Final = Words(
    "PyTorch could not make the folder in which its processes share memory: TMPDIR is full, read-only or missing.",
    "df -h and df -i ${TMPDIR:-/tmp}; export TMPDIR=<a writable folder on a local disk>",
    "start",
)
_BATCH: Final = Words(
    "DeepSpeed's train_batch_size is not train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks: the job "
    "runs with another number of ranks than the configuration was written for, or one of the three is wrong.",
    "leave one of the three out of the configuration, and DeepSpeed computes it; count the ranks that were started",
    "start",
)
_NO_NAME: Final = Words(
    "A name that this rank looked up does not resolve on its node.",
    "getent hosts <name> on this node; repair DNS or /etc/hosts, or use the address itself",
)
_OUTSIDE: Final = Words(
    "A service outside the job did not answer this rank; the others waited for it in the next collective.",
    "talk to trackers and hubs before the first collective, with a time limit (wandb: WANDB_MODE=offline; Hub: "
    "HF_HUB_OFFLINE=1 with files downloaded before), or go on without them",
)
_KILLED_CHILD: Final = Words(
    "SIGKILL comes from outside: the kernel's out-of-memory killer, a cgroup's limit, or somebody's kill.",
    "dmesg -T | grep -i 'killed process'; cat /sys/fs/cgroup/memory.events; then less memory or a higher limit",
)

_THREADS: Final = Words(
    "The limit of processes and threads was reached on this node.",
    "ulimit -u; cat /sys/fs/cgroup/pids.max; docker run --pids-limit -1; fewer data-loader workers, OMP_NUM_THREADS=1",
)
_ENGINE: Final = Words(
    "vLLM's engine waited in vain for its workers: one of them stands, or has died. The engine, which says it, is none "
    "of them.",
    "look for the worker that stands: stallwatch analyze on stacks of all workers (py-spy dump), their own logs "
    "above this line; VLLM_LOGGING_LEVEL=DEBUG NCCL_DEBUG=WARN for the next run",
    "start",
    of_the_living=True,
)

_EFA: Final = Words(
    "libfabric could not pass a message on over EFA: a security group that keeps the nodes apart, or a peer that was "
    "gone.",
    "on both nodes: fi_info -p efa, `rdma statistic show`, dmesg for efa; the security group must let all pass within "
    "itself; FI_LOG_LEVEL=warn NCCL_DEBUG=WARN for the next run names the peer",
)
_WRONG_ACCESS: Final = Words(
    "A kernel of this rank read or wrote outside of its memory, or failed otherwise. CUDA says so at a later call: the "
    "line that raised need not be the one that did it.",
    "CUDA_LAUNCH_BLOCKING=1 for one run, or compute-sanitizer, names the kernel: mostly an index, a custom kernel or "
    "an extension built for other versions; with the same GPU alone again, dmesg for its XIDs",
)

# torch.save tells a full disk by a position that is not where it wrote to (inline_container.cc).
_FULL: Final = Words(
    "This rank could not write its file; the others wait for it in the next collective.",
    "df -h and df -i of that path; make room, or write checkpoints elsewhere",
)

BY_TEXT: Final[tuple[tuple[str, Words], ...]] = (
    ("RPC call to ", _ENGINE),
    ("EngineCore encountered an issue", _ENGINE),
    ("Expected to have finished reduction", _UNUSED),
    ("parameters that were not used in producing the loss", _UNUSED),
    ("DataLoader worker", LOADER),
    ("appears not to match sizes of the same param", _OTHER_MODEL),
    ("expects same model across all ranks", _OTHER_MODEL),
    ("mark a variable ready only once", _TWICE_READY),
    ("data type is not supported for NCCL", _NCCL_TYPE),
    ("Unconvertible NCCL type", _NCCL_TYPE),
    ("No backend type associated with device type", _NO_BACKEND),
    ("Tensors must be CUDA and dense", _NO_BACKEND),
    ("process group has not been initialized", _NO_GROUP),
    ("torch_shm_manager", _SHM_MANAGER),
    ("Check batch related parameters", _BATCH),
    (
        "initialize the default process group twice",
        Words(
            "init_process_group is called a second time in this process: by the script and by its framework, or again "
            "in a notebook's cell.",
            "call it once: `if not dist.is_initialized(): dist.init_process_group(...)`; under Lightning, Accelerate "
            "and DeepSpeed leave it to them; destroy_process_group before a second job in the same process",
        ),
    ),
    (
        "in loading state_dict",
        Words(
            "The checkpoint is of another model, or of the same one wrapped otherwise (module. of DDP, FSDP's shards, "
            "torch.compile's _orig_mod.).",
            "compare the keys that are missing and unexpected; save model.module.state_dict() and load it before "
            "wrapping; sharded checkpoints by torch.distributed.checkpoint",
        ),
    ),
    ("No space left on device", _FULL),
    ("basic_ios::clear: iostream error", _FULL),
    ("] . unexpected pos ", _FULL),
    (
        "NCCL remote error",
        Words(
            "NCCL lost another rank: the cause stands in that rank's log.",
            "look for the rank whose log ends first; give all of them to stallwatch",
        ),
    ),
    (
        "Disk quota exceeded",
        Words("This user's quota on that file system is used up.", "quota -s (lfs quota -u $USER <path>); make room"),
    ),
    (
        "Stale file handle",
        Words(
            "The file was replaced or removed on the NFS server, or the server was started again.",
            "mount the file system again; do not replace files that ranks have open",
        ),
    ),
    (
        "No such file or directory",
        Words(
            "This rank looked for a file that is not there.",
            "is the path on every node, mounted and filled? ls -l <path> on this one",
        ),
    ),
    ("can't start new thread", _THREADS),
    ("Resource temporarily unavailable", _THREADS),
    (
        "no GPUs found",
        Words(
            "This rank sees no GPU: an empty CUDA_VISIBLE_DEVICES, a container without GPUs, or a driver that does not "
            "answer.",
            "nvidia-smi and echo $CUDA_VISIBLE_DEVICES on this node; docker run --gpus all",
        ),
    ),
    (
        "ECC error",
        Words(
            "This GPU's memory failed.",
            "drain the node and reset the GPU (nvidia-smi -q -d ECC,ROW_REMAPPER); with it again, have it replaced",
        ),
    ),
    (
        "no kernel image",
        Words(
            "This build of PyTorch, or of an extension, has no code for this GPU's architecture.",
            "python -c 'import torch; print(torch.cuda.get_arch_list())'; extensions: TORCH_CUDA_ARCH_LIST and build "
            "again",
        ),
    ),
    (
        "device-side assert",
        Words(
            "A kernel found a value that it does not accept: mostly an index outside a table (labels, token ids).",
            "the line before it names the assertion; check that every index is below the size of its table: run the "
            "batch on the CPU",
        ),
    ),
    ("NET/OFI Request", _EFA),
    ("unspecified launch failure", _WRONG_ACCESS),
    ("illegal memory access", _WRONG_ACCESS),
    ("<warn> err: ", _EFA),
    (
        "RendezvousClosedError",
        Words(
            "This node's agent came to start its ranks anew and found the rendezvous closed: another node's agent has "
            "ended the job, because its ranks were done or its restarts used up.",
            "look for the first rank that ended, above this line and in the other nodes' logs; give no second run the "
            "same --rdzv-id while the first one lives",
        ),
    ),
    (
        "undefined symbol: nccl",
        Words(
            "Another NCCL than PyTorch's was loaded before it.",
            "unset LD_LIBRARY_PATH and LD_PRELOAD entries that have a libnccl.so (ldconfig -p | grep nccl), or upgrade "
            "that one",
        ),
    ),
    (
        ".py: error: ",
        Words("The script refused its arguments, and ended.", "mend the command line; the script's --help", "start"),
    ),
    ("Name or service not known", _NO_NAME),
    ("Temporary failure in name resolution", _NO_NAME),
    ("terminated with signal SIGKILL", _KILLED_CHILD),
    ("wandb.", _OUTSIDE),
    ("huggingface_hub", _OUTSIDE),
    ("Max retries exceeded", _OUTSIDE),
    (
        "SIGTERMException",
        Words(
            "Somebody ended the job by SIGTERM (a limit, a preemption), and this rank left its loop for that. Ranks "
            "that had begun a further step wait for it there.",
            "let all ranks leave at the same step: all_reduce a flag that the signal has come; the scheduler's record "
            "of the job tells who sent it",
        ),
    ),
    (
        "death signal",
        Words(
            "Somebody ended the launcher from outside: a scheduler's limit or preemption, `kubectl delete`, a closed "
            "terminal. If its steps had stopped long before, it hung.",
            "look at the time of the last step, and at the scheduler's record of this job",
        ),
    ),
    (
        "got signal",
        Words(
            "Somebody ended the launcher from outside: a scheduler's limit or preemption, `kubectl delete`, a closed "
            "terminal (signal 1: use nohup or tmux). If its steps had stopped long before, it hung.",
            "look at the time of the last step, and at the scheduler's record of this job",
        ),
    ),
)
