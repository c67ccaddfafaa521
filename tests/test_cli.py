"""The command line: one line for errors, exit codes, results on standard output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prontosched import __version__


def pronto(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prontosched", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def write(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_help_tells_the_story_in_one_screen() -> None:
    ran = pronto("--help")

    assert ran.returncode == 0
    assert len(ran.stdout.splitlines()) <= 50


def test_the_version_is_the_packages() -> None:
    assert pronto("--version").stdout.strip().endswith(__version__)


def test_a_generated_stream_is_replayed_without_any_argument() -> None:
    ran = pronto("replay", "--steps", "120", "--json", "--nodes", "2")
    rows = [json.loads(line) for line in ran.stdout.splitlines()]

    assert ran.returncode == 0
    assert len(rows) == 240
    assert {"timestep", "node", "accept", "score", "reason"} <= rows[0].keys()
    assert {row["node"] for row in rows} == {"node-0", "node-1"}


def test_the_same_seed_gives_the_same_decisions() -> None:
    one, other = (pronto("replay", "--steps", "80", "--json", "--signal", "paper").stdout for _ in range(2))

    assert one == other


def test_a_csv_with_a_node_column_is_replayed(tmp_path: Path) -> None:
    rows = ["node,ready,a,b", *(f"{n},{t % 7},{t * 1.5},{t % 3}" for t in range(30) for n in ("x", "y"))]
    ran = pronto("replay", write(tmp_path / "trace.csv", rows), "--json", "--signal", "paper")
    found = [json.loads(line) for line in ran.stdout.splitlines()]

    assert ran.returncode == 0, ran.stderr
    assert [row["timestep"] for row in found if row["node"] == "x"] == list(range(30))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["replay", "missing.csv"], 2, "does not exist"),
        (["replay", "--signal", "psychic"], 1, "signal must be one of"),
        (["replay", "--budget", "7"], 2, "7"),
        (["replay", "--tolerance", "lots"], 1, "tolerance must be"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_wrong_input_gets_one_clear_line(arguments: list[str], code: int, says: str) -> None:
    ran = pronto(*arguments)

    assert ran.returncode == code
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_a_trace_without_the_ready_column_says_what_there_is(tmp_path: Path) -> None:
    ran = pronto("replay", write(tmp_path / "t.csv", ["a,b", "1,2", "2,3"]), "--ready", "cpu_ready")

    assert ran.returncode == 1
    assert "cpu_ready" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_empty_trace_is_an_error(tmp_path: Path) -> None:
    ran = pronto("replay", write(tmp_path / "t.csv", ["a,b"]))

    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    shell = f"{sys.executable} -m prontosched replay --json --steps 3000 --signal paper | head -n 1"
    ran = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=120, check=False)

    assert json.loads(ran.stdout)["timestep"] == 0
    assert "Traceback" not in ran.stderr
    assert "Error" not in ran.stderr


def test_bench_prints_a_list_of_rows() -> None:
    from prontosched.bench.numerics import node_rows

    rows = [row.as_json() for row in node_rows()]

    assert {"name", "value", "goal", "unit", "met"} <= rows[0].keys()
    assert all(row["value"] > 0 for row in rows)
