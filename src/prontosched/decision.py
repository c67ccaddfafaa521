"""Stage 5: the evidence of one timestep, and the decision it leads to: what passes between a node and its signal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from prontosched.subspace import Array, Subspace

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")

State = Literal["accepting", "contended", "refusing"]


class Decision(NamedTuple):
    """One value of the rejection signal, with its reason.

    Attributes
    ----------
    raised
        True refuses another job. Paper: rejection signal.
    score
        Higher means more reason to refuse. Paper: R_s.
    threshold
        The score from which the signal is raised.
    reason
        One sentence an operator can read aloud.
    timestep
        Position in the node's stream, from 0.
    probability
        Chance of contention within the horizon, where the signal gives one.
    expected_ready
        CPU Ready expected within the horizon, in the unit it is measured in.
    contended
        Whether another job is expected to meet contention here. True and not raised means
        that an option (a budget, a limit, an exception) holds the node open all the same.

    Examples
    --------
    >>> Decision(raised=False, score=0.0, threshold=1.0, reason="nothing spikes").state
    'accepting'
    """

    raised: bool
    score: float
    threshold: float
    reason: str
    timestep: int = 0
    probability: float = NAN
    expected_ready: float = NAN
    contended: bool = False

    @property
    def accept(self) -> bool:
        """True when the node takes another job."""
        return not self.raised

    @property
    def state(self) -> State:
        """One word for machines and people: `contended` is accepting although contention is expected."""
        return "refusing" if self.raised else "contended" if self.contended else "accepting"

    def __repr__(self) -> str:
        chance = "" if math.isnan(self.probability) else f", probability={self.probability:.3g}"
        return f"Decision({self.state}{chance}, timestep={self.timestep}, reason={self.reason!r})"

    def _repr_html_(self) -> str:
        chance = "unknown" if math.isnan(self.probability) else f"{self.probability:.0%}"
        return (
            f"<table><tr><th>state</th><td>{self.state}</td></tr>"
            f"<tr><th>chance of contention</th><td>{chance}</td></tr>"
            f"<tr><th>reason</th><td>{escape(self.reason)}</td></tr></table>"
        )


@dataclass(slots=True, eq=False, repr=False)
class Evidence:
    """All that is known of one timestep when a signal decides.

    Attributes
    ----------
    timestep
        Position in the node's stream, from 0.
    ready
        CPU Ready now, NaN where unknown.
    utilisation
        CPU utilisation now, NaN where unknown.
    time
        Clock time in seconds since 1970, NaN where unknown.
    vector
        The scaled telemetry vector, `(d,)`, unknown metrics as 0.
    subspace
        The directions in use, each kept continuous; None while warming up.
    projections
        The vector along each direction, one float each; empty while warming up.
    spikes
        −1, 0 or +1 for each projection; None until the detector's lag has filled.
    samples
        Vectors behind the subspace's singular values (its effective memory).
    metrics
        Names of the metrics, or None.
    """

    timestep: int
    ready: float = NAN
    utilisation: float = NAN
    time: float = NAN
    vector: Array | None = None
    subspace: Subspace | None = None
    projections: list[float] = field(default_factory=list)
    spikes: list[int] | None = None
    samples: float = 0.0
    metrics: tuple[str, ...] | None = None

    @property
    def t_squared(self) -> float:
        """Hotelling's T²: how unusual the vector is within the subspace, NaN while warming up."""
        if self.subspace is None or self.samples <= 0:
            return NAN
        strengths = self.subspace.singular_values.tolist()
        per_sample = 1.0 / self.samples
        pairs = zip(self.projections, strengths, strict=False)
        return float(sum(p * p / (s * s * per_sample) for p, s in pairs if s > 0))

    @property
    def spe(self) -> float:
        """Squared prediction error: how far the vector lies outside the subspace, NaN while warming up."""
        if self.subspace is None or self.vector is None:
            return NAN
        inside = sum(p * p for p in self.projections)
        return max(0.0, float(self.vector @ self.vector) - inside)


def one_line(thing: object, settings: Mapping[str, Any], state: str) -> str:
    """Return the `repr` of a stage: its settings that are not None, then what it has learned.

    Examples
    --------
    >>> one_line(object(), {"rank": 4, "max_rank": None}, "no vector yet")
    'object(rank=4; no vector yet)'
    """
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
    return f"{type(thing).__name__}({given}; {state})"


class Signal(Protocol):
    """What turns a step's evidence into a decision.

    A signal is streaming and pure: what it answers depends only on the evidence
    it was given so far. It may learn from `evidence.ready`, which describes the
    present, but never from the future.

    `state` and `restore` carry everything it holds: numbers, strings and arrays by
    name, so that a restored signal goes on as if it had not stopped. `name` and
    `settings` say how to make another one like it.
    """

    name: str

    def decide(self, evidence: Evidence) -> Decision:
        """Answer for one timestep."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments, by name: plain numbers and strings."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything held, by name: plain numbers, strings and arrays."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        ...


class FleetEvidence(NamedTuple):
    """The evidence of one timestep for M nodes at once: arrays `(M, …)` of what `Evidence` has for one.

    Signals leave the state of nodes alone that are not present. Ranks differ between nodes: directions
    beyond a node's rank are zero.
    """

    present: NDArray[np.bool_]  # which nodes step now
    timestep: NDArray[np.int64]  # each node's own position
    ready: Array
    utilisation: Array
    time: Array
    vectors: Array  # (M, d)
    projections: Array  # (M, r)
    spikes: NDArray[np.int8]  # (M, r)
    singular_values: Array  # (M, r)
    basis: Array  # (M, d, r)
    embedded: NDArray[np.bool_]  # the node has a subspace
    warm: NDArray[np.bool_]  # the detector's lag has filled
    samples: Array
    metrics: tuple[str, ...] | None

    def of(self, node: int) -> Evidence:
        """Return the evidence of one node."""
        rank = int(np.count_nonzero(self.singular_values[node]))
        subspace = None
        if self.embedded[node]:
            subspace = Subspace(self.basis[node][:, :rank], self.singular_values[node][:rank])
        return Evidence(
            int(self.timestep[node]),
            float(self.ready[node]),
            float(self.utilisation[node]),
            float(self.time[node]),
            self.vectors[node],
            subspace,
            self.projections[node][:rank].tolist() if subspace else [],
            self.spikes[node][:rank].tolist() if self.warm[node] else None,
            float(self.samples[node]),
            self.metrics,
        )


class FleetDecision(NamedTuple):
    """The decisions of M nodes at one timestep.

    `reason(i)` of the fleet's signal gives the sentence for one node; sentences for
    ten thousand nodes a step would cost more than the decisions.
    """

    raised: NDArray[np.bool_]
    score: Array
    threshold: Array
    timestep: NDArray[np.int64]
    probability: Array
    expected_ready: Array
    contended: NDArray[np.bool_]

    def to_frame(self) -> pd.DataFrame:
        """Return the decisions as a data frame, a row for each node."""
        import pandas as pd

        return pd.DataFrame(self._asdict())


class FleetSignal(Protocol):
    """A signal for M nodes at once: the same decisions as M separate signals."""

    def decide(self, evidence: FleetEvidence) -> FleetDecision:
        """Answer for one timestep of every node."""
        ...

    def reason(self, node: int) -> str:
        """Say why `node` was decided as it was at the last timestep."""
        ...
