"""What the jobs of one user may be called, and may hold, must not cost the others their monitor."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.hook import layout
from stallwatch.hook.image import fitting
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import RankSample, RanksLook
from stallwatch.sensors.child import encoded
from stallwatch.sensors.environ import parse_environment, rank_names
from stallwatch.sensors.ranks import RanksSensor
from stallwatch.sensors.sensor import Options
from tests.builders.records import record_bytes, start_ticks_of, write_record

_LOOK = msgspec.msgpack.Decoder(RanksLook)


def look(sensor: RanksSensor) -> RanksLook:
    """As the daemon gets it."""
    return _LOOK.decode(encoded(sensor, sensor.read()))


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    folder = os.fsencode(tmp_path) + b"/caf\xe9\x1b[31m"
    os.mkdir(folder)
    return folder


@pytest.fixture
def process(folder: bytes) -> Iterator["subprocess.Popen[bytes]"]:
    """A rank that works in, prints to and writes a checkpoint below a folder whose name is no UTF-8."""
    with open(folder + b"/log\n", "wb") as log:
        program = "import sys; file = open(sys.argv[1], 'wb'); file.write(b'0' * 5000); file.flush(); input()"
        process = subprocess.Popen(
            [sys.executable.encode(), b"-c", program.encode(), folder + b"/model\xff.pt"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def peer() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def sensor(tmp_path: Path) -> Iterator[RanksSensor]:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    sensor = RanksSensor(Options((str(ranks),), keep_ended_seconds=100, discover_seconds=3600))
    yield sensor
    sensor.close()


def of_job(found: RanksLook) -> dict[int, RankSample]:
    return {sample.rank: sample for sample in found.ranks if sample.job.training_job == "job"}


def test_paths_that_are_no_utf8_are_read_and_shown(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    write_record(tmp_path / "ranks", 0, process.pid, start_ticks_of(process.pid))
    sample = of_job(look(sensor))[0]
    turn = threading.Event()
    while not sample.disks:
        turn.wait(0.01)
        sample = of_job(look(sensor))[0]
    assert isinstance(sample.process, Known)
    assert sample.outputs is not None
    assert sample.outputs.paths[0].endswith(r"/caf\xe9\x1b[31m/log\x0a")
    assert sample.disks[0].path.endswith(r"/caf\xe9\x1b[31m")


@pytest.mark.parametrize(
    "facts",
    [
        b'{"environment": {"NCCL_NET": "\\udce9"}}',
        b'{"environment": {"NCCL_NET": "caf\xe9"}}',
        b'{"more":' + b"[" * 100_000,
        b"[" * 100_000,
        b'{"process_groups": {"gloo 0": "\\ud800\\u001b[2J"}}',
        b'{"versions": {"torch": 1e999}}',
        b"\xff" * 1000,
    ],
)
def test_facts_that_are_no_text_cost_nobody_else(
    sensor: RanksSensor,
    process: "subprocess.Popen[bytes]",
    peer: "subprocess.Popen[bytes]",
    tmp_path: Path,
    facts: bytes,
) -> None:
    for rank, subject in enumerate((process, peer)):
        write_record(tmp_path / "ranks", rank, subject.pid, start_ticks_of(subject.pid))
    (tmp_path / "ranks" / layout.facts_name(0, process.pid)).write_bytes(facts)
    assert of_job(look(sensor)).keys() == {0, 1}


@pytest.mark.parametrize(
    "name",
    [
        b"rank-\xff.beat",
        "rank-²-1.beat".encode(),
        b"rank-0-\x1b[31m.beat",
        b"\n.beat",
        b"rank-" + b"9" * 240 + b"-1.beat",
    ],
)
def test_a_name_that_no_hook_writes_is_nobodys_record(
    sensor: RanksSensor, peer: "subprocess.Popen[bytes]", tmp_path: Path, name: bytes
) -> None:
    write_record(tmp_path / "ranks", 1, peer.pid, start_ticks_of(peer.pid))
    Path(os.fsdecode(os.fsencode(tmp_path / "ranks") + b"/" + name)).write_bytes(b"\0" * layout.RECORD_BYTES)
    found = look(sensor)
    assert of_job(found).keys() == {1}
    assert found.heartbeats.reason.isprintable()


def test_names_in_a_record_show_themselves(
    sensor: RanksSensor, peer: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    record = bytearray(record_bytes(1, peer.pid, start_ticks_of(peer.pid), epoch="\x1b[2J\u202e"))
    (tmp_path / "ranks" / layout.record_name(1, peer.pid)).write_bytes(record)
    (sample,) = of_job(look(sensor)).values()
    assert sample.job.epoch == r"\x1b[2J\u202e"


def test_a_rank_that_cannot_be_encoded_is_unknown_and_the_others_are_read(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", peer: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    for rank, subject in enumerate((process, peer)):
        write_record(tmp_path / "ranks", rank, subject.pid, start_ticks_of(subject.pid))
    read = sensor.read()
    mad = [
        msgspec.structs.replace(sample, outputs=msgspec.structs.replace(sample.outputs, paths=("\udce9",)))
        if sample.rank == 0 and sample.outputs
        else sample
        for sample in read.ranks
    ]
    found = _LOOK.decode(encoded(sensor, msgspec.structs.replace(read, ranks=tuple(mad))))
    samples = of_job(found)
    assert isinstance(samples[0].process, Unavailable)
    assert isinstance(samples[1].process, Known)
    assert str(process.pid) in found.processes.reason


def test_what_a_rank_does_to_its_reader_costs_that_rank(
    sensor: RanksSensor,
    process: "subprocess.Popen[bytes]",
    peer: "subprocess.Popen[bytes]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rank, subject in enumerate((process, peer)):
        write_record(tmp_path / "ranks", rank, subject.pid, start_ticks_of(subject.pid))
    sensor.read()
    watch = next(rank.watch for rank in sensor.followed if rank.watch.pid == process.pid)

    def broken() -> None:
        raise RecursionError("whatever it is")

    monkeypatch.setattr(watch, "sample", broken)
    samples = of_job(look(sensor))
    assert isinstance(samples[0].process, Unavailable)
    assert isinstance(samples[1].process, Known)


@pytest.mark.parametrize("digits", [10, 30, 5000])
def test_a_number_that_no_rank_has_names_no_rank(digits: int) -> None:
    environment = f"RANK={'9' * digits}\0WORLD_SIZE={'9' * (digits + 1)}\0LOCAL_RANK=0".encode()
    assert rank_names(parse_environment(environment)) is None


def test_a_job_has_one_name_with_and_without_a_hook() -> None:
    environment = parse_environment(b"RANK=0\0WORLD_SIZE=1\0LOCAL_RANK=0\0STALLWATCH_JOB=caf\xe9\x1b")
    names = rank_names(environment)
    assert names is not None
    written = fitting(environment["STALLWATCH_JOB"], 256).decode()
    assert names.training_job == r"caf?\x1b"
    assert written == "caf?\x1b"
