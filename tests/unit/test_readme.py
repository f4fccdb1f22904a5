"""The README and its pages say what the code does."""

import importlib.util
import re
import shlex
import time
from pathlib import Path

import click
import pytest

from stallwatch import config
from stallwatch.cli.app import run, stallwatch
from stallwatch.outputs import webhook
from tests.readme import BLOCKS, DOCS, PAGES, README, ROOT, SCHEMA, rendered

EVERY_PAGE = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]


def test_the_readme_can_be_read_at_once() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("name", BLOCKS)
def test_generated_parts_equal_the_code(name: str) -> None:
    assert rendered(name) == (DOCS / f"{name}.md").read_text(encoding="utf-8"), "run `python -m tests.readme`"


def test_the_published_schema_of_webhooks_is_the_codes() -> None:
    assert SCHEMA.read_bytes() == webhook.schema(), "run `python -m tests.readme`"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(README.parent / path).resolve() for path in links(README)}
    assert set(PAGES) - {README} <= linked


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_link_leads_somewhere(page: Path) -> None:
    for path in links(page):
        file, _, anchor = path.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles], path


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [path for path in found if "://" not in path]


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_file_it_names_exists(page: Path) -> None:
    places = (ROOT, ROOT / "monitor" / "stallwatch", page.parent)
    named = {
        word.strip("`(),;:.")
        for word in page.read_text(encoding="utf-8").split()
        if word.startswith("`") and "/" in word and word.rstrip("`(),;:.").endswith((".py", ".sh"))
    }
    assert not [path for path in sorted(named) if not any((place / path).exists() for place in places)]


def test_the_example_of_replay_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "verdicts.md").read_text(encoding="utf-8")
    block = next(one for one in page.split("```\n") if " stallwatch replay tests/" in one)
    shown = [line for line in block.splitlines() if not line.startswith(("$", "[…]"))]
    (tmp_path / "sooner.toml").write_text("[tell]\nstorage_seconds = 5.0\nsettle_seconds = 0.0\n")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert run(["replay", "tests/replay/recorded-checkpoint", "--config", "sooner.toml"]) == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    printed = capsys.readouterr().out
    for line in shown:
        assert f"\n{line.removesuffix(' […]')}" in f"\n{printed}"


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_piece_of_configuration_that_it_shows_is_one(page: Path, tmp_path: Path) -> None:
    shown = re.findall(r"^```toml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for piece in shown:
        (tmp_path / "config.toml").write_text(piece)
        config.load(tmp_path / "config.toml", {}, strict=True)


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_command_that_it_prints_exists_with_its_options(page: Path) -> None:
    for line in printed_commands(page):
        words = shlex.split(line, comments=True)
        command: click.Command = stallwatch
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words.pop(0).partition("|")[0])
            assert found is not None, line
            command = found
        known = {"--help", "--version"}.union(*((*one.opts, *one.secondary_opts) for one in command.params))
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, line


def printed_commands(page: Path) -> list[str]:
    """What stands behind `stallwatch` in its code, brackets of what may be left out taken away."""
    text = re.sub(r"\\\|", "|", page.read_text(encoding="utf-8"))
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in fenced for line in block.splitlines()]
    lines += re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    found = [re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*stallwatch (.*)", " ".join(line.split())) for line in lines]
    return [match[1].translate({ord(mark): None for mark in "[]…"}).rstrip("& ") for match in found if match]


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_script_and_module_that_it_prints_is_there_with_its_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for script, options in re.findall(r"bash (deploy/\S+\.sh|tests/run\.sh)((?: --[a-z]+)*)", text):
        program = (ROOT / script).read_text(encoding="utf-8")
        passed_on = "demo" if 'stallwatch" demo "$@"' in program else None
        known = {option for one in _options(passed_on) for option in one} if passed_on else program
        assert not [option for option in options.split() if option not in known], (script, options)
    for module in re.findall(r"python -m (stallwatch[\w.]*|tests[\w.]*)", text):
        assert importlib.util.find_spec(module) is not None, module


def _options(command: str) -> list[list[str]]:
    found = stallwatch.get_command(click.Context(stallwatch), command)
    assert found is not None
    return [[*one.opts, *one.secondary_opts] for one in found.params]


# Nobody has registered our name on the index: what somebody else could put there must not be installed by our word.
BY_NAME = re.compile(r"pip install(?: (?!--no-index)[^ '`\"]+)* ['\"]?stallwatch(?![\w'])")


def test_nothing_that_we_print_is_installed_from_an_index_by_our_name() -> None:
    sources = [path for path in (ROOT / "monitor").rglob("*") if path.suffix in (".py", ".toml")]
    scripts = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".sh", ".md", ".yaml", ".toml")]
    said = [
        (str(path.relative_to(ROOT)), line)
        for path in (*PAGES, *sources, *scripts)
        for line in path.read_text(encoding="utf-8").splitlines()
        if BY_NAME.search(line)
    ]
    assert said == []
