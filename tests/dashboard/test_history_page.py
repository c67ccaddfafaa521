"""What a node did over minutes and days, in a real browser."""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prontosched.agent.store.decision_log import DecisionLog, DecisionRow
from prontosched.agent.store.directions import pack
from tests.dashboard.conftest import Start, Watched, fetch, planted, until

DAY = 86400
RANGES = ("30 min", "3 h", "12 h", "2 days", "7 days")
TRACKS = "tracks.map((one) => [one.time, one.low, one.high, one.begun])"
MANY = 20


def kill(url: str) -> float:
    """End an agent at once, and return when."""
    os.kill(fetch(url + "/v1/status")["pid"], signal.SIGKILL)
    return time.time()


def chart(page: Any, name: str) -> None:
    page.click(f"#ranges button:has-text('{name}')")
    until(page, "!document.getElementById('ready-text').textContent.startsWith('Reading')")
    page.wait_for_timeout(200)


@pytest.fixture(scope="module")
def week(start: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An agent whose log has a week of three directions; the second is another one since three days."""
    folder = tmp_path_factory.mktemp("week")
    now = time.time()
    log = DecisionLog(folder / "trace.decisions.sqlite")

    def row(t: int) -> DecisionRow:
        turned = int(t == -3 * DAY)
        spikes = [int(t % 600 == 0), -int(t % 1200 == 0), 0]
        packed = pack([np.sin(t / 9000), 5.0 if t >= -3 * DAY else -5.0, 1.0], spikes, [0, turned, 0])
        return DecisionRow(now + t, "week", False, True, 0.1, 1.0, 1.0, 20.0, 1.0, None, packed)

    for begin in range(-7 * DAY, 0, DAY // 4):
        log.write(row(t) for t in range(begin, begin + DAY // 4, 120))
    log.close()
    trace = planted(folder / "week.csv")
    return start("--trace", trace, "--repeat", "--interval", "5", "--state", str(folder))


def test_projections_with_their_spikes_are_there_for_all_ranges(
    browser: Any, week: str, artefacts: Path
) -> None:
    with Watched(browser, week + "/", size=(1280, 900)) as watched:
        page = watched.page
        until(page, "document.querySelectorAll('#ranges button').length === 6")
        for name in RANGES:
            chart(page, name)
            until(
                page,
                "document.getElementById('projections-chart').getAttribute('aria-label').includes('3 projections')",
            )
            told = page.get_attribute("#projections-chart", "aria-label")
            shown = page.evaluate(
                "projectionChart.shown.lanes.map((lane) => lane.ribbon.map((one) => one[3]))"
            )

            assert ", 0 spikes" not in told, name
            assert max(value for value in shown[0] if value is not None) <= 1.001, name
        page.screenshot(path=artefacts / "node-week.png")
        page.focus("#projections-chart")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")

        assert " to " in page.inner_text("#projections-chart + .told")
        assert watched.complaints == []


def test_no_line_is_drawn_through_where_a_direction_became_another(browser: Any, week: str) -> None:
    with Watched(browser, week + "/") as watched:
        page = watched.page
        until(page, "document.querySelectorAll('#ranges button').length === 6")
        chart(page, "7 days")
        until(page, "projectionChart.shown.lanes.length === 3")
        found = page.evaluate(
            "projectionChart.shown.lanes.map((lane) => pieces(lane.ribbon, gap()).map((one) => one.length))"
        )
        since = page.evaluate("pieces(projectionChart.shown.lanes[1].ribbon, gap())[1][0][0]")

        assert [len(pieces) for pieces in found] == [1, 2, 1]
        assert abs(since - (time.time() - 3 * DAY)) < 2000


def test_live_and_kept_projections_join_after_a_reload_and_after_a_kill(
    browser: Any, start: Start, tmp_path: Path
) -> None:
    options = ("--trace", planted(tmp_path / "web.csv"), "--repeat", "--interval", "0.1")
    options = (*options, "--state", str(tmp_path / "state"))
    url = start(*options)
    with Watched(browser, url + "/") as watched:
        until(watched.page, "tracks.length >= 80", timeout=60000)
        live = {round(one[0], 1): one for one in watched.page.evaluate(TRACKS)}
        killed = kill(url)
        url = start(*options)
        watched.page.goto(url + "/")
        until(watched.page, f"tracks.filter((one) => one.time > {killed}).length >= 20", timeout=60000)
        after = watched.page.evaluate(TRACKS)
    before = [one for one in after if one[0] < killed]
    since = [one for one in after if one[0] > killed]
    scale = max(abs(value) for one in live.values() for value in one[1])
    # What the log has of a moment lies within what was seen live around it. The first and the
    # last moments may be seen in part, and a stall may push one apart from its neighbours.
    apart = [
        min(
            np.abs(np.array(was[1]) - np.clip(was[1], one[1], one[2])).max()
            for time_, was in live.items()
            if abs(time_ - one[0]) <= 0.7
        )
        for one in before
        if live and any(abs(time_ - one[0]) <= 0.7 for time_ in live)
    ]

    assert len(before) >= 12
    assert killed - before[-1][0] < 15.0
    assert len(apart) >= 10
    assert np.quantile(apart, 0.85, method="lower") <= 0.002 * scale
    assert not any(any(one[3]) for one in since[:5])  # warm: the same directions go on
    assert all(a[0] < b[0] for a, b in itertools.pairwise(after))


def test_a_broken_stream_is_mended_from_the_log(browser: Any, start: Start, tmp_path: Path) -> None:
    url = start(
        "--trace", planted(tmp_path / "gap.csv"), "--repeat", "--interval", "0.1", "--state", str(tmp_path)
    )
    with Watched(browser, url + "/") as watched:
        page = watched.page
        until(page, "tracks.length > 60", timeout=60000)
        # As if nothing had been received for four seconds.
        page.evaluate(
            """() => {
              const now = recent[recent.length - 1].time;
              recent = recent.filter((one) => one.time < now - 4);
              tracks = tracks.filter((one) => one.time < now - 4);
            }"""
        )
        gap = "(list) => list.slice(1).reduce((most, one, i) => Math.max(most, one.time - list[i].time), 0)"
        until(page, f"recent.length > 10 && ({gap})(recent) < 2 && ({gap})(tracks) < 2", timeout=20000)

        assert page.evaluate("recent.every((one, i) => i === 0 || one.time > recent[i - 1].time)")


def test_a_node_of_many_has_a_week_that_survives_a_kill(
    browser: Any, start: Start, tmp_path: Path, artefacts: Path
) -> None:
    names = [f"generated-{i:02d}" for i in range(MANY)]
    now = time.time()
    log = DecisionLog(tmp_path / "generated.decisions.sqlite")
    steps = [
        DecisionRow(now + t, name, k == 3, k != 3, 0.0, math.nan, 2.0 + k, math.nan, math.nan, None)
        for t in range(-7 * DAY, 0, 120)
        for k, name in enumerate(names)
    ]
    for begin in range(0, len(steps), 2000):
        log.write((), steps[begin : begin + 2000])
    log.close()
    options = ("--synthetic", str(MANY), "--state", str(tmp_path), "--interval", "0.5")
    for turn in range(2):
        url = start(*options)
        with Watched(browser, f"{url}/?node={names[3]}", size=(1280, 900)) as watched:
            page = watched.page
            until(page, "document.querySelectorAll('#ranges button').length === 6")
            until(page, "recent.length > 5")
            for name in ("3 h", "7 days"):
                chart(page, name)
                until(
                    page,
                    "(name) => document.getElementById('ready-text').textContent.startsWith(`Over ${name}`)",
                    arg=name,
                )
                assert "refusing" in page.inner_text("#ready-text"), name
            share = float(page.inner_text("#ready-text").rpartition("refusing ")[2].split(" %")[0])
            pieces = page.evaluate(
                "pieces(readyChart.shown.lanes[0].lines[0].points.map(([t, v, s]) => [t, v, s, v]), gap()).length"
            )
            page.screenshot(path=artefacts / "node-of-many-week.png")

            assert share > 99.0
            assert pieces == 1
            assert "only the last minutes" in page.inner_text("#projections-key")
            assert watched.complaints == []
        if turn == 0:
            time.sleep(1.0)
            kill(url)
