"""`pronto check` explains a machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from prontosched.cli import cli
from prontosched.telemetry.linux.check import inspect_machine
from tests.telemetry.machines import FROZEN


def test_what_is_missing_is_named_with_its_reason_and_a_remedy(tmp_path: Path) -> None:
    shutil.copytree(FROZEN / "first", tmp_path, dirs_exist_ok=True)
    (tmp_path / "proc/pressure/cpu").unlink()

    report = inspect_machine(tmp_path, seconds=0.01)

    missing = {finding.path: finding for finding in report.findings if finding.state != "ok"}
    assert missing["proc/pressure/cpu"].state == "absent"
    assert missing["proc/pressure/cpu"].remedy == "boot the kernel with psi=1"
    assert missing["proc/schedstat"].state == "absent"
    assert "proc/stat" not in missing


def test_every_file_that_is_read_has_a_meaning() -> None:
    report = inspect_machine(FROZEN / "first", seconds=0.01)

    assert [finding.path for finding in report.findings if finding.what == finding.path] == []


def test_the_command_explains_a_frozen_machine() -> None:
    result = CliRunner().invoke(cli, ["check", "--root", str(FROZEN / "first")])

    assert result.exit_code == 0
    assert "Can be measured" in result.stdout
    assert "interrupt pressure  (proc/pressure/irq absent)" in result.stdout
    assert "% of a core at one a second" in result.stdout
    assert "not counted: 0.0 held back by quotas, 0.0 background" in result.stdout
    assert "vsphere: what a virtual machine's own limit held back" in result.stdout


def test_the_command_prints_json() -> None:
    result = CliRunner().invoke(cli, ["check", "--root", str(FROZEN / "first"), "--json"])

    facts = json.loads(result.stdout)
    assert facts["cpus"] == 2
    assert facts["metrics"] >= 120
    assert facts["cost"]["milliseconds"] > 0
    assert 0 < facts["probe"]["percent_of_core"] <= 0.25
    assert set(facts["ready_parts"]) == {"normal", "unseen", "steal", "throttled", "background"}


@pytest.mark.parametrize(
    ("variable", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_left_out_where_none_are_wanted(variable: dict[str, str], coloured: bool) -> None:
    plain = {"NO_COLOR": None, "TERM": "xterm", **variable}
    check = ["check", "--agent", "none", "--root", str(FROZEN / "first")]
    result = CliRunner().invoke(cli, check, env=plain, color=True)

    assert "misleads" in result.stdout
    assert ("\x1b[" in result.stdout) is coloured


def test_a_terminal_of_another_encoding_ends_no_command() -> None:
    """The remedy has an ellipsis, which Latin-1 has not; so may the name of any process."""
    check = [sys.executable, "-m", "prontosched", "check", "--agent", "none", "--root", str(FROZEN / "first")]
    ran = subprocess.run(
        check, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, timeout=60
    )

    assert b"Traceback" not in ran.stderr
    assert b"docker run --pid=host -v /proc:/host/proc:ro ? pronto agent" in ran.stdout


def test_a_folder_that_is_no_machine_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", "--root", str(tmp_path)])

    assert "must have proc/stat under its root" in str(result.exception)
