"""The demo: its arithmetic, and a short run on this machine."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import Ran, Story, difference, progress, report, timeline


def told(by_turn: list[float], by_pronto: list[float]) -> str:
    story = Story()
    story.bursts["left"] = [(2.0, 6.0)]
    story.states["left"] = [(0.0, "accepting"), (3.0, "refusing"), (7.0, "accepting")]
    story.by_turn = [Ran(i, "left", float(i), i + took, 1.0) for i, took in enumerate(by_turn)]
    story.by_pronto = [Ran(i, "right", float(i), i + took, 1.0) for i, took in enumerate(by_pronto)]
    return "\n".join(report(story, 20.0))


def test_a_difference_is_told_where_there_is_one_and_not_where_there_is_none() -> None:
    draw = random.Random(1)
    slow, fast = [draw.gauss(4.0, 0.5) for _ in range(20)], [draw.gauss(2.0, 0.2) for _ in range(20)]
    less, low, high = difference(slow, fast, draw)

    assert 1.5 < low < less < high < 2.5
    assert "jobs finished sooner: 4" in told(slow, fast)
    assert "jobs finished later: 9" in told(fast, slow)
    assert "the streams do not differ by more than chance" in told(slow, slow[::-1])


def test_the_table_counts_jobs_that_went_into_a_burst() -> None:
    text = told([1.0] * 8, [1.0] * 8)

    by_turn, by_pronto = (line.split() for line in text.splitlines() if line.startswith("  by "))
    assert by_turn[2:4] == ["8", "50%"]
    assert by_pronto[2:4] == ["8", "0%"]


def test_the_timeline_shows_load_states_and_jobs_of_each_node() -> None:
    story = Story()
    story.bursts["left"] = [(5.0, 10.0)]
    story.states["left"] = [(0.0, "accepting"), (5.0, "refusing")]
    story.by_turn = [Ran(0, "left", 0.0, 5.0, 1.0), Ran(1, "left", 2.0, 4.0, 1.0)]
    story.by_pronto = [Ran(0, "right", 5.0, 10.0, 1.0)]
    rows = [line[24:34] for line in timeline(story, 10.0, width=10)]

    assert rows[:8] == [
        "·····█████",
        "·····█████",
        "11221·····",
        "··········",
        "··········",
        "          ",
        "··········",
        "·····11111",
    ]


def test_progress_says_how_far_it_is_and_what_the_nodes_say() -> None:
    story = Story()
    story.states["left"] = [(0.0, "accepting"), (5.0, "refusing")]
    story.states["right"] = [(0.0, "accepting")]
    story.by_turn = [Ran(0, "left", 0.0, 5.0, 1.0)]

    assert progress(story, 37.2, 110.0) == "37 of 110 s, 1 jobs have ended; left refusing, right accepting"


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

    if len(os.sched_getaffinity(0)) < 2:
        assert "the demo needs two CPUs or more" in ran.stderr
        return
    assert ran.returncode == 0, ran.stderr
    assert "of the mean, 95 % interval" in ran.stdout
    assert "jobs failed" not in ran.stdout
    assert ("drawn:" in ran.stdout) == figure.exists()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the demo needs two CPUs or more")
def test_ctrl_c_ends_the_demo_and_its_agent_in_one_line() -> None:
    command = [sys.executable, "-u", "-m", "examples.demo"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        port = next(found[1] for line in demo.stdout if (found := re.search(r"127\.0\.0\.1:(\d+)$", line)))
        os.killpg(demo.pid, signal.SIGINT)
        _, said = demo.communicate(timeout=60)

    assert said == "demo: stopped before its end; what it started has ended\n"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0
