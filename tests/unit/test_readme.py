"""The README and its pages say what the code does."""

import re
import time
from pathlib import Path

import pytest

from stallwatch.cli.app import run
from stallwatch.outputs import webhook
from tests.printed import blocks
from tests.readme import BLOCKS, DOCS, PAGES, README, ROOT, SCHEMA, rendered

EVERY_PAGE = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]


def test_the_readme_can_be_read_at_once() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("name", BLOCKS)
def test_generated_parts_equal_the_code(name: str) -> None:
    assert rendered(name) == (DOCS / f"{name}.md").read_text(encoding="utf-8"), "run `python -m tests.readme`"


def test_the_published_schema_of_webhooks_is_the_codes() -> None:
    assert SCHEMA.read_bytes() == webhook.schema(), "run `python -m tests.readme`"


def test_every_page_is_linked() -> None:
    linked = {(page.parent / path.partition("#")[0]).resolve() for page in PAGES for path in links(page)}
    assert set(PAGES) - {README} <= linked
    assert set(DOCS.glob("*.md")) <= {(README.parent / path).resolve() for path in links(README)}


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


def test_every_name_that_the_map_says_is_in_a_file_is_there() -> None:
    """Written as `name` (`file.py`), or `name`, `other` (`file.py`)."""
    text = (ROOT / "monitor" / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"((?:`\w+`, )*`\w+`) \(`([\w/]+\.py)`\)", text)
    assert len(said) > 15
    code = {file: (ROOT / "monitor" / "stallwatch" / file).read_text(encoding="utf-8") for _, file in said}
    missing = [
        (name, file)
        for names, file in said
        for name in re.findall(r"\w+", names)
        if not re.search(rf"^\s*(?:def|class) {name}\b|^{name}\b.*=", code[file], re.MULTILINE)
    ]
    assert missing == []


def test_the_example_of_replay_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = (one.text for one in blocks() if one.language == "console")
    assert " stallwatch replay tests/" in block
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
