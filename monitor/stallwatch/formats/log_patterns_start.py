"""Lines about the ranks' meeting: gloo's connections, the store of rank 0, names and ports, and who did not come."""

from typing import Final

from stallwatch.formats.log_pattern import Pattern, pattern

START_PATTERNS: Final[tuple[Pattern, ...]] = (
    pattern(
        "gloo_connect",
        "connectFullMesh failed",
        r"connectFullMesh failed(?:.*?remote=\[(?P<peer>[^\]]+)\]:(?P<port>\d+))?",
    ),
    # Until torch 2.x it says the pair alone: "gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:45965: …".
    pattern(
        "gloo_connect",
        "] connect [",
        r"gloo/transport/\w+/\w+\.cc:\d+\] connect \[(?P<peer>[^\]]+)\]:(?P<port>\d+): \S",
    ),
    pattern("gloo_connect", "Unable to find address for", r"Unable to find address for: (?P<device>\S+)"),
    pattern(
        "gloo_connect", "Using the loopback address as fallback", r"Unable to resolve hostname to a \(local\) address"
    ),
    pattern("address_in_use", "EADDRINUSE", r"port: (?P<port>\d+).*EADDRINUSE"),
    pattern("address_in_use", "ddress already in use", r"failed to bind to \S*?:(?P<port>\d+)\b"),
    # IPv6 is asked first, and has no address on most nodes: only both together mean something.
    pattern(
        "name_unresolved",
        "IPv4 network addresses of",
        r"IPv4 network addresses of \((?P<peer>[^)]+)\) cannot be retrieved \(gai error: -?\d+ - (?P<message>[^)]*)",
    ),
    # Before 2.4 without the reason, which the lines before tell.
    pattern(
        "address_in_use",
        "on any local network address",
        r"server socket has failed to listen on any local network address\.\s*$",
    ),
    pattern(
        "store_unreachable",
        "client socket has",
        r"client socket has (?:failed|timed out after \d+m?s while trying) to connect to"
        r" (?P<peer>\S+(?: \d+\))?)",
    ),
    pattern(
        "store_unreachable",
        "Failed to connect to any network address",
        r"Failed to connect to any network address of (?P<peer>\S+(?: \d+\))?)",
    ),
    pattern(
        "store_unreachable",
        "TCP client failed to connect",
        r"TCP client failed to connect/validate to host (?P<peer>\S+)",
    ),
    pattern(
        "store_closed",
        "failed on SocketImpl",
        r"(?:recvValue\w*|sendBytes) failed on SocketImpl\(.*?remote=(?P<peer>[^)]+)\)",
        secondary=True,
    ),
    pattern(
        "store_closed",
        "TCPStore server has shut down",
        r".*?TCPStore server has shut down too early",
        secondary=True,
    ),
    # HCCL's root, of whom has not come to a communicator (CANN, EI0015).
    pattern("init_timeout", "unconnected ranks", r'.*?List of unconnected ranks: "?\[(?P<ranks>\d[\d, ]*)\]'),
    # CANN's other reasons that tell of other ranks, and a device's queue that did not end in time.
    pattern("nccl_error", "EI00", r".*?(?P<message>\bEI00(?:02|06|13|15)\b.*)", secondary=True),
    pattern(
        "nccl_error",
        "execute failed, reason=[",
        r".*?(?P<message>\brt\w+ execute failed, reason=\[(?:stream sync|task|notify wait|event wait) ?timeout\])",
        secondary=True,
    ),
    pattern(
        "init_timeout",
        "clients joined",
        r"Timed out after \d+ seconds waiting for clients\. "
        r"(?P<joined>\d+)/(?P<expected>\d+) clients joined",
    ),
    # The store of an older job, or a second job, where more came than were expected.
    pattern(
        "init_waiting",
        "Waiting in store based barrier",
        r"Waiting in store based barrier to initialize process group for rank:? (?P<rank>\d+)"
        r"(?:.*?key: ?(?P<group_id>[\w:]+))?.*?world_size=(?P<expected>\d+), worker_count=(?P<joined>\d+)",
    ),
    pattern(
        "init_timeout",
        "store based barrier on rank",
        r"Timed out initializing process group in store based barrier on rank:? (?P<rank>\d+)"
        r"(?:.*?key: ?(?P<group_id>[\w:]+))?.*?world_size=(?P<expected>\d+), worker_count=(?P<joined>\d+)",
    ),
    # torch to 2.1 says who came, and who saw that all had come.
    pattern("init_waiting", "to store for rank", r"Added key: (?P<group_id>[\w:]+) to store for rank:? (?P<rank>\d+)"),
    pattern(
        "init_waiting",
        "ompleted store-based barrier",
        r"Rank (?P<rank>\d+): Completed store-based barrier for key: ?(?P<group_id>[\w:]+) "
        r"with (?=(?P<expected>\d+))(?P<joined>\d+) nodes",
    ),
    # The store was there, and went away while it was asked: no time ran out, and whoever serves it may have come.
    pattern(
        "store_closed",
        "ncclUniqueId",
        r"ncclUniqueId from \[\d+\].*got error: .*?"
        r"(?:Connection (?:reset|closed|refused|was likely closed)|Broken pipe|[Ff]ailed to (?:recv|send))",
        secondary=True,
    ),
    pattern(
        "init_timeout",
        "ncclUniqueId",
        r"(?:\[(?P<group_rank>\d+)\] is setting up .*?)?ncclUniqueId from \[(?P<source>\d+)\]"
        r".*got error: (?P<message>.*)",
    ),
    # gloo's ranks wait for each other's keys: "wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1" is rank 1's.
    pattern(
        "init_timeout",
        "wait timeout after",
        r"wait timeout after (?P<timeout_ms>\d+)ms, keys: (?P<message>\S+?(?://cpu//\d+/(?P<source>\d+))?)(?:\s|$)",
    ),
)
