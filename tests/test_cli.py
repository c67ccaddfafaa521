"""The command line: one line for errors, exit codes, results on standard output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from prontosched import __version__
from prontosched.cli import COMMANDS, cli
from tests.processes import called


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


@pytest.mark.parametrize(
    ("module", "said"), [("click", ""), ("prontosched.cli.status", "\npronto: stopped\n")]
)
def test_ctrl_c_during_imports_shows_no_traceback(module: str, said: str) -> None:
    code = f"""if True:
        import os, runpy, signal, sys

        class Interrupt:
            def find_spec(self, name, *rest):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)

        sys.argv = ["pronto", "status"]
        sys.meta_path.insert(0, Interrupt())
        runpy.run_module("prontosched", run_name="__main__")
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.stderr) == ("", said)
    assert ran.returncode in (130, -signal.SIGINT)  # a shell calls both 130


def test_a_generated_stream_is_replayed_without_any_argument() -> None:
    ran = called("replay", "--steps", "120", "--json", "--nodes", "2")
    rows = [json.loads(line) for line in ran.stdout.splitlines()]

    assert ran.returncode == 0
    assert len(rows) == 240
    assert {"timestep", "node", "accept", "score", "reason"} <= rows[0].keys()
    assert {row["node"] for row in rows} == {"node-0", "node-1"}


def test_the_same_seed_gives_the_same_decisions() -> None:
    one, other = (called("replay", "--steps", "80", "--json", "--signal", "paper").stdout for _ in range(2))

    assert one == other


def test_embeddings_ranks_and_weights_change_what_a_replay_decides() -> None:
    def raised(*options: str) -> list[float]:
        ran = called("replay", "--steps", "400", "--json", "--signal", "paper", *options)
        return [json.loads(line)["score"] for line in ran.stdout.splitlines()]

    variants = [
        raised(),
        raised("--embedding", "spirit"),
        raised("--energy-bounds", "0.01,0.1"),
        raised("--weights", "raw"),
    ]

    assert all(variants[i] != variants[j] for i in range(4) for j in range(i))


def test_a_csv_with_a_node_column_is_replayed(tmp_path: Path) -> None:
    rows = ["node,ready,a,b", *(f"{n},{t % 7},{t * 1.5},{t % 3}" for t in range(30) for n in ("x", "y"))]
    ran = called("replay", write(tmp_path / "trace.csv", rows), "--json", "--signal", "paper")
    found = [json.loads(line) for line in ran.stdout.splitlines()]

    assert ran.returncode == 0, ran.stderr
    assert [row["timestep"] for row in found if row["node"] == "x"] == list(range(30))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["replay", "missing.csv"], 1, "missing.csv: no such file"),
        (["replay", "--signal", "psychic"], 1, "no signal is called 'psychic': known are learned, paper"),
        (["replay", "--budget", "7"], 1, "budget must lie between 0 and 1, got 7.0"),
        (["replay", "--tolerance", "lots"], 1, "tolerance must be"),
        (["nonsense"], 2, "No such command"),
        (["statsu"], 2, "No such command 'statsu': did you mean 'status'? See pronto --help"),
        (
            ["up", "--config", "x"],
            2,
            "--config must stand before the command, got it after up: pronto --config … up",
        ),
        (["gate", "statsu"], 2, "No such command 'statsu'. Did you mean 'status'?"),
        (["agent", "--budgte", "0.1"], 2, "Did you mean"),
        (["agent", "--interval", "0"], 2, "a length of time must be at least 0.01s here, got '0'"),
        (["up", "--budget", "1"], 1, "budget must lie between 0 and 1, got 1.0"),
        (["gate", "watch", "--every", "often"], 2, "must look like 90s, 10m or 1h30m, got 'often'"),
        (["run"], 2, "Missing argument 'COMMAND...'; see pronto run --help"),
    ],
)
def test_wrong_input_gets_one_clear_line(arguments: list[str], code: int, says: str) -> None:
    # An agent sets up the log of its process.
    ran = (pronto if arguments[0] == "up" else called)(*arguments)

    assert ran.returncode == code
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("\n") == 1 or "generated stream" in ran.stderr
    assert ran.stdout == ""


