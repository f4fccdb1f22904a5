import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from stallwatch.doctor.live.probes import NvmlChild, TrainingChild, WrittenVersions
from stallwatch.doctor.live.running_ranks import running_ranks
from stallwatch.doctor.live.survey import conf_files, parse_conf
from stallwatch.doctor.surroundings import TrainingInterpreter
from stallwatch.model.reading import Known, Unavailable
from tests.unit.doctor.fakes import Node, rank


def test_nccls_file_is_read_without_comments() -> None:
    assert parse_conf("# a=b\nNCCL_DEBUG=WARN\n\n NCCL_SOCKET_IFNAME==ens1f0\nnonsense\n") == {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "=ens1f0",
    }


def test_nccls_files_are_found_where_it_looks(node: Node) -> None:
    node.write("etc/nccl.conf", "NCCL_DEBUG=INFO")
    node.write("home/u/.nccl.conf", "NCCL_ALGO=Ring")
    node.write("opt/n.conf", "NCCL_PROTO=LL")
    home = {"HOME": "/home/u"}
    assert [one.place for one in conf_files(node.root, home)] == ["/home/u/.nccl.conf", "/etc/nccl.conf"]
    chosen = list(conf_files(node.root, home | {"NCCL_CONF_FILE": "/opt/n.conf"}))
    assert [one.place for one in chosen] == ["/opt/n.conf", "/etc/nccl.conf"]
    assert all(one.is_file for one in chosen)


def test_what_deepspeeds_launcher_sets_on_every_node_is_read(node: Node) -> None:
    node.write("home/u/.deepspeed_env", 'NCCL_IB_TIMEOUT="50"\n')
    (found,) = conf_files(node.root, {"HOME": "/home/u"})
    assert (found.place, found.values) == ("/home/u/.deepspeed_env", {"NCCL_IB_TIMEOUT": "50"})


def process(node: Node, pid: int, parent: int, maps: str, **environment: str) -> None:
    node.write(f"proc/{pid}/stat", f"{pid} (python) S {parent} " + "0 " * 48)
    node.write(f"proc/{pid}/cmdline", "/venv/bin/python\0train.py\0--token\0abc\0")
    node.write(f"proc/{pid}/environ", "".join(f"{name}={value}\0" for name, value in environment.items()))
    node.write(f"proc/{pid}/maps", maps)


JOB = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29400"}


def test_a_rank_without_a_hook_is_found_by_its_environment(node: Node) -> None:
    process(node, 200, 1, "… /venv/lib/libtorch_cpu.so\n", **JOB, NCCL_DEBUG="INFO", MY_SECRET="x")
    process(node, 201, 200, "… libtorch_cpu.so\n", **JOB)  # a data-loader worker
    process(node, 202, 1, "… /bin/bash\n", **JOB)  # a shell that inherited
    (found,) = running_ranks(node.root / "proc", ())
    assert (found.rank, found.pid, found.executable) == (1, 200, "/venv/bin/python")
    assert found.environment["NCCL_DEBUG"] == "INFO"
    assert "MY_SECRET" not in found.environment
    assert "abc" not in " ".join(found.argv)


def test_facts_of_a_hook_count_before_the_environment(node: Node) -> None:
    process(node, 200, 1, "libtorch", **JOB)
    facts = {"environment": JOB, "versions": {"torch": "2.11.0"}, "argv": ["train.py"], "executable": "/x/python"}
    directory = node.write("ranks/rank-1-200.facts.json", json.dumps(facts)).parent
    node.write("ranks/rank-1-999.facts.json", json.dumps(facts))  # its process is gone
    (found,) = running_ranks(node.root / "proc", (directory,))
    assert (found.pid, found.versions, found.alive) == (200, {"torch": "2.11.0"}, True)


def test_versions_of_another_users_rank_are_what_its_hook_wrote() -> None:
    facts = rank(0, versions={"torch": "2.11.0", "nccl": "2.28.9", "cuda": "12.8", "pytorch_lightning": "2.5"})
    reading = WrittenVersions(facts).ask()
    assert isinstance(reading, Known)
    assert reading.value.nccl == "2.28.9"
    assert reading.value.versions["pytorch-lightning"] == "2.5"


def test_the_interpreter_is_asked_in_a_child() -> None:
    reading = TrainingChild(sys.executable, os.environ, 60).ask()
    assert isinstance(reading, Known), reading
    assert isinstance(reading.value, TrainingInterpreter)
    assert reading.value.python == sys.version.split()[0]


def test_an_interpreter_that_is_silent_or_talks_nonsense_is_unavailable(tmp_path: Path) -> None:
    for number, (body, words) in enumerate(
        (("sleep 600", "not answered"), ("echo hello", "nonsense"), ("exit 3", "failed"))
    ):
        program = tmp_path / f"python{number}"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        reading = TrainingChild(str(program), os.environ, 0.5 if "sleep" in body else 20).ask()
        assert isinstance(reading, Unavailable)
        assert words in reading.reason


def test_nvml_that_does_not_answer_is_unavailable_in_time() -> None:
    reading = NvmlChild(0.3, (sys.executable, "-c", "import time; time.sleep(600)")).state()
    assert isinstance(reading, Unavailable)
    assert reading.reason == "NVML has not answered for 0.3 s"


def test_a_file_that_only_the_running_ranks_name_is_read_too(node: Node) -> None:
    node.write("opt/n.conf", "NCCL_PROTO=LL")
    ranks = ({"NCCL_CONF_FILE": "/opt/n.conf"}, {"NCCL_CONF_FILE": "/opt/n.conf"})
    assert [one.place for one in conf_files(node.root, {}, *ranks)] == ["/opt/n.conf"]


def test_of_two_files_the_users_own_counts_and_of_two_lines_the_first(node: Node) -> None:
    node.write("etc/nccl.conf", "NCCL_DEBUG=INFO\nNCCL_IB_TC=1\n")
    node.write("home/u/.nccl.conf", "NCCL_DEBUG=WARN\nNCCL_DEBUG=TRACE\n")
    around = replace(node.around(), environments=tuple(conf_files(node.root, {"HOME": "/home/u"})))
    for name, value, place in (("NCCL_DEBUG", "WARN", "/home/u/.nccl.conf"), ("NCCL_IB_TC", "1", "/etc/nccl.conf")):
        said = around.variable(name)
        assert said is not None
        assert (said[0], said[1].place) == (value, place)
