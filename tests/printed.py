"""What the README and its pages print for people to copy: code blocks, and commands within the text."""

import re
import shutil
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.readme import PAGES, ROOT

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One piece of a page between two fences."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Where it stands, how it begins and how it ends: enough to tell it from every other one."""
        lines = self.text.strip().splitlines()
        return f"{self.page}: {lines[0][:24].strip()} … {lines[-1][-24:].strip()}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(str(page.relative_to(ROOT)), line, match[2], textwrap.dedent(match[3])))
    return found


def commands_in_text(page: Path) -> list[str]:
    """Return the commands that stand between backticks in the text, as a shell takes them: brackets of what may be left
    out are taken away, of words to choose from the first is taken, dots and N are something."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
    commands = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\S*/bin/)?(?:{'|'.join(map(re.escape, PROGRAMS))}) .*")
    found = [span for span in spans if commands.fullmatch(span)]
    for what, said in _SAID:
        found = [what.sub(said, span) for span in found]
    return found


_SAID = (
    (re.compile(r"(\w+)(?:\\?\|\w+)+"), r"\1"), (re.compile(r"(?<!\S)\[|\](?!\S)"), ""),
    (re.compile("…"), "X"), (re.compile(r"\bN\b"), "4"),
)  # fmt: skip

# Programs that pages print, none of which a test may start as it is; what may be asked of each says
# `tests/unit/test_printed_lines.py`.
PROGRAMS = (
    "amtool", "bash", "curl", "install", "kubectl", "pip", "pipx", "podman", "promtool", "py-spy", "python", "rm",
    "sinfo", "srun", "stallwatch", "systemctl", "systemd-analyze", "torchrun", "usermod", "uv",
)  # fmt: skip
_HARMLESS = ("awk", "head", "mv", "openssl", "sort")
_DOES = {
    # But for the group, which is an installation's.
    "install": '[ "$3" = -g ] && set -- "$1" "$2" "${@:5}"; exec /usr/bin/install "$@"',
    "sinfo": "printf 'node1\\nnode2\\nnode1\\n'",
}


class Shell:
    """A shell in a checkout of its own, whose programs note how they were called, and whose /etc is a folder."""

    def __init__(self, place: Path) -> None:
        self.place, self._bin, self._log = place, place / "bin", place / "asked"
        self.etc = place / "etc"
        self.checkout = place / "checkout"
        for folder in (self._bin, self.checkout, self.etc / "stallwatch", self.etc / "prometheus" / "stallwatch"):
            folder.mkdir(parents=True)
        for each in ("deploy", "tests", "pyproject.toml"):
            (self.checkout / each).symlink_to(ROOT / each)
        for program in PROGRAMS:
            fake = self._bin / program
            # One write, for some run beside each other.
            note = f"printf -v noted '%s\\036' {program} \"$@\"; printf '%s\\n' \"$noted\" >>'{self._log}'"
            fake.write_text(f"#!/bin/bash\n{note}\n{_DOES.get(program, '')}\n")
            fake.chmod(0o755)
        for program in _HARMLESS:
            found = shutil.which(program)
            if found is not None:
                (self._bin / program).symlink_to(found)

    def run(self, text: str) -> list[list[str]]:
        """Return what was asked of the programs. Raise AssertionError where the text fails, or needs a program that
        nobody has decided about."""
        self._log.write_text("")
        # Where an installation lies matters nothing to how a program may be called.
        here = re.sub(r"(?<!\S)[\w./]*/bin/(?=\w)", "", text.replace("/etc/", f"{self.etc}/"))
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", f"{here}\nwait"], cwd=self.checkout, timeout=30,
            env={"PATH": str(self._bin)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        asked = self._log.read_text(encoding="utf-8").replace(f"{self.etc}/", "/etc/")
        return [line.removesuffix("\036").split("\036") for line in asked.split("\036\n") if line]
