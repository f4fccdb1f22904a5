"""torch's flight recorders, asked inside our own process.

torch is never imported here: it is looked for in sys.modules, and used only once torch.distributed is initialised,
because the recorder reads its environment when it is first touched. A build with NCCL has two recorders: CUDA
operations live in one, gloo's in the other; builds without have only the second.
"""

import os
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Callable, Optional

Dump = Callable[..., bytes]
# recorder: its function in torch._C._distributed_c10d, called (includeCollectives, includeStackTraces, onlyActive)
_FUNCTIONS = (("nccl", "_dump_nccl_trace"), ("gloo", "_dump_fr_trace"))
# Measured under NCCL with 2,000 entries: 3.7 ms, 28 ms, and 4.9 s the first time because of symbols.
RUNGS = {"active": (True, False, True), "entries": (True, False, False), "stacks": (True, True, False)}
# The same in JSON, called (includeCollectives, onlyActive). Of a status it is made and read in 50 µs where the pickle
# takes 78 and the caches are cold (torch 2.13). NCCL's was not measured.
_JSON_FUNCTIONS = {"gloo": "_dump_fr_trace_json"}
_JSON_STATUS = re.compile(
    rb'"([0-9]+)":\{"last_completed_collective":"(-?[0-9]+)","last_enqueued_collective":"(-?[0-9]+)"'
)
_JSON_MARK = b'"last_enqueued_collective"'  # once a group
# What torch's own worker server answers with for gloo's recorder (torch 2.9 and later), in C++ without the GIL and
# without stacks. Of a full ring (2,000 entries, torch 2.13): the function holds the GIL for 17-38 ms, the handler takes
# 26-50 ms and no other thread of the process stands for more than 1 ms; its text says the same. NCCL's handler wants
# parameters that Python cannot give it (torch 2.11: a multimap); its function holds the GIL for 31-37 ms.
_HANDLERS = {"gloo": "fr_trace_json"}
_DEFAULT_ENTRIES = 2000  # torch 2.11 and later, see recorder_switch


def distributed() -> "Optional[object]":
    """torch.distributed when it is loaded and initialised."""
    module = sys.modules.get("torch.distributed")
    is_initialized = getattr(module, "is_initialized", None)  # absent while torch is being imported
    return module if is_initialized is not None and is_initialized() else None


def recorders() -> "tuple[tuple[str, Dump], ...]":
    """The recorders of this build; none before torch.distributed is initialised."""
    if distributed() is None:
        return ()
    bindings = sys.modules.get("torch._C._distributed_c10d")
    # By its dictionary, as in ending.py: a build without NCCL would make an exception of one at each pulse.
    known = {} if bindings is None else vars(bindings)
    return tuple([(name, known[function]) for name, function in _FUNCTIONS if function in known])


class RecorderStatus:
    """What one recorder says of its groups, without touching its entries: some 10 µs where the caches are warm."""

    def __init__(self, name: str, dump: Dump) -> None:
        self._name = name
        self.dump = dump
        bindings = sys.modules.get("torch._C._distributed_c10d")
        self._in_json: Optional[Dump] = getattr(bindings, _JSON_FUNCTIONS.get(name, ""), None)
        self._is_same = False  # as the pickle
        self.has_groups = False

    def read(self) -> "list[tuple[str, int, int, int]]":
        """(recorder, pg_id, enqueued, completed) of every group."""
        if self._is_same and self._in_json is not None:
            found = self._of_json(self._in_json)
            if found is not None:
                return found
            self._in_json = None
        found = self._of_pickle()
        self.has_groups = bool(found)
        return found

    def prove(self) -> None:
        """Find out whether its JSON says what its pickle does, and is read from now on. What is counted meanwhile, or
        no group at all, proves nothing."""
        if self._is_same or self._in_json is None or not self.has_groups:
            return
        before, said, after = self._of_pickle(), self._of_json(self._in_json), self._of_pickle()
        if said is None or (before == after and said != before):
            self._in_json = None
        self._is_same = before == said == after

    def _of_pickle(self) -> "list[tuple[str, int, int, int]]":
        import pickle  # torch has loaded it

        # Our own process' torch wrote these bytes a moment ago from plain C++ values: nothing of a job's or a file's
        # gets in, and whoever could change them can run code here anyway.
        status = pickle.loads(self.dump(False, False, False)).get("pg_status", {})  # noqa: S301, TID251
        counters = (
            (self._name, int(pg_id), int(words["last_enqueued_collective"]), int(words["last_completed_collective"]))
            for pg_id, words in status.items()
        )
        return sorted(counters)

    def _of_json(self, dump: Dump) -> "Optional[list[tuple[str, int, int, int]]]":
        """None where it is not written as we know it, with a group at least."""
        try:
            text = dump(False, False)
            found = _JSON_STATUS.findall(text)
        except Exception:  # a private function of torch's: its absence costs some microseconds
            return None
        if not found or len(found) != text.count(_JSON_MARK):
            return None
        counters = []  # a comprehension is a function more, until Python 3.12
        for pg_id, completed, enqueued in found:
            counters.append((self._name, int(pg_id), int(enqueued), int(completed)))
        counters.sort()
        return counters


