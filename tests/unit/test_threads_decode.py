"""Two threads that decode into one type for the first time crash the interpreter: msgspec (0.22, seen as SIGSEGV in the
doctor) keeps what it knows of a type before it is complete. Parts with threads build their decoders at import."""

import ast
from pathlib import Path

import pytest

import stallwatch

PACKAGE = Path(stallwatch.__file__).parent
THREADED = ("captures", "doctor", "incidents", "loop", "outputs", "sensors")
# Read once, by a process' main thread, before it starts any other; or by the command line, which has one thread.
ALONE = {
    "outputs/client.py",
    "outputs/poster.py",
    "sensors/child.py",
    "captures/nccl_ras.py",
    "doctor/data/__init__.py",
}


def typed_decodes(path: Path) -> list[int]:
    """Lines inside functions that decode or convert into a type of ours; "main" is a process' first thread."""
    lines = []
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef) or function.name == "main":
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            into_type = call.func.attr == "decode" and any(keyword.arg == "type" for keyword in call.keywords)
            if into_type or ast.unparse(call.func) == "msgspec.convert":
                lines.append(call.lineno)
    return lines


@pytest.mark.parametrize("part", THREADED)
def test_decoders_are_built_at_import(part: str) -> None:
    found = {
        name: lines
        for path in sorted((PACKAGE / part).rglob("*.py"))
        if (name := str(path.relative_to(PACKAGE))) not in ALONE and (lines := typed_decodes(path))
    }
    assert not found, "use a module-level msgspec Decoder"
