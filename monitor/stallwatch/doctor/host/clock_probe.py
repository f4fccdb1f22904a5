"""Child of the clock check: adjtimex(2) in read-only mode, printed as "state status"."""

import ctypes
import sys

_STATUS_OFFSET = 5 * ctypes.sizeof(
    ctypes.c_long
)  # struct timex: modes (padded), offset, freq, maxerror, esterror, status


def main() -> int:
    """Print the kernel clock's state and status bits (adjtimex(2)); return 1 where it cannot be asked."""
    buffer = ctypes.create_string_buffer(512)  # modes 0: nothing is changed
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        return 1
    sys.stdout.write(f"{state} {ctypes.c_int.from_buffer(buffer, _STATUS_OFFSET).value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
