"""What a frame means to the thread that is in it: tables for installed code, words of the trade for the job's own."""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import Where

# What a frame can mean, and how the rows of the tables are written.


Role = Literal[
    # What a thread is inside of, whoever called it.
    "collective", "backward", "init", "store", "teardown", "gpu_sync", "file_lock",
    # Work that calls the job's own code back: the meaning reaches inward through the job's frames.
    "dataloader", "checkpoint", "compile",
    # Ways to wait, refined by what surrounds them.
    "lock", "shared_lock", "join", "queue", "process_queue", "child", "socket", "tracker", "filesystem", "idle",
]  # fmt: skip

ROLE_WHERE: dict[Role, Where] = {
    "collective": "collective", "backward": "collective", "init": "init", "store": "store", "teardown": "teardown",
    "gpu_sync": "gpu_sync", "file_lock": "lock", "dataloader": "dataloader", "checkpoint": "checkpoint",
    "compile": "compile", "lock": "lock", "shared_lock": "lock", "join": "lock", "queue": "lock",
    "process_queue": "lock", "child": "user_code", "socket": "socket", "tracker": "socket",
    "filesystem": "filesystem", "idle": "unknown",
}  # fmt: skip


class FrameMeaning(NamedTuple):
    """What a thread that is inside of a frame does."""

    role: Role
    detail: str  # a predicate: "waits for …"

    @property
    def where(self) -> Where:
        """The place of the verdict's contract that the role belongs to."""
        return ROLE_WHERE[self.role]


class FrameRow(NamedTuple):
    """One row of the tables: frames of these modules and functions have this meaning."""

    module: re.Pattern[str]
    functions: re.Pattern[str] | None  # None: every function
    meaning: FrameMeaning
    stdlib: bool


def modules(role: Role, detail: str, *patterns: tuple[str, str] | str) -> tuple[FrameRow, ...]:
    """Modules of a framework by dotted name, also beneath a checkout's path; a pair names the functions meant."""
    return _rows(FrameMeaning(role, detail), patterns, r"(?:^|\.)(?:{})(?:\.|$)", stdlib=False)


def packages(role: Role, detail: str, *patterns: tuple[str, str] | str) -> tuple[FrameRow, ...]:
    """Installed packages by their top-level names."""
    return _rows(FrameMeaning(role, detail), patterns, r"^(?:{})(?:\.|$)", stdlib=False)


def standard(role: Role, detail: str, *patterns: tuple[str, str] | str) -> tuple[FrameRow, ...]:
    """Modules of Python's library by their whole names."""
    return _rows(FrameMeaning(role, detail), patterns, r"^(?:{})$", stdlib=True)


def _rows(
    meaning: FrameMeaning, patterns: tuple[tuple[str, str] | str, ...], frame: str, *, stdlib: bool
) -> tuple[FrameRow, ...]:
    rows = []
    for pattern in patterns:
        module, functions = (pattern, "") if isinstance(pattern, str) else pattern
        only = re.compile(rf"(?:{functions})$") if functions else None
        rows.append(FrameRow(re.compile(frame.replace("{}", module)), only, meaning, stdlib))
    return tuple(rows)


# What frames of Python's library and of common clients mean: ways to wait. Data: the first row that matches counts.


READ_BY_NOBODY = "is ending and waits until somebody reads what it has put into a queue of multiprocessing"
ANY_PROCESS = "waits for another process"
A_POOL = "waits for its pool of worker processes"
NO_RESULT = "waits for its pool of worker processes, whose thread that reads their results has ended,"
ITS_LOADER = "waits for its data loader"
AT_A_QUEUE = "waits for a queue"
AT_A_BUILD_LOCK = "waits for a build lock file of another process"
LOOKS_UP_A_NAME = "looks up the name of a host"

