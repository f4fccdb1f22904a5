from tests.unit.doctor.fakes import SHELL, Node, rank


def test_the_shell_counts_before_a_rank_and_a_rank_before_a_file(node: Node) -> None:
    files = {"/etc/nccl.conf": {"NCCL_A": "file", "NCCL_B": "file", "NCCL_C": "file"}}
    ranks = (rank(0, environment={"NCCL_A": "rank", "NCCL_B": "rank"}),)
    around = node.around({"NCCL_A": "shell"}, files=files, ranks=ranks)
    assert [(said[0], said[1].place) for name in "ABC" if (said := around.variable(f"NCCL_{name}"))] == [
        ("shell", SHELL), ("rank", "rank 0 (pid 100)"), ("file", "/etc/nccl.conf"),
    ]  # fmt: skip


def test_an_empty_variable_is_none(node: Node) -> None:
    assert node.around({"MASTER_ADDR": ""}).variable("MASTER_ADDR") is None
