"""A node that stood on its own goes on as one of a fleet."""

from __future__ import annotations

from typing import Any

import numpy as np

from prontosched.errors import StateError
from prontosched.pipeline.fleet import Fleet
from prontosched.pipeline.node import Node
from prontosched.signals import lasting_settings
from prontosched.subspace import align_signs
from prontosched.telemetry.scaling import Scaling


def join(fleet: Fleet, at: int, node: Node) -> None:
    """Give place `at` of a fleet all that `node` knows: it goes on there as it would have alone.

    The fleet must be made with the settings of the node and for its metrics. A view that the
    node had adopted is left out, as by `Fleet.take`.

    Raises
    ------
    StateError
        The node is of another kind than those of the fleet, or its signal cannot be moved.

    Examples
    --------
    >>> from prontosched.pipeline.presets import make_fleet, make_node
    >>> node, fleet = make_node("paper"), make_fleet("paper", nodes=3, features=5)
    >>> for t in range(40):
    ...     decision = node.step(np.sin(np.arange(5.0) * t))
    >>> join(fleet, 1, node)
    >>> fleet.timestep
    array([ 0, 40,  0])
    """
    signal: Any = fleet.signal
    if not hasattr(signal, "take_over"):
        raise StateError(f"the signal {node.signal.name!r} must know how to take over a node: start afresh")
    _check(fleet, node)
    if not node.timestep:
        fleet.clear(np.array([at]))
        return
    embedding, projector = node.embedding, node.projector
    if fleet.scaling is not None and node.scaling is not None:
        fleet.scaling.take_over(at, node.scaling.state())
    own = embedding.subspace
    nothing = np.zeros((0, fleet.features))
    rows = nothing if own is None else own.basis.T
    before = nothing if projector.subspace is None else projector.subspace.basis.T
    rows = rows * align_signs(rows, before)[:, None]
    fleet.embedding.take_over(at, embedding.state(), rows, projector.latest, node.timestep)
    if own is not None and projector.source is own:
        fleet.detector.take_over(at, node.detector.state())
    else:
        # Its directions turned after its last decision, or it projected on a view besides.
        fleet.look_back(at)
    signal.take_over(at, node.signal.state())
    fleet.enter(at, node.timestep, node.evidence)


def _check(fleet: Fleet, node: Node) -> None:
    if node.features != fleet.features:
        raise StateError(
            f"a node must have the {fleet.features} metrics of the fleet, got {node.features}: align it first"
        )
    signal: Any = fleet.signal
    scaling = None if fleet.scaling is None else fleet.scaling.like
    pairs: dict[str, tuple[Any, Any]] = {
        "embedding": (fleet.embedding.like.name, node.embedding.name),
        "embedding's settings": (fleet.embedding.like.settings(), node.embedding.settings()),
        "lag": (fleet.detector.lag, node.detector.lag),
        "scaling": (_scale(scaling), _scale(node.scaling)),
        "signal": (
            (signal.name, lasting_settings(signal)),
            (node.signal.name, lasting_settings(node.signal)),
        ),
    }
    for name, (here, there) in pairs.items():
        if there != here:
            raise StateError(
                f"a node must have the {name} of the fleet, {here}, got {there}: it starts afresh there"
            )


def _scale(scaling: Scaling | None) -> tuple[float, ...] | None:
    return None if scaling is None else (scaling.half_life, scaling.clip, scaling.block_size)
