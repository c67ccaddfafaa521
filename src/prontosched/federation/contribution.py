"""What a node contributes to the federation, and what its signal takes from it.

Covers: turning a node into a summary in its own units, and the additive statistics of
its signal. It knows a node by what it asks of it, not by its class.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from prontosched.errors import StateError
from prontosched.federation.message import Statistics, Summary
from prontosched.federation.schema import Metrics
from prontosched.subspace import Array, Subspace

log = logging.getLogger(__name__)


class Learning(Protocol):
    """What a member asks of an embedding."""

    @property
    def subspace(self) -> Subspace | None:
        """The node's own subspace."""
        ...

    @property
    def kept(self) -> Subspace | None:
        """The same with its spare directions, which is what travels."""
        ...

    @property
    def samples(self) -> float:
        """Vectors behind it."""
        ...


class Summarised(Protocol):
    """What a summary is made from."""

    @property
    def embedding(self) -> Learning:
        """What the node has learned of its own vectors."""
        ...

    @property
    def metrics(self) -> Metrics | None:
        """Names of its metrics."""
        ...

    @property
    def timestep(self) -> int:
        """Vectors seen."""
        ...


class Contributor(Summarised, Protocol):
    """What a member asks of a node; `prontosched.pipeline.node.Node` has all of it."""

    def adopt(self, global_view: Subspace, *, samples: float) -> None:
        """Project on the global view too."""
        ...


def summary_of(node: Summarised, name: str, metrics: Metrics) -> Summary:
    """Return what a node knows, in its own units, not numbered yet."""
    features = len(metrics)
    scaling = getattr(node, "scaling", None)
    samples = float(node.embedding.samples)
    if scaling is None or not scaling.samples:
        mean, deviation, counts = np.zeros(features), np.ones(features), np.full(features, samples)
    else:
        mean, deviation = scaling.mean, np.sqrt(scaling.variance)
        counts = samples * np.maximum(1.0 - scaling.unknown / scaling.samples, 0.0)
    return Summary(
        node=name,
        incarnation=0,
        sequence=0,
        metrics=metrics,
        subspace=node.embedding.kept,
        samples=samples,
        mean=mean,
        deviation=deviation,
        spread=np.zeros(features),
        counts=counts,
    )


def own_deviation(node: Summarised) -> Array | None:
    """Return a node's deviation per metric, 0 for constant ones; None before its first vectors."""
    scaling: Any = getattr(node, "scaling", None)
    if scaling is None:
        return None
    return np.sqrt(scaling.variance) if scaling.samples > 1 else None


def shared_by(node: Summarised) -> Statistics:
    """Return the additive statistics of a node's signal, under the signal's name; none while all are 0."""
    signal: Any = getattr(node, "signal", None)
    if not hasattr(signal, "share"):
        return {}
    shared = {f"{signal.name}.{name}": np.asarray(value) for name, value in signal.share().items()}
    return shared if any(value.any() for value in shared.values()) else {}


def start_signal(node: Summarised, statistics: Mapping[str, Array]) -> bool:
    """Let a young node's signal begin with what the fleet has learned; False when it cannot."""
    signal: Any = getattr(node, "signal", None)
    if not hasattr(signal, "start_from"):
        return False
    prefix = f"{signal.name}."
    mine = {name.removeprefix(prefix): value for name, value in statistics.items() if name.startswith(prefix)}
    if not mine:
        return False
    try:
        signal.start_from(mine)
    except (StateError, KeyError, ValueError) as error:
        log.info("the fleet's statistics do not fit this signal: %s", error)
        return False
    return True
