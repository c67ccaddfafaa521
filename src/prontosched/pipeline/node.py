"""A node: the whole way from a telemetry vector to a decision. Start here.

No clock, no file, no socket. What a node does depends only on the vectors it
is given, so a recorded trace replays exactly as it ran.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from prontosched.codec import MAX_BYTES, decode, encode
from prontosched.decision import NAN, Decision, Evidence, Signal
from prontosched.errors import ProntoError, StateError
from prontosched.pipeline import Embedding, find_embedding
from prontosched.pipeline.embedding import finite
from prontosched.pipeline.projection import Projector, SpikeDetector
from prontosched.signals import find_signal
from prontosched.subspace import Array, Subspace, merge
from prontosched.telemetry.scaling import IMPLAUSIBLE, Scaling

STATE_KIND = "node"
STATE_VERSION = 1
FLOAT = np.dtype(np.float64)
# An adopted view counts as this many vectors at first, and half of that after
# each half-life of own vectors; below the least it is let go.
ADOPTED_SAMPLES = 20.0
ADOPTED_HALF_LIFE = 500.0
LEAST_WEIGHT = 1.0
# Clock times in seconds are below the first, as signals have it; those in milli- to nanoseconds between the two.
LATEST_SECONDS, LATEST_TIME = 1e12, 1e20
NOTHING = np.zeros(0)
_new = object.__new__


class Node:
    """Decide, vector by vector, whether one machine can take another job.

    Parameters
    ----------
    embedding
        Follows the leading subspace of the node's own vectors.
    signal
        Turns the evidence of a step into a decision.
    scaling
        Brings the metrics to one scale; None takes vectors as they are.
    projector, detector
        Stages 3 and 4; by default with a lag of 10 vectors.
    metrics
        Names of the metrics, for reasons a person can read.

    Attributes
    ----------
    evidence
        What the last decision was made from; None before the first.
    timestep
        Vectors seen.

    Notes
    -----
    Memory: about `d * (4 * rank + block_size + lag + 41)` floats, and what the signal holds.

    Examples
    --------
    >>> from prontosched.pipeline import FPCAEdge
    >>> from prontosched.signals import RejectJob
    >>> node = Node(FPCAEdge(rank=1, block_size=5), RejectJob(), scaling=None)
    >>> load = [1.0, 2.0, 1.5, 2.5, 1.8] * 5 + [30.0]
    >>> decisions = [node.step(v * np.array([3.0, 4.0])) for v in load]
    >>> decisions[-1].accept, decisions[-2].accept
    (False, True)
    """

    def __init__(
        self,
        embedding: Embedding,
        signal: Signal,
        *,
        scaling: Scaling | None,
        projector: Projector | None = None,
        detector: SpikeDetector | None = None,
        metrics: tuple[str, ...] | None = None,
    ) -> None:
        self.embedding = embedding
        self.signal = signal
        self.scaling = scaling
        self.projector = projector or Projector()
        self.detector = detector or SpikeDetector(self.projector.lag)
        if self.detector.lag != self.projector.lag:
            raise ValueError(
                f"projector and detector must have one lag, got {self.projector.lag} and {self.detector.lag}"
            )
        self.metrics = metrics
        self._dampen = bool(getattr(embedding, "restless", False))
        self.evidence: Evidence | None = None
        self.timestep = 0
        self._shape: tuple[int] | None = None
        self._adopted: Subspace | None = None
        self._view: Subspace | None = None
        self._seen_own: Subspace | None = None

    def step(self, y: Any, *, ready: float = NAN, utilisation: float = NAN, time: float = NAN) -> Decision:
        """Carry one telemetry vector all the way to a decision.

        Parameters
        ----------
        y
            All metrics now, `(d,)`; NaN where one is unknown. With names (a dict, a pandas
            Series, a data frame of one row) they are matched by name: a missing one is
            unknown, a new one is left out with a warning. CPU Ready is not among them: it
            would leak the answer into the question.
        ready, utilisation, time
            CPU Ready and CPU utilisation now, and the clock in seconds; NaN where unknown.
        """
        if ready < 0.0:
            check_ready(ready, self.timestep)
        if LATEST_SECONDS < time < LATEST_TIME:
            warnings.warn(
                f"time must be in seconds, got {time:.0f}, which counts as unknown: divide milliseconds by 1000",
                stacklevel=2,
            )
            time = NAN
        if y.__class__ is not np.ndarray or y.shape != self._shape or y.dtype is not FLOAT:
            y = self._checked(y)
        y = finite(y, IMPLAUSIBLE) if self.scaling is None else self.scaling.scale(y)
        view = self.embedding.subspace if self._adopted is None else self.view
        projector, spikes, samples = self.projector, None, 0.0
        projections = projector.project(view, y)
        if view is not None:
            if projector.window is not None:
                self.detector.refill(projector.window, projector.slot, dampen=self._dampen)
            spikes = self.detector.detect(projections)
            samples = self.embedding.samples or ADOPTED_SAMPLES
        # By its parts, evidence costs a third less.
        self.evidence = evidence = _new(Evidence)
        evidence.timestep = self.timestep
        evidence.ready = ready
        evidence.utilisation = utilisation
        evidence.time = time
        evidence.vector = y
        evidence.subspace = projector.subspace
        evidence.projections = projections
        evidence.spikes = spikes
        evidence.samples = samples
        evidence.metrics = self.metrics
        decision = self.signal.decide(evidence)
        self.embedding.learn_one(y)  # last: no vector has a say in its own verdict
        self.timestep += 1
        return decision

    def _checked(self, y: Array) -> Array:
        """Return a first vector, or one not given as an array of floats, as such; refuse one of another length."""
        named = _named(y)
        y = np.asarray(y, dtype=np.float64) if named is None else self._by_name(named)
        features = self.features
        if y.ndim != 1 or not y.size or (features is not None and y.shape[0] != features):
            expected = "at least one number" if features is None else f"{features} numbers"
            raise ValueError(
                f"a vector must have {expected}, one per metric, got shape {y.shape}: "
                "metrics that change need a new node"
            )
        self._shape = (y.shape[0],)
        return y

    def _by_name(self, values: Mapping[str, Any]) -> Array:
        """Return the values of the node's metrics, in their order; the first names given are its metrics."""
        if self.metrics is None:
            if self._shape is not None:
                raise ValueError("vectors must stay without names as the first one was, got named metrics")
            self.metrics = tuple(values)
        new = sorted(values.keys() - set(self.metrics))
        if new:
            warnings.warn(
                f"metrics must be those the node started with; left out: {', '.join(new[:5])}"
                f"{' …' if len(new) > 5 else ''}",
                stacklevel=4,
            )
        return np.array([values.get(name, NAN) for name in self.metrics], dtype=np.float64)

    def __repr__(self) -> str:
        metrics = "no vector yet" if self.features is None else f"{self.features} metrics"
        return f"Node({self.embedding.name}, {self.signal.name}, {metrics}, timestep={self.timestep})"

    @property
    def view(self) -> Subspace | None:
        """The subspace projected on: the node's own, merged with an adopted one while that counts."""
        own = self.embedding.subspace
        if self._adopted is None:
            return own
        if own is not self._seen_own or self._view is None:
            self._seen_own = own
            self._view = self._merged(own)
        return self._view

    def _merged(self, own: Subspace | None) -> Subspace | None:
        adopted = self._adopted
        if own is None or adopted is None:
            return adopted
        weight = adopted_weight(self.timestep)
        if weight < LEAST_WEIGHT:
            self._adopted = None
            return own
        faded = Subspace(adopted.basis, adopted.singular_values * np.sqrt(weight))
        return merge(faded, own, rank=own.rank)

    def adopt(self, global_view: Subspace, *, samples: float) -> None:
        """Project on the global view too, for as long as own vectors are few.

        The node's own subspace stays apart and is the only thing it propagates, so
        that its data never return to it as someone else's.

        Parameters
        ----------
        global_view
            The subspace at the root, over this node's metrics and in its scaled units.
        samples
            Vectors behind the global view's singular values.
        """
        if not samples > 0:
            raise ValueError(f"samples must be positive, got {samples}")
        features = self.features
        if features is not None and global_view.features != features:
            raise ValueError(
                f"a global view must have {features} metrics as this node has, got {global_view.features}: "
                "align it to the node's metrics first"
            )
        per_sample = global_view.singular_values / np.sqrt(samples)
        # Laid out in memory as it will be when restored: merging then rounds alike.
        self._adopted = Subspace(np.ascontiguousarray(global_view.basis.T).T, per_sample)
        self._view = None

    @property
    def features(self) -> int | None:
        """Number of metrics, None before the first vector."""
        if self._shape is None:
            return len(self.metrics) if self.metrics else None
        return self._shape[0]

    def to_bytes(self) -> bytes:
        """Return the whole state: a node made from it goes on bit for bit as if it had not stopped."""
        fields: dict[str, Any] = {
            "embedding": self.embedding.name,
            "embedding_settings": self.embedding.settings(),
            "signal": self.signal.name,
            "signal_settings": self.signal.settings(),
            "lag": self.projector.lag,
            "orient": self.projector.orient,
            "detector_settings": [self.detector.threshold, self.detector.influence, self.detector.floor],
            "metrics": None if self.metrics is None else list(self.metrics),
            "timestep": self.timestep,
            "scaling_settings": None,
        }
        parts: dict[str, Mapping[str, Any]] = {
            "embedding": self.embedding.state(),
            "projector": {**self.projector.state(), "met": self.projector.source is self.view},
            "detector": self.detector.state(),
            "signal": self.signal.state(),
        }
        if self.scaling is not None:
            fields["scaling_settings"] = [self.scaling.half_life, self.scaling.clip, self.scaling.block_size]
            parts["scaling"] = self.scaling.state()
        for name, subspace in (("adopted", self._adopted), ("view", self.view)):
            if subspace is not None:
                parts[name] = {
                    "rows": np.ascontiguousarray(subspace.basis.T),
                    "strengths": subspace.singular_values,
                }
        for part, values in parts.items():
            fields.update({f"{part}.{name}": value for name, value in values.items()})
        return encode(STATE_KIND, STATE_VERSION, fields)

    @classmethod
    def from_bytes(cls, data: bytes, *, limit: int = MAX_BYTES) -> Node:
        """Return the node that `to_bytes` was called on, or raise `StateError`."""
        fields = decode(data, kind=STATE_KIND, version=STATE_VERSION, limit=limit)
        try:
            check_magnitude(fields)
            node = cls._restored(fields)
            node._check_shapes(fields)
            return node
        except (
            *(KeyError, TypeError, ValueError, IndexError, AttributeError),
            *(OverflowError, RecursionError, MemoryError, ProntoError),
        ) as error:
            raise StateError(
                f"node state must hold everything a node needs, got {error!r}: set it aside"
            ) from error

    def _check_shapes(self, fields: Mapping[str, Any]) -> None:
        """Refuse arrays that a part took and holds in another shape; signals check their own."""
        for part in ("embedding", "projector", "detector", "scaling"):
            holder = getattr(self, part)
            for name, value in holder.state().items() if holder is not None else ():
                saved = fields.get(f"{part}.{name}", value)
                if isinstance(value, np.ndarray) and np.shape(saved) != value.shape:
                    raise ValueError(f"{part}.{name} of another shape")

    @classmethod
    def _restored(cls, fields: dict[str, Any]) -> Node:
        parts: dict[str, dict[str, Any]] = {}
        for key, value in fields.items():
            part, dot, name = key.partition(".")
            if dot:
                parts.setdefault(part, {})[name] = value
        settings = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields["embedding_settings"].items()
        }
        scaling = fields["scaling_settings"]
        threshold, influence, floor = fields["detector_settings"]
        node = cls(
            find_embedding(fields["embedding"])(**settings),
            find_signal(fields["signal"]).one(**fields["signal_settings"]),
            scaling=None if scaling is None else Scaling(*scaling),
            projector=Projector(fields["lag"], orient=fields["orient"]),
            detector=SpikeDetector(fields["lag"], threshold, influence, floor=floor),
            metrics=None if fields["metrics"] is None else tuple(fields["metrics"]),
        )
        node.timestep = int(fields["timestep"])
        if (features := parts["projector"]["past"].shape[1]) > 0:
            node._shape = (features,)
        node.embedding.restore(parts["embedding"])
        node.detector.restore(parts["detector"])
        node.signal.restore(parts["signal"])
        if node.scaling is not None:
            node.scaling.restore(parts["scaling"])
        if "adopted" in parts:
            node._adopted = _subspace(parts["adopted"])
            node._view = _subspace(parts["view"])
            node._seen_own = node.embedding.subspace
        saved = parts["projector"]
        used, rows = saved["rows"], parts.get("view", {}).get("rows", NOTHING)
        met = used.size and rows.shape == used.shape
        # States of earlier releases do not say whether the projector had met the view.
        met = met and saved.get("met", np.array_equal(np.abs(rows), np.abs(used)))
        node.projector.restore(saved, node.view if met else None)
        return node


