"""The federation on the fleet page, in a real browser."""

from __future__ import annotations

import json
from typing import Any

from tests.dashboard.conftest import NASTY, Watched, fetch, until


def test_the_tree_of_hundreds_of_nodes_shows_every_group(browser: Any, hundreds: str) -> None:
    with Watched(browser, hundreds + "/fleet") as watched:
        page = watched.page
        until(page, "document.querySelectorAll('#tree-list details').length >= 11", timeout=40000)
        found = fetch(hundreds + "/v1/federation")

        assert page.locator("#tree-list details").count() == len(found["groups"])
        assert "300 nodes in 10 groups under one root" in page.inner_text("#tree-words")
        assert page.evaluate("spots.length") >= 11
        page.focus("#tree")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#tree-pointed").startswith("root: 300 nodes")
        page.keyboard.press("ArrowRight")
        assert "32 nodes" in page.inner_text("#tree-pointed")


def test_a_small_tree_names_every_member_and_leads_to_it(browser: Any, dozen: str) -> None:
    with Watched(browser, dozen + "/fleet") as watched:
        page = watched.page
        until(page, "document.querySelectorAll('#tree-list a').length === 12")
        # The list is there at once, the drawing with the next frame.
        until(page, "spots.length === 13")
        page.click("#tree-list a >> nth=3")
        page.wait_for_url("**/?node=*")
        until(page, "document.getElementById('word').textContent.endsWith('jobs')")


def test_outliers_come_first_with_the_share_that_is_their_own(browser: Any, dozen: str) -> None:
    with Watched(browser, dozen + "/fleet") as watched:
        page = watched.page
        until(page, "document.querySelectorAll('#outliers .bar').length > 0", timeout=40000)
        shown = page.locator("#outliers .bar").all_inner_texts()
        shares = [int(text.splitlines()[-1].split()[0]) for text in shown]

        assert shares == sorted(shares, reverse=True)
        assert 0 <= shares[-1] <= shares[0] <= 100
        assert page.inner_text("#outliers-words")
        until(page, "/summar(y|ies) went up/.test(document.getElementById('saved').textContent)")
        assert "global view is made of 12 nodes" in page.inner_text("#tree-words")


def test_a_lone_agent_is_said_to_stand_alone(browser: Any, node: str) -> None:
    with Watched(browser, node + "/fleet") as watched:
        until(
            watched.page, "document.getElementById('tree-words').textContent === 'This agent stands alone.'"
        )

        assert watched.page.locator(".area-outliers").is_hidden()
        assert watched.page.locator("#tree").is_hidden()


def test_an_agent_that_knows_no_federation_is_said_to_stand_alone(browser: Any, node: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/v1/federation", lambda route: route.fulfill(status=404, body="{}"))
    page.goto(node + "/fleet")
    until(page, "document.getElementById('tree-words').textContent === 'This agent stands alone.'")
    context.close()


def test_any_tree_is_drawn_and_its_names_stay_text(browser: Any, node: str) -> None:
    """Three levels, two hundred groups, members without a decision and names with markup."""
    sites = [f"site-{i}" for i in range(20)]
    inner = [(f"{site}/row-{j}", site) for site in sites for j in range(9)]
    group = {"children": 1, "samples": 9.0, "age_seconds": None}
    groups = [{"name": "", "parent": None, "nodes": 1800, "refusing": 900, **group}]
    groups += [{"name": site, "parent": "", "nodes": 90, "refusing": None, **group} for site in sites]
    groups += [{"name": name, "parent": above, "nodes": 10, "refusing": 5, **group} for name, above in inner]
    member = {"parent": "site-0/row-0", "samples": 900.0, "age_seconds": 1.0, "reason": NASTY}
    members = [
        {"name": f"site-0/row-0/{NASTY}", "distance": 0.9, "accept": False, **member},
        {"name": "site-0/row-0/b", "distance": None, "accept": None, **member},
    ]
    answer = {
        "joined": True, "embedded": False, "connected": False, "revision": 3, "view_age_seconds": 7.0,
        "view_nodes": 1800, "nodes": 1800, "unreadable": 2, "groups": groups, "members": members, "more": 1798,
        "saved": {"messages_sent": 1, "messages_saved": 9, "share_saved": 0.9, "bytes_saved": 12345},
        "as_of": 0.0,
    }  # fmt: skip
    for width in (390, 1280):
        context = browser.new_context(viewport={"width": width, "height": 900})
        page = context.new_page()
        failures: list[str] = []
        page.on("pageerror", lambda error, kept=failures: kept.append(str(error)))
        page.route("**/v1/federation", lambda route: route.fulfill(body=json.dumps(answer)))
        page.goto(node + "/fleet")
        until(page, "document.querySelectorAll('#tree-list details').length === 201")
        until(page, "document.getElementById('tree').clientHeight > 60")

        assert failures == []
        assert NASTY in page.inner_text("#outliers")
        assert "81 %" in page.inner_text("#outliers")
        assert "2 messages could not be read" in page.inner_text("#tree-words")
        assert "9 more (90 %, 12 kB)" in page.inner_text("#saved")
        assert page.evaluate("document.querySelectorAll('main img').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        context.close()
