"""What frames of torch and of training frameworks mean. Data: the first row that matches is the meaning."""

from stallwatch.diagnosis.frames.table import Row, modules, packages

_C10D = r"torch\.distributed\.distributed_c10d"
_LIGHTNING = r"(?:pytorch_lightning|lightning\.pytorch|lightning\.fabric|lightning_fabric)"
_COLLECTIVES = (
    r"_?(?:i?all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|reduce|gather|scatter|barrier|monitored_barrier"
    r"|i?send|i?recv|batch_isend_irecv)\w*"
)

FRAMEWORK_ROWS: tuple[Row, ...] = (
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
    *modules("collective", "waits for a neighbouring pipeline stage",
             (r"torch\.distributed\.pipelining\.schedules", r"_wait_batch_p2p|_batch_p2p|_sorted_batch_p2p"),
             r"megatron\.core\.pipeline_parallel\.p2p_communication", r"deepspeed\.runtime\.pipe\.p2p"),
    *modules("collective", "synchronises its model with other ranks",
             (r"torch\.distributed\.(?:utils|algorithms\.join)", r"_verify_param_shape\w*|_sync_module_states"
              r"|_sync_params\w*|_broadcast_coalesced|notify_join_context"),
             (r"torch\.nn\.parallel\.distributed", r"_distributed_broadcast_coalesced|_default_broadcast_coalesced"
              r"|_sync_(?:buffers|module_buffers|final_model)|_check_global_requires_backward\w*")),
    *modules("socket", "waits for the answer of another worker (RPC)",
             (r"torch\.distributed\.rpc(?:\.\w+)*", r"rpc_sync|remote|wait_all|_?invoke_(?:rpc|remote)\w*|_rref_\w+")),
    # DDP's gradient all-reduce is waited for inside the autograd engine, in C++.
    *modules("backward", "waits in its backward pass", (r"torch\.autograd\.graph", "_engine_run_backward"),
             (r"torch\.autograd", "backward|grad")),
    # Locks that live in files: a stale one waits for ever.
    *modules("file_lock", "waits for a build lock file of another process", r"torch\.utils\.file_baton"),
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
    *modules("teardown", "shuts down the workers of its data loader",
             (r"torch\.utils\.data\.dataloader", "_shutdown_workers|__del__")),
    *modules("dataloader", "waits for its data loader",
             r"torch\.utils\.data", r"(?:transformers|accelerate)\.(?:data_loader|trainer_pt_utils|data)",
             (rf"{_LIGHTNING}\.(?:\w+\.)*(?:fetchers|combined_loader)", r"__(?:next|iter)__|\w*fetch\w*|_?next\w*"),
             r"deepspeed\.runtime\.dataloader", r"megatron\.(?:core|legacy|training)\.(?:data|datasets)"),
    *packages("dataloader", "waits for its data",
              "torchdata|webdataset|ffcv|litdata|streaming|petastorm|deeplake|datasets|tensorflow_datasets|grain|squirrel",
              r"nvidia\.dali|megatron\.energon|ray\.data|tensorflow\.(?:\w+\.)*data|torchvision\.(?:datasets|io)"),
    # The GPU
    *modules("gpu_sync", "waits for its GPU",
             (r"torch\.(?:cuda|accelerator|xpu|hpu)(?:\.streams|\.graphs)?|torch_npu\.npu\S*", r"_?synchronize|wait"),
             (r"torch\.amp\.grad_scaler", r"_maybe_opt_step|step|update|_unscale_grads_"), r"torch\._tensor_str",
             (r"deepspeed\.(?:accelerator|utils\.timer)|megatron\.core\.timers", "synchronize|start|stop|elapsed")),
)  # fmt: skip