def check_ready(ready: Array | float, timestep: Any) -> None:
    """Refuse CPU Ready below 0, of one node or of many; what is implausible counts as unknown."""
    below = np.asarray((np.asarray(ready) > -IMPLAUSIBLE) & (np.asarray(ready) < 0.0))
    if below.any():
        value, at = (np.broadcast_to(found, below.shape)[below][0] for found in (ready, timestep))
        raise ValueError(f"CPU Ready must be at least 0, NaN where unknown, got {value:g} at timestep {at}")


# Of numbers in saved state: beyond, products overflow and a decomposition may never end.
LARGEST_NUMBER, LARGEST_SETTING = 1e100, 10_000_000


def check_magnitude(fields: Mapping[str, Any]) -> None:
    """Refuse state with numbers that no node ever had.

    Raises
    ------
    ValueError
        A number is too large to be computed with, or a setting too large to be one.
    """
    arrays = [v.ravel() for v in fields.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    flat = np.concatenate(arrays or [np.zeros(0)])
    # Unknown and infinite ones are for those to judge who use them.
    if (np.abs(flat[np.isfinite(flat)]) > LARGEST_NUMBER).any():
        raise ValueError(f"numbers must be at most {LARGEST_NUMBER:g}")
    for key, value in fields.items():
        if isinstance(value, Mapping):
            check_magnitude(value)
        elif not isinstance(value, np.ndarray):
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, int) and not -LARGEST_SETTING <= one <= 2**62:
                    raise ValueError(f"{key} must be a number that a node could have")


def _named(y: Any) -> Mapping[str, Any] | None:
    """Return the values by name where `y` has names that are texts: a dict, a Series, a frame of one row."""
    if isinstance(y, np.ndarray):
        return None
    if hasattr(y, "columns"):
        if len(y) != 1:
            raise ValueError(
                f"a frame must have one row, got {len(y)}: prontosched.replay takes whole tables"
            )
        values = dict(zip(y.columns, np.asarray(y.to_numpy())[0].tolist(), strict=True))
    elif hasattr(y, "items"):
        values = dict(y.items())
    else:
        return None
    return values if all(isinstance(name, str) for name in values) else None


def _subspace(part: Mapping[str, Any]) -> Subspace:
    return Subspace(part["rows"].T, part["strengths"])


def adopted_weight(timestep: float) -> float:
    """Return as how many vectors an adopted view counts for a node that has seen `timestep` of its own.

    Examples
    --------
    >>> adopted_weight(0), adopted_weight(500)
    (20.0, 10.0)
    """
    return float(ADOPTED_SAMPLES * 0.5 ** (timestep / ADOPTED_HALF_LIFE))
