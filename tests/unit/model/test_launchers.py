"""What launchers are called."""

import pytest

from stallwatch.model.launchers import launcher_of_command


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m torch.distributed.run", "torchrun"),
        ("python3.11 -m accelerate.commands.launch", "accelerate"),
        ("lightning run model", "fabric"),
        ("mpiexec", "mpirun"),
        ("prterun", "mpirun"),
        ("colossalai run", "colossalai"),
        ("./start.sh", "torchrun"),
    ],
)
def test_the_launcher_of_a_command_is_known_by_its_program_or_module(command: str, name: str) -> None:
    assert launcher_of_command(command).name == name
