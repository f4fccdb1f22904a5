"""A Python that other users may run: root's own often lies in a home that is closed to them."""

import os
import stat
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "monitor"


class PythonForEverybody(NamedTuple):
    """`command` runs it, with `environment` it imports this stallwatch and all that the tests import."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def python_for_everybody() -> PythonForEverybody | None:
    """Our own interpreter, else the system's of the same version, with our packages, those on PYTHONPATH too; None
    where there is neither."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    packages = [str(Path(path).resolve()) for path in (*given, sysconfig.get_path("purelib")) if os.path.isdir(path)]
    if not all(map(_is_open, (SOURCE, *map(Path, packages)))):
        return None
    for candidate in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        if Path(candidate).exists() and _is_open(Path(candidate).resolve()):
            environment = {
                "PATH": os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath))),
                "PYTHONPATH": os.pathsep.join(dict.fromkeys((str(SOURCE), *packages))),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            return PythonForEverybody((candidate,), environment)
    return None


def _is_open(path: Path) -> bool:
    wanted = stat.S_IROTH | stat.S_IXOTH if not path.is_dir() else stat.S_IXOTH
    parts = (path, *path.parents)
    return path.stat().st_mode & wanted == wanted and all(part.stat().st_mode & stat.S_IXOTH for part in parts[1:])
