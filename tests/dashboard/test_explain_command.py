"""`pronto explain` and `GET /v1/explain` against live agents."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from prontosched.agent.http.events import Events
from prontosched.agent.store.decision_log import DecisionLog, DecisionRow
from prontosched.cli import main
from tests.dashboard.conftest import Start, fetch
from tests.processes import wait_for


class Said(NamedTuple):
    """What a command printed, and how it ended."""

    output: str
    exit_code: int


def explain(*options: str) -> Said:
    out = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(["explain", *options])
        except SystemExit as ending:
            code = ending.code
    return Said(out.getvalue(), int(code) if isinstance(code, int) else 0)


@pytest.fixture(scope="module")
def refused(node: str) -> str:
    """A node that has refused and changed since."""
    for _ in range(400):
        found = fetch(node + "/v1/explain")
        if found["last_rejection"] and found["last_rejection"]["drivers"] and found["change"]:
            return node
        time.sleep(0.1)
    raise AssertionError(f"no refusal came: {found}")


def test_the_terminal_says_what_drove_the_last_refusal(refused: str) -> None:
    said = explain("--agent", refused).output

    assert "Metrics that move together" in said
    assert "  1  " in said
    assert "up (" in said
    assert "Last refusal" in said
    assert "run_queue up" in said or "fork_rate up" in said
    assert "Since the last block: the directions " in said


def test_json_in_the_terminal_is_the_answer_of_the_api(refused: str) -> None:
    said = json.loads(explain("--agent", refused, "--json").output)

    assert said.keys() == fetch(refused + "/v1/explain").keys()
    assert said["record"]["signal"]["downtime"] is not None
    assert said["budget"] is None
    assert {part["sign"] for d in said["directions"] for part in d["parts"]} <= {-1, 1}
    assert all(direction["parts"][0]["sign"] == 1 for direction in said["directions"])


def told(said: str) -> str:
    """Return what was said once it comes from the log."""
    return said if "in the minute around it: " in said and "spikes around then: " in said else ""


def test_a_moment_of_the_past_is_told_with_its_minute(refused: str) -> None:
    then = fetch(refused + "/v1/explain")["last_rejection"]["time"]
    # The log is written every few seconds.
    said = wait_for(
        lambda: told(explain("--agent", refused, "--at", f"{then:.3f}").output), what="the minute in the log"
    )

    assert ": refusing, at CPU Ready" in said
    assert "in the minute around it: CPU Ready up to " in said
    assert re.search(r"along its directions: 1 at -?\d", said)
    assert "spikes around then: " in said


def test_of_many_nodes_the_minute_or_the_ten_minutes_are_told(start: Start, tmp_path: Path) -> None:
    names = [f"generated-{i:02d}" for i in range(20)]
    now = time.time() // 600 * 600
    log = DecisionLog(tmp_path / "generated.decisions.sqlite")
    for begin in (now - 3 * 86400, now - 6 * 3600):
        for t in range(0, 600, 30):
            raised = t < 300
            rest = (raised, not raised, 7.0, math.nan, 7.0, math.nan, math.nan, None)
            log.write((), [DecisionRow(begin + t, name, *rest) for name in names])
    log.close()
    url = start("--synthetic", "20", "--state", str(tmp_path))
    old = explain("--agent", url, "--node", names[4], "--at", str(now - 3 * 86400 + 350))
    new = explain("--agent", url, "--node", names[4], "--at", str(now - 6 * 3600 + 350))

    assert "generated-04 in the 10 minutes from " in old.output
    assert "CPU Ready up to 7 %, refusing 50 %" in old.output
    assert "generated-04 in the minute from " in new.output
    assert "refusing 0 %" in new.output


@pytest.mark.parametrize(
    "at", ["25:99", "yesterday", "nan", "inf", "-5", "5", "1e300", "", "2999-01-01", "9999999d"]
)
def test_what_is_no_past_time_is_refused(at: str) -> None:
    result = explain("--agent", "http://127.0.0.1:9", "--at", at)

    assert result.exit_code == 2
    assert "a time must be past and like 14:03" in result.output


def test_a_clock_time_still_to_come_is_yesterdays(refused: str) -> None:
    later = time.strftime("%H:%M", time.localtime(time.time() + 7200))
    result = explain("--agent", refused, "--at", later)

    assert result.exit_code == 1
    assert "got none: the agent did not run then" in result.output


def test_several_nodes_ask_for_a_name_and_a_log_for_its_keeping(start: Start) -> None:
    url = start("--synthetic", "2", "--no-keep")
    for _ in range(100):
        if fetch(url + "/v1/status")["nodes"] == 2:
            break
        time.sleep(0.1)
    unnamed = explain("--agent", url)
    unkept = explain("--agent", url, "--node", "generated-0", "--at", "5m")

    assert unnamed.exit_code == 2
    assert "--node NAME" in unnamed.output
    assert unkept.exit_code == 1
    assert "must keep a decision log" in unkept.output


def test_a_node_far_down_a_fleet_remembers_its_refusal_and_its_record(hundreds: str) -> None:
    """Beyond the first nodes too: whoever refuses can say what drove it."""
    deadline = time.monotonic() + 60
    drivers: list[object] = []
    while not drivers and time.monotonic() < deadline:
        for row in fetch(hundreds + "/v1/nodes")["nodes"][200:]:
            if row["raised"]:
                found = fetch(f"{hundreds}/v1/explain?node={quote(row['node'], safe='')}")
                drivers = (found["last_rejection"] or {}).get("drivers", [])
                if drivers:
                    break
        time.sleep(0.5)

    assert drivers
    assert found["record"]["signal"]["steps"] > 0
    assert len(found["projections"]) == len(found["directions"])


def test_maps_are_remembered_of_the_newest_event_only() -> None:
    events = Events()
    for time_ in range(3):
        events.publish({"time": time_, "state_map": "ar", "ready_map": [0.0, 1.0]})

    assert [sorted(json.loads(event)) for event in events.recent()] == [
        ["time"],
        ["time"],
        ["ready_map", "state_map", "time"],
    ]
