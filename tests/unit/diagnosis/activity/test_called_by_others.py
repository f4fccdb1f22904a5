"""What called the job's own code, a launcher's or a sweep's, is not what a rank does."""

import pytest

from stallwatch.diagnosis.activity import read_activity
from tests.builders.rank_evidence import MODULE, rank, stack

TENACITY = "/v/lib/python3.11/site-packages/tenacity/__init__.py"
WANDB = "/v/lib/python3.11/site-packages/wandb/sdk/wandb_run.py"
# How mp.spawn starts a rank; a sweep's agent, and a study, call the training that is written in the job.
BY_SPAWN = ("_wrap@TORCH/multiprocessing/spawn.py:90", "BaseProcess.run@PY/multiprocessing/process.py:108",
            "BaseProcess._bootstrap@PY/multiprocessing/process.py:314", "_main@PY/multiprocessing/spawn.py:135",
            "spawn_main@PY/multiprocessing/spawn.py:122", "<module>@<string>:1")  # fmt: skip
BY_AN_AGENT = ("_run_job@/v/lib/python3.11/site-packages/wandb/agents/pyagent.py:307", MODULE)


@pytest.mark.parametrize("started", [BY_SPAWN, BY_AN_AGENT])
@pytest.mark.parametrize(
    ("inner", "wchan", "kind"),
    [
        (("acquire@JOB:4",), "futex_wait_queue", None),
        (("Event.wait@PY/threading.py:607", "wait_for_batch@JOB:4"), "futex_wait_queue", None),
        (("fetch@JOB:4",), "hrtimer_nanosleep", "sleep"),
        (("select@PY/selectors.py:468", "BaseEventLoop.run_forever@PY/asyncio/base_events.py:607", "fetch@JOB:4"),
         "ep_poll", "request"),
        (("Popen._try_wait@PY/subprocess.py:2015", "upload@JOB:4"), "do_wait", "child"),
        (("Event.wait@PY/threading.py:607", f"Retrying.__call__@{TENACITY}:400",
          f"finish@{WANDB}:9", "main@JOB:4"), "futex_wait_queue", "tracker"),
        (("acquire@/v/lib/python3.11/site-packages/trainer/loop.py:4",), "futex_wait_queue", None),  # installed
    ],
)  # fmt: skip
def test_what_called_the_job_s_own_code_is_not_what_it_does(
    started: tuple[str, ...], inner: tuple[str, ...], wchan: str, kind: str | None
) -> None:
    frames = stack(*inner, *started)
    assert read_activity(rank(frames, "S", wchan)).progress.ends_by_itself == kind
