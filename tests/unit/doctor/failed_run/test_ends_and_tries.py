"""Logs of jobs that ended well, and failures that were tried again."""

import pytest

from stallwatch.bundle.reader import read
from stallwatch.bundle.workers import Limits
from stallwatch.diagnosis import judge
from stallwatch.formats.training_log import parse
from tests.unit.doctor.failed_run.test_logs import diagnose, logs
from tests.unit.doctor.fakes import Node

BIND = (
    "[E1104 10:11:12.330000 socket.cpp:472] [c10d] The server socket has failed to listen on any local network "
    "address.\n"
)
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use\n"
)
OLD = (
    "[W socket.cpp:426] [c10d] The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address already in "
    "use).\n"
    "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed "
    "to bind to 0.0.0.0:29500 (errno: 98 - Address already in use).\n"
)
ACCELERATE = (
    "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it. "
    "Please specify a different port (such as using the `--main_process_port` flag)\n"
)
UNREACHED = (
    "[E1104 10:11:12.3 socket.cpp:1011] [c10d] The client socket has timed out after 60000ms while trying to connect to"
    " (10.1.0.4, 29500).\n"
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
OOM_OF_3 = f'[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/train.py", line 88\n[rank3]: {OOM}'
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (BIND + TAKEN + "step 1 loss 2.3\n" + OOM_OF_3, "OutOfMemoryError"),
        (TAKEN + "wrapper: attempt 1 failed, retrying with port 29511\n" + OOM, "OutOfMemoryError"),
        (BIND + TAKEN + OOM_OF_3, "OutOfMemoryError"),  # torch marks the ranks of a group
        (OLD + "port busy, trying next port 29501\n" + OOM, "OutOfMemoryError"),
        (ACCELERATE + "launch.sh: retrying on 29503\nEpoch 1 batch 10 loss 1.2\n" + KILLED, "oom_kill"),
        (UNREACHED + "relaunching\niteration 100/5000 | loss 3.1\n" + OOM, "OutOfMemoryError"),
        ("[rank0]:" + TAKEN + "step 3: loss 1.0\nstep 4: loss 1.0\n[rank1]: KeyError: 'x'\n", "KeyError"),
        # What was not tried again, or not in vain, is the cause still.
        (BIND + TAKEN, "ddress already in use"),
        (TAKEN + "Retrying in 5 s\n" + TAKEN, "ddress already in use"),
        (BIND + TAKEN + "RuntimeError: Connection reset by peer\n", "ddress already in use"),
        (OOM_OF_3 + "restarted by hand\n" + BIND + TAKEN, "ddress already in use"),
    ],
)
def test_the_first_failure_that_was_not_tried_again_is_the_cause(node: Node, text: str, cause: str) -> None:
    found = diagnose(node, text)
    assert found[0].seen.startswith("First cause: ")
    assert cause in found[0].seen
    (verdict,) = judge(logs(parse(text.encode()))).verdicts
    assert verdict.cause in ("rank_raised", "rank_exited")
    assert cause in verdict.summary or cause in verdict.because[0].fact


@pytest.mark.parametrize(
    "end",
    [
        "Training completed.",
        "INFO 11-20 10:00:00 training finished in 812 s",
        "[rank0]: Training done!",
        "{'train_runtime': 100.1, 'train_samples_per_second': 22.1, 'train_loss': 2.0, 'epoch': 2.0}",
        "`Trainer.fit` stopped: `max_steps=1000` reached.",
        "[2026-05-01 10:00:00,123] [INFO] [launch.py:351:main] Process 4410 exits successfully.",
        "gpu1:201:201 [0] NCCL INFO comm 0x55d rank 0 nranks 16 cudaDev 0 busId 1b000 - Destroy COMPLETE",
        "2026-11-28T10:00:00.1Z stdout F [after training is done] datetime: 2026-11-28 10:00:00",
        "worker-0: | INFO | fairseq_cli.train | done training in 1234.5 seconds",
        "\x1b[32mTraining Completed!!! Saving pre-trained model to out\x1b[0m",
        "Finetuning completed",
        "Total training time: 1:23:45",
        "I0312 10:00:00.1 88 torch/distributed/elastic/agent/server/api.py:884] [default] worker group successfully "
        "finished. Waiting 300 seconds for other agents to finish.",
    ],
)
def test_a_log_that_shows_a_clean_end_is_no_warning(node: Node, end: str) -> None:
    text = f"loading data\nstep 100 loss 2.31 errors=0\nstep 200 loss 2.11\n{end}\nsaved to ck/final.pt\n"
    assert diagnose(node, text) == ()
    (verdict,) = judge(logs(parse(text.encode()))).verdicts
    assert (verdict.cause, verdict.culprits) == ("job_ended", ())
    # A retried port before it changes nothing.
    assert diagnose(node, BIND + TAKEN + text) == ()


NO_NAME = (
    "[W1104 10:11:12.3 socket.cpp:759] [c10d] The IPv4 network addresses of (head-0, 29400) cannot be retrieved (gai "
    "error: -3 - Temporary failure in name resolution).\n"
)


