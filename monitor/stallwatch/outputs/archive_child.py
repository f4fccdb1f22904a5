"""Archives one bundle: `python -m stallwatch.outputs.archive_child`, an ArchiveOrder on standard input, where it lies
on standard output. A storage that does not answer holds up this process and no other."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.bundle.archive_storage import put, retain
from stallwatch.errors import StallwatchError
from stallwatch.node.capabilities import drop_unless_root


class ArchiveOrder(msgspec.Struct, frozen=True):
    """One bundle to copy into the archive, and what it is called there."""

    archive: str
    options_file: str
    keep_days: int
    incident_id: str
    node: str
    folder: str


def main() -> int:
    """Archive the bundle that standard input describes."""
    drop_unless_root()
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=ArchiveOrder)
    try:
        options = _options(order.options_file)
        where = put(order.archive, options, order.incident_id, order.node, Path(order.folder), time.time_ns())
        if order.keep_days:
            retain(order.archive, options, order.keep_days, time.time_ns())
    except StallwatchError as error:
        sys.stderr.write(f"{error}. {error.help}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - this child's guard: storages raise what they like
        sys.stderr.write(f"{type(error).__name__}: {str(error)[:500]}\n")
        return 1
    sys.stdout.write(where)
    return 0


def _options(file: str) -> dict[str, Any]:
    if not file:
        return {}
    found = json.loads(Path(file).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise TypeError(f"{file} holds no JSON object")
    return found


if __name__ == "__main__":
    sys.exit(main())
