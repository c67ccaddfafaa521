"""The elim for LSF: its output contract, as LSF documents it, with a real agent behind it. There is no LSF here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prontosched.cli.gate import _chance
from prontosched.gates.lsf import INDICES, load_update, report, wanted
from tests.gates.answering_agent import answering_agent
from tests.processes import free_port, started, wait_for

DEPLOY = Path(__file__).parents[2] / "deploy" / "lsf"
# number_indices [index_name index_value] …: one line, plain numbers, one blank between words.
UPDATE = re.compile(r"(\d+)((?: [A-Za-z_][A-Za-z0-9_]{0,38} -?\d+(?:\.\d+)?)+)\n")
# LSF's own: no index may have these in its name, nor be called like a built-in one.
FORBIDDEN = set(":.()[+-*/!&|<>@=,")


@given(st.floats(), st.none() | st.integers(0, 4))
def test_update_is_the_number_of_indices_and_then_names_and_values(
    chance: float, previous: int | None
) -> None:
    text, _ = load_update(chance, previous)
    found = UPDATE.fullmatch(text)
    assert found is not None
    words = found[2].split()
    values = dict(zip(words[::2], map(float, words[1::2]), strict=True))

    assert int(found[1]) == len(values) == len(INDICES)
    assert 0 <= values["pronto_contention"] <= 100
    assert 0 <= values["pronto_level"] <= 4


def test_index_rises_with_the_chance_of_contention() -> None:
    lines = [load_update(chance / 100)[0] for chance in range(101)]
    values = [tuple(map(float, line.split()[2::2])) for line in lines]

    assert values == sorted(values)
    assert len(set(values)) == 101


def test_node_that_refuses_is_reported_as_contended_whatever_its_chance() -> None:
    assert _chance({"accept": False, "probability": 0.01}) == 0.5
    assert _chance({"accept": True, "probability": 0.01}) == 0.01
    assert _chance({"accept": False, "probability": None}) == 1.0


def test_names_are_ones_that_lsf_takes_and_the_configuration_has() -> None:
    shared, cluster = ((DEPLOY / name).read_text() for name in ("lsf.shared.part", "lsf.cluster.part"))
    for name in INDICES:
        assert not FORBIDDEN & set(name)
        assert re.search(rf"^{name} +Numeric +15 +Y +\(", shared, re.MULTILINE)
        assert re.search(rf"^{name} +\(\[default\]\)$", cluster, re.MULTILINE)
    assert "order[pronto_level" in (DEPLOY / "lsb.queues.part").read_text()


@pytest.mark.parametrize(
    ("resources", "expected"),
    [(None, True), ("", True), ("scratch", False), ("scratch pronto_level", True), ("pronto_levels", False)],
)
def test_host_without_our_indices_is_left_alone(resources: str | None, expected: bool) -> None:
    environment = {} if resources is None else {"LSF_RESOURCES": resources}

    assert wanted(environment) is expected


def test_update_that_is_not_taken_whole_ends_the_elim() -> None:
    with pytest.raises(OSError, match="must be written whole"):
        report(iter([0.5]), lambda line: 3, lambda: False)


def test_level_falls_late_so_that_hosts_do_not_change_places_for_nothing() -> None:
    lines: list[bytes] = []

    def take(line: bytes) -> int:
        lines.append(line)
        return len(line)

    chances = iter([0.52, 0.48, 0.52, 0.48, 0.1])
    report(chances, take, lambda: len(lines) == 5)

    assert [int(line.split()[-1]) for line in lines] == [3, 3, 3, 3, 1]


def elim(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "prontosched", "gate", "elim", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}
    )


def test_elim_prints_what_the_agent_says_until_it_is_told_to_end() -> None:
    port = free_port()
    options = ["--source=generated", "--no-keep", "--interval=0.2", "--for=60s"]
    with started("agent", f"--listen=127.0.0.1:{port}", *options):
        process = elim("--agent", f"http://127.0.0.1:{port}", "--every", "1s")
        assert process.stdout is not None
        try:
            lines = []

            def known() -> bool:
                assert process.stdout is not None
                lines.append(process.stdout.readline().decode())
                return lines[-1] != load_update(None)[0]

            wait_for(known, seconds=40, what="a value of the agent's")
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert process.wait(10) == 0
            assert time.monotonic() - began < 5
        finally:
            process.kill()
            process.communicate()

    assert all(UPDATE.fullmatch(line) for line in lines)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ([], "/v1/decision"),
        (["--veto"], "/v1/decision?enforcing=true"),
        (["--veto", "--node", "rack/n1"], "/v1/decision?node=rack%2Fn1&enforcing=true"),
    ],
)
def test_elim_tells_the_agent_that_it_is_obeyed_only_with_a_veto(options: list[str], path: str) -> None:
    with answering_agent() as (url, asked):
        process = elim("--agent", url, "--once", *options)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out.decode(), err) == (0, load_update(0.9)[0], b"")
    assert path in asked
    assert any("enforcing" in one for one in asked) is ("--veto" in options)


def test_elim_without_an_agent_says_that_nothing_is_known() -> None:
    process = elim("--agent", f"http://127.0.0.1:{free_port()}", "--once")
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out.decode(), err) == (0, load_update(None)[0], b"")


def test_elim_ends_with_lsfs_own_code_where_it_has_nothing_to_report() -> None:
    process = elim("--once", LSF_RESOURCES="scratch", ELIM_ABORT_VALUE="98")
    out, _ = process.communicate(timeout=30)

    assert (process.returncode, out) == (98, b"")


def test_elim_ends_when_nobody_reads_it() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "prontosched", "gate", "elim", "--agent", "none", "--every", "1s"]
    process = subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE)
    os.close(write)

    assert process.wait(30) != 0
    process.communicate()


def test_script_for_lsf_is_executable_and_runs_the_command() -> None:
    script = DEPLOY / "elim.pronto"

    assert os.access(script, os.X_OK)
    assert "exec pronto gate elim\n" in script.read_text()
