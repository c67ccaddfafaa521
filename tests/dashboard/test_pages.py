"""The pages in a real browser."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.dashboard.conftest import Start

AXE = (Path(__file__).parent.parent / "data" / "axe" / "axe.min.js").read_text()
NASTY = "<img src=x onerror=alert(1)>&\"'"


def planted(path: Path, *, quiet: int = 120, busy: int = 80) -> str:
    """Write a trace in which contention comes with a rise of two metrics."""
    rng = np.random.default_rng(3)
    names = [f"metric_{i}" for i in range(10)] + ["run_queue", "fork_rate", NASTY.replace('"', '""')]
    rows = ["ready,utilisation," + ",".join(f'"{name}"' for name in names)]
    load = np.zeros(4)
    factors = rng.standard_normal((13, 4))
    for t in range(quiet + busy):
        load = 0.8 * load + 0.5 * rng.standard_normal(4)
        y = 20 + factors @ load + 0.3 * rng.standard_normal(13)
        contended = t >= quiet
        y[10:12] += 60.0 * contended
        ready = 45.0 + rng.normal() if contended else 0.3
        rows.append(f"{ready:.3f},{95 if contended else 30}," + ",".join(f"{v:.4f}" for v in y))
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def node(start: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("planted")
    trace = planted(folder / "planted.csv")
    return start("--trace", trace, "--repeat", "--interval", "0.1", "--state", str(folder / "state"))


@pytest.fixture(scope="module")
def fleet(start: Start) -> str:
    return start("--synthetic", "1000", "--no-keep", "--interval", "1")


def until(page: Any, condition: str, *, timeout: float = 20000, arg: Any = None) -> None:
    """Wait for a condition in the page; the page's own policy forbids the browser driver's way, which is eval."""
    end = time.monotonic() + timeout / 1000
    while time.monotonic() < end:
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"did not come true in {timeout} ms: {condition}")


class Watched:
    """A page whose complaints are kept."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(url)

    def serious(self) -> list[str]:
        """Return what axe-core finds that matters."""
        self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{v['id']}: {v['help']}" for v in found["violations"] if v["impact"] in ("serious", "critical")
        ]


def test_a_planted_contention_turns_the_decision_and_names_its_metrics(
    browser: Any, node: str, artefacts: Path
) -> None:
    watched = Watched(browser, node + "/")
    page = watched.page
    until(page, "document.getElementById('word').textContent === 'Accepting jobs'", timeout=15000)
    until(page, "document.getElementById('word').textContent === 'Refusing jobs'", timeout=40000)
    with urllib.request.urlopen(node + "/v1/recent", timeout=10) as answer:
        events = json.load(answer)["events"]
    began = next(i for i, e in enumerate(events) if (e["cpu_ready_percent"] or 0) > 20)
    turned = next(i for i, e in enumerate(events) if e["raised"])
    until(
        page,
        "document.getElementById('drivers').textContent.includes('run_queue') || "
        "document.getElementById('drivers').textContent.includes('fork_rate')",
        timeout=15000,
    )
    page.screenshot(path=artefacts / "node-light.png", full_page=True)

    assert turned - began <= 20
    assert watched.complaints == []
    assert all(url.startswith(node) for url in watched.requests)


def test_live_values_move(browser: Any, fleet: str) -> None:
    page = Watched(browser, fleet + "/fleet").page
    until(page, "document.getElementById('ready').textContent !== '–'", timeout=20000)
    first = page.inner_text("#ready") + page.inner_text("#refusing") + page.inner_text("#downtime")
    until(
        page,
        "(before) => ['ready','refusing','downtime'].map((i) => document.getElementById(i).textContent).join('')"
        " !== before",
        arg=first,
        timeout=20000,
    )


