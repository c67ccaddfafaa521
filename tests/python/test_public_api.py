"""The public names with their signatures are those of the page; a user's program is checked by mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import prontosched
from tests.make_api_docs import PAGE, PUBLIC, page

PROGRAM = """
from typing import assert_type

import numpy as np

from prontosched import Decision, Evidence, FPCAEdge, Node, Signal, Subspace, make_fleet, make_node, replay
from prontosched.tables import Replay


class Never:
    name = "never"

    def decide(self, evidence: Evidence) -> Decision:
        return Decision(False, 0.0, 1.0, "never", evidence.timestep)

    def settings(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, float]:
        return {}

    def restore(self, state: object) -> None:
        pass


signal: Signal = Never()
node = Node(FPCAEdge(rank=2), signal, scaling=None)
assert_type(node.step(np.ones(3), ready=0.5), Decision)
assert_type(node.embedding.subspace, Subspace | None)
assert_type(make_node().step({"cpu": 1.0}).state, Literal["accepting", "contended", "refusing"])
assert_type(replay("host.csv", ready="ready"), Replay)
make_fleet(nodes=2, features=3).step(np.ones((2, 3))).raised.any()
"""


def test_the_page_lists_the_public_names_with_their_signatures() -> None:
    assert PAGE.read_text() == page(), (
        "a public name or signature changed: run `make docs`, and say so in CHANGELOG.md"
    )


def test_every_public_name_of_a_module_is_its_own_or_documented_where_it_lives() -> None:
    assert set(prontosched.__all__) == set(prontosched._HOMES)
    for module, (about, _) in PUBLIC.items():
        assert about.endswith("."), module


def test_mypy_understands_a_users_program_and_finds_its_mistakes(tmp_path: Path) -> None:
    program = "from typing import Literal\n" + PROGRAM
    (tmp_path / "right.py").write_text(program)
    (tmp_path / "wrong.py").write_text(
        "from prontosched import FPCAEdge, make_node\n"
        "FPCAEdge(rank='4')\n"
        "make_node().step([1.0], redy=0.5)\n"
        "make_node().step([1.0]).proability\n"
    )
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", ""),
            *("--cache-dir", str(Path(__file__).parents[2] / ".mypy_cache" / "user"), "right.py", "wrong.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    found = ran.stdout.splitlines()

    assert Path(prontosched.__file__).with_name("py.typed").exists()
    assert [line.split(":")[:2] for line in found if ": error:" in line] == [
        ["wrong.py", "2"],
        ["wrong.py", "3"],
        ["wrong.py", "4"],
    ], ran.stdout + ran.stderr
