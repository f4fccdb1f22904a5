"""Who is at a meeting place that is a directory: a file for each node, in the folder of the key that it signs with."""

import contextlib
from pathlib import Path
from typing import Final

from stallwatch.fleet.place import GREETED_SECONDS, MOST_GUESTS, Guest
from stallwatch.fleet.shared_files import names_in, read_dated, replace_file, server_seconds

_MOST_ALIKE: Final = 8  # of nodes of one's own key: they are for people to see


def greet_in(nodes: Path, key: str, name: str, word: bytes) -> list[Guest]:
    """Put this node's word under its key, and nowhere else ("": put nothing); return who is there by the file server's
    clock. While all sign with one key, as it should be, few files are looked at. Raise OSError."""
    if name:
        (nodes / key).mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(nodes / key / name, word)
    keys = sorted(names_in(nodes), key=lambda one: one != key)[:MOST_GUESTS]
    oldest = server_seconds(nodes.parent) - GREETED_SECONDS if keys else 0.0
    found: list[Guest] = []
    for one in keys:
        if name and one != key:
            (nodes / one / name).unlink(missing_ok=True)
        found += _guests(nodes / one, oldest, _MOST_ALIKE if one == key else MOST_GUESTS - len(found))
    return found


def _guests(folder: Path, oldest: float, most: int) -> list[Guest]:
    """Who is there of a key; files of those that have gone go."""
    found: list[Guest] = []
    for name in names_in(folder):
        if name.startswith(".") or len(found) >= most:
            continue
        with contextlib.suppress(FileNotFoundError):
            word, modified = read_dated(folder / name)
            if modified > oldest:
                found.append(Guest(name, folder.name, word))
            else:
                (folder / name).unlink()
    return found