@pytest.mark.parametrize(
    "fatal",
    [
        "torch.distributed.DistNetworkError: The client socket has timed out after 120s while trying to connect to "
        "(head-0, 29400).\n",
        "RuntimeError: The client socket has timed out after 60000ms while trying to connect to (head-0, 29400).\n",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
        "failed. See inner exception for details.\n",
    ],
)
def test_a_name_that_was_tried_again_and_failed_for_good_is_an_error(node: Node, fatal: str) -> None:
    assert diagnose(node, NO_NAME)[0].seen.startswith("Only a warning stands in these logs: ")
    for text in (NO_NAME + fatal, NO_NAME + NO_NAME + fatal):
        first = diagnose(node, text)[0]
        assert (first.severity, first.seen[:13]) == ("error", "First cause: ")
        assert "may have gone well" not in first.why
        assert judge(logs(parse(text.encode()))).verdicts[0].cause != "undecided"


@pytest.mark.parametrize(
    "text",
    [
        "Training completed.\nuploading\nour_lib: FATAL: quota of bucket exceeded, upload failed\n",
        "training finished for epoch 3\nour_lib: error 17\n",
        "Training finished with errors: our_lib: error 17\n",
        "gpu1:201:330 [0] NCCL INFO comm 0x55d rank 0 nranks 16 cudaDev 0 commId 0xabc - Init COMPLETE\nerror 17\n",
        "retrying\nour_lib: error 17 is new\n",
    ],
)
def test_what_looks_like_an_error_and_is_not_followed_by_an_end_is_shown(node: Node, text: str) -> None:
    (found,) = diagnose(node, text)
    assert found.severity == "warning"
    assert "error" in found.seen


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 2.31, 'epoch': 1.0}\n{'train_runtime': 5.0, 'train_loss': 2.0}\n",
        '{"loss": 2.31, "step": 3}\n{"loss": 2.2, "step": 4}\nTraining completed\n',
        '{"level": "info", "msg": "Training completed"}\n',
    ],
)
def test_a_log_that_begins_with_what_a_trainer_prints_of_a_step_is_a_log(node: Node, text: str) -> None:
    evidence, _ = read([node.write("run.log", text)], Limits(seconds=300.0))
    assert not evidence.caveats
    assert [event.kind for event in evidence.log_events] == ["clean_end"]


HANDLED = 'Traceback (most recent call last):\n  File "load.py", line 12, in read\n    raise e\n'
STEPS = "step 10 loss 2.2\nstep 20 loss 2.1\n"


@pytest.mark.parametrize(
    "raised",
    ["OSError: cannot open shard 7", "ModuleNotFoundError: No module named 'apex'", "KeyError: 'label'",
     "ConnectionRefusedError: [Errno 111] Connection refused", "ConnectionResetError: Connection reset by peer"],
)  # fmt: skip
@pytest.mark.parametrize(
    "end",
    ["Training complete.", "All done.", "run finished with exit code 0", "100%|█████| 20/20 [00:09<00:00,  2.1it/s]"],
)
def test_what_was_raised_before_steps_and_a_clean_end_ended_nothing(node: Node, raised: str, end: str) -> None:
    text = f"{HANDLED}{raised}\nWARNING going on without\n{STEPS}{end}\n"
    assert diagnose(node, text) == ()
    assert judge(logs(parse(text.encode()))).verdicts[0].cause == "job_ended"


@pytest.mark.parametrize(
    "text",
    [
        f"{STEPS}{HANDLED}KeyError: 'label'\n",
        f"{STEPS}{HANDLED}KeyError: 'label'\nTraining complete.\n",
        f"{HANDLED}KeyError: 'label'\n{STEPS}",
        f"{STEPS}Training complete.\n{HANDLED}KeyError: 'label'\n",
        f"{HANDLED}KeyError: 'label'\n{STEPS}100%|█████| 4/4 [00:09<00:00,  2.1it/s]\n",
        f"[rank1]: KeyError: 'label'\n[rank0]: {STEPS}[rank0]: Training complete.\n",
        f"{HANDLED}KeyError: 'label'\n{STEPS}[rank0]:[W ProcessGroupNCCL.cpp:1250] Warning: WARNING: "
        "destroy_process_group() was not called before program exit\n",
    ],
)
def test_what_was_raised_without_both_is_the_cause_still(node: Node, text: str) -> None:
    first = diagnose(node, text)[0]
    assert (first.severity, "KeyError" in first.seen) == ("error", True)


@pytest.mark.parametrize(
    "line",
    ["val error: 0.093", "{'test_error': 0.2, 'error': 1.5e-3}", "skipped 3 samples after ValueError; errors=0",
     "WARNING retrying fetch after ConnectionError: reset (attempt 2/4)"],
)  # fmt: skip
def test_metrics_counts_of_none_and_tries_are_not_like_errors(node: Node, line: str) -> None:
    (found,) = diagnose(node, f"{line}\nour_lib: error 17\n{line}\n")
    assert "The last lines that look like errors: line 2: our_lib: error 17" in found.seen
    assert not found.seen.count("line 1:") and not found.seen.count("line 3:")
    assert diagnose(node, f"{line}\nAll done.\n") == ()
