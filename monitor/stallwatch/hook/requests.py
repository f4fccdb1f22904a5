"""Dump requests: the daemon leaves one in a folder of its own, the hook looks there and answers with its own files."""

import os
import stat
import time
from typing import NamedTuple, Optional

from stallwatch.hook.layout import answer_name, new_mark
from stallwatch.hook.publication import RankFile
from stallwatch.hook.rank_directory import trusted_owner, write_private
from stallwatch.hook.recorder import RUNGS, dump
from stallwatch.hook.scene import NAME as SCENE
from stallwatch.hook.scene import scene_json
from stallwatch.hook.stacks import RUNG as STACKS_RUNG
from stallwatch.hook.stacks import stacks_json

_REQUEST_BYTES = 4096
# How long an answer may be put off so that all ranks of a job dump at one moment and their pauses do not add up.
_LONGEST_DELAY_SECONDS = 4.0


class DumpRequest(NamedTuple):
    """What the daemon asks of this rank: an answer to one number, by one rung of looking."""

    request_id: int
    rung: str
    at_ns: int = 0  # CLOCK_MONOTONIC: dump no sooner, within bounds
    takes_json: bool = False  # who asks reads torch's JSON as well as its pickle

    def delay_seconds(self) -> float:
        """Seconds until the dump may be made, never negative and bounded, whatever was asked for."""
        return min(max((self.at_ns - time.monotonic_ns()) / 1e9, 0.0), _LONGEST_DELAY_SECONDS)


class Requests:
    """What is asked of one rank file, and what it answered last."""

    def __init__(self) -> None:
        self._seen: Optional[tuple[int, int]] = None
        self._answers: list[str] = []

    def poll(self, file: RankFile) -> "Optional[DumpRequest]":
        """A request that was not seen before. One system call, and no exception, when there is none."""
        path = file.request_path
        if not os.access(path, os.F_OK):
            return None
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:
            return None
        mark = (status.st_ino, status.st_mtime_ns)
        if mark == self._seen:
            return None
        self._seen = mark
        return _read(path, trusted_owner(file.directory))

    def answer(self, file: RankFile, request: DumpRequest) -> None:
        """Dump both recorders and tell the scene, or our own stacks, and leave an answer of each. Raise whatever torch
        or the disk raises."""
        self.remove_answers()
        if request.rung == STACKS_RUNG:
            self._leave(file, request, "python", stacks_json())
            return
        for recorder, data in dump(request.rung, request.takes_json):
            self._leave(file, request, recorder, data)
        if self._answers:
            self._leave(file, request, SCENE, scene_json())

    def _leave(self, file: RankFile, request: DumpRequest, name: str, data: bytes) -> None:
        path = file.path_of(answer_name(file.rank, file.key, request.request_id, name, new_mark()))
        self._answers.append(path)
        write_private(path, data)

    def remove_answers(self) -> None:
        """Delete the files of the last answer; what cannot be deleted is left."""
        while self._answers:
            try:
                os.unlink(self._answers.pop())
            except OSError:
                pass


def _read(path: str, directory_owner: Optional[int]) -> "Optional[DumpRequest]":
    import json

    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        # The directory is open to all: a dump costs the job milliseconds to seconds, so not everybody may ask.
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, directory_owner, os.geteuid()):
            return None
        body = json.loads(os.read(descriptor, _REQUEST_BYTES).decode("utf-8"))
    finally:
        os.close(descriptor)
    request_id, rung, at_ns = body["id"], body["rung"], body.get("at_ns", 0)
    if not isinstance(request_id, int) or not isinstance(at_ns, int) or (rung not in RUNGS and rung != STACKS_RUNG):
        raise ValueError(f"dump request {body!r} is not understood")
    return DumpRequest(request_id, rung, at_ns, body.get("json") is True)