FILES = {
    "empty.csv": b"",
    "words.csv": b"hello world\n\x00\x01 and more\n",
    "half.parquet": b"PAR1 and no more",
    "typo.toml": b"[agent]\nbudgte = 0.1\n",
    "broken.toml": b"[agent\nbudget = 0.1\n",
    "value.toml": b'[agent]\nbudget = "many"\n',
    "keys": b"[agent]\n",
}


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (
            "replay empty.csv",
            1,
            "empty.csv: a trace must start with a line of column names, got an empty file",
        ),
        ("replay words.csv", 1, "words.csv: a trace must have at least one column of numbers"),
        ("replay half.parquet", 1, "half.parquet: not a whole Parquet file"),
        (
            "evaluate empty.csv",
            1,
            "empty.csv: a trace must start with a line of column names, got an empty file",
        ),
        ("evaluate missing.csv", 1, "missing.csv: no such file"),
        ("evaluate --truth lots words.csv", 2, "a spike must be defined as p95"),
        (
            "--config typo.toml status",
            1,
            "typo.toml: [agent] has no setting 'budgte': did you mean 'budget'?",
        ),
        ("--config broken.toml status", 1, "broken.toml: must be TOML"),
        ("--config value.toml agent", 2, "Invalid value for '--budget': 'many' is not a valid float"),
        ("--config missing.toml agent", 2, "File 'missing.toml' does not exist"),
        (
            "status --agent nonsense",
            4,
            "an agent's address must look like http://127.0.0.1:7077, got 'nonsense'",
        ),
        ("status --agent http://127.0.0.1:1", 4, "an agent must answer at http://127.0.0.1:1"),
        ("explain --at yesterday", 2, "a time must be past and like 14:03"),
        ("run -- nosuchcommand", 127, "nosuchcommand: No such file or directory"),
        ("report --state nothing", 1, "nothing has no decision log: name an agent, or its folder"),
        ("record host.txt --for 1s", 1, "host.txt: a recording must end in .parquet or .csv"),
        ("check --root .", 1, "a Linux machine must have proc/stat under its root"),
        ("federation users --keys keys", 1, "line 1 of keys: a line has node, aggregator or viewer"),
        ("aggregate", 2, "Missing option '--nats'"),
        ("simulate --busy 7", 2, "7.0 is not in the range 0<x<=2"),
    ],
)
def test_wrong_files_and_addresses_get_one_clear_line(
    line: str, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    ran = called(*line.split())

    assert says in ran.stderr
    assert ran.returncode == code
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""


def test_a_trace_without_the_ready_column_says_what_there_is(tmp_path: Path) -> None:
    ran = called("replay", write(tmp_path / "t.csv", ["a,b", "1,2", "2,3"]), "--ready", "cpu_ready")

    assert ran.returncode == 1
    assert "cpu_ready" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_column_that_nearly_exists_is_named(tmp_path: Path) -> None:
    columns = [f"metric_{i}" for i in range(300)] + ["cpu_ready_pct"]
    rows = [",".join(columns), ",".join(["1"] * 301), ",".join(["2"] * 301)]
    ran = called("replay", write(tmp_path / "t.csv", rows), "--ready", "cpu_redy_pct")

    assert ran.returncode == 1
    assert "no column 'cpu_redy_pct' among 'metric_0', 'metric_1' and 299 more" in ran.stderr
    assert "did you mean 'cpu_ready_pct'?" in ran.stderr


def test_a_replay_without_cpu_ready_says_that_nothing_can_be_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["memory,steal_percent,load_1", "1,2,1", "2,3,1"])
    learned, paper = called("replay", path), called("replay", path, "--signal", "paper")

    assert "no column of CPU Ready: nothing can be refused without it" in learned.stderr
    assert "--ready COLUMN ('steal_percent', 'load_1' look right)" in learned.stderr
    # The paper's signal judges by spikes of any metric.
    assert "nothing can be refused" not in paper.stderr


def test_an_evaluation_without_cpu_ready_names_the_columns_that_look_right(tmp_path: Path) -> None:
    ran = called("evaluate", write(tmp_path / "t.csv", ["memory,cpu.ready.avg", "1,2", "2,3"]))

    assert ran.returncode == 1
    assert "name it with --ready COLUMN ('cpu.ready.avg' looks right)" in ran.stderr


def leaves(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, f"{words} {name}")


def every_command() -> list[tuple[str, click.Command]]:
    context = click.Context(cli)
    found = [(name, cli.get_command(context, name)) for name in COMMANDS]
    return [pair for name, command in found if command is not None for pair in leaves(command, name)]


def test_every_option_that_has_a_default_shows_it() -> None:
    silent = []
    for words, command in every_command():
        for option in command.params:
            if not isinstance(option, click.Option) or option.default in (None, "", ()) or option.is_flag:
                continue
            if isinstance(option.default, str | int | float | Path):
                shown = option.get_help_record(click.Context(command, show_default=True))
                if shown is None or "default: " not in shown[1]:
                    silent.append(f"{words} {option.opts[0]}")

    assert silent == []


def test_every_option_that_takes_a_time_is_spelled_alike() -> None:
    others = []
    for words, command in every_command():
        # A simulated second is a timestep, not a length of time.
        for option in command.params if words != "simulate" else ():
            text = f"{option.opts[0]} {getattr(option, 'help', '') or ''}"
            numbers = isinstance(option.type, click.types.FloatParamType | click.types.IntParamType)
            if numbers and re.search(r"(?i)second|minute|hours\b|\bdays|-days", text):
                others.append(f"{words} {option.opts[0]}")

    assert others == []


@pytest.mark.parametrize("command", ["agent", "up"])
def test_the_agent_s_options_take_a_line_each_in_sections(command: str) -> None:
    ran = pronto(command, "--help", env={**os.environ, "COLUMNS": "80"})
    sections = re.findall(r"(?m)^(\w[\w ]+):$", ran.stdout)
    options = [line for line in ran.stdout.splitlines() if line.startswith("  -")]
    wrapped = [line for line in ran.stdout.splitlines() if line.startswith(" " * 20)]

    assert sections[:2] == ["Telemetry", "Signal"]
    assert len(options) >= 40
    assert len(wrapped) <= 3, wrapped
    assert "--likelihood SHARE" in ran.stdout
    assert "[default: 0.5]" in ran.stdout


def test_the_gates_tell_installed_engines_from_known_ones(tmp_path: Path) -> None:
    bare = pronto("gate", "list", env={"PATH": str(tmp_path), "HOME": str(tmp_path)})
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    found = pronto("gate", "list", env={"PATH": str(tmp_path), "HOME": str(tmp_path)})

    assert re.search(r"(?m)^slurm +known, engine not found here: scontrol must be on PATH", bare.stdout)
    assert re.search(r"(?m)^slurm +engine found here$", found.stdout)
    assert re.search(r"(?m)^htcondor +known, engine not found here: condor_startd must be", found.stdout)


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


def test_replay_takes_the_traces_that_come_with_pronto():
    done = pronto("replay", "server", "--steps", "40")

    assert done.returncode == 0, done.stderr
    assert "40 decisions of 1 node" in done.stdout + done.stderr
