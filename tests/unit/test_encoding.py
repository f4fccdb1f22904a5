"""Encoding where memory is short: an error that a guard can keep, never the end of the process."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stallwatch.encoding import json_of, msgpack_of

PACKAGE = Path(__file__).parents[2] / "monitor" / "stallwatch"
OWN = re.compile(r"msgspec\.(?:json|msgpack)\.(?:encode|Encoder)\b")
# Each allocation in turn, and all after it, fails; `_testcapi` is CPython's own way to have that.
SHORT_OF_MEMORY = """
import sys
import _testcapi
from stallwatch.encoding import json_of, msgpack_of
value = {"text": "x" * 3000, "numbers": list(range(1000))}
for encode in (json_of, msgpack_of):
    encode(value)
    failed = 0
    while True:
        _testcapi.set_nomemory(failed, 0)
        try:
            encode(value)
        except MemoryError:
            failed += 1
        else:
            break
        finally:
            _testcapi.remove_mem_hooks()
    assert failed > 2, failed
"""


def test_it_is_what_msgspec_writes() -> None:
    value = {"a": [1, 2.5, None, "é"], "b": {"c": True}}
    assert msgspec.json.decode(json_of(value)) == value
    assert msgspec.msgpack.decode(msgpack_of(value)) == value
    assert type(json_of(value)) is type(msgpack_of(value)) is bytes


def test_what_cannot_be_encoded_is_said() -> None:
    for encode in (json_of, msgpack_of):
        with pytest.raises(UnicodeEncodeError):
            encode("\ud800")
        with pytest.raises(TypeError):
            encode(object())


def test_a_process_without_memory_goes_on() -> None:
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_nothing_of_ours_encodes_by_itself() -> None:
    found = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name != "encoding.py" and OWN.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
