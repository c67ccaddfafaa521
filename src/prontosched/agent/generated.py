"""Telemetry made up on the spot, for machines without any and for fleets that do not exist.

Covers: the machines of `prontosched.telemetry.synthetic`, made to live now: at the time of
the clock, under names that stand in racks, and with bursts often enough to look at.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prontosched.telemetry.synthetic import SyntheticFleet, SyntheticSource

RACK = 32
ALONE = "generated"
# At a step a second: a burst on each node every other minute, which other metrics announce.
BURST_EVERY, BURST_LENGTH, ANNOUNCED = 100.0, 37.0, 5


def names_of(nodes: int, node: str = ALONE) -> list[str]:
    """Return the names of made-up nodes; more than a rack holds are spread over racks.

    Examples
    --------
    >>> names_of(1, "n"), names_of(2, "n"), names_of(100)[99], names_of(100, "paris")[99]
    (['n'], ['n-0', 'n-1'], 'rack-03/n99', 'paris/rack-03/n99')
    """
    if nodes == 1:
        return [node]
    digits = len(str(nodes - 1))
    if nodes <= 2 * RACK:
        return [f"{node}-{i:0{digits}d}" for i in range(nodes)]
    site = "" if node == ALONE else f"{node}/"
    width = max(2, len(str((nodes - 1) // RACK)))
    return [f"{site}rack-{i // RACK:0{width}d}/n{i:0{digits}d}" for i in range(nodes)]


class GeneratedSource(SyntheticSource):
    """An endless source of made-up nodes.

    Parameters
    ----------
    nodes
        How many.
    seed
        Of everything random.
    features
        Metrics per node.
    interval_seconds
        Seconds between two timesteps.
    node
        Name of the only node, or what the names of several begin with; many stand in racks.
    clock
        Tells the time of each step.

    Notes
    -----
    Memory: as in `SyntheticFleet`.
    """

    name = "generated"

    def __init__(
        self,
        nodes: int = 1,
        *,
        seed: int = 7,
        features: int = 40,
        interval_seconds: float = 1.0,
        node: str = ALONE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        fleet = SyntheticFleet(
            nodes,
            features,
            seed=seed,
            burst_every=BURST_EVERY,
            burst_length=BURST_LENGTH,
            announced=ANNOUNCED,
        )
        super().__init__(fleet, interval_seconds=interval_seconds, names=names_of(nodes, node), clock=clock)