LIBRARY_ROWS: tuple[FrameRow, ...] = (
    # The end of a process
    *standard("teardown", "is ending and waits for its threads", ("threading", "_shutdown")),
    *standard("teardown", READ_BY_NOBODY, (r"multiprocessing\.queues", "_finalize_join")),
    *standard("teardown", "is ending and waits for its child processes",
              (r"multiprocessing\.util", "_exit_function|_run_finalizers")),
    *standard("teardown", "is ending and waits for its executor", (r"concurrent\.futures\.\w+", "_python_exit")),
    *standard("teardown", "is ending", ("logging", "shutdown"), ("atexit|weakref", "_run_exitfuncs|_exitfunc")),
    # Threads that have nothing to do
    *standard("idle", "waits for work", (r"concurrent\.futures\.thread", "_worker"), ("socketserver", "serve_forever"),
              (r"multiprocessing\.pool", r"_handle_\w+|_maintain\w*|worker"), (r"multiprocessing\.queues", "_feed"),
              (r"logging\.handlers", "_monitor|dequeue")),
    # Ways to wait
    *standard("join", "waits for a thread to end", ("threading", "join|_wait_for_tstate_lock|_join")),
    *standard("lock", "waits for a lock", ("threading", r"_?wait(?:_for)?|acquire|__enter__|_acquire\w*|_enter"),
              r"asyncio\.(?:locks|queues)"),
    *standard("shared_lock", "waits for a lock shared with other processes", r"multiprocessing\.synchronize"),
    *standard("queue", AT_A_QUEUE, ("queue", "get|put|join")),
    *standard("join", "waits for the result of a background task",
              (r"concurrent\.futures\.\w+", r"\w*result\w*|exception|wait|as_completed|shutdown")),
    *standard("process_queue", A_POOL,
              (r"multiprocessing\.pool", "get|wait|next|map|starmap|apply|join")),
    *standard("process_queue", ANY_PROCESS,
              r"multiprocessing\.(?:queues|connection|managers|pool|reduction)"),
    *standard("child", "waits for a child process", "subprocess", "pty",
              r"multiprocessing\.(?:process|popen_\w+|forkserver|resource_tracker|spawn)"),
    *standard("socket", LOOKS_UP_A_NAME, ("socket", r"getaddrinfo|getfqdn|gethostby\w+|getnameinfo")),
    *standard("socket", "waits for the network",
              r"socket|ssl|http\.\w+|urllib\.\w+|smtplib|ftplib|imaplib|poplib|xmlrpc\.\w+"),
    *standard("socket", "waits in its asyncio event loop",
              r"asyncio\.(?:base_events|selector_events|runners|events|unix_events)"),
    *standard("socket", "waits for a socket or pipe", "selectors"),
    *standard("filesystem", "waits for the file system",
              r"shutil|pathlib(?:\.\w+)?|genericpath|posixpath|glob|fileinput|tempfile|gzip|bz2|lzma|zipfile(?:\.\w+)?"
              r"|tarfile|os|io|_pyio|codecs|dbm(?:\.\w+)?|shelve|_compression|filecmp|linecache|sqlite3(?:\.\w+)?",
              (r"pickle|json(?:\.\w+)?|csv", "dump|load|reader|writer|read"), ("logging", "emit|flush")),
    # Clients of other people's services
    *packages("tracker", "waits for its experiment tracker",
              "wandb|mlflow|comet_ml|neptune|clearml|swanlab|aim|sentry_sdk"),
    *packages("socket", "waits for the Hugging Face hub", "huggingface_hub"),
    *packages("socket", "waits for a Ray task", ("ray", r"get|wait|\w*get_objects\w*")),
    *packages("socket", "waits for the network",
              "urllib3|requests|httpx|httpcore|aiohttp|botocore|boto3|s3transfer|s3fs|gcsfs|adlfs|azure|grpc|websockets?",
              "zmq|redis|etcd3?|kazoo|pymongo|psycopg2?|pymysql|paramiko|smart_open|minio|oci",
              r"google\.(?:cloud|api_core|auth|resumable_media)", r"fsspec\.asyn"),
    *packages("socket", "waits in its event loop", "trio|gevent|eventlet|tornado|twisted"),
    *packages("process_queue", "waits for another process", "multiprocess|joblib|loky|billiard"),
    *packages("filesystem", "reads or writes a file",
              "h5py|zarr|pyarrow|lmdb|tables|netCDF4|rasterio|cv2|PIL|imageio|decord|av|soundfile|fsspec|nibabel",
              (r"numpy\.(?:lib|core|_core|memmap)(?:\.\w+)*", r"load|save\w*|memmap|\w+file|read\w*|write\w*|__new__")),
)  # fmt: skip


