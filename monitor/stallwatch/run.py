"""`python -m stallwatch.run train.py …`, `python -m stallwatch.run -m package.train …`: attach without an edit.

Also under torchrun: `torchrun … -m stallwatch.run train.py …`. The program then runs as Python itself would run it:
its own `__main__`, `sys.argv`, and `sys.path[0]`.
"""

import sys
from types import ModuleType

_USAGE = "usage: python -m stallwatch.run [-m MODULE | SCRIPT] [ARGUMENT…]"
_EXIT_USAGE = 64  # sysexits.h EX_USAGE


def main() -> None:
    """Attach, then become the program that the arguments name."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    program = arguments[is_module:]
    if not program or (program[0].startswith("-") and not is_module):
        print(_USAGE, file=sys.stderr)
        sys.exit(_EXIT_USAGE)
    from stallwatch.hook import ending
    from stallwatch.hook.attachment import attach

    attach(auto=True)
    sys.argv[:] = program
    # A fresh __main__: spawned workers look there for the program's file, and nothing of ours is in its globals.
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        _run_module(program[0]) if is_module else _run_script(program[0])
    except SystemExit as end:
        ending.know_exit_code(ending.code_of(end.code))
        raise
    except KeyboardInterrupt:
        ending.know_exit_code(ending.EXIT_INTERRUPTED)
        raise
    except BaseException:
        ending.know_exit_code(1)
        raise
    ending.know_exit_code(0)


def _run_module(name: str) -> None:
    import runpy

    # What `python -m` itself calls: it runs in the present __main__, where run_module would make one for a while.
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_script(path: str) -> None:
    import builtins
    import importlib.machinery
    import os

    prepends_path = not getattr(sys.flags, "safe_path", False)  # Python 3.11
    try:
        is_source = not os.path.isdir(path) and _is_source(path)
    except OSError as error:
        print(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: {error}", file=sys.stderr)
        sys.exit(2)  # as Python itself says it and ends
    if not is_source:
        import runpy

        runpy.run_path(path, run_name="__main__")  # a directory or archive with a __main__.py, or compiled code
        return
    # As Python itself has it since 3.9: frames, tracebacks and verdicts then say where the program lies, wherever read.
    path = os.path.abspath(path)
    if prepends_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    namespace = vars(sys.modules["__main__"])
    namespace.update(
        __file__=path,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __builtins__=builtins,
        __cached__=None,
    )
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 - this is what `python train.py` does


def _is_source(path: str) -> bool:
    with open(path, "rb") as file:
        return b"\0" not in file.read(4096)


if __name__ == "__main__":
    main()
