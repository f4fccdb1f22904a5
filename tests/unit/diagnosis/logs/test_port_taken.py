"""A port that is taken: the remedy is of the launcher that the text tells."""

import pytest

from tests.unit.doctor.failed_run.test_remedies_fit import verdict

RAISED = 'Traceback (most recent call last):\n  File "pretrain.py", line 30, in setup\n{}\n'


@pytest.mark.parametrize(
    ("said", "fits", "does_not"),
    [
        ("RuntimeError: Address already in use", "torch.distributed.launch --master_port", "--rdzv-endpoint"),
        ("OSError: [Errno 98] Address already in use", "torchrun on one node", "torch.distributed.launch"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
         "port: 29517, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
         "torchrun on one node", "torch.distributed.launch"),
    ],
)  # fmt: skip
def test_the_remedy_is_of_the_launcher(said: str, fits: str, does_not: str) -> None:
    steps = " ".join(verdict(RAISED.format(said)).next_steps)
    assert fits in steps
    assert "init_method" in steps
    assert does_not not in steps
