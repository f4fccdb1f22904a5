"""What a log's event means and what to do, in words: by its text, its signal, its kind."""

import re
from signal import SIGABRT, SIGBUS, SIGKILL, SIGSEGV

from stallwatch.diagnosis.logs.blame import detail_sides, mismatch_words, what_differs
from stallwatch.diagnosis.logs.consequence import NOT_AT_BARRIER, NOT_WHICH, PEER_GONE, of_others
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.remedies_by_kind import BY_KIND
from stallwatch.diagnosis.logs.remedies_by_text import BY_TEXT, Words
from stallwatch.diagnosis.logs.remedies_of_gpus import (
    FORKED,
    LOST,
    NO_DEVICE,
    NOT_INITIALISED,
    UNKNOWN_CUDA,
    gpu_words,
    is_lost,
)
from stallwatch.diagnosis.logs.remedies_of_handshakes import handshake_words
from stallwatch.diagnosis.logs.remedies_of_memory import memory_words
from stallwatch.formats.addresses import AddressWords, address_words, kind_of_address, peer_address
from stallwatch.model.log_event import PROCESS_ENDS

# The store of torch before 1.9, that is before torchrun, says no more; later ones name the port.
_OLD_STORE = re.compile(r"(?:Runtime|Value)Error: Address already in use\s*$")
_OLD_LAUNCHER = (
    "ss -ltnp names who holds the port now; take another one on all ranks: python -m torch.distributed.launch "
    "--master_port=<free port>, or that of init_method=tcp://<rank 0>:<port>"
)
_CUDA: tuple[tuple[str, Words], ...] = (
    ("initialization error", FORKED),
    ("Error 802", NOT_INITIALISED),
    ("system not yet initialized", NOT_INITIALISED),
    ("Error 999", UNKNOWN_CUDA),
    ("CUDA error: unknown error", UNKNOWN_CUDA),
    ("CUDA unknown error", UNKNOWN_CUDA),
    ("Cuda failure 999", UNKNOWN_CUDA),
    ("Cuda failure 'unknown error'", UNKNOWN_CUDA),
    ("no CUDA-capable device", NO_DEVICE),
    ("No CUDA GPUs are available", NO_DEVICE),
    ("CUDA_ERROR_NO_DEVICE", NO_DEVICE),
)
# Kinds of which the text may say more than the kind does.
_WITH_TEXT = frozenset(
    (
        "exception",
        "native_exception",
        "cuda_error",
        "nccl_completion_error",
        "cancelled",
        "store_unreachable",
        "not_started",
    )
)
_OF_ADDRESSES = ("nccl_connect", "gloo_connect", "store_unreachable")
_SHOWN = "mend the line that raised; if its data did it, look for the sample in this rank's own log"
_LOST_A_PEER = Words(
    "This rank lost a peer, or had no answer from it: the cause stands elsewhere.",
    "look for the rank whose log ends first, or with an error of its own (the address in this line is the peer's); "
    "give all logs to stallwatch",
)
# What an exception says of others is not mended at its line.
_OF_OTHERS = {
    PEER_GONE: _LOST_A_PEER,
    NOT_AT_BARRIER: Words(
        "This rank came to the barrier, and another one did not, or rank 0 gave up.",
        'rank 0\'s log names who did not come: look there for "failed to pass monitoredBarrier", and at what that rank '
        "did; where it works for long before (a download, tokenising), a longer timeout of the barrier",
    ),
    NOT_WHICH: Words(
        "Ranks compared themselves, and differ; the text does not tell which of them is wrong.",
        "print on each rank what they compare (the loss, the gradient's norm, the batch) a step before; look for one "
        "that skips a step (overflow, an exception that is caught) or has other data",
    ),
}
_OTHERWISE = Words("It belongs to the failure.", "read the lines around it")