def test_names_with_markup_are_shown_as_text(browser: Any, node: str) -> None:
    page = Watched(browser, node + "/").page
    page.wait_for_selector(".direction", timeout=20000)

    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_both_pages_have_no_serious_barrier(browser: Any, node: str, fleet: str, artefacts: Path) -> None:
    for name, url, scheme in (
        ("node-dark", node + "/", "dark"),
        ("fleet-light", fleet + "/fleet", "light"),
        ("fleet-dark", fleet + "/fleet", "dark"),
        ("node-light", node + "/", "light"),
    ):
        watched = Watched(browser, url, color_scheme=scheme)
        watched.page.wait_for_timeout(1500)
        watched.page.screenshot(path=artefacts / f"{name}.png", full_page=True)

        # Injecting axe needs eval, which the page's own policy forbids: Playwright evaluates outside of it.
        assert watched.serious() == [], name


def test_nothing_overflows_on_a_phone(browser: Any, node: str, fleet: str, artefacts: Path) -> None:
    for name, url in (("node", node + "/"), ("fleet", fleet + "/fleet")):
        context = browser.new_context(viewport={"width": 375, "height": 740}, has_touch=True)
        page = context.new_page()
        page.goto(url)
        page.wait_for_timeout(1500)
        page.screenshot(path=artefacts / f"{name}-phone.png", full_page=True)

        assert page.evaluate("document.documentElement.scrollWidth") <= 375, name


def test_a_thousand_nodes_are_drawn_below_a_second(browser: Any, fleet: str) -> None:
    best = float("inf")
    for _ in range(10):
        watched = Watched(browser, fleet + "/fleet")
        until(watched.page, "performance.getEntriesByName('fleet-drawn').length > 0", timeout=20000)
        best = min(best, watched.page.evaluate("performance.getEntriesByName('fleet-drawn')[0].startTime"))
        if best < 1000:
            break

    until(watched.page, "document.getElementById('count').textContent === '1000'")

    assert best < 1000


def test_the_map_is_read_by_keyboard(browser: Any, fleet: str) -> None:
    page = Watched(browser, fleet + "/fleet").page
    until(page, "performance.getEntriesByName('fleet-drawn').length > 0", timeout=20000)
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")

    assert "CPU Ready" in page.inner_text("#pointed")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?node=*")
    until(page, "document.getElementById('word').textContent !== '…'", timeout=15000)


def test_pages_are_served_under_a_strict_policy_and_nothing_else_is(node: str) -> None:
    with urllib.request.urlopen(node + "/", timeout=10) as answer:
        policy = answer.headers["Content-Security-Policy"]
        body = answer.read().decode()

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in body
    assert " style=" not in body
    assert "http://" not in body.replace("http://www.w3.org", "")
    for path in ("/static/../app.py", "/static/app.py", "/static/%2e%2e/app.py"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(node + path, timeout=10)


def test_the_token_rule_holds_for_the_pages_too(browser: Any, start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sixteen-characters-or-more")
    url = start("--synthetic", "3", "--no-keep", "--token-file", str(token))
    for path in ("/", "/fleet", "/static/node.js"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url + path, timeout=10)
    context = browser.new_context(http_credentials={"username": "any", "password": token.read_text()})
    page = context.new_page()
    page.goto(url + "/fleet")
    until(page, "document.getElementById('count').textContent === '3'", timeout=20000)


def test_grafana_asks_only_for_metrics_that_are_served(node: str) -> None:
    import re

    dashboard = (Path(__file__).parent.parent.parent / "deploy" / "grafana" / "pronto.json").read_text()
    asked = set(
        re.findall(
            r"pronto_[a-z_]+", " ".join(re.findall(r'"(?:expr|query)": "([^"]*(?:\\"[^"]*)*)"', dashboard))
        )
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with urllib.request.urlopen(node + "/metrics", timeout=10) as answer:
            served = set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.MULTILINE))
        if asked <= served:
            break
        time.sleep(0.5)

    assert len(asked) > 10
    assert asked <= served
