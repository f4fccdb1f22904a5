"""The README and its pages say what the code does."""

import re
import time
from pathlib import Path

import pytest

from stallwatch import config
from stallwatch.cli.app import COMMANDS, run
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
def test_every_command_that_it_names_exists(page: Path) -> None:
    named = re.findall(r"`stallwatch ([a-z][a-z-]*)\b", page.read_text(encoding="utf-8"))
    assert set(named) <= set(COMMANDS)
