"""How a dump request ends whose answer the directory does not take."""

import threading
from pathlib import Path

import pytest

from stallwatch.hook import requests
from stallwatch.hook.beat import Phases, step_counter
from stallwatch.hook.guard import Guard
from stallwatch.hook.identity import ProcessIdentity, World
from stallwatch.hook.publication import Publication
from stallwatch.hook.pulse import Pulse
from stallwatch.hook.requests import DumpRequest
from stallwatch.hook.stacks import RUNG
from stallwatch.hook.training_thread import TrainingThread
from tests.builders.records import decoded

PROCESS = ProcessIdentity(pid=7, start_ticks=8, pid_namespace=9, node="n1")
WORLD = World(3, 1, 4, 0, "job", "epoch", is_ranked=True)


def full(path: str, data: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_the_record_says_why_an_answer_could_not_be_left_until_one_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_DIR", str(tmp_path))
    _, read_steps, stepper = step_counter()
    publication = Publication(PROCESS, WORLD, False, read_steps, Phases(1), Guard(), TrainingThread(stepper))
    publication.publish()
    pulse = Pulse(publication, Guard())

    def answered(request_id: int) -> tuple[int, int]:
        assert publication.file is not None
        thread = threading.Thread(target=pulse._answer, args=(publication.file, DumpRequest(request_id, RUNG)))
        thread.start()
        thread.join()
        record = decoded(Path(publication.file.path).read_bytes())
        return record.answered_request, record.refused_errno

    with monkeypatch.context() as patch:
        patch.setattr(requests, "write_private", full)
        assert answered(1) == (1, 28)
    assert answered(2) == (2, 0)
