"""Versions as programs print them, comparable: "2.6.0+cu124" < "2.28.9"."""

import re

_NUMBER = re.compile(r"\d+")


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, () when there are none; what follows a "+" or a letter is no version."""
    head = re.split(r"[+\-a-zA-Z]", text.strip().removeprefix("v"), maxsplit=1)[0]
    return tuple(int(number) for number in _NUMBER.findall(head))


def in_range(version: str, first: str, fixed: str) -> bool:
    """Whether a version lies in [first, fixed); "" is no bound. An unknown version lies nowhere."""
    numbers = _padded(parse_version(version))
    if not any(numbers):
        return False
    return (not first or numbers >= _padded(parse_version(first))) and (
        not fixed or numbers < _padded(parse_version(fixed))
    )


def _padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, 0, 0, 0, 0)[:4]
