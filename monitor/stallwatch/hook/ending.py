"""How a process ends, as far as it can know itself: in order, and with which exit code.

Nothing is chained into the job's excepthook and no signal is taken: the interpreter itself leaves the traces. It sets
`sys.last_type` when an exception ends the main program (before teardown, which may hang), and it deletes `__file__`
from a script's `__main__` when the script ran to its end but not when SystemExit cut it short. Only the number given
to `sys.exit` needs a look, through a wrapper. os._exit and signals leave no mark, and that is their sign.
"""

import sys
import threading
from typing import Callable, Optional

from stallwatch.hook import native

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
# Not by getattr: what is not there would be an exception, made and thrown away at each look (15 µs in cold caches).
_SYS = vars(sys)
_exit_status: "Optional[tuple[object]]" = None  # what the main thread last gave to sys.exit
_is_script = False  # run as `python train.py`: __main__ had a __file__ and no __spec__
_run_status: "Optional[int]" = None  # what stallwatch.run saw


def watch_exit_status() -> None:
    """Remember what the main thread gives to sys.exit. Call it once."""
    global _is_script
    original: Callable[..., object] = sys.exit
    main = threading.main_thread().ident
    program = sys.modules.get("__main__")
    _is_script = getattr(program, "__spec__", None) is None and hasattr(program, "__file__")

    def exit(status: object = None, /) -> None:
        global _exit_status
        if native.get_ident() == main:
            _exit_status = (status,)
        original(status)

    exit.__doc__ = original.__doc__
    sys.exit = exit  # type: ignore[assignment]


def know_exit_code(code: int) -> None:
    """stallwatch.run sees the program's end itself."""
    global _run_status
    _run_status = code


def uncaught_exception() -> str:
    """Type name of the exception that is ending the main program; "" for none. An interactive session goes on."""
    kind = _SYS.get("last_type")
    trace = None if kind is None else getattr(sys, "last_traceback", None)
    if trace is None or hasattr(sys, "ps1"):
        return ""
    # The interpreter also leaves here what a C library's callback raised; only the program's own frame is the end.
    outermost = trace.tb_frame.f_globals.get("__name__"), trace.tb_frame.f_code.co_name
    if outermost != ("__main__", "<module>") and outermost[0] != "runpy":
        return ""
    return str(getattr(kind, "__name__", kind))


def exit_code() -> "Optional[int]":
    """The code with which the interpreter is about to end; None when it cannot be known. Valid at exit only."""
    if _run_status is not None:
        return _run_status
    exception = uncaught_exception()
    if exception:
        return EXIT_INTERRUPTED if exception == "KeyboardInterrupt" else 1
    if _is_script and not hasattr(sys.modules.get("__main__"), "__file__"):
        return 0
    return None if _exit_status is None else code_of(_exit_status[0])


def code_of(status: object) -> int:
    """The exit code that Python makes of SystemExit's argument."""
    if status is None:
        return 0
    if isinstance(status, int):
        return status & 0xFF
    return 1
