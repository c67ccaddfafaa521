"""Gates that work through files, in the contract suite."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.extensions.pronto_examples import FolderGate
from prontosched.gates.hook import HookGate
from prontosched.gates.htcondor import HTCondorGate
from tests.contract.gate_harness import Harness

# A scheduler of thirty lines would be a toy; this is what an operator's hook does:
# it keeps a list, here one file for each closed node.
SCRIPT = """
import json, os, pathlib, sys
event, node = sys.argv[1:]
told = json.load(sys.stdin)
assert told["event"] == event == os.environ["PRONTO_EVENT"]
closed = pathlib.Path(__file__).with_name(f"closed-{node}")
if event == "accept":
    closed.unlink()
else:
    closed.write_text(os.environ["PRONTO_REASON"].replace('"', "").replace("'", "").replace("\\\\ ", ""))
"""


@contextmanager
def htcondor(folder: Path) -> Iterator[Harness]:
    def shown(node: str) -> str:
        path = folder / f"{node}.ad"
        return path.read_text() if path.exists() else ""

    def contention(node: str) -> float:
        """What the negotiator ranks by, level 0 where nothing counts."""
        found = re.search(r"^ProntoLevel = (\d)$", shown(node), re.MULTILINE)
        return float(found[1]) if found else 0.0

    yield Harness(
        gate=HTCondorGate(folder=folder),
        again=lambda: HTCondorGate(folder=folder),
        nodes=("execute-1", "slot1@execute-2"),
        unknown=None,
        close=None,
        reopen=None,
        shown=shown,
        preference=contention,
    )


@contextmanager
def hook(folder: Path) -> Iterator[Harness]:
    script = folder / "hook.py"
    script.write_text(SCRIPT)

    def gate() -> HookGate:
        return HookGate(command=[sys.executable, str(script)], folder=folder / "marks", renew=True)

    def shown(node: str) -> str:
        path = folder / f"closed-{node}"
        return path.read_text() if path.exists() else ""

    yield Harness(
        gate=gate(),
        again=gate,
        nodes=("runner-1", "runner-2"),
        unknown=None,
        close=None,
        reopen=None,
        shown=shown,
    )


@contextmanager
def folder(folder: Path) -> Iterator[Harness]:
    """The example of docs/extending.md."""

    def shown(node: str) -> str:
        path = folder / node
        return path.read_text() if path.exists() else ""

    yield Harness(
        gate=FolderGate(folder=str(folder)),
        again=lambda: FolderGate(folder=str(folder)),
        nodes=("oven-1", "oven-2"),
        unknown=None,
        close=lambda node: (folder / node).write_text("closed by hand"),
        reopen=lambda node: (folder / node).unlink(missing_ok=True),
        shown=shown,
    )
