"""The demo: its arithmetic, and a short run on this machine."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import Ran, Story, difference, report, timeline


def told(plain: list[float], through: list[float]) -> str:
    story = Story()
    story.bursts = [(2.0, 6.0)]
    story.states = [(0.0, "accepting"), (3.0, "refusing"), (7.0, "accepting")]
    story.probes = [("accepting", 1.0), ("accepting", 1.1), ("refusing", 3.0)]
    story.plain = [Ran(float(i), float(i), i + took, 1.0) for i, took in enumerate(plain)]
    story.through = [Ran(float(i), i + 1.0, i + 1.0 + took, 1.0) for i, took in enumerate(through)]
    return "\n".join(report(story, 20.0))


def test_a_difference_is_told_where_there_is_one_and_not_where_there_is_none() -> None:
    draw = random.Random(1)
    slow, fast = [draw.gauss(4.0, 0.5) for _ in range(20)], [draw.gauss(1.5, 0.2) for _ in range(20)]
    less, low, high = difference(slow, fast, draw)

    assert 2.0 < low < less < high < 3.0
    assert "running: with `pronto run` shorter" in told(slow, fast)
    assert "running: with `pronto run` longer" in told(fast, slow)
    assert "running: with `pronto run` no different that can be told from chance" in told(slow, slow[::-1])


def test_waiting_counts_in_the_time_from_asking() -> None:
    """Every job of the second stream waits for a second here."""
    text = told([1.0] * 8, [1.0] * 8)

    assert "from asking to the end: with `pronto run` longer (difference -1.00 s" in text
    assert "probes started while accepting: 2, slowdown 1.05 on average" in text
    assert "probes started while refusing: 1" in text


def test_the_timeline_shows_load_states_and_jobs() -> None:
    story = Story()
    story.bursts, story.states = [(5.0, 10.0)], [(0.0, "accepting"), (5.0, "refusing")]
    story.plain, story.through = [Ran(0.0, 0.0, 5.0, 1.0)], [Ran(0.0, 5.0, 10.0, 1.0)]
    load, state, plain, through, _ = (line[19:29] for line in timeline(story, 10.0, width=10))

    assert load == "·····█████"
    assert state == "·····█████"
    assert plain == "11111·····"
    assert through == "wwwww11111"


@pytest.mark.timeout(240)
def test_the_demo_runs_both_streams_and_draws(tmp_path: Path) -> None:
    figure = tmp_path / "demo.svg"
    ran = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--seconds", "20", "--figure", str(figure)],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
        cwd=Path(__file__).parent.parent,
    )

    assert ran.returncode == 0, ran.stderr
    assert "from asking to the end: with `pronto run`" in ran.stdout
    assert "probes started while" in ran.stdout
    assert ("drawn:" in ran.stdout) == figure.exists()
