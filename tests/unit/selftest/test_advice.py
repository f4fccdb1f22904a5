import msgspec
import pytest

from stallwatch.model.verdict import Verdict
from stallwatch.selftest.advice import about_the_node, of_import


def verdict(cause: str, *steps: str) -> Verdict:
    fields = {
        "cause": cause, "culprits": [1], "culprit_processes": [], "waiting": "0", "where": None, "mismatch": None,
        "process_group": None, "operation": None, "seq": None, "confidence": "likely", "summary": "s", "because": [],
        "rejected": [], "missing": [], "next_steps": list(steps),
    }  # fmt: skip
    return msgspec.convert(fields, Verdict)


@pytest.mark.parametrize("cause", ["not_entered", "collective_mismatch", "data_exhausted", "p2p_unmatched"])
def test_nobody_is_told_to_mend_the_tests_own_program(cause: str) -> None:
    steps = ("Look at walk.py:94: a branch on the rank skips the call.", "Call it on every rank (`if rank == 0`).")
    told = about_the_node(verdict(cause, *steps)).next_steps
    assert not any(".py" in step or "if rank" in step for step in told)
    assert any("stallwatch doctor" in step for step in told)


def test_a_step_about_a_process_or_a_device_stays_first() -> None:
    stopped = "On node7 continue it: kill -CONT 812."
    assert about_the_node(verdict("process_stopped", stopped)).next_steps == (stopped,)
    stuck = "On node7 look where it stands: cat /proc/812/stack."
    assert about_the_node(verdict("not_entered", stuck, "See train.py:3.")).next_steps[0] == stuck


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "reinstall"),
        ("ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister", "libnccl.so out of LD_LIBRARY_PATH"),
        ("OSError: libc10.so: undefined symbol: _ZN3c10", "LD_LIBRARY_PATH"),
        ("ValueError: The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.", "unset"),
        ("ModuleNotFoundError: No module named 'torch._C'", "PYTHONPATH"),
        ("RuntimeError: something new", "traceback"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_a_finding_of_the_environment(said: str, remedy: str) -> None:
    found = of_import(f"/env/bin/python cannot import torch: {said}\nhelp", "/env/bin/python")
    assert found is not None
    assert (found.severity, found.subject) == ("error", "/env/bin/python")
    assert said in found.seen
    assert remedy in found.remedy
    assert of_import("rank 0 of the self-test crashed: IndexError: oops", "python") is None
