"""The hook: an operator's command, run on every change."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prontosched.errors import IntegrationError, SettingsError
from prontosched.gates.controller import Controller
from prontosched.gates.gate import MarkFiles, Verdict, marks_folder
from prontosched.gates.hook import HookGate
from prontosched.gates.policy import Rules
from tests.gates.verdicts import busy

RECORD = """
import json, os, pathlib, sys
told = {key: value for key, value in os.environ.items() if key.startswith("PRONTO_")}
line = {"arguments": sys.argv[1:], "input": json.load(sys.stdin), "environment": told}
with pathlib.Path(__file__).with_name("calls").open("a") as file:
    file.write(json.dumps(line) + "\\n")
sys.exit(int(pathlib.Path(__file__).with_name("code").read_text()))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "hook.py"
    path.write_text(RECORD)
    (tmp_path / "code").write_text("0")
    return path


def gate_for(script: Path, **options: object) -> HookGate:
    return HookGate(command=[sys.executable, str(script)], folder=script.parent / "marks", **options)  # type: ignore[arg-type]


def calls(script: Path) -> list[dict[str, object]]:
    file = script.parent / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_command_is_told_what_happened_in_three_ways(script: Path) -> None:
    verdict = busy()
    gate_for(script).refuse("web-1", verdict)
    (call,) = calls(script)

    assert call["arguments"] == ["refuse", "web-1"]
    assert call["input"] == {
        "event": "refuse",
        "node": "web-1",
        "reason": "cpu_user is rising",
        "score": 0.8,
        "valid_until": verdict.valid_until,
    }
    environment = call["environment"]
    assert isinstance(environment, dict)
    assert environment["PRONTO_REASON"] == "cpu_user is rising"
    assert environment["PRONTO_EVENT"] == "refuse"


def test_command_runs_once_per_change_and_not_on_renewal(script: Path) -> None:
    controller = Controller(gate_for(script), "web-1", rules=Rules(enforce=True, min_hold_seconds=0))
    now = time.time()
    for step in range(100):
        controller.settle(Verdict(True, 0.8, "busy", now + step + 60), now + step)
    for step in range(100, 110):
        controller.settle(Verdict(False, 0.1, "idle", now + step + 60), now + step)

    assert [call["arguments"] for call in calls(script)] == [["refuse", "web-1"], ["accept", "web-1"]]


def test_renewals_reach_the_command_where_asked_for(script: Path) -> None:
    gate = gate_for(script, renew=True)
    gate.refuse("web-1", busy())
    gate.refuse("web-1", busy())

    assert [call["arguments"] for call in calls(script)] == [["refuse", "web-1"], ["renew", "web-1"]]


def test_command_that_fails_to_refuse_leaves_the_node_open(script: Path) -> None:
    (script.parent / "code").write_text("3")
    gate = gate_for(script)

    with pytest.raises(IntegrationError, match="must end with 0 on refuse of web-1, got 3"):
        gate.refuse("web-1", busy())
    assert gate.observe("web-1").state == "open"


def test_command_that_fails_to_accept_leaves_the_mark_for_another_try(script: Path) -> None:
    gate = gate_for(script)
    gate.refuse("web-1", busy())
    (script.parent / "code").write_text("1")

    with pytest.raises(IntegrationError, match="must end with 0 on accept of web-1, got 1"):
        gate.accept("web-1")
    assert gate.owned() == ["web-1"]


def test_command_that_hangs_is_killed_and_reported(tmp_path: Path) -> None:
    gate = HookGate(command=["sh", "-c", "sleep 30; true"], folder=tmp_path, timeout=0.3)

    with pytest.raises(IntegrationError, match=r"hook sh must end within 0\.3 s on refuse"):
        gate.refuse("web-1", busy())


def test_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(IntegrationError, match="hook /no/such must be a program that can be run"):
        HookGate(command=["/no/such"], folder=tmp_path).refuse("web-1", busy())


def test_no_command_is_refused() -> None:
    with pytest.raises(SettingsError, match="command must name a program"):
        HookGate(command="")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reason=st.text(max_size=60), score=st.sampled_from([math.nan, math.inf, -1.0]))
def test_any_reason_and_score_reach_the_command(script: Path, reason: str, score: float) -> None:
    reason = reason.encode("utf-8", "replace").decode()
    gate = gate_for(script)
    gate.refuse("web-1", Verdict(True, score, reason + "$(touch /tmp/never); `x`", time.time() + 60))
    gate.accept("web-1")

    assert gate.owned() == []


def test_damaged_mark_is_ours_and_lapsed(tmp_path: Path) -> None:
    gate = HookGate(command="true", folder=tmp_path)
    (tmp_path / "web-1.mark").write_bytes(b"\xff\x00garbage")

    assert gate.observe("web-1").lapsed(0.0)


def test_marks_that_cannot_be_written_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(IntegrationError, match="must be writable for marks"):
        MarkFiles(tmp_path / "file" / "folder").write("n1", "x")


def test_foreign_files_among_the_marks_are_no_nodes(tmp_path: Path) -> None:
    marks = MarkFiles(tmp_path)
    marks.write("n1", "x")
    (tmp_path / ".hidden.mark").write_text("x")
    (tmp_path / "notes.txt").write_text("x")

    assert marks.nodes() == ["n1"]


def test_marks_of_a_service_lie_in_its_runtime_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/pronto:/run/other")

    assert marks_folder("htcondor") == Path("/run/pronto/htcondor")