_BY_SIGNAL: dict[int | None, Words] = {
    SIGKILL: Words(
        "SIGKILL comes from outside: the kernel's out-of-memory killer, a cgroup's limit, or somebody's kill. A bare "
        '"Killed" proves none of them.',
        "dmesg -T | grep -i 'killed process'; cat /sys/fs/cgroup/memory.events; scheduler's log; then less memory "
        "or a higher limit",
    ),
    SIGBUS: Words(
        "A page of a mapped file was not there (SIGBUS): /dev/shm is full more often than not, or a file was truncated "
        "while it was mapped.",
        "df -h /dev/shm; look for what rewrites the files that the job maps",
    ),
    SIGSEGV: Words(
        "The process crashed in native code.",
        "PYTHONFAULTHANDLER=1 shows where; ulimit -c unlimited keeps a core",
    ),
    SIGABRT: Words(
        "The process ended itself (abort): torch's watchdog after a time-out, a failed assertion in native code, "
        "or glibc. Its lines stand in this rank's own log.",
        "read the end of this rank's own log; a watchdog's abort means that it waited for another rank",
    ),
}


def words_for(told: LoggedFailure) -> Words:
    """Meaning and remedy; a signal says more than "it ended first"."""
    if told.kind in (*PROCESS_ENDS, "program_died") and told.event.exit_signal in _BY_SIGNAL:
        return _BY_SIGNAL[told.event.exit_signal]
    if told.kind == "init_timeout" and told.event.ranks and "ncclUniqueId" not in told.event.text:
        return Words(
            f"Rank {told.event.ranks[0]} had not come to the rendezvous when the others gave up.",
            f"look at rank {told.event.ranks[0]}'s own log: is its process there, does it reach "
            "MASTER_ADDR:MASTER_PORT (nc -zv)? If it only starts slowly: init_process_group(timeout=…)",
        )
    if told.kind == "address_in_use" and _OLD_STORE.search(told.event.text):
        return BY_KIND[told.kind]._replace(remedy=_OLD_LAUNCHER)
    text = f"{told.event.exception or ''} {told.event.message or ''} {told.event.text}"
    if told.kind == "gpu_xid" and is_lost(text):
        return LOST
    if told.kind == "gpu_unreachable":
        return gpu_words(text)
    if told.kind == "out_of_memory":
        return memory_words(text)
    if told.kind in ("nccl_handshake", "nccl_stranger"):
        return handshake_words(text)
    if told.kind == "collective_mismatch" and (differs := what_differs(detail_sides([told]))):
        return mismatch_words(differs)
    if told.kind in _OF_ADDRESSES and (address := peer_address(text)):
        reached = address_words(address)
        if told.kind == "gloo_connect":
            return _of_gloo(address, reached)
        if told.kind != "store_unreachable":
            return Words(*reached, "start")
        of_store = BY_KIND[told.kind]
        return of_store._replace(why=f"{of_store.why} {reached.why}", remedy=f"{of_store.remedy}; {reached.remedy}")
    if said := next((words for phrase, words in _CUDA if phrase in text), None):
        return said
    said = next((words for phrase, words in BY_TEXT if phrase in text), None) if told.kind in _WITH_TEXT else None
    # A program that did not begin lacks its own file: that of a rank that trains is another.
    if said is not None and (told.kind != "not_started" or said.then == "start"):
        return said
    of_peer = told.kind == "watchdog_end" and of_others(told.event.message or "") == PEER_GONE
    if of_peer or told.kind in ("nccl_peer_closed", "gloo_peer_closed"):
        return _LOST_A_PEER
    if told.kind == "exception" and told.consequence in _OF_OTHERS:
        return _OF_OTHERS[told.consequence]
    words = BY_KIND.get(told.kind, _OTHERWISE)
    return words._replace(remedy=_SHOWN) if told.kind == "exception" and told.event.frame is not None else words


def _of_gloo(address: str, reached: AddressWords) -> Words:
    """gloo tells its peers the address of the host's own name, where no interface is named to it."""
    own = "GLOO_SOCKET_IFNAME"
    remedy = reached.remedy if own in reached.remedy else reached.remedy.replace("NCCL_SOCKET_IFNAME", own)
    if kind_of_address(address) != "loopback":
        return Words(reached.why, remedy, "start")
    return Words(
        "gloo told this address to its peers because the peer's host name resolves to it (Debian's and Ubuntu's "
        f"/etc/hosts: 127.0.1.1). {reached.why}",
        f"in /etc/hosts give the host's name its address in the training network, or export {own}=<the interface "
        f"between the nodes>; with one node alone: {remedy}",
        "start",
    )
