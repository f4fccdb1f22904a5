"""The system's Chromium under Playwright: what a person sees, and what the page asks for."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.integration.outputs.serving import Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE, PHONE = (1200, 900), (390, 844)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


class Opened(NamedTuple):
    page: Any  # playwright.sync_api.Page
    complaints: list[str]  # of the console, and errors of scripts
    hosts: set[str]  # that the page asked for anything


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that finds no other host than this one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox", "--no-proxy-server", "--disable-background-networking", "--disable-component-update"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, url: str, size: tuple[int, int] = WIDE, theme: str = "light") -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(20_000)
    made = Opened(page, [], set())
    page.on("console", lambda message: made.complaints.append(message.text))
    page.on("pageerror", lambda error: made.complaints.append(str(error)))
    page.on("request", lambda request: made.hosts.add(urlsplit(request.url).netloc))
    page.goto(url)
    try:
        yield made
    finally:
        context.close()


def address(node: Served) -> str:
    """The URL of the page, with its token."""
    url = node.client.page_url()
    assert url is not None
    return url


def accuse(page: Any) -> list[str]:
    """What axe finds, as "rule: element"."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = axe.run(page).response["violations"]
    return [f"{rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]
