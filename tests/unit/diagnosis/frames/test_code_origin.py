"""Whose code a frame is, and what it means."""

import pytest

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function, job_frame_index
from stallwatch.diagnosis.frames.meaning import collective_name, meaning, trade_word
from tests.builders.rank_evidence import frame, stack


@pytest.mark.parametrize(
    ("path", "origin", "module"),
    [
        ("/usr/lib/python3.11/threading.py", Origin.STDLIB, "threading"),
        ("/home/u/.local/share/uv/python/cpython-3.12.4-linux/lib/python3.12/queue.py", Origin.STDLIB, "queue"),
        (
            "/opt/conda/envs/ml/lib/python3.13t/multiprocessing/connection.py",
            Origin.STDLIB,
            "multiprocessing.connection",
        ),
        ("/usr/lib64/python3.9/concurrent/futures/_base.py", Origin.STDLIB, "concurrent.futures._base"),
        ("/usr/local/lib/python3.10/dist-packages/torch/_tensor.py", Origin.MACHINERY, "torch._tensor"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", Origin.LIBRARY, "yaml"),
        ("/job/.venv/lib/python3.11/site-packages/trainer_of_ours/cli.py", Origin.LIBRARY, "trainer_of_ours.cli"),
        ("/opt/pytorch/torch/distributed/distributed_c10d.py", Origin.MACHINERY, "torch.distributed.distributed_c10d"),
        ("/venv/lib/python3.11/site-packages/torch/distributed/run.py", Origin.LAUNCHER, "torch.distributed.run"),
        ("/opt/venv/bin/torchrun", Origin.LAUNCHER, "opt.venv.bin.torchrun"),
        ("/opt/venv/lib/python3.11/site-packages/stallwatch/run.py", Origin.LAUNCHER, "stallwatch"),
        ("/tmp/torchinductor_me/ab/cabc.py", Origin.GENERATED, "tmp.torchinductor_me.ab.cabc"),
        ("<frozen importlib._bootstrap>", Origin.SYNTHETIC, "<frozen importlib._bootstrap>"),
        ("<string>", Origin.SYNTHETIC, "<string>"),
        ("", Origin.SYNTHETIC, ""),
        ("/srv/job/train.py", Origin.JOB, "srv.job.train"),
        ("train.py", Origin.JOB, "train"),
        ("/tmp/tmpab12/train.py", Origin.JOB, "tmp.tmpab12.train"),
        ("/home/me/torch/train.py", Origin.JOB, "home.me.torch.train"),
        ("/home/me/datasets/loader.py", Origin.JOB, "home.me.datasets.loader"),
    ],
)
def test_a_path_tells_whose_code_it_is(path: str, origin: Origin, module: str) -> None:
    assert code_origin(path) == (origin, module)


def test_names_are_bare_for_every_python() -> None:
    assert function("main.<locals>.train_step") == "train_step"
    assert function("Condition.wait") == function("wait") == "wait"
    assert function("main.<locals>.<lambda>") == "<lambda>"


def test_the_shown_frame_is_the_innermost_of_the_job() -> None:
    frames = stack("wait@PY/threading.py:1", "load@JOB:7", "forward@TORCH/nn/modules/module.py:2", "main@JOB:9")
    assert job_frame_index(frames) == 1


def test_an_installed_training_package_is_shown_where_the_job_has_no_file_of_its_own() -> None:
    frames = stack(
        "wait@PY/threading.py:1",
        "synchronize@TORCH/cuda/__init__.py:2",
        "fit@/venv/lib/python3.11/site-packages/trainer_of_ours/loop.py:5",
        "<module>@/venv/bin/train:3",
    )
    assert job_frame_index(frames) == 2


def test_no_frames_show_nothing() -> None:
    assert job_frame_index(()) is None


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("all_reduce@TORCH/distributed/distributed_c10d.py:1", "collective"),
        ("_store_based_barrier@TORCH/distributed/distributed_c10d.py:1", "init"),
        ("new_group@TORCH/distributed/distributed_c10d.py:1", "init"),
        ("destroy_process_group@TORCH/distributed/distributed_c10d.py:1", "teardown"),
        ("_create_c10d_store@TORCH/distributed/rendezvous.py:1", "init"),
        ("_engine_run_backward@TORCH/autograd/graph.py:1", "backward"),
        ("synchronize@TORCH/cuda/__init__.py:1", "gpu_sync"),
        ("synchronize@TORCH/cuda/streams.py:1", "gpu_sync"),
        ("FileBaton.wait@TORCH/utils/file_baton.py:1", "file_lock"),
        ("_try_get_data@TORCH/utils/data/dataloader.py:1", "dataloader"),
        ("save@TORCH/serialization.py:1", "checkpoint"),
        ("save@TORCH/distributed/checkpoint/state_dict_saver.py:1", "checkpoint"),
        ("_compile@TORCH/_dynamo/convert_frame.py:1", "compile"),
        ("Condition.wait@PY/threading.py:1", "lock"),
        ("wait@PY/threading.py:1", "lock"),
        ("Thread.join@PY/threading.py:1", "join"),
        ("Queue.get@PY/queue.py:1", "queue"),
        ("Popen.wait@PY/subprocess.py:1", "child"),
        ("HTTPResponse.begin@PY/http/client.py:1", "socket"),
        ("rmtree@PY/shutil.py:1", "filesystem"),
        ("save_checkpoint@/v/lib/python3.11/site-packages/deepspeed/runtime/engine.py:1", "checkpoint"),
        ("save_checkpoint@/work/Megatron-LM/megatron/training/checkpointing.py:1", "checkpoint"),
        ("_communicate@/work/Megatron-LM/megatron/core/pipeline_parallel/p2p_communication.py:1", "collective"),
        ("_save_checkpoint@/v/lib/python3.11/site-packages/transformers/trainer.py:1", "checkpoint"),
        ("acquire@/v/lib/python3.11/site-packages/filelock/_api.py:1", "file_lock"),
        ("send@/v/lib/python3.11/site-packages/wandb/sdk/lib/sock_client.py:1", "tracker"),
        ("__iter__@/v/lib/python3.11/site-packages/webdataset/pipeline.py:1", "dataloader"),
    ],
)
def test_frames_mean_what_their_library_does_in_them(text: str, role: str) -> None:
    found = meaning(frame(text))
    assert found is not None
    assert found.role == role


