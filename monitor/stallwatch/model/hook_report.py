"""What a rank's own hook says of its call of torch.distributed and of the exception that it handles."""

import msgspec


class CodeFrame(msgspec.Struct, frozen=True):
    """A frame of a stack; stacks are innermost first, as py-spy and torch print them."""

    name: str
    filename: str
    line: int


class Handled(msgspec.Struct, frozen=True):
    """An exception on whose account the main thread is where it is."""

    kind: str  # its type
    frames: tuple[CodeFrame, ...]  # of its traceback, innermost first: who raised it, down to who caught it


class NamedCall(msgspec.Struct, frozen=True):
    """A call of torch.distributed that names another rank."""

    function: str  # "recv", "broadcast"
    is_transfer: bool
    rank: int | None  # global: the peer of a transfer, the root of a collective; None: any, or not told
    thread: str  # Python's ident


class GroupCall(msgspec.Struct, frozen=True):
    """A call of torch.distributed, and the group that it was given."""

    members: tuple[int, ...]  # global ranks, ascending
    thread: str  # Python's ident
    # torch's own: it counts the groups that the process has made, members or not, so that all ranks know one group by
    # one name, if all make them in one order. None: the hook does not tell.
    name: str | None = None


class HookReport(msgspec.Struct, frozen=True):
    """What the hook answers beside a dump: the exception in flight, and the calls that threads stand in."""

    source: str
    look: int
    handled: Handled | None
    calls: tuple[NamedCall, ...]
    inside: tuple[GroupCall, ...] = ()  # from hooks that tell it
