"""What the release before left on disk and on the bus is read; what a newer one left is refused and left alone.

`tests/data/release-0.1.0` was written by agents of that release: state and decision log of one node after 300
timesteps, a summary and a global view.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from prontosched import codec
from prontosched.agent.config import make_agent, source_of
from prontosched.agent.report import read_log
from prontosched.agent.store.decision_log import DecisionLog
from prontosched.agent.store.state import KIND, VERSION, read_state
from prontosched.cli import cli
from prontosched.errors import NewerStateError
from prontosched.federation.message import GlobalView, Summary
from prontosched.federation.schema import fingerprint
from prontosched.settings import AgentSettings

BEFORE = Path(__file__).parents[1] / "data" / "release-0.1.0"
SAVED = 308  # timesteps
METRICS = ("load", "heat", "wind", "rain")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder as an agent of the release before left it, and a trace of the same machine."""
    for name in ("trace.state", "trace.decisions.sqlite"):
        (tmp_path / name).write_bytes(gzip.decompress((BEFORE / f"{name}.gz").read_bytes()))
    rows = [f"{1 + t % 7},{t % 5},{t % 3},{40.0 if t % 40 >= 30 else 0.5},50" for t in range(40)]
    (tmp_path / "one.csv").write_text("\n".join(["load,heat,wind,ready,utilisation", *rows]) + "\n")
    return tmp_path


async def ticks(agent, number: int) -> None:
    for _ in range(number):
        await agent.tick()


def test_an_agent_goes_on_from_the_state_of_the_release_before(folder):
    settings = AgentSettings(trace=folder / "one.csv", source="trace", state=folder, probe=False)
    agent = make_agent(settings, source_of(settings))
    asyncio.run(ticks(agent, 5))
    node = agent.nodes.only
    asyncio.run(agent.close())

    assert agent.nodes.message.startswith("continuing from")
    assert node.node.timestep == SAVED + 5
    assert node.record.onsets >= 5
    assert node.node.signal.standing().steps > 200
    assert not list(folder.glob("*.corrupt"))


def test_the_decision_log_of_the_release_before_is_read(folder):
    log = DecisionLog(folder / "trace.decisions.sqlite")
    (node,) = log.nodes()
    with contextlib.closing(sqlite3.connect(folder / "trace.decisions.sqlite")) as tables:
        (last,) = tables.execute("select max(time) from decisions").fetchone()
    (found,) = read_log(log, last - 3600.0, last + 60.0)
    log.close()

    assert node == "one"
    assert found.refused_hours > 0


def test_messages_of_the_release_before_are_understood():
    schemas = {fingerprint(METRICS): METRICS}.get
    summary = Summary.from_bytes((BEFORE / "summary.bin").read_bytes(), schemas)
    view = GlobalView.from_bytes((BEFORE / "view.bin").read_bytes(), schemas)

    assert (summary.node, summary.metrics) == ("rack1/n1", METRICS)
    assert summary.subspace.features == 4
    assert view.revision == 7


def test_after_a_downgrade_newer_state_is_refused_with_what_to_do_and_left_alone(folder):
    path = folder / "trace.state"
    path.write_bytes(codec.encode(KIND, VERSION + 1, read_state(path)))
    newer = path.read_bytes()
    ran = CliRunner().invoke(
        cli, ["agent", "--trace", str(folder / "one.csv"), "--state", str(folder), "--listen", "127.0.0.1:0"]
    )

    assert isinstance(ran.exception, NewerStateError)
    assert "upgrade" in str(ran.exception)
    assert path.read_bytes() == newer
