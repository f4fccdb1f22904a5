"""What pages print for people to copy is run, read by whoever it is for, or named here with the test that does."""

import configparser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from stallwatch import config
from stallwatch.bundle.reader import load
from stallwatch.bundle.report import make_report
from stallwatch.cli.app import stallwatch
from stallwatch.demo.story import verdict_lines
from stallwatch.outputs import metric_table
from tests.printed import PROGRAMS, Block, Shell, blocks, commands_in_text
from tests.readme import PAGES, ROOT

yaml = pytest.importorskip("yaml")

SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
KUBECTL = shutil.which("kubectl")
DEBIANS_UNITS = ("prometheus", "prometheus-alertmanager")
HOOK = "tests/integration/hook/test_readme_lines.py"
INSTALL = "tests/integration/node/test_install.py::test_installing_twice_loses_nothing"

# Where a block is only read here, or run with programs that are not the real ones: the test that does more.
TRIED_BY = {
    "README.md: import stallwatch … save()": f"{HOOK}::test_the_lines_of_a_training_script_run",
    "README.md: import stallwatch … ransformers.callback()])": (
        f"{HOOK}::test_the_lines_for_lightning_and_hugging_face_run"
    ),
    "README.md: python -m stallwatch.run … .run train.py --epochs 3": (
        f"{HOOK}::test_the_commands_that_need_no_edit_run"
    ),
    "README.md: stallwatch daemon & … tallwatch.run train.py &": (
        f"{HOOK}::test_a_user_without_root_watches_his_own_job_with_the_two_lines"
    ),
    "README.md: bash deploy/demo.sh … up and passes the tests": (
        "tests/e2e/test_demo.py::test_the_default_demo_is_right_and_leaves_nothing_behind"
    ),
    "README.md: bash deploy/install.sh … stallwatch status": INSTALL,
    "deploy/docs/install.md: bash deploy/install.sh … bash deploy/install.sh": INSTALL,
    'deploy/docs/alerts.md: import hashlib, hmac, ti … - int(given["t"])) < 300': (
        "tests/integration/outputs/test_webhook.py::test_the_documents_receiver_knows_a_genuine_message_from_another"
    ),
    "deploy/docs/verdicts.md: $ printf '[tell]\\nstorag … […]": (
        "tests/unit/test_readme.py::test_the_example_of_replay_prints_what_it_shows"
    ),
}
PICTURES = ("README.md: training process … no I/O         does I/O",)  # nothing in them can be run
BLOCKS = [pytest.param(block, id=f"{block.page}:{block.line}") for block in blocks()]


