"""A small machine to watch, and agents that watch it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from prontosched.agent.loop import Agent, Reader
from prontosched.agent.nodes import LiveNode, NodeTable, Silence
from prontosched.agent.pace import Pace
from prontosched.pipeline.presets import make_node
from prontosched.telemetry.source import Sample

METRICS = ("load", "heat", "wind", "rain", "fog")


class Machine:
    """A source that gives what a test tells it to: by default a quiet machine."""

    name = "machine"
    node = "n1"
    interval_seconds = 1.0

    def __init__(self, give: Callable[[int], list[Sample]] | None = None) -> None:
        self.reads = 0
        self.closed = False
        self._give = give or (lambda i: [sample(i)])

    def read(self) -> list[Sample]:
        self.reads += 1
        return self._give(self.reads - 1)

    def close(self) -> None:
        self.closed = True


def sample(
    i: int, *, metrics: tuple[str, ...] = METRICS, vector: Any = None, ready: float = 1.0, used: float = 10.0
) -> Sample:
    if vector is None:
        vector = np.sin(np.arange(len(metrics)) + 0.7 * i) + 2.0
    return Sample("n1", metrics, np.asarray(vector, dtype=float), 1000.0 + i, ready, used)


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def make_agent(
    source: Any,
    *,
    clock: Callable[[], float] = time.monotonic,
    interval: float = 0.01,
    patience: int = 5,
    preset: str = "paper",
    **given: Any,
) -> Agent:
    def make(name: str, now: float) -> LiveNode:
        return LiveNode(
            lambda metrics: make_node(preset, metrics=metrics), name=name, now=now, patience=patience
        )

    nodes = NodeTable(make, name=source.node, **given.pop("table", {}))
    given.setdefault("silence", Silence(10.0))
    given.setdefault("capacity", 2.0)
    timeout = given.pop("timeout", 0.5)
    return Agent(Reader(source, timeout=timeout), nodes, Pace(interval, clock=clock), **given)


async def next_tick(agent: Agent) -> None:
    """Sleep until the next tick is due, then take it."""
    await asyncio.sleep(agent.pace.remaining())
    agent.pace.begin()
