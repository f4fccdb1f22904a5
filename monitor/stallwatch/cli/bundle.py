"""`stallwatch bundle export --scrub`: an incident that may be shown to others."""

import io
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from stallwatch.errors import StallwatchError, UsageError
from stallwatch.model.verdict import Verdict

_TOP = "incident"
_HASH = re.compile(r"-([0-9a-f]{8})-\d+\Z")  # of incident_names.incident_id


@click.group()
def command() -> None:
    """Take an incident bundle elsewhere."""


@command.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--scrub", is_flag=True, help="Leave no path, host, user, token, argument or source line in it.")
def export(bundle: Path, file: Path, scrub: bool) -> None:
    """Write the folder BUNDLE as FILE (.tar.gz); `--scrub`: so that it may be shown to others.

    Names become others, each the same wherever it stood; lines of code go. Before anything is written the result is
    judged: its verdict must be the same, and no name of the original may be found in it.
    """
    if not bundle.is_dir():
        what = "it is no folder" if bundle.exists() else "there is nothing of that name"
        raise UsageError(f"{bundle}: {what}", "The last line of `stallwatch incidents ID` names an incident's folder.")
    files = {str(path.relative_to(bundle)): path.read_bytes() for path in _files(bundle)}
    if not files:
        raise UsageError(f"{bundle} holds no files", "The last line of `stallwatch incidents ID` names the folder.")
    if file.exists():
        raise UsageError(f"{file} is there", "Name another one, or move it away.")
    said = ""
    if scrub:
        files, said = _scrubbed(bundle, files)
    with tarfile.open(file, "x:gz") as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{_TOP}/{name}")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    click.echo(f"{file}: {len(files)} files{said}")


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _scrubbed(bundle: Path, files: dict[str, bytes]) -> tuple[dict[str, bytes], str]:
    """Return the files as they may be shown, and what to say of it. Raise StallwatchError where the verdict would be
    another one, or a name is left."""
    from stallwatch.bundle.scrub import LEFT_OUT, Scrubber, scrubbed

    scrubber = Scrubber(_secrets(files))
    made: dict[str, bytes] = {}
    dropped = []
    for name, data in files.items():
        result = scrubbed(Path(name).name, data, scrubber)
        if result is not None:
            made["/".join(map(scrubber.text, name.split("/"))) if name.startswith("nodes/") else name] = result
        elif Path(name).name not in LEFT_OUT:
            dropped.append(name)
    _note_end(bundle, made)
    left = _left(made, scrubber.removed)
    if left:
        raise StallwatchError(f"{len(left)} names of the original are left, and nothing was written", _asks(left))
    before, after = _verdict(bundle), _verdict_of(made)
    if _decision(before) != _decision(after):
        raise StallwatchError(
            f"scrubbed, its verdict would be another one ({after.cause} {list(after.culprits)}): nothing was written",
            "Without its names and lines this one says less. Please report that, and what the verdict should be.",
        )
    unread = f"; left out, since unreadable: {', '.join(dropped)}" if dropped else ""
    less = f" ({before.confidence} with its names and lines, {after.confidence} here)"
    sure = less if before.confidence != after.confidence else f", {after.confidence}"
    stays = f"\nNames of functions that stay, since they are everyday words: {', '.join(sorted(scrubber.stayed))}."
    more = stays if scrubber.stayed else ""
    return made, f", {len(scrubber.removed)} names gone, and the same verdict: {after.cause}{sure}{unread}{more}"


def _note_end(bundle: Path, made: dict[str, bytes]) -> None:
    """Keep that its incident is over, of the file that is left out."""
    import json

    from stallwatch.cli.analyze import how_it_ended

    state, description = how_it_ended([bundle]), made.get("bundle.json")
    if state and description is not None:
        made["bundle.json"] = json.dumps(json.loads(description) | {"state": state}, indent=1).encode() + b"\n"


def _secrets(files: dict[str, bytes]) -> set[str]:
    """Names of hosts, users and jobs, and what stands for a job, wherever a file says that a word is one."""
    import json

    found: set[str] = set()
    hosts: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, str) and key in (
                    "node",
                    "host",
                    "hostname",
                    "owner",
                    "user",
                    "training_job",
                    "epoch",
                ):
                    (hosts if key in ("node", "host", "hostname") else found).add(one)
                if key == "incident_id" and isinstance(one, str) and (job := _HASH.search(one)):
                    found.add(job[1])  # of the job's epoch and owner
                if key == "nodes" and isinstance(one, dict):
                    hosts.update(one)
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    for name, data in files.items():
        for line in data.splitlines() if name.endswith(".jsonl") else [data] if name.endswith(".json") else []:
            try:
                walk(json.loads(line))
            except (ValueError, RecursionError):
                continue
        if name.startswith("nodes/"):
            hosts.add(name.split("/")[1])
    found |= hosts | _siblings(hosts, files)
    return {word for word in found if not re.fullmatch(r"\d*", word)}


def _siblings(hosts: Iterable[str], files: dict[str, bytes]) -> set[str]:
    """The names of other nodes that are built as those of these hosts, as far as files tell of them (logs name who does
    not answer), and each without its domain."""
    found: set[str] = set()
    for host in hosts:
        names = {host, host.partition(".")[0]} - {""}
        for name in (name for name in names if re.search(r"[^\W\d_]", name)):
            alike = re.compile(rf"(?<!\w){re.sub(r'[0-9]+', '[0-9]+', re.escape(name))}(?!\w)".encode())
            found.add(name)
            found.update(os.fsdecode(match) for data in files.values() for match in alike.findall(data))
    return found


def _left(files: dict[str, bytes], removed: Iterable[str]) -> list[str]:
    """Names that were taken out, and are still there."""
    whole = b"\n".join(files.values()).decode("utf-8", "replace")
    words = set(re.findall(r"[\w./@+~-]+", whole)) | set(re.findall(r"\w+", whole))
    return sorted(name for name in removed if name in words and not name.isdigit())


def _asks(left: list[str]) -> str:
    return f"Please report it. The first: {', '.join(left[:5])}."


def _verdict(path: Path) -> Verdict:
    from stallwatch.bundle.reader import load
    from stallwatch.bundle.report import make_report

    return make_report(load([path])).verdicts[0]


def _verdict_of(files: dict[str, bytes]) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="stallwatch-") as folder:
        for name, data in files.items():
            target = Path(folder) / _TOP / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return _verdict(Path(folder) / _TOP)


def _decision(verdict: Verdict) -> tuple[object, ...]:
    """What somebody acts on."""
    return verdict.cause, verdict.culprits, verdict.waiting, verdict.where
