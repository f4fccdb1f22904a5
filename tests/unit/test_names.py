"""One name, one meaning: a module or a class of the package shares its name with another only where both are the same
thing, and this says why."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).parents[2] / "monitor/stallwatch"

# A package's own child is `child`; a command of `cli` is called as what it shows or starts.
_MODULES = {
    "auto": "the hook attaches by itself; the command turns that on",
    "child": "a package's own child",
    "config": "the configuration; the command that checks it",
    "daemon": "the loop; the command that starts it",
    "drift": "calls that part before the hang: found by diagnosis, made a finding by detection",
    "flight_recorder": "asked for by a capture, read by formats",
    "gpu": "the GPU as a value; what a verdict claims of it",
    "gpus": "NVML asked by the sensor; its file gpus.json read",
    "hook_report": "what the hook says, as a value; its file read",
    "kernel_log": "kept by a capture, read by formats",
    "privileged": "the privileged side: where the daemon finds it; the command that is it",
    "process": "a process looked at by a capture, its file read, and the value",
    "rank_directory": "the rank directory; the check of doctor on it",
    "rendezvous": "where ranks were told to meet: the value; how a bundle comes to it",
    "stacks": "Python stacks: by py-spy from outside; by the hook itself",
    "verdict": "the verdict; the one over all nodes",
}
_MOST_LINES = 400
# Imported once, and of its own all the same.
_SMALL = {"loop/schedule": "time as the loop counts it, which its tests move by hand; the loop itself is daemon.py"}
_CLASSES = {
    "Beat": "the hook's; what the demo's programs use of it (they run without the hook, too)",
    "CounterLook": "the hook's, which imports nothing of ours; the same decoded, for the model imports no hook",
}


def _shared(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in named:
        places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def _importers() -> dict[str, set[str]]:
    """Return, by module, the files that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in _PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for where, names in re.findall(r"^ *from stallwatch\.?([\w.]*) import (\([^)]*\)|[^\n]*)", text, re.MULTILINE):
            for module in (where, *(f"{where}.{name}" for name in re.findall(r"\w+", names))):
                found[module.replace(".", "/")].add(str(path))
    return found


def test_a_file_of_a_few_lines_serves_several_or_is_a_program() -> None:
    """One that needs its one caller to be understood belongs into it."""
    importers = _importers()
    small = set()
    for path in _PACKAGE.rglob("*.py"):
        name = str(path.relative_to(_PACKAGE).with_suffix(""))
        text = path.read_text(encoding="utf-8")
        program = name.startswith("cli/") or "__name__ ==" in text or path.stem.startswith("__")
        if text.count("\n") < 30 and not program and len(importers[name]) < 2:
            small.add(name)
    assert small - set(_SMALL) == set()


def test_no_file_is_longer_than_a_reader_holds_in_mind() -> None:
    files = [*_PACKAGE.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]
    long = {str(path): lines for path in files if (lines := path.read_text(encoding="utf-8").count("\n")) > _MOST_LINES}
    assert long == {}


def _modules() -> dict[str, list[str]]:
    return _shared((path.stem, str(path)) for path in _PACKAGE.rglob("*.py") if not path.stem.startswith("__"))


def _classes() -> dict[str, list[str]]:
    return _shared(
        (name, str(path))
        for path in _PACKAGE.rglob("*.py")
        for name in re.findall(r"^class ([A-Za-z]\w*)[(:]", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("shared", "reasons"), [(_modules, _MODULES), (_classes, _CLASSES)], ids=["modules", "classes"]
)
def test_only_what_is_the_same_thing_shares_a_name(
    shared: Callable[[], dict[str, list[str]]], reasons: dict[str, str]
) -> None:
    found = shared()
    assert {name: places for name, places in found.items() if name not in reasons} == {}
    assert [name for name in reasons if name not in found] == [], "a reason without two of that name"
