"""The `stallwatch` command. These first lines run on any Python 3.9+ with nothing but the hook installed."""

import os
import sys

_OF_NODE = "/opt/stallwatch"  # deploy/install.sh
_NEEDS_PYTHON = (3, 11)
_UNAVAILABLE = 69  # sysexits.h: what the command needs is not there


def main() -> int:
    """Run the command line; where the daemon's part is absent the node's own, if it has one, else say what to install.

    A training environment has the hook alone, and its command stands before the node's on the path.
    """
    if sys.version_info < _NEEDS_PYTHON:
        _become_the_nodes()
        sys.stderr.write(
            "stallwatch: the daemon and its commands need Python 3.11 or newer; "
            f"this is {sys.version_info[0]}.{sys.version_info[1]}. The hook (import stallwatch) works here; "
            "run the command from another environment.\n"
        )
        return _UNAVAILABLE
    try:
        import click  # noqa: F401
        import msgspec  # noqa: F401
    except ImportError as error:
        _become_the_nodes()
        sys.stderr.write(
            f"stallwatch: only the hook is installed here ({error}). For the daemon and its commands: "
            "pip install '.[daemon]' in stallwatch's repository.\n"
        )
        return _UNAVAILABLE
    from stallwatch.cli.app import run

    return run()


def _become_the_nodes() -> None:
    """Go on as the command that the operator of this node installed; return where there is none."""
    command = os.path.join(_OF_NODE, "bin", "stallwatch")
    is_it = os.path.realpath(sys.prefix) == os.path.realpath(_OF_NODE)
    if os.access(command, os.X_OK) and not is_it:
        # Modules of this environment are none of the other's.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        os.execve(command, [command, *sys.argv[1:]], kept)  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
