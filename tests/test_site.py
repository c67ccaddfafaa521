"""The pages make a site: every link leads somewhere, and its search works without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.requirements import require_program, skip

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("material") is None:
        skip("mkdocs-material", "pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_in_the_site_and_asks_no_other_server(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}

    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}
    for path in site.rglob("*.html"):
        asked = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)', path.read_text())
        assert asked == [], path


def test_search_finds_a_page_from_files_alone(site: Path) -> None:
    chromium = require_program("chromium", "chromium-browser", "google-chrome")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.route(
            "**/*", lambda route: route.abort() if "http" in route.request.url[:5] else route.continue_()
        )
        page.goto(f"file://{site}/index.html")
        page.keyboard.press("/")
        page.keyboard.type("capacity floor")
        page.wait_for_function(
            "document.querySelector('.md-search-result__meta').textContent.includes('matching document')",
            timeout=60_000,
        )
        found = page.inner_text(".md-search-result__list")
        browser.close()

    assert "federation" in found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_links_can_be_read_on_their_background(site: Path, scheme: str) -> None:
    chromium = require_program("chromium", "chromium-browser", "google-chrome")
    from playwright.sync_api import sync_playwright

    axe = (ROOT / "tests" / "data" / "axe" / "axe.min.js").read_text()
    run = """async () => {
        const found = await axe.run("main, header", { runOnly: ["color-contrast"] });
        return found.violations.flatMap((one) => one.nodes.map((node) => node.html));
    }"""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(color_scheme=scheme)
        page.goto(f"file://{site}/index.html")
        page.add_script_tag(content=axe)
        faint = page.evaluate(run)
        browser.close()

    assert faint == []
