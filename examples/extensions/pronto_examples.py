"""One of each that can be added to Pronto from outside. docs/extending.md walks through this file."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prontosched import Decision, Evidence, Subspace
from prontosched.gates.gate import MarkFiles, Observed, Verdict, label, read_label
from prontosched.telemetry.source import Sample


class Rising:
    """Refuse while CPU Ready is higher than it was a while ago."""

    name = "rising"

    def __init__(self, lag: int = 5, by: float = 1.0) -> None:
        self.lag, self.by = lag, by
        self.past: deque[float] = deque(maxlen=lag)

    def decide(self, evidence: Evidence) -> Decision:
        rise = evidence.ready - self.past[0] if len(self.past) == self.lag else 0.0
        self.past.append(evidence.ready)
        raised = rise >= self.by
        reason = f"CPU Ready rose by {rise:.1f} in {self.lag} steps" if raised else "CPU Ready does not rise"
        return Decision(raised, rise, self.by, reason, evidence.timestep)

    def settings(self) -> dict[str, Any]:
        return {"lag": self.lag, "by": self.by}

    def state(self) -> dict[str, Any]:
        return {"past": list(self.past)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.past.extend(state["past"])


class JsonFileSource:
    """Read metrics that another program writes as `{"node": …, "ready": …, "metrics": {name: number}}`."""

    name = "json-file"

    def __init__(self, path: str, interval_seconds: float = 1.0) -> None:
        self.path, self.interval_seconds = Path(path), interval_seconds
        self._metrics: tuple[str, ...] = ()

    def read(self) -> list[Sample]:
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return []  # nothing can be read at this moment
        names = tuple(found["metrics"])
        if names != self._metrics:
            self._metrics = names  # the same object while nothing changes
        vector = np.array(list(found["metrics"].values()), dtype=np.float64)
        return [Sample(found["node"], self._metrics, vector, time.time(), float(found["ready"]))]

    def close(self) -> None:
        pass


class FolderGate:
    """A scheduler that sends no job to a node while a file of its name lies in a folder."""

    name = "folder"

    def __init__(self, *, folder: str) -> None:
        self.files = MarkFiles(Path(folder), suffix="")

    def observe(self, node: str) -> Observed:
        text = self.files.read(node)
        if text is None:
            return Observed("open")
        return read_label(text) or Observed("closed-by-other", text)

    def refuse(self, node: str, verdict: Verdict) -> None:
        if self.observe(node).state != "closed-by-other":
            self.files.write(node, label(verdict))

    def accept(self, node: str) -> None:
        if self.observe(node).ours:
            self.files.remove(node)

    def owned(self) -> list[str]:
        return [node for node in self.files.nodes() if self.observe(node).ours]


class Oja:
    """Oja's rule: every vector turns the directions a little towards itself."""

    name = "oja"

    def __init__(self, rank: int = 4, rate: float = 20.0, seed: int = 0) -> None:
        self.rank, self.rate, self.seed = rank, rate, seed
        self.seen, self.energy = 0, 0.0
        self.basis = np.zeros((0, rank))
        self.strengths = np.ones(rank)
        self._shown: Subspace | None = None

    def learn_one(self, y: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        if not self.seen:
            rng = np.random.default_rng(self.seed)
            self.basis = np.linalg.qr(rng.standard_normal((y.size, min(self.rank, y.size))))[0]
            self.strengths = np.zeros(self.basis.shape[1])
        self.seen += 1
        self.energy += float(y @ y)
        along = y @ self.basis
        step = self.rate / max(self.energy, 1e-300)  # falls as 1 / number of vectors, in the data's own unit
        self.basis = np.linalg.qr(self.basis + step * np.outer(y, along))[0]
        self.strengths += along**2
        self._shown = None

    def learn_many(self, Y: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        for y in np.ascontiguousarray(Y.T):
            self.learn_one(y)

    @property
    def subspace(self) -> Subspace | None:
        if self._shown is None and self.seen:
            order = np.argsort(-self.strengths)
            self._shown = Subspace(self.basis[:, order], np.sqrt(self.strengths[order]))
        return self._shown

    @property
    def kept(self) -> Subspace | None:
        return self.subspace

    @property
    def samples(self) -> float:
        return float(self.seen)

    def settings(self) -> dict[str, Any]:
        return {"rank": self.rank, "rate": self.rate, "seed": self.seed}

    def state(self) -> dict[str, Any]:
        held = {"basis": self.basis, "strengths": self.strengths}
        return {**held, "seen": self.seen, "energy": self.energy}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.basis, self.strengths = state["basis"], state["strengths"]
        self.seen, self.energy = int(state["seen"]), float(state["energy"])
