"""Rejection rules: which nodes refuse, seen from their own telemetry."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from prontosched.presets import make_fleet
from prontosched.signals import all_signals
from prontosched.signals.arithmetic import Many
from prontosched.signals.budget import Budget
from prontosched.simulation.cluster import Cluster
from prontosched.simulation.sensors import Reading
from prontosched.simulation.tenants import Tenants
from prontosched.subspace import Array

Mask = NDArray[np.bool_]
HORIZON = 5


class Rule(Protocol):
    """Decide for all nodes at once, every second, whether they refuse."""

    def decide(self, reading: Reading, time: float) -> Mask:
        """Return which nodes refuse until the next second."""
        ...


class Nothing:
    """Never refuse: the placer alone."""

    def __init__(self, nodes: int) -> None:
        self._none = np.zeros(nodes, np.bool_)

    def decide(self, reading: Reading, time: float) -> Mask:
        """Return that no node refuses."""
        return self._none


class Coin:
    """Refuse at random, as often as the budget says."""

    def __init__(self, share: float, rng: np.random.Generator) -> None:
        self.share = share
        self.rng = rng

    def decide(self, reading: Reading, time: float) -> Mask:
        """Toss a coin for each node."""
        return np.asarray(self.rng.random(reading.ready.size) < self.share)


class Present:
    """Refuse at the highest values of CPU Ready, as often as the budget says."""

    def __init__(self, nodes: int, share: float) -> None:
        self._budget = Budget(Many(nodes), share)

    def score(self, reading: Reading) -> Array:
        """Return the value to compare."""
        return reading.ready

    def decide(self, reading: Reading, time: float) -> Mask:
        """Refuse above a threshold that follows the budget."""
        score = self.score(reading)
        raised: Mask = np.asarray(score > self._budget.threshold())
        self._budget.learn(score)
        self._budget.spend(raised)
        return raised


class Oracle(Present):
    """Refuse by what the tenants will want within the horizon, on top of the jobs that are there."""

    def __init__(self, nodes: int, share: float, cluster: Cluster, tenants: Tenants) -> None:
        super().__init__(nodes, share)
        self._cluster = cluster
        self._tenants = tenants

    def score(self, reading: Reading) -> Array:
        """Return the CPUs wanted within the horizon, beyond those of the node."""
        jobs = self._cluster.demand - self._cluster.tenants
        return self._tenants.ahead(HORIZON) + jobs - self._cluster.cores


class BySignal:
    """Refuse as a registered signal does, with its budget spent and its exceptions made."""

    def __init__(self, name: str, nodes: int, metrics: tuple[str, ...], share: float, seed: int) -> None:
        offered: dict[str, Any] = {
            "budget": share,
            "quota": True,
            "enforcing": True,
            "horizon": HORIZON,
            "seed": seed,
        }
        accepted = inspect.signature(all_signals()[name].fleet).parameters
        options = {key: value for key, value in offered.items() if key in accepted}
        preset = "paper" if name == "paper" else "default"
        self.fleet = make_fleet(
            preset, nodes=nodes, features=len(metrics), metrics=metrics, signal=name, **options
        )

    def decide(self, reading: Reading, time: float) -> Mask:
        """Carry the reading through the nodes."""
        return self.fleet.step(
            reading.vectors, ready=reading.ready, utilisation=reading.utilisation, time=time
        ).raised

    def record(self) -> dict[str, float]:
        """Return the signal's own record, over all nodes, where it keeps one."""
        signal = getattr(self.fleet, "signal", None)
        if not hasattr(signal, "standing"):
            return {}
        standings = [signal.standing(node)._asdict() for node in range(self.fleet.nodes)]  # type: ignore[union-attr]
        known: dict[str, float] = {}
        for name in standings[0]:
            values = [float(s[name]) for s in standings if isinstance(s[name], int | float)]
            finite = [value for value in values if np.isfinite(value)]
            if finite:
                known[name] = float(np.mean(finite))
        return known


def rule_names() -> list[str]:
    """Return all rules: the simple ones, every registered signal, and the oracle."""
    return ["nothing", "coin", "ready", *sorted(all_signals()), "oracle"]


def make_rule(
    name: str,
    *,
    cluster: Cluster,
    tenants: Tenants,
    metrics: tuple[str, ...],
    budget: float,
    rng: np.random.Generator,
) -> Rule:
    """Return a rule by its name."""
    nodes = cluster.nodes
    if name == "nothing":
        return Nothing(nodes)
    if name == "coin":
        return Coin(budget, rng)
    if name == "ready":
        return Present(nodes, budget)
    if name == "oracle":
        return Oracle(nodes, budget, cluster, tenants)
    return BySignal(name, nodes, metrics, budget, int(rng.integers(1 << 30)))
