"""What another package adds is found by its entry point, in this process and in an agent."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from prontosched import Node, make_fleet, make_node
from prontosched.errors import SettingsError
from prontosched.gates.registry import gate_names, make_gate
from prontosched.pipeline import find_embedding
from prontosched.signals import all_signals
from prontosched.telemetry import open_source, source_names
from tests.processes import free_port, started, wait_for

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "extensions"
PAGE = ROOT / "docs" / "extending.md"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as an installer leaves it in a folder: its module, and metadata with its entry points."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    (tmp_path / "pronto_examples.py").write_text((PACKAGE / "pronto_examples.py").read_text())
    info = tmp_path / f"pronto_examples-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pronto_examples", raising=False)
    return tmp_path


def test_each_of_the_four_is_found_by_its_name(installed: Path) -> None:
    assert importlib.metadata.version("pronto-examples") == "1.0.0"
    assert "rising" in all_signals()
    assert "json-file" in source_names()
    assert "folder" in gate_names()
    assert make_gate("folder", folder=str(installed)).name == "folder"
    assert find_embedding("oja").name == "oja"


def test_without_the_package_none_is_found() -> None:
    with pytest.raises(SettingsError, match="no embedding is called 'oja'"):
        make_node(embedding="oja")
    assert "rising" not in all_signals()


def test_a_node_with_a_signal_and_an_embedding_of_others_goes_on_where_it_was_saved(installed: Path) -> None:
    rng = np.random.default_rng(0)
    node = make_node(signal="rising", embedding="oja", embedding_options={"rank": 2}, lag=5)
    fleet = make_fleet(signal="rising", nodes=2, features=6)
    ready = np.r_[np.zeros(40), np.linspace(0.0, 20.0, 20)]
    for t, now in enumerate(ready.tolist()):
        if t == 30:
            twin = Node.from_bytes(node.to_bytes())
        y = rng.normal(size=6)
        found = node.step(y, ready=now)
        of_fleet = fleet.step(np.vstack([y, y]), ready=now)
        if t >= 30:
            assert repr(twin.step(y, ready=now)) == repr(found)
    assert found.raised
    assert of_fleet.raised.all()
    assert found.reason.startswith("CPU Ready rose by")


def test_the_embedding_finds_the_leading_directions(installed: Path) -> None:
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(12, 2)) @ (rng.normal(size=(2, 3000)) * [[5.0], [3.0]]) + 0.1 * rng.normal(
        size=(12, 3000)
    )
    oja = find_embedding("oja")(rank=2)
    oja.learn_many(Y)
    true = np.linalg.svd(Y, full_matrices=False)[0][:, :2]

    assert oja.subspace is not None
    assert np.linalg.norm(true - oja.subspace.basis @ (oja.subspace.basis.T @ true)) < 0.1


def test_the_source_reads_what_is_there_and_nothing_while_nothing_is(installed: Path) -> None:
    path = installed / "metrics.json"
    source = open_source("json-file", path=str(path))
    nothing = source.read()
    path.write_text(json.dumps({"node": "n1", "ready": 2.5, "metrics": {"cpu": 1, "net": 2}}))
    (first,), (second,) = source.read(), source.read()

    assert nothing == []
    assert (first.node, first.ready, first.metrics, first.vector.tolist()) == (
        "n1",
        2.5,
        ("cpu", "net"),
        [1.0, 2.0],
    )
    assert first.metrics is second.metrics


def test_an_agent_takes_source_and_signal_of_another_package(installed: Path) -> None:
    path = installed / "metrics.json"
    port = free_port()
    options = (
        *("--source", "json-file", "--source-option", f"path={path}", "--interval", "0.05", "--no-probe"),
        *("--signal", "rising", "--listen", f"127.0.0.1:{port}", "--state", str(installed / "state")),
    )

    def rose() -> bool:
        """Let CPU Ready rise, and tell whether the agent's decision says so."""
        values["ready"] += 3.0
        path.write_text(json.dumps(values))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/decision", timeout=5) as answer:
                return "CPU Ready rose by" in json.load(answer)["reason"]
        except OSError:
            return False

    values = {"node": "n1", "ready": 0.0, "metrics": {"cpu": 1, "net": 2}}
    with started("agent", *options, PYTHONPATH=str(installed)):
        wait_for(rose, what="a refusal of the signal `rising`")


def test_the_page_shows_the_package_as_it_is() -> None:
    page, source = PAGE.read_text(), (PACKAGE / "pronto_examples.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    points = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)

    assert len([block for block in blocks if block in source]) == 4
    assert [block for block in blocks if block not in source] == [blocks[-1]]
    assert points[0] in (PACKAGE / "pyproject.toml").read_text()
