"""What serving engines and other makers' runtimes print of a peer that does not answer, or of a GPU that hangs: made
from the forms of public reports (vllm-ascend#3717, vllm-ascend#486, LlamaFactory#5071, Ascend/pytorch#43 and #48,
ROCm issue 4021)."""

import pytest

from tests.builders.texts import AGENT, PEER_LOST, RAISED, marked, ranked, told, verdict

HANG = "HW Exception by GPU node-{node} (Agent handle: 0x6313{rank}1bb5a20) reason :GPU Hang\n"
CANN = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 35, in step\n'
    "    dist.all_reduce(grad)\n"
    "RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: HcclAllreduce, "
    "error code is {code}\n"
    "[ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:1) ERR01100 OPS call acl api failed.\n"
)
NOT_IN_TIME = (
    "EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the "
    "data in time. Please check the reason for the rank being stuck\n"
    "        Solution: 1. Check the rank service processes with other errors or no errors in the cluster.\n"
)
STANDS = (
    "EH9999: Inner Error!\n"
    "        rtDeviceSynchronize execute failed, reason=[{why} timeout][FUNC:FuncErrorReason][LINE:53]\n"
)
_ENGINE = "(EngineCore_DP1 pid=325607) ERROR 10-27 13:45:16 [core.py:710] "
ENGINE = marked(
    "EngineCore encountered a fatal error.\n"
    "Traceback (most recent call last):\n"
    '  File "/vllm/vllm/v1/executor/multiproc_executor.py", line 244, in get_response\n'
    "    status, result = w.worker_response_mq.dequeue(\n"
    '  File "/vllm/vllm/distributed/device_communicators/shm_broadcast.py", line 511, in dequeue\n'
    "    with self.acquire_read(timeout, cancel) as buf:\n"
    "TimeoutError\n"
    "\n"
    "The above exception was the direct cause of the following exception:\n"
    "\n"
    "Traceback (most recent call last):\n"
    '  File "/vllm/vllm/v1/executor/multiproc_executor.py", line 273, in collective_rpc\n'
    '    raise TimeoutError(f"RPC call to {method} timed out.") from e\n'
    "TimeoutError: RPC call to execute_model timed out.\n",
    _ENGINE,
) + (
    "(APIServer pid=325001) ERROR 10-27 13:45:17 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)


@pytest.mark.parametrize("mark", [True, False])
def test_a_call_of_hccl_that_waited_for_another_rank_in_vain_accuses_nobody(mark: bool) -> None:
    raised = CANN.format(code=6) + NOT_IN_TIME
    of_rank = ranked(raised, 1) if mark else raised
    assert told(of_rank + AGENT["2.4"].format(code=1, rank=1, pid=1292363))[1] == ()
    assert told(of_rank + ranked(PEER_LOST, 0))[1] == ()
    assert told(ranked(RAISED, 3) + ranked(raised, 1)) == ("rank_raised", (3,))


def test_what_a_rank_passed_wrongly_to_hccl_is_its_own() -> None:
    assert told(ranked(CANN.format(code=1), 1) + ranked(PEER_LOST, 0))[1] == (1,)


def test_cann_s_reason_alone_is_told_with_what_it_means() -> None:
    found = verdict("[W VariableFallbackKernel.cpp:51] Warning: CAUTION: a fallback\n" + NOT_IN_TIME)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "EI0006" in found.because[0].fact
    assert "another rank did not come" in found.next_steps[0]


@pytest.mark.parametrize("why", ["stream sync", "task", "notify wait"])
def test_a_device_that_waited_too_long_accuses_nobody(why: str) -> None:
    found = verdict(marked(STANDS.format(why=why), "worker-1: "))
    assert (found.cause, found.culprits) == ("undecided", ())
    assert why in found.because[0].fact


def test_an_engine_that_waits_for_its_workers_is_none_that_failed() -> None:
    found = verdict(ENGINE)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "workers" in found.next_steps[0]
    assert told(ranked(RAISED, 2) + ENGINE) == ("rank_raised", (2,))


def test_a_time_out_of_a_rank_s_own_from_which_nothing_else_was_raised_is_its_own() -> None:
    own = RAISED.replace("ValueError: shard 17 is empty", "TimeoutError")
    assert told(ranked(own, 2) + ranked(PEER_LOST, 0)) == ("rank_raised", (2,))


def test_a_gpu_that_hangs_is_a_fault_and_of_the_one_that_alone_tells_of_it() -> None:
    bar = " 41%|####      | 366/903 [5:15:39<6:53:09, 46.16s/it]"
    found = verdict(bar + "".join(HANG.format(node=9, rank=rank) for rank in range(8)) + "Aborted (core dumped)\n")
    assert (found.cause, found.culprits) == ("gpu_fault", ())
    assert "amdgpu" in found.next_steps[0]
    assert told(ranked(HANG.format(node=9, rank=5), 5)) == ("gpu_fault", (5,))


def test_a_gpu_of_which_several_ranks_tell_is_not_known_to_be_of_one_of_them() -> None:
    every = "".join(ranked(HANG.format(node=9, rank=rank), rank) for rank in range(4))
    assert told(every) == ("gpu_fault", ())
    alike = "".join(ranked(HANG.format(node=rank, rank=rank), rank) for rank in (2, 3))
    assert told(alike) == ("gpu_fault", (2, 3))