def test_every_test_that_is_said_to_try_a_block_is_there_and_so_is_its_block() -> None:
    assert {*TRIED_BY, *PICTURES} <= {block.name for block in blocks()}
    for test in set(TRIED_BY.values()):
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.mark.parametrize("block", BLOCKS)
def test_what_is_printed_works(block: Block, tmp_path: Path) -> None:
    if block.name not in PICTURES:
        assert block.language in READERS, f"who reads {block.language or 'a block without a language'}?"
        READERS[block.language](block, tmp_path)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_commands_within_the_text_work(page: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for command in commands_in_text(page):
        each_is_answered(shell.run(command), tmp_path, mentioned=True)


def bash(block: Block, place: Path) -> None:
    shell = Shell(place)
    for deployed, where in (
        ("prometheus/prometheus.yml", "prometheus.yml"), ("alertmanager/alertmanager.yml", "alertmanager.yml")
    ):  # fmt: skip
        shutil.copy(ROOT / "deploy" / deployed, shell.etc / "prometheus" / where)
    text = block.text
    if "$password" in text and "password=" not in text:  # of the block before it
        text = f"password=x\n{text}"
    asked = shell.run(text)
    assert asked or block.name in TRIED_BY
    each_is_answered(asked, place)
    if "sinfo" in text:
        (found,) = (shell.etc / "prometheus" / "stallwatch").iterdir()
        assert json.loads(found.read_text()) == [{"targets": ["node1:9477", "node2:9477"]}]
    if SHELLCHECK is not None:
        # SC2034: what the next block uses.
        command = [SHELLCHECK, "--shell=bash", "--severity=warning", "--exclude=SC2034", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.stdout == ""


def console(block: Block, place: Path) -> None:
    assert block.name in TRIED_BY


def python(block: Block, place: Path) -> None:
    compile(block.text, block.page, "exec")
    if block.name not in TRIED_BY:
        subprocess.run([sys.executable, "-c", block.text], cwd=place, check=True, timeout=60)


def toml(block: Block, place: Path) -> None:
    (place / "config.toml").write_text(block.text)
    config.load(place / "config.toml", {}, strict=True)


def fstab(block: Block, place: Path) -> None:
    """A line of /etc/fstab: the directory of records, for the users that the installation makes."""
    _, where, kind, options, dump, check = block.text.split()
    assert (where, kind, dump, check) == ("/run/stallwatch/ranks", "tmpfs", "0", "0")
    said = dict(option.partition("=")[::2] for option in options.split(","))
    assert {said["uid"], said["gid"]} <= users()
    # The directory's line of tmpfiles.d must not take back what the mount said.
    made = re.search(rf"^d {where} (\d+) (\S+) (\S+)", text_of("systemd/stallwatch.tmpfiles"), re.MULTILINE)
    assert made is not None
    assert made.groups() == (said["mode"], said["uid"], said["gid"])


def yaml_piece(block: Block, place: Path) -> None:
    """A piece of Prometheus' or Alertmanager's configuration, merged into the one that ships."""
    said = yaml.safe_load(block.text)
    prometheus = yaml.safe_load(text_of("prometheus/prometheus.yml"))
    prometheus["rule_files"] = []
    if "routes" in said:
        alertmanager = yaml.safe_load(text_of("alertmanager/alertmanager.yml"))
        alertmanager["route"]["routes"] += said["routes"]
        alertmanager["receivers"] += [{"name": route["receiver"]} for route in said["routes"]]
        shutil.copy(ROOT / "deploy" / "alertmanager" / "stallwatch.tmpl", place)
        checked(place, ["amtool", "check-config"], alertmanager)
    elif "scrape_configs" in said:
        checked(place, ["promtool", "check", "config"], prometheus | said)
    else:
        (key,) = said
        assert key == "metric_relabel_configs"
        prometheus["scrape_configs"][0] |= said
        checked(place, ["promtool", "check", "config"], prometheus)
        drops = re.compile(said[key][0]["regex"])
        dropped = {name for name in exported() if drops.fullmatch(name)}
        assert len(dropped) > 10
        for needs in ("deploy/prometheus/stallwatch.rules.yml", "dashboards/fleet.json"):
            needed = re.findall(r"stallwatch_[a-z_]+", (ROOT / needs).read_text(encoding="utf-8"))
            assert not dropped & set(needed), needs


def text_block(block: Block, place: Path) -> None:
    """What we print ourselves: samples of metrics by name and labels; a verdict by the words it always has."""
    if block.text.startswith("stallwatch_"):
        labels = set(re.findall(r"(\w+)=", block.text))
        name = block.text.partition("{")[0]
        line = next(line for line in metric_table.reference() if line.startswith(f"| `{name}` |"))
        assert labels <= set(re.findall(r"`(\w+)`", line))
    else:
        verdict = make_report(load([ROOT / "tests" / "bundles" / "nccl-lock_without_py_spy"])).verdicts[0]
        printed = without_names("\n".join(verdict_lines(verdict)))
        for pattern in (r"^  ([a-z]+ {2,})", r"^ {12}(.* \(.*\))$"):  # the names of its lines; its facts
            said = re.findall(pattern, without_names(block.text), re.MULTILINE)
            assert said
            assert not [words for words in said if " ".join(words.split()) not in " ".join(printed.split())]


def without_names(text: str) -> str:
    return re.sub(r"\d+", "1", re.sub(r"/\S+\s+in\s+\w+", "PLACE", text))


READERS: dict[str, Callable[[Block, Path], None]] = {
    "bash": bash, "console": console, "fstab": fstab, "python": python, "text": text_block, "toml": toml,
    "yaml": yaml_piece,
}  # fmt: skip


def checked(place: Path, command: list[str], configuration: object) -> None:
    (place / "configuration.yml").write_text(yaml.safe_dump(configuration))
    if shutil.which(command[0]) is not None:
        done = subprocess.run([*command, "configuration.yml"], cwd=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def text_of(deployed: str) -> str:
    return (ROOT / "deploy" / deployed).read_text(encoding="utf-8")


def users() -> set[str]:
    return set(re.findall(r"^u (\S+)", text_of("systemd/stallwatch.sysusers"), re.MULTILINE))


def exported() -> list[str]:
    return re.findall(r"^\| `(stallwatch_\w+)`", "\n".join(metric_table.reference()), re.MULTILINE)


# What may be asked of each program. Each has one, or the reason why what it is asked is not looked at.


def each_is_answered(asked: list[list[str]], place: Path, mentioned: bool = False) -> None:
    """Look at each call by what may be asked of its program; what is only mentioned may lack its arguments."""
    for program, *words in asked:
        ask = ANSWERS[program]
        try:
            if not isinstance(ask, str):
                ask(words, place)
        except click.MissingParameter:
            if not mentioned:
                raise


def of_stallwatch(words: list[str], place: Path) -> None:
    """It is a command with these options and as many arguments (whether a file of the example exists is no matter)."""
    command: click.Command = stallwatch
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    with pytest.MonkeyPatch.context() as patch:
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                patch.setattr(parameter.type, "exists", False)
        command.make_context("stallwatch", list(words))


def of_bash(words: list[str], place: Path) -> None:
    script, *options = words
    program = (ROOT / script).read_text(encoding="utf-8")
    if script == "deploy/demo.sh":
        assert 'stallwatch" demo "$@"' in program
        of_stallwatch(["demo", *options], place)
    elif script != "tests/run.sh":  # whose options are pytest's
        assert all(option in program for option in options if option.startswith("-")), words


def of_python(words: list[str], place: Path) -> None:
    assert words[0] == "-m"
    assert importlib.util.find_spec(words[1]) is not None, words


def of_torchrun(words: list[str], place: Path) -> None:
    words = [word for word in words if word != "X"]
    while words and words[0] != "-m":
        assert words[0] in ("--nproc-per-node", "--log-dir", "--redirects")
        words = words[2:]
    if words:
        of_python(words, place)


def of_pip(words: list[str], place: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert words[0] == "install"
    for word, value in zip(words[1:], [*words[2:], ""], strict=True):
        if word == "-r":
            assert (ROOT / value).is_file()
        elif word.startswith("-"):
            assert word in ("--require-hashes", "--no-deps", "--no-index", "--find-links")
        elif word.startswith("."):
            assert word == "." or word[2:-1] in extras, word


def of_systemctl(words: list[str], place: Path) -> None:
    verb, unit = words
    assert verb in ("reload", "status")
    if unit not in DEBIANS_UNITS:
        made = configparser.ConfigParser(strict=False, interpolation=None)
        made.optionxform = str  # type: ignore[assignment,method-assign]
        made.read_string(text_of(f"systemd/{unit}.service"))
        assert verb == "status" or "ExecReload" in made["Service"]


def of_install(words: list[str], place: Path) -> None:
    """The file has come to be where configurations that ship look for it, for a group that there is."""
    assert words[words.index("-m") + 1] in ("0640", "0644")
    if "-g" in words:
        assert words[words.index("-g") + 1] in (*users(), "prometheus")
    assert words[-2] == "/dev/stdin" or (ROOT / words[-2]).is_file()
    target = words[-1]
    shipped = {f"/etc/prometheus/{name}" for name in ("stallwatch-slack-url", "")} | {"/etc/stallwatch/slack-url"}
    assert target in shipped
    assert (place / target[1:]).exists()


def of_usermod(words: list[str], place: Path) -> None:
    assert words[0] == "-aG"
    assert words[1] in users()


def of_kubectl(words: list[str], place: Path) -> None:
    if words[:2] == ["-n", "stallwatch"]:
        words = words[2:]
    if words == ["exec"]:
        return  # its name alone
    if words[0] == "exec":
        (daemon_set,) = yaml.safe_load_all(text_of("kubernetes/base/daemonset.yaml"))
        assert words[1] == f"ds/{daemon_set['metadata']['name']}"
        assert words[3] in {one["name"] for one in daemon_set["spec"]["template"]["spec"]["containers"]}
        of_stallwatch(words[words.index("--") + 2 :], place)
    elif words[:2] == ["apply", "-k"]:
        assert list((ROOT / words[2]).glob("kustomization.yaml")), words
        if KUBECTL is not None:
            kubectl("kustomize", str(ROOT / words[2]))
    elif words[0] == "create":
        secrets_are_what_is_mounted(words)
        if KUBECTL is not None:
            kubectl(*words, "--dry-run=client", "--output=name")
    else:
        assert words[0] == "get"


def kubectl(*words: str) -> None:
    assert KUBECTL is not None
    # Without a cluster's address: what is asked here needs none.
    done = subprocess.run(
        [KUBECTL, *words], capture_output=True, text=True, env={**os.environ, "KUBECONFIG": os.devnull}
    )
    assert done.returncode == 0, done.stderr


def secrets_are_what_is_mounted(words: list[str]) -> None:
    """A secret's name is one that a pod mounts, and each of its keys a file that somebody reads there."""
    if words[1] == "secret":
        made = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
        made += text_of("kubernetes/base/config.toml")
        assert re.search(rf"secretName: {words[3]}\b", made)
        for word in words[4:]:
            key = word.removeprefix("--from-literal=").partition("=")[0]
            assert re.search(rf"/{re.escape(key)}\b", made), key


def of_podman(words: list[str], place: Path) -> None:
    assert words[0] == "build"
    assert (ROOT / words[words.index("-f") + 1]).is_file()
    kustomization = yaml.safe_load(text_of("kubernetes/base/kustomization.yaml"))
    (image,) = kustomization["images"]
    assert words[words.index("-t") + 1] == f"{image['newName']}:{image['newTag']}"


def of_curl(words: list[str], place: Path) -> None:
    assert re.fullmatch(r"(http://)?(NODE|127\.0\.0\.1):9477/readyz", words[0])


def of_rm(words: list[str], place: Path) -> None:
    assert words[0] == "-r"
    assert words[1].startswith("/var/lib/stallwatch/incidents/JOB-")


def of_uv(words: list[str], place: Path) -> None:
    comment = re.findall(r"^# *(.*)$", text_of("requirements.lock"), re.MULTILINE)
    assert " ".join(["uv", *words]) in " ".join(" ".join(comment).split())


ANSWERS: dict[str, Callable[[list[str], Path], None] | str] = {
    "amtool": "checks the file that the block names; ours is checked by tests/e2e/test_alertmanager.py",
    "bash": of_bash, "curl": of_curl, "install": of_install, "kubectl": of_kubectl, "pip": of_pip,
    "pipx": "needs the network",
    "podman": of_podman,
    "promtool": "checks the file that the block names; ours is checked by tests/integration/outputs/test_rules.py",
    "py-spy": "needs a process that stands", "python": of_python, "rm": of_rm,
    "sinfo": "gives the names of two nodes", "srun": "its mounts are Slurm's matter",
    "stallwatch": of_stallwatch, "systemctl": of_systemctl, "systemd-analyze": "asks a running systemd",
    "torchrun": of_torchrun, "usermod": of_usermod, "uv": of_uv,
}  # fmt: skip


def test_each_program_has_an_answer() -> None:
    assert set(PROGRAMS) == set(ANSWERS)
