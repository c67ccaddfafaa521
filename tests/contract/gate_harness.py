"""What the contract suite needs to know about a gate in order to try it.

A gate joins the suite by one line in `HARNESSES`: a context manager that takes a
folder, starts whatever the gate needs, and yields a `Harness`. It skips, with a
message, where that cannot be had.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from prontosched.gates.gate import Gate

# "module:function", imported only when its turn comes.
HARNESSES: dict[str, str] = {
    "slurm": "tests.gates.slurm_harness:drain",
    "slurm-feature": "tests.gates.slurm_harness:feature",
    "htcondor": "tests.gates.file_harness:htcondor",
    "kubernetes": "tests.gates.kubernetes_harness:taint",
    "hook": "tests.gates.file_harness:hook",
    "folder": "tests.gates.file_harness:folder",
}


@dataclass
class Harness:
    """A gate with a real scheduler behind it, or what stands in its place for good.

    Attributes
    ----------
    gate
        The gate under test.
    again
        Makes a second gate object for the same scheduler, as a restarted agent would.
    nodes
        At least two nodes that exist.
    unknown
        A node that the scheduler does not know, or None where any name will do.
    close
        Closes a node as an administrator would; None where ours is a separate condition.
    reopen
        Undoes `close`.
    shown
        Returns the text that users of the scheduler see for a node.
    preference
        Returns what makes the scheduler prefer one node to another, such as its weight;
        None where the gate cannot prefer.
    starve
        Makes jobs wait that no open node can take, and waits until the scheduler says
        so; returns what ends it. None where the gate cannot tell.
    """

    gate: Gate
    again: Callable[[], Gate]
    nodes: tuple[str, ...]
    unknown: str | None
    close: Callable[[str], None] | None
    reopen: Callable[[str], None] | None
    shown: Callable[[str], str]
    preference: Callable[[str], object] | None = None
    starve: Callable[[], Callable[[], None]] | None = None


def harness_of(name: str) -> Callable[[Path], AbstractContextManager[Harness]]:
    module, _, function = HARNESSES[name].partition(":")
    found: Callable[[Path], AbstractContextManager[Harness]] = getattr(
        importlib.import_module(module), function
    )
    return found