def statuses(known: "Iterable[RecorderStatus]" = ()) -> "tuple[RecorderStatus, ...]":
    """Return the recorders there are now, each the one that is known of it."""
    if distributed() is None:
        return ()
    # Which there are is decided by torch's build.
    found = tuple(known) or tuple(RecorderStatus(name, dump) for name, dump in recorders())
    for status in found:
        status.prove()
    return found


def group_counters(of: "Iterable[RecorderStatus]", with_empty: bool = True) -> "tuple[tuple[str, int, int, int], ...]":
    """Return what every process group has enqueued and completed: (recorder, pg_id, enqueued, completed), in order. A
    recorder that had no group when it was asked last may be left out: without one its answer costs as much."""
    counters: list[tuple[str, int, int, int]] = []
    for status in of:
        if with_empty or status.has_groups:
            counters += status.read()
    counters.sort()
    return tuple(counters)


def dump(rung: str, takes_json: bool = False) -> "tuple[tuple[str, bytes], ...]":
    """What each recorder holds, in torch's own pickle, or in its JSON where that is taken and costs no GIL. Blocks:
    call it in a thread that can be lost."""
    found = []
    for name, function in recorders():
        data = _json_of(name, rung) if takes_json else None
        found.append((name, bytes(function(*RUNGS[rung])) if data is None else data))
    return tuple(found)


def _json_of(name: str, rung: str) -> "Optional[bytes]":
    """None where this torch has no such handler, or it does not answer as we know it."""
    handler = _HANDLERS.get(name)
    if handler is None or rung == "stacks":
        return None
    try:
        bindings: Any = sys.modules["torch._C._distributed_c10d"]
        if handler not in bindings._get_handler_names():
            return None
        request, response = (made() for made in _message_classes(bindings))
        bindings._get_handler(handler)(request, response)
        content: str = response.content
        return content.encode("utf-8") if is_whole(content) else None
    except Exception:  # a private part of torch: its absence only costs the GIL
        return None


@lru_cache(maxsize=1)
def _message_classes(bindings: Any) -> "tuple[Any, Any]":
    """What a handler is given, made once: a class is freed by the collector of cycles alone, which a job may turn
    off."""

    class Request(bindings._Request):  # type: ignore[misc]
        def body(self) -> bytes:
            return b""

        def params(self) -> "dict[str, str]":
            return {}

    class Response(bindings._Response):  # type: ignore[misc]
        content = ""

        def set_status(self, status: int) -> None:
            pass

        def set_content(self, content: str, content_type: str) -> None:
            self.content = content

    return Request, Response


def is_whole(content: str) -> bool:
    """Whether a dump in JSON leaves out no entry of its ring: the handler asks for those alone that are not completed,
    which are all where gloo's are (none is ever called completed)."""
    numbers = [int(number) for number in re.findall(r'"record_id":\s*([0-9]+)', content)]
    if not numbers:
        return re.search(r'"last_enqueued_collective":\s*"?[1-9]', content) is None
    in_a_row = max(numbers) - min(numbers) + 1 == len(numbers)
    return in_a_row and (min(numbers) == 0 or len(numbers) >= _ring_entries())


def _ring_entries() -> int:
    for variable in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        value = os.environ.get(variable, "")
        if value.isdigit():
            return int(value)
    return _DEFAULT_ENTRIES


def default_world() -> "Optional[tuple[int, int, Optional[tuple[str, str]]]]":
    """(rank, world size, store address) of torch's default group; None before it exists."""
    module = distributed()
    if module is None:
        return None
    rank, size = int(module.get_rank()), int(module.get_world_size())  # type: ignore[attr-defined]
    return rank, size, _store_address()


def _store_address() -> "Optional[tuple[str, str]]":
    """Host and port (or path) of the store under torch's default group: the one name that all its ranks share."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        store = c10d._get_default_store()  # type: ignore[union-attr]
        for _ in range(8):  # PrefixStore around PrefixStore around the real one
            inner = getattr(store, "underlying_store", None)
            if inner is None:
                break
            store = inner
        if hasattr(store, "host"):
            return str(store.host), str(store.port)
        return (str(store.path), "") if hasattr(store, "path") else None
    except Exception:  # a private function: its absence only costs the name
        return None
