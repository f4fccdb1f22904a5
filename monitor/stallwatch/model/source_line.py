"""Lines of the job's code, read at capture time as the rank's own user could read them."""

import msgspec


class SourceBlock(msgspec.Struct, frozen=True):
    """A block that a line stands in, within its function."""

    kind: str  # for, while, if, elif, else, except, finally
    line: int  # of its header
    text: str  # its header


class SourceLine(msgspec.Struct, frozen=True):
    """The text of a line that a stack names, and the blocks around it."""

    file: str
    line: int
    text: str
    blocks: tuple[SourceBlock, ...] | None = None  # outermost first; None: not looked for
