"""Runs inside training jobs: standard library only, Python 3.9+, never raises, never blocks."""

__all__ = ["attach"]


def attach(auto: bool = False) -> object:
    return auto
