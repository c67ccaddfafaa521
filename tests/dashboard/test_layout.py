"""Everything in sight on a wall screen, nothing sideways on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import Start, Watched, fetch, planted, until

BARS = "document.querySelectorAll('{} .bar').length >= {}"
FILLED = {
    "node": f"{BARS.format('.direction', 4)} && {BARS.format('#drivers', 1)}",
    "member": BARS.format(".direction", 4),
    "fleet": f"{BARS.format('#outliers', 1)} && document.getElementById('saved').textContent !== ''",
}
SIZES = """() => {
  const root = document.documentElement;
  return [root.scrollWidth, innerWidth, root.scrollHeight, innerHeight];
}"""
# What a card holds that is not to be seen: cut off, or below the screen.
HIDDEN = """() => [...document.querySelectorAll('.card')].filter((card) => !card.hidden).filter((card) => {
  const box = card.getBoundingClientRect();
  const inside = [...card.children].every((child) => child.getBoundingClientRect().bottom <= box.bottom + 1);
  return !inside || card.scrollHeight > card.clientHeight + 1 || box.bottom > innerHeight + 1;
}).map((card) => card.className)"""
# Words that run over others within a card.
# Figures, and words of a head, that are cut over several lines.
BROKEN = """() => Array.from(document.querySelectorAll("td:not(:first-child), th")).filter((one) => {
    const text = document.createRange();
    text.selectNodeContents(one);
    const lines = new Set(Array.from(text.getClientRects(), (box) => box.top)).size;
    return lines > (one.tagName === "TH" ? one.textContent.split(" ").length : 1);
}).map((one) => one.textContent)"""
OVERLAPS = """() => [...document.querySelectorAll('.card')].flatMap((card) => {
  const boxes = [...card.querySelectorAll('h2, h3, p:not(.told), dt, dd, .bar')]
    .filter((one) => one.textContent.trim() && one.getClientRects().length)
    .map((one) => [one, one.getBoundingClientRect()]);
  const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2;
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1)
    .filter(([b, q]) => !a.contains(b) && !b.contains(a) && meet(p, q))
    .map(([b]) => `${a.textContent} / ${b.textContent}`));
})"""


@pytest.fixture(scope="module")
def pages(
    start: Start, hundreds: str, dozen: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """A node that has refused, a node of a crowd, and two fleets."""
    folder = tmp_path_factory.mktemp("wall")
    trace = planted(folder / "web-17.example.org.csv", quiet=60, busy=40)
    node = start("--trace", trace, "--repeat", "--interval", "0.1", "--state", str(folder / "state"))
    name = fetch(hundreds + "/v1/nodes")["nodes"][7]["node"]
    return {
        "node": node + "/",
        "member": f"{hundreds}/?node={name}",
        "fleet": hundreds + "/fleet",
        "dozen fleet": dozen + "/fleet",
    }


def filled(watched: Watched, name: str) -> None:
    until(watched.page, "document.getElementById('link').textContent === 'live'")
    until(watched.page, FILLED[name.split()[-1]], timeout=60000)
    watched.page.wait_for_timeout(200)


@pytest.mark.parametrize("size", [(1920, 1080), (3840, 2160)], ids=["hd", "4k"])
def test_a_wall_screen_shows_everything_at_once(
    browser: Any, pages: dict[str, str], artefacts: Path, size: tuple[int, int]
) -> None:
    for name, url in pages.items():
        with Watched(browser, url, size=size, color_scheme="dark" if size[0] > 2000 else "light") as watched:
            filled(watched, name)
            wide, room, tall, high = watched.page.evaluate(SIZES)
            watched.page.screenshot(path=artefacts / f"wall-{name.replace(' ', '-')}-{size[1]}.png")

            assert tall <= high, name
            assert wide <= room, name
            assert watched.page.evaluate(HIDDEN) == [], name
            assert watched.page.evaluate(OVERLAPS) == [], name


def test_a_wall_screen_has_room_for_a_long_reason(browser: Any, pages: dict[str, str]) -> None:
    reason = "CPU Ready 46 % expected within 5 s; driven by CPU Ready now and by what run_queue did; " * 2
    with Watched(browser, pages["node"], size=(1920, 1080)) as watched:
        filled(watched, "node")
        watched.page.evaluate(
            """(words) => {
              document.getElementById('reason').textContent = words;
              document.getElementById('last-words').textContent = words;
            }""",
            reason,
        )

        assert watched.page.evaluate(HIDDEN) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways(
    browser: Any, pages: dict[str, str], artefacts: Path, scheme: str
) -> None:
    for name in ("node", "fleet"):
        with Watched(
            browser, pages[name], size=(390, 844), color_scheme=scheme, has_touch=True, device_scale_factor=2
        ) as watched:
            filled(watched, name)
            wide, room, _, _ = watched.page.evaluate(SIZES)
            watched.page.screenshot(path=artefacts / f"phone-{name}-{scheme}.png", full_page=True)

            assert wide <= room == 390, name
            assert watched.page.evaluate(OVERLAPS) == [], name
            assert watched.page.evaluate(BROKEN) == [], name