# What frames of torch and of training frameworks mean. Data: the first row that matches is the meaning.


_C10D = r"torch\.distributed\.distributed_c10d"
_LIGHTNING = r"(?:pytorch_lightning|lightning\.pytorch|lightning\.fabric|lightning_fabric)"
_COLLECTIVES = (
    r"_?(?:i?all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|reduce|gather|scatter|barrier|monitored_barrier"
    r"|i?send|i?recv|batch_isend_irecv)\w*"
)

AT_A_NEIGHBOUR = "waits for a neighbouring pipeline stage"  # by sends and receives

FRAMEWORK_ROWS: tuple[FrameRow, ...] = (
    # torch.distributed
    *modules("teardown", "destroys its process groups",
             (_C10D, r"destroy_process_group|_?abort_process_group|shutdown\w*|_shutdown_backend"),
             (r"deepspeed\.comm\.\w+", r"destroy_process_group")),
    *modules("init", "waits for the other ranks at the barrier that ends initialisation",
             (_C10D, "_store_based_barrier")),
    *modules("init", "creates a process group, which other ranks must join",
             (_C10D, r"init_process_group|_new_process_group_helper|new_group|_new_group_with_tag|new_subgroups\w*"
                     r"|split_group|_get_default_store|_create_\w+_wrapper"),
             (r"torch\.distributed\.device_mesh", r"init_device_mesh|_init_process_groups|__init__|_flatten|_setup\w*"),
             (r"deepspeed\.comm\.\w+", r"init_distributed|initialize_mesh_device|new_group")),
    *modules("init", "waits for the other ranks at the rendezvous", r"torch\.distributed\.rendezvous"),
    *modules("store", "waits for the rendezvous store", r"torch\.distributed\.elastic\.(?:rendezvous|utils\.store)"),
    *modules("collective", "waits in {function}",
             (_C10D, _COLLECTIVES), r"torch\.distributed\._functional_collectives\w*",
             r"torch\.distributed\.nn\.functional",
             r"torch\.distributed\._symmetric_memory", r"torch\.distributed\.tensor\._collective_utils",
             (r"deepspeed\.(?:comm|runtime\.comm)", _COLLECTIVES),
             (r"accelerate\.utils\.operations", r"gather\w*|broadcast\w*|reduce\w*|pad_across\w*"),
             (r"accelerate\.state", r"wait_for_everyone")),
    *modules("collective", "waits for a collective", (_C10D, r"_?wait\w*")),
    *modules("collective", AT_A_NEIGHBOUR,
             (r"torch\.distributed\.pipelining\.schedules", r"_wait_batch_p2p|_batch_p2p|_sorted_batch_p2p"),
             r"megatron\.core\.pipeline_parallel\.p2p_communication", r"deepspeed\.runtime\.pipe\.p2p"),
    *modules("collective", "synchronises its model with other ranks",
             (r"torch\.distributed\.(?:utils|algorithms\.join)", r"_verify_param_shape\w*|_sync_module_states"
              r"|_sync_params\w*|_broadcast_coalesced|notify_join_context"),
             (r"torch\.nn\.parallel\.distributed", r"_distributed_broadcast_coalesced|_default_broadcast_coalesced"
              r"|_sync_(?:buffers|module_buffers|final_model)|_check_global_requires_backward\w*")),
    *modules("collective", "waits for the other workers (RPC)",
             (r"torch\.distributed\.rpc(?:\.\w+)*", r"shutdown|_wait_all_workers|_all_gather|_barrier")),
    *modules("socket", "waits for the answer of another worker (RPC)",
             (r"torch\.distributed\.rpc(?:\.\w+)*", r"rpc_sync|remote|wait_all|_?invoke_(?:rpc|remote)\w*|_rref_\w+")),
    # DDP's gradient all-reduce is waited for inside the autograd engine, in C++.
    *modules("backward", "waits in its backward pass", (r"torch\.autograd\.graph", "_engine_run_backward"),
             (r"torch\.autograd", "backward|grad")),
    # Locks that live in files: a stale one waits for ever.
    *modules("file_lock", AT_A_BUILD_LOCK, r"torch\.utils\.file_baton"),
    *packages("file_lock", "waits for a lock file of another process",
              "filelock", "fasteners", "portalocker", "lockfile", r"torch\.utils\._filelock"),
    # Compilers
    *modules("compile", "compiles its model",
             r"torch\._dynamo\.(?:convert_frame|symbolic_convert|output_graph|repro|guards|bytecode_\w+|backends)",
             r"torch\._inductor\.(?:async_compile|codecache|cpp_builder|graph|scheduler|select_algorithm"
             r"|autotune_process|codegen|compile_worker|lowering|fx_passes|kernel)",
             (r"torch\._inductor\.compile_fx\w*", r"\w*compile\w*"), (r"torch\._functorch", r"\w*compile\w*")),
    *modules("compile", "compiles a Triton kernel", r"triton\.(?:compiler|runtime\.(?:build|cache|autotuner))",
             (r"triton\.runtime\.jit", r"\w*compile\w*|warmup")),
    *modules("compile", "builds a C++ extension", r"torch\.utils\.cpp_extension", r"deepspeed\.ops\.op_builder",
             r"megatron\.(?:legacy\.)?fused_kernels", (r"megatron\.core\.datasets\.utils", "compile_helpers")),
    *packages("compile", "compiles code",
              ("setuptools|distutils|Cython|numba|jax|tvm|cutlass", r"\w*(?:compile|build|link|spawn)\w*")),
    # Checkpoints. torch.utils.checkpoint recomputes activations and is no file at all.
    *modules("checkpoint", "reads or writes a checkpoint",
             r"torch\.serialization", r"torch\.distributed\._?checkpoint", r"safetensors",
             r"deepspeed\.(?:checkpoint|runtime\.checkpoint_engine)",
             (r"deepspeed\.runtime\.\w+", r"_?(?:save|load)_\w+"),
             r"megatron\.(?:training\.|legacy\.)?checkpointing", r"megatron\.core\.dist_checkpointing",
             r"nvidia_resiliency_ext\.checkpointing",
             rf"{_LIGHTNING}\.(?:\w+\.)*(?:checkpoint\w*|model_checkpoint|plugins\.io|saving|cloud_io)",
             (r"(?:transformers|accelerate|peft|diffusers)\.\S+",
              r"_save\w*|save_(?:pretrained|model|state|accelerator_state)|_?load_(?:from_)?checkpoint\w*"
              r"|load_state(?:_dict)?|_load_optimizer\w*|load_accelerator_state|_load_pretrained\w*")),
    *packages("checkpoint", "reads or writes a checkpoint",
              r"(?:orbax|composer|nemo|torchtitan|torchtune|colossalai|tensorstore)\.\S*checkpoint\w*"),
    # Data loaders
    *modules("dataloader", "loads data as a worker", (r"torch\.utils\.data\._utils\.worker", "_worker_loop")),
    # At the end of every epoch, where they are not kept: that is no end of the rank, and each has five seconds to go.
    *modules("dataloader", "waits for the workers of its data loader to end",
             (r"torch\.utils\.data\.dataloader", "_shutdown_workers|__del__")),
    *modules("dataloader", ITS_LOADER,
             r"torch\.utils\.data", r"(?:transformers|accelerate)\.(?:data_loader|trainer_pt_utils|data)",
             (rf"{_LIGHTNING}\.(?:\w+\.)*(?:fetchers|combined_loader)", r"__(?:next|iter)__|\w*fetch\w*|_?next\w*"),
             r"deepspeed\.runtime\.dataloader", r"megatron\.(?:core|legacy|training)\.(?:data|datasets)"),
    *packages("process_queue", A_POOL, (r"datasets\.utils\.py_utils", "iflatmap_unordered")),
    *packages("dataloader", "waits for its data",
              "torchdata|webdataset|ffcv|litdata|streaming|petastorm|deeplake|datasets|tensorflow_datasets|grain|squirrel",
              r"nvidia\.dali|megatron\.energon|ray\.data|tensorflow\.(?:\w+\.)*data|torchvision\.(?:datasets|io)"),
    # The GPU
    *modules("gpu_sync", "waits for its GPU",
             (r"torch\.(?:cuda|accelerator|xpu|hpu)(?:\.streams|\.graphs)?|torch_npu\.npu\S*", r"_?synchronize|wait"),
             (r"torch\.amp\.grad_scaler", r"_maybe_opt_step|step|update|_unscale_grads_"), r"torch\._tensor_str",
             (r"deepspeed\.(?:accelerator|utils\.timer)|megatron\.core\.timers", "synchronize|start|stop|elapsed")),
)  # fmt: skip


