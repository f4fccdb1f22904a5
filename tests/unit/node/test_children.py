"""How children are started."""

import ast
from pathlib import Path

import stallwatch
from stallwatch.node.children import start_logged

PACKAGE = Path(stallwatch.__file__).parent
STARTS = {f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")} | {
    f"os.{name}" for name in ("fork", "posix_spawn", "posix_spawnp", "system", "popen")
}


def starts(source: str) -> list[str]:
    """What it calls, and may only be called by node/children.py."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [name for name in map(ast.unparse, calls) if name in STARTS]


def test_one_module_alone_starts_processes() -> None:
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    ours = {path: text for path, text in sources.items() if "programs" not in path.parts}  # else training jobs
    named = [path for path, text in ours.items() if any(name in text for name in STARTS)]
    assert [path.relative_to(PACKAGE).as_posix() for path in named if starts(ours[path])] == []
    assert starts("process = subprocess.Popen(command)")


def test_what_a_logged_program_says_is_in_its_log_and_its_environment_is_the_given_one(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = start_logged(["sh", "-c", 'echo "$TOLD"; echo lost >&2; exit 3'], log, {"TOLD": "it is so"})
    assert child.wait(60) == 3
    assert (tmp_path / "log").read_text() == "it is so\nlost\n"
