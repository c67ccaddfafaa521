"""The demo that a visitor runs, in its short form: real daemons, agents, load and jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from examples.demo_slurm import VALID_SECONDS, Round, Story, table
from tests.requirements import require_slurm


def test_jobs_avoid_a_busy_node_return_after_and_no_drain_outlives_its_agent() -> None:
    require_slurm()
    command = [sys.executable, "-m", "examples.demo_slurm", "--short", "--json"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=115, check=False)
    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout)
    without, during, after = story["rounds"]

    assert without["where"]["n2"] > during["where"]["n2"]
    assert after["where"]["n2"] > 0
    assert story["reason"].startswith("pronto: ")
    assert story["opened_after_kill"] < VALID_SECONDS + 15
    assert story["drain_untouched"]
    assert all(done["where"]["n4"] == 0 for done in (without, during, after))


def test_a_node_that_jobs_opened_early_is_not_said_to_have_waited_for_the_load_to_end() -> None:
    rounds = [Round("busy, with Pronto", {"n2": 1}, [1.0], [2.0])]
    opened, waited = table(Story(rounds)), table(Story(rounds, accepted_after=1.5))

    assert "n2 was open before the load ended" in opened
    assert "n2 accepted 1.5 s after the load ended" in waited
