"""Who is at a meeting place that is a directory: a file for each node, in the folder of the key that it signs with."""

import contextlib
import random
from pathlib import Path
from typing import Final

from stallwatch.fleet.place import GREETED_SECONDS, MOST_ALIKE, MOST_GUESTS, Guest
from stallwatch.fleet.shared_files import names_in, read_dated, replace_file, server_seconds

_MOST_TRIED: Final = 8  # files of nodes of one's own key that are looked at: others do so too, each at some


def greet_in(nodes: Path, key: str, name: str, word: bytes, about: str = "") -> list[Guest]:
    """Put this node's word under its key, and nowhere else ("": put nothing); return who is there by the file server's
    clock, of `about` with what it has said before. While all sign with one key, as it should be, few files are looked
    at, and a node of it that has gone may stay for a while. Raise OSError."""
    before = _word_of(nodes / key / about) if about else (b"", 0.0)
    if name:
        for folder in (nodes, nodes / key):  # and not what they stand in: where that is gone, it is not mounted
            folder.mkdir(mode=0o700, exist_ok=True)
        replace_file(nodes / key / name, word)
    keys = sorted(names_in(nodes), key=lambda one: one != key)[:MOST_GUESTS]
    oldest = server_seconds(nodes.parent) - GREETED_SECONDS if keys else 0.0
    found: list[Guest] = []
    for one in keys:
        if one == key:
            own = before[0] if before[1] > oldest else b""
            found += (guest._replace(word=own * (guest.node == about)) for guest in _alike(nodes / key, oldest))
            continue
        if name:
            old, modified = _word_of(nodes / one / name)
            if modified > oldest:
                found.append(Guest(name, one, old))
            (nodes / one / name).unlink(missing_ok=True)
        others = sum(guest.key != key for guest in found)
        for file in _in(nodes / one)[: MOST_GUESTS - others]:
            said = _said(nodes / one / file, oldest)
            if said is not None:
                found.append(Guest(file, one, said))
    return found


def _in(folder: Path) -> list[str]:
    return [name for name in names_in(folder) if not name.startswith(".")]


def _alike(folder: Path, oldest: float) -> list[Guest]:
    names = _in(folder)[:MOST_ALIKE]
    tried = random.sample(names, min(len(names), _MOST_TRIED))
    gone = {name for name in tried if _said(folder / name, oldest) is None}
    return [Guest(name, folder.name, b"") for name in names if name not in gone]


def _word_of(path: Path) -> tuple[bytes, float]:
    with contextlib.suppress(FileNotFoundError):
        return read_dated(path)
    return b"", 0.0


def _said(path: Path, oldest: float) -> bytes | None:
    """What stands there; None where its node has gone, and then its file goes."""
    with contextlib.suppress(FileNotFoundError):
        word, modified = read_dated(path)
        if modified > oldest:
            return word
        path.unlink()
    return None
