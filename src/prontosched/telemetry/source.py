"""Stage 1: what anything that yields telemetry must do.

A source reads machines and yields samples. It turns rows into vectors once;
everything after it sees one vector `(d,)` per node and timestep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from prontosched.subspace import Array

NAN = float("nan")
# Column of a recording that says what a probe suffered; an outcome, and never among the metrics.
PROBE_COLUMN = "probe_slowdown"
MIXED_NOTE = "waiting for quotas and at low priority cannot be told apart and is in CPU Ready, with steal"
# What of CPU Ready each source can tell apart, for people.
SEPARATION = {
    "linux": "waiting at normal priority and steal; held back by quotas and background waiting are counted apart",
    "prometheus": f"{MIXED_NOTE}; use an agent on the machine to tell them apart",
    "vsphere": (
        "what a virtual machine's own limit held back (cpu.maxlimited) is in cpu.ready; inside of the guest nothing "
        "is seen: neither its run queue nor quotas or priorities"
    ),
    "trace": "whatever its recording could tell: the column ready is taken as it is",
}


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A telemetry vector with its node, time and metric names.

    Attributes
    ----------
    node
        Name of the node it describes.
    metrics
        Names of the metrics, in the order of `vector`. The same tuple object as
        long as nothing changed, so that `is` tells a change of schema.
    vector
        The metrics, `(d,)`; NaN where a metric could not be read.
    timestamp
        Clock time in seconds since 1970, NaN where unknown.
    ready
        CPU Ready, in percent per CPU unless the source says otherwise; NaN where unknown.
    utilisation
        CPU utilisation in percent of all CPUs; NaN where unknown.
    notes
        What a person should know of this sample, e.g. which fallback gave `ready`.
    probe_slowdown
        How many times longer than alone a probe took that ended just before; NaN where none did.
    """

    node: str
    metrics: tuple[str, ...]
    vector: Array
    timestamp: float = NAN
    ready: float = NAN
    utilisation: float = NAN
    notes: tuple[str, ...] = field(default=())
    probe_slowdown: float = NAN


class Source(Protocol):
    """Anything that yields telemetry.

    Live sources are asked at every timestep; recorded ones yield until they end.
    """

    name: str
    interval_seconds: float

    def read(self) -> list[Sample]:
        """Read every node once, now.

        An empty list means nothing can be read at this moment. A trace that has ended raises `EOFError`.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections; reading again is an error."""
        ...


def samples(source: Source) -> Iterator[list[Sample]]:
    """Read a source until it ends, one list of samples per timestep, and close it."""
    try:
        while True:
            yield source.read()
    except EOFError:
        return
    finally:
        source.close()
