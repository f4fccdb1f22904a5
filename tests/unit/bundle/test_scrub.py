"""What is somebody's own is gone from a scrubbed bundle, and what stallwatch judges by is still there."""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

from stallwatch.bundle.packed import unpack
from stallwatch.bundle.scrub import Scrubber, scrubbed
from stallwatch.cli.app import run
from stallwatch.formats.pickle_subset import Machine
from tests.readme import ROOT

SECRETS = ("gpu-node-17", "anna", "root", "llama-7b")


@pytest.mark.parametrize(
    "text",
    [
        "/home/anna/secret-project/train.py:41",
        "~/models/acme.ckpt",
        "relative/folder/acme_tool.py",
        "connect to 10.31.4.77 port 80",
        "https://acme.example/x?token=s3cr3t",
        "--api-key=hf_AbCdEfGh1234567890",
        "acme_corp launched by anna on gpu-node-17",
        "root",
        "GPU-4795e3f2-a19b-1f6b-f8e3-9d3611374f54 of 12345678-1234-1234-1234-123456789012",
        "with sk-proj-Qx12ab98cd76Ef or eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0",
    ],
)
def test_nothing_of_it_is_left(text: str) -> None:
    left = Scrubber(SECRETS).text(text)
    own = (*SECRETS, "secret-project", "train.py", "acme", "10.31.4.77", "s3cr3t", "hf_AbCdEfGh1234567890", "models")
    pieces = ("1234567890", "4795", "1f6b", "374", "9012", "98", "76", "Ci", "1NiJ9", "MjM0")  # of identities
    assert not [word for word in (*own, *pieces) if word in left], left


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: an error",
        "all_reduce",
        "nccl:all_reduce",
        "futex_wait_queue",
        "ranks 0-1,3 timed out after 600000 ms",
        "pt_autograd_1",
        "[W1127 21:03:56.058657253",
        "at 0x7f3a12345678 in all_reduce",
    ],
)
def test_everybodys_words_and_numbers_stay(text: str) -> None:
    assert Scrubber(SECRETS).text(text) == text


def test_where_the_kernel_lets_a_thread_wait_stays_and_no_secret_does() -> None:
    scrubber = Scrubber(SECRETS)
    assert scrubber.json({"wchan": "futex_do_wait"}) == {"wchan": "futex_do_wait"}  # Linux 6.7; no reader spells it so
    assert scrubber.json({"wchan": "anna"}) != {"wchan": "anna"}
    assert "acme" not in scrubber.json({"wchan": "/home/acme me"})["wchan"]


def test_a_library_is_still_known_by_its_place_and_whose_folder_it_lies_in_is_not() -> None:
    scrubber = Scrubber(SECRETS)
    path = "/home/anna/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    named = scrubber.text(path)
    assert named.endswith("/torch/distributed/distributed_c10d.py")
    assert "anna" not in named
    assert scrubber.text(path) == named  # and is the same each time


def test_the_short_name_that_py_spy_gives_a_file_is_scrubbed_as_its_path_is() -> None:
    made = Scrubber(SECRETS).json({"filename": "/srv/acme/train.py", "short_filename": "train.py", "line": 4})
    assert made["short_filename"] == made["filename"].rpartition("/")[2] != "train.py"


@pytest.mark.parametrize("text", ["at train.py:4", "train-a13b951f-3", 'File "train.py", line 3'])
def test_a_job_that_is_called_as_its_script_is_scrubbed_once(text: str) -> None:
    """A name that stands for another one is no name of the original."""
    scrubber = Scrubber((*SECRETS, "train"))
    left = scrubber.text(text)
    assert "train" not in left
    assert not [name for name in scrubber.removed if name.startswith("namex")]


