import os
from pathlib import Path

from stallwatch.captures.sources import lines_of_stacks, read_lines
from stallwatch.node.procfs import ProcessDirectory


def frame(file: str, line: int) -> dict[str, object]:
    return {"name": "f", "filename": file, "line": line}


def test_lines_of_the_main_thread_come_first_and_once() -> None:
    threads = [
        {"pid": 7, "os_thread_id": 8, "frames": [frame("b.py", 1), frame("a.py", 2)]},
        {"pid": 7, "os_thread_id": 7, "frames": [frame("a.py", 2), frame("a.py", 3)]},
    ]
    assert lines_of_stacks(threads) == [("a.py", 2), ("a.py", 3), ("b.py", 1)]


def test_only_python_files_are_wanted() -> None:
    frames = [frame("<string>", 1), frame("/etc/shadow", 1), frame("libc.so", 4), frame("a.py", 0), {}]
    assert lines_of_stacks([{"pid": 7, "os_thread_id": 7, "frames": frames}]) == []


def test_lines_are_read_in_the_process_root_without_secrets(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("import os\n    password = 'S3CR3T'\n    step()\n")
    with ProcessDirectory(os.getpid()) as process:
        found = read_lines(
            process, [(str(source), 3), (str(source), 2), (str(source), 99), ("/no/such.py", 1)], uid=os.geteuid()
        )
    assert [(line.line, line.text) for line in found] == [(3, "step()"), (2, "password = (redacted)")]


def test_link_to_something_that_is_no_source_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "train.py").symlink_to(tmp_path / "pipe")
    with ProcessDirectory(os.getpid()) as process:
        assert read_lines(process, [(str(tmp_path / "train.py"), 1)], uid=os.geteuid()) == []