_ROWS = FRAMEWORK_ROWS + LIBRARY_ROWS


@lru_cache(maxsize=65536)
def _meaning(filename: str, name: str) -> FrameMeaning | None:
    where = code_origin(filename)
    if where.origin is Origin.SYNTHETIC:
        return None
    bare = function(name)
    for row in _ROWS:
        if row.stdlib and where.origin is not Origin.STDLIB:
            continue
        # A job may have a folder named "datasets" or "streaming": single words mean something in installed code only.
        if where.origin in (Origin.JOB, Origin.STDLIB) and not row.stdlib and not _CHECKOUT.search(where.module + "."):
            continue
        if row.module.search(where.module) and (row.functions is None or row.functions.match(bare)):
            return row.meaning._replace(detail=row.meaning.detail.format(function=bare))
    return None


# Frameworks that people run from a checkout: the path must name the package and a module inside it.
_CHECKOUT = re.compile(
    r"(?:^|\.)(?:megatron\.(?:core|training|legacy)|deepspeed\.\w+|lightning\.(?:pytorch|fabric)|pytorch_lightning\.\w+"
    r"|accelerate\.\w+|src\.transformers\.\w+)\."
)


def meaning(frame: CodeFrame) -> FrameMeaning | None:
    """What this frame means to the thread that is in it, or None when only its callers tell."""
    return _meaning(frame.filename, frame.name)