def test_of_a_traceback_the_frames_stay_and_the_lines_of_code_go() -> None:
    said = Scrubber(SECRETS).log(
        'Traceback (most recent call last):\n  File "/srv/a/train.py", line 94, in step\n    dist.all_reduce(x)\n'
        "    ^^^^^^^^^^^^^^^^^^\nRuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:18849."
    )
    assert "dist.all_reduce(x)" not in said
    assert ", line 94, in step" in said
    assert "RuntimeError: [pair.cc:553] Connection closed by peer" in said


@pytest.mark.parametrize("prefix", ["[rank3]: ", "2026-11-28T22:52:01Z ", "[default1]:[rank1]: ", "node1: "])
def test_lines_of_code_go_from_a_traceback_behind_what_a_launcher_writes(prefix: str) -> None:
    lines = (
        'Traceback (most recent call last):\n  File "/srv/a/train.py", line 94, in step\n    dist.all_reduce(\n'
        "        group=None,\n    ~~~~~~^^^^\nRuntimeError: CUDA error"
    )
    said = Scrubber(SECRETS).log("\n".join(prefix + line for line in lines.split("\n")))
    assert "dist.all_reduce" not in said
    assert "group=None" not in said
    assert ", line 94, in step" in said
    assert said.endswith("RuntimeError: CUDA error")


def test_lines_of_two_ranks_in_one_log_are_told_apart() -> None:
    frame, code = '  File "/srv/a/train.py", line 94, in step', "    dist.all_reduce(x)"
    said = Scrubber(SECRETS).log(f"[rank0]: {frame}\n[rank1]: {frame}\n[rank0]: {code}\n[rank1]: {code}")
    assert "all_reduce" not in said
    assert said.count(", line 94, in step") == 2


def test_of_a_loop_the_words_stay_that_tell_what_it_runs_over() -> None:
    blocks = [{"kind": "for", "line": 8, "text": "for epoch in range(acme.epochs):"}]
    sources = [{"file": "/srv/a.py", "line": 9, "text": "x = acme()", "blocks": blocks}]
    made = scrubbed("sources.json", json.dumps(sources).encode(), Scrubber(SECRETS))
    assert made is not None
    assert json.loads(made)[0]["blocks"][0]["text"] == "epoch"
    assert b"acme" not in made


def test_a_library_beneath_a_folder_of_a_librarys_name_is_known_by_the_innermost() -> None:
    path = "/srv/torch/env/lib/python3.11/site-packages/torch/autograd/graph.py"
    assert Scrubber(SECRETS).text(path).endswith("/site-packages/torch/autograd/graph.py")


def test_source_lines_go_from_json_and_a_dump_stays_a_dump() -> None:
    scrubber = Scrubber(SECRETS)
    sources = scrubbed("sources.json", b'[{"file": "/srv/a.py", "line": 1, "text": "x = secret()"}]', scrubber)
    assert sources is not None
    assert json.loads(sources)[0]["text"] == ""
    frames = [{"filename": "/srv/a.py"}]
    dump = {"version": "2.10", "entries": [{"profiling_name": "nccl:all_reduce", "frames": frames}]}
    made = scrubbed("flight_recorder.pickle", pickle.dumps(dump, protocol=2), scrubber)
    assert made is not None
    machine = Machine(made)
    machine.run()
    (entry,) = machine.value()["entries"]
    assert entry["profiling_name"] == "nccl:all_reduce"
    assert entry["frames"][0]["filename"] == json.loads(sources)[0]["file"] != "/srv/a.py"


