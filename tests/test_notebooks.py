"""The notebooks run from top to bottom, and are kept without what they printed."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from prontosched.signals import SIGNALS

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.ipynb"))


def run(cells: list[str], name: str) -> list[object]:
    """Run the cells in one scope; return the values of those that end in an expression."""
    scope: dict[str, object] = {"__name__": "notebook"}
    shown = []
    for cell in cells:
        body = ast.parse(cell, name).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), name, "exec"), scope)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), name, "eval"), scope))
    return shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch, capsys):
    monkeypatch.setattr("prontosched.signals.SIGNALS", dict(SIGNALS))
    cells = json.loads(path.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]

    shown = run(code, path.name)

    assert shown or capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]

    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 5
