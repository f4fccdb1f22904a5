"""Why a file could not be parsed, as a sentence: the reader turns it into a caveat and goes on with the next file.

A file of its own: every parser raises it, each by itself."""


class Unreadable(ValueError):
    """The bytes are not what their name says, or are refused; `str()` is a clause: "it ends in the middle"."""