@pytest.mark.parametrize("name", ["gloo-python_sleep", "gloo-p2p_both_recv", "nccl-gil_held"])
def test_an_export_is_of_the_same_verdict_and_holds_no_name_of_the_original(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, file = ROOT / "tests" / "bundles" / name, tmp_path / "incident.tar.gz"
    assert run(["bundle", "export", "--scrub", str(bundle), str(file)]) == 0
    assert re.search(
        r"and the same verdict: \w+(, \w+| \(\w+ with its names and lines, \w+ here\))", capsys.readouterr().out
    )
    with file.open("rb") as opened:
        unpack(opened, tmp_path)
    made = (path for path in (tmp_path / "incident").rglob("*") if path.is_file())
    whole = b"".join(path.read_bytes() for path in made).decode("latin-1")
    for stacks in bundle.glob("ranks/*/stacks*.json"):
        for thread in json.loads(stacks.read_text()):
            for frame in thread["frames"]:
                if "site-packages" not in frame["filename"] and "/lib/python3" not in frame["filename"]:
                    assert frame["filename"] not in whole
    said = run(["analyze", str(bundle)]), run(["analyze", str(tmp_path / "incident")])
    assert said[0] == said[1]


def test_hosts_that_are_called_alike_go_too_and_a_serial_number_does(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(ROOT / "tests" / "bundles" / "gloo-python_sleep", bundle)
    told = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps(told | {"host": "gpu-node-017.corp.example"}))
    (bundle / "ranks" / "0" / "log.txt").write_text(
        "no answer from gpu-node-018.corp.example, gpu-node-019 or gpu-node-017\n"
    )
    (bundle / "nodes" / "x").mkdir(parents=True)
    (bundle / "nodes" / "x" / "gpus.json").write_text(json.dumps([{"serial": "1651923004567"}]))
    assert run(["bundle", "export", "--scrub", str(bundle), str(tmp_path / "incident.tar.gz")]) == 0
    with (tmp_path / "incident.tar.gz").open("rb") as opened:
        unpack(opened, tmp_path)
    made = (path for path in (tmp_path / "incident").rglob("*") if path.is_file())
    whole = b"".join(path.read_bytes() for path in made).decode("latin-1")
    assert not [own for own in ("017", "018", "019", "corp", "1651923004567") if own in whole]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").write_text("mine")
    bundle = ROOT / "tests" / "bundles" / "gloo-killed"
    assert run(["bundle", "export", str(bundle), str(tmp_path / "there")]) == 64
    assert "is there" in capsys.readouterr().err
    assert (tmp_path / "there").read_text() == "mine"


def test_what_stands_for_a_job_goes_whole_and_which_functions_stay_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(ROOT / "tests" / "bundles" / "gloo-python_sleep", bundle)
    told = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps(told | {"incident_id": "llama-ae4568c3-1"}))
    (bundle / "ranks" / "0" / "log.txt").write_text("see llama-ae4568c3-1, and ae4568c3\n")
    assert run(["bundle", "export", "--scrub", str(bundle), str(tmp_path / "incident.tar.gz")]) == 0
    with (tmp_path / "incident.tar.gz").open("rb") as opened:
        unpack(opened, tmp_path)
    texts = [path.read_text() for path in (tmp_path / "incident").rglob("*") if path.suffix in (".json", ".txt")]
    assert not [text for text in texts if "ae4568c3" in text or "4568" in text]
    said = capsys.readouterr().out
    (stays,) = re.findall(r"^Names of functions that stay, since they are everyday words: (.+)\.$", said, re.MULTILINE)
    own = {
        frame["name"]
        for stacks in bundle.glob("ranks/*/stacks*.json")
        for thread in json.loads(stacks.read_text())
        for frame in thread["frames"]
        if "/site-packages/" not in frame["filename"] and "/lib/python3" not in frame["filename"]
    }
    left = {name for name in own if any(f'"{name}"' in text for text in texts)}
    assert left - {"<module>"} <= set(stays.split(", ")), "none stays of which it is not said"
    assert "main" in stays.split(", ")


def test_which_server_a_rank_waits_for_goes_whole_and_is_the_same_everywhere() -> None:
    scrubber = Scrubber(())
    made = [
        scrubber.json({"waits_on": one})
        for one in ("nfs4 storage01:/homes", "nfs4 storage01:/homes", "tcp 10.0.0.7:443")
    ]
    assert [one["waits_on"] for one in made] == ["nfs4 placex1", "nfs4 placex1", "tcp placex2"]
    assert scrubber.json({"waits_on": ""}) == {"waits_on": ""}
