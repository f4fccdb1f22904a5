"""What NCCL says of connections that are not what it waits for, as its ranks meet: what it means and what to do.

Sources: NCCL 2.16 to 2.30.7, src/misc/socket.cc (socketFinalizeAccept) and src/bootstrap.cc, strings of 2.32.3;
nccl#1808, nccl#1871 (a stranger's connection), nccl-tests#188 (InfiniBand on one node, sockets on the other),
pytorch#46248 (rank counts), nccl#1176 and nccl#1273 (sizes).
"""

import re
from typing import Final

from stallwatch.diagnosis.logs.remedies_by_text import Words

_MAGIC: Final = re.compile(r"(?:wrong magic |\(peer 0x)(?P<said>[0-9a-f]{1,16})\b")
_TYPES: Final = re.compile(
    r"[Ww]rong (?:socket )?type (?:from \S+ )?(?:\(peer )?(?P<came>\d+) != (?:expected )?(?P<waited>\d+)"
)
_RANK: Final = re.compile(r"rank (?P<rank>\d+) of \d+ ranks has already checked in")
# enum ncclSocketType of socket.h.
_PURPOSES: Final = {1: "bootstrap", 2: "proxy", 3: "NET/Socket", 4: "NET/IB", 5: "RAS"}
_NETWORKS: Final = {"NET/Socket", "NET/IB"}
# First words of protocols, as a stranger says them.
_PROTOCOLS: Final = (
    ("GET ", "an HTTP client, such as Prometheus or a health check"),
    ("POST ", "an HTTP client"),
    ("HEAD ", "an HTTP client, such as a health check"),
    ("OPTIONS ", "an HTTP client or a scanner"),
    ("PRI * ", "an HTTP/2 or gRPC client"),
    ("SSH-", "an SSH client or a scanner"),
    ("\x16\x03", "a TLS client"),
)
_SAME_EVERYWHERE: Final = (
    "start every rank from one image and environment: python -c 'import torch; print(torch.cuda.nccl.version())' and "
    "env | grep NCCL_ on each node"
)


def handshake_words(text: str) -> Words:
    """Given NCCL's line, or the exception that quotes it, return what it means and what to do."""
    if types := _TYPES.search(text):
        return _of_types(*(_PURPOSES.get(int(kind), f"type {kind}") for kind in types.groups()))
    if "Bootstrap Root : mismatch" in text:
        return Words(
            "Ranks that came to one communicator count its ranks differently: WORLD_SIZE differs between them, or two "
            "jobs met at one address (a store that is shared or left over, one NCCL_COMM_ID).",
            "print RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every rank; take a port, and a rendezvous id "
            "(--rdzv-id), that no other job uses",
            "start",
        )
    if twice := _RANK.search(text):
        return Words(
            f"Two processes came to one communicator as its rank {twice['rank']}: RANK is set twice alike, or two jobs "
            "met at one address (a store that is shared or left over, one NCCL_COMM_ID).",
            "print RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every rank; end what an older run left; take a "
            "port, and a rendezvous id (--rdzv-id), that no other job uses",
            "start",
        )
    if "runcated : received" in text:
        return Words(
            "As they made a communicator, two ranks sent each other pieces of unlike size: their NCCLs are of "
            "different versions, or they stand at different steps of its set-up, as ranks of NCCL 2.19 and 2.20 did at "
            "times. Who says it is not known to be the odd one.",
            f"{_SAME_EVERYWHERE}; with NCCL 2.19 or 2.20 on all of them upgrade it",
            "start",
        )
    return _of_stranger(text)


def _of_types(came: str, waited: str) -> Words:
    if {came, waited} == _NETWORKS:
        return Words(
            f"Two ranks chose different networks: a peer connected by {came} where this rank waits by {waited}. "
            "Adapters, NCCL_IB_DISABLE, NCCL_NET or a plugin differ between their nodes.",
            'NCCL_DEBUG=INFO for the next run: every rank must say the same after "Using network"; ibv_devinfo on each '
            "node; env | grep NCCL_ on each rank",
            "start",
        )
    return Words(
        f"A connection of NCCL's came to the wrong one of its sockets ({came} where {waited} was awaited): an address "
        "of a communicator that is gone, whose port was given out again, or NCCLs of different versions.",
        f"{_SAME_EVERYWHERE}; NCCL 2.30.7 and newer go on after it",
        "start",
    )


def _of_stranger(text: str) -> Words:
    who = "a port scanner, a service that still has an old address, or another job"
    if (match := _MAGIC.search(text)) and (said := _spoken(match["said"])):
        protocol = next((name for begins, name in _PROTOCOLS if said.startswith(begins)), who)
        who = f"{protocol} (its first bytes: {said.strip()!r})"
    return Words(
        f"Something that is no rank of this communicator connected to a port of NCCL's: {who}. NCCL sends it away; "
        "before 2.30.7 the thread that accepted it may then wait for ever, and with it its rank (nccl#1808, #1871).",
        "find the sender (the address in the line, or ss -tnp on the nodes) and keep it off the ports of "
        "net.ipv4.ip_local_port_range on the training interface; list fixed ports of services in "
        "net.ipv4.ip_local_reserved_ports; upgrade to NCCL 2.30.7 or newer",
        "resume",
    )


def _spoken(magic: str) -> str:
    """The bytes of a number as they came, where they are text; "": they are not."""
    data = int(magic, 16).to_bytes(8, "little")
    if data[:2] == b"\x16\x03":
        return "\x16\x03"
    text = data.decode("latin-1")
    return text if len(text) == 8 and all(" " <= letter <= "~" or letter in "\r\n" for letter in text) else ""