# Words of the trade in names of the job's own functions. Weak: they only tell what a file or queue wait is for.
_CHECKPOINT_NAME = re.compile(
    r"(?:save|write|store|dump|persist|upload|load|restore|read)\w*(?:checkpoint|ckpt|snapshot|state_dict|weights)"
    r"|(?:checkpoint|ckpt|snapshot)\w*(?:save|write|dump|load|restore|upload)|^(?:checkpoint|ckpt)$"
    r"|^_?save(?:_model|_state)?$",
    re.IGNORECASE,
)
_LOADER_NAME = re.compile(
    r"^__next__$|^__getitems?__$|collate|data_?loader|next_?batch|get_?batch|fetch_?batch|load_?batch|batch_?iter"
    r"|prefetch|read_?shard|load_?shard|fetch_?shard|next_?sample|get_?sample|load_?sample",
    re.IGNORECASE,
)  # fmt: skip


def trade_word(frame: CodeFrame) -> Where | None:
    """What the name of a function of the job suggests: "checkpoint", "dataloader", or nothing."""
    if code_origin(frame.filename).origin not in (Origin.JOB, Origin.LIBRARY):
        return None
    bare = function(frame.name)
    if _CHECKPOINT_NAME.search(bare):
        return "checkpoint"
    return "dataloader" if _LOADER_NAME.search(bare) else None


def collective_name(frames: tuple[CodeFrame, ...]) -> str | None:
    """The call by its public name: the outermost function of torch.distributed in the innermost run of such frames."""
    name = None
    for frame in frames:
        found = meaning(frame)
        if found and found.role == "collective":
            bare = function(frame.name)
            if code_origin(frame.filename).module.endswith("distributed_c10d"):
                name = bare if not bare.startswith("_") or name is None else name
        elif name is not None and code_origin(frame.filename).origin is Origin.JOB:
            break
    return name