@pytest.mark.parametrize(
    "text",
    [
        # Recomputation of activations is no checkpoint on disk.
        "checkpoint@TORCH/utils/checkpoint.py:1",
        "_fn@TORCH/_dynamo/eval_frame.py:1",
        "_call_impl@TORCH/nn/modules/module.py:1",
        "_step_microbatches@TORCH/distributed/pipelining/schedules.py:1",
        # A job's own files mean nothing by the names of folders.
        "get@/home/me/datasets/queue.py:1",
        "wait@/home/me/streaming/threading.py:1",
        "all_reduce@JOB:1",
        "bootstrap@<string>:1",
    ],
)
def test_frames_that_only_lead_elsewhere_mean_nothing(text: str) -> None:
    assert meaning(frame(text)) is None


def test_words_of_the_trade_are_read_in_the_jobs_own_names() -> None:
    assert trade_word(frame("Saver.write_checkpoint@JOB:1")) == "checkpoint"
    assert trade_word(frame("Corpus.__getitem__@JOB:1")) == "dataloader"
    assert trade_word(frame("checkpointed_forward@JOB:1")) is None
    assert trade_word(frame("train_step@JOB:1")) is None
    assert trade_word(frame("save_checkpoint@PY/threading.py:1")) is None


def test_a_collective_is_named_as_the_job_called_it() -> None:
    frames = stack(
        "all_gather@TORCH/distributed/distributed_c10d.py:1",
        "wrapper@TORCH/distributed/c10d_logger.py:2",
        "all_gather_object@TORCH/distributed/distributed_c10d.py:3",
        "evaluate@JOB:4",
        "broadcast@TORCH/distributed/distributed_c10d.py:5",
    )
    assert collective_name(frames) == "all_gather_object"
    assert collective_name(stack("load@JOB:1")) is None


@pytest.mark.parametrize(
    ("module", "name", "role"),
    [
        ("fsspec/asyn.py", "sync", "socket"),  # https, s3, gs, abfs: all of them run in one loop of its own
        ("fsspec/spec.py", "AbstractBufferedFile.read", "filesystem"),
        ("trio/_core/_run.py", "run", "socket"),
        ("gevent/_hub_primitives.py", "wait", "socket"),
        ("tornado/ioloop.py", "IOLoop.run_sync", "socket"),
    ],
)
def test_what_a_library_s_loop_waits_for_is_outside_of_the_node(module: str, name: str, role: str) -> None:
    found = meaning(frame(f"{name}@/venv/lib/python3.11/site-packages/{module}:7"))
    assert found is not None and found.role == role
