"""The `stallwatch` command. These first lines run on any Python 3.9+ with nothing but the hook installed."""

import sys

_NEEDS_PYTHON = (3, 11)
_UNAVAILABLE = 69  # sysexits.h: what the command needs is not there


def main() -> int:
    """Run the command line; say what to install where the daemon's part is absent."""
    if sys.version_info < _NEEDS_PYTHON:
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
        sys.stderr.write(
            f"stallwatch: only the hook is installed here ({error}). For the daemon and its commands: "
            "pip install '.[daemon]' in stallwatch's repository.\n"
        )
        return _UNAVAILABLE
    from stallwatch.cli.app import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
