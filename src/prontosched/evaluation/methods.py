"""The methods under evaluation: what each is called, what it needs, how it is made.

Plain rules that a user would write in five lines, rules that look at nothing at all, and those that other
schedulers publish (`competitors`) score some rows at a time, each from its past and itself alone. Learned
references that need other libraries are in `references`. New signals need no entry here: whatever is registered
in `prontosched.signals` appears by itself.
"""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from prontosched.decision import FleetSignal, Signal
from prontosched.errors import SettingsError
from prontosched.evaluation.competitors import COMPETITORS, SOURCES, Competitor
from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.measures import Mask
from prontosched.signals import all_signals, find_signal
from prontosched.signals.inputs import weight
from prontosched.subspace import Array

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
# Rules that compare CPU Ready itself, or what it stands for, with a published limit.
ON_READY = ("psi", "r15s", "r1m")


class Said(NamedTuple):
    """What a method says of some rows, `(steps, nodes)` each.

    Attributes
    ----------
    score
        NaN says nothing.
    raised
        Its own decisions; None for a score without a threshold of its own, which is then raised in the
        highest tenth of its own past.
    probability
        Chance of a spike; None where the method knows none.
    """

    score: Array
    raised: Mask | None
    probability: Array | None = None


@dataclass(slots=True)
class Rows:
    """The next rows of all nodes of a chunk, side by side: `(steps, nodes)`, vectors `(steps, nodes, metrics)`.

    Attributes
    ----------
    timestep
        Position in each node's own stream.
    threshold
        CPU Ready from which there is contention.
    present
        The node has such a row.
    t_squared, spe, scaled
        As seen through the embedding, for methods that look through one: Hotelling's T², the squared
        prediction error, and the scaled vectors.
    """

    ready: Array
    utilisation: Array
    time: Array
    present: Mask
    timestep: NDArray[np.int64]
    threshold: Array
    vectors: Array
    t_squared: Array
    spe: Array
    scaled: Array


class Scorer(Protocol):
    """A method under evaluation, for a chunk of nodes at once; it never sees the future."""

    def score(self, rows: Rows) -> Said:
        """Score the next rows; each from its past and itself alone."""
        ...


class Signals(NamedTuple):
    """A registered signal, to be made for one node or for many at once."""

    one: Callable[[], Signal]
    fleet: Callable[[int], FleetSignal]


class CurrentReady:
    """Refuse while CPU Ready is at or over the threshold."""

    def score(self, rows: Rows) -> Said:
        """Score by the present value."""
        return Said(rows.ready, _reaches(rows.ready, rows.threshold))


class PublishedRule:
    """A rule of another scheduler, from `prontosched.evaluation.competitors`.

    Utilisation is taken as a share of 1 on a node where it never was above 1. CPU Ready in a unit of its own
    still ranks moments; the rule's published limit then means nothing.
    """

    def __init__(self, rule: Competitor, ready_unit: str, interval_seconds: float) -> None:
        self.rule = rule
        self._to_percent = 0.1 / interval_seconds if ready_unit == "ms" and interval_seconds > 0 else 1.0
        self._demand = ready_unit == "other"
        self._most: Array | None = None

    def score(self, rows: Rows) -> Said:
        """Let the rule decide, row by row."""
        busy = rows.utilisation
        first = np.full(busy.shape[1:], -np.inf) if self._most is None else self._most
        most = np.fmax.accumulate(np.concatenate([first[None], busy]), axis=0)[1:]
        self._most = most[-1]
        percent = np.where(most <= 1.0, 100.0 * busy, busy)
        ready = rows.ready * self._to_percent
        return Said(*self.rule.step(ready, percent, ready if self._demand else None, rows.present))


class SmoothedReady:
    """An exponentially weighted mean of CPU Ready.

    Notes
    -----
    Memory: one float per node.
    """

    def __init__(self, nodes: int, weight: float = 0.3) -> None:
        self.weight = weight
        self._mean = np.full(nodes, np.nan)

    def score(self, rows: Rows) -> Said:
        """Score by the mean, the present included."""
        score = np.empty_like(rows.ready)
        for step, ready in enumerate(rows.ready):
            score[step] = self._mean = _blend(self._mean, ready, self.weight)
        return Said(score, _reaches(score, rows.threshold))


class ReadyZScore:
    """How many deviations CPU Ready lies above its own recent mean.

    Notes
    -----
    Memory: two floats per node.
    """

    def __init__(self, nodes: int, half_life: float = 600.0, limit: float = 3.0) -> None:
        self.limit = limit
        self._weight = weight(half_life)
        self._mean = np.full(nodes, np.nan)
        self._variance = np.full(nodes, np.nan)
        self._seen = np.zeros(nodes)

    def score(self, rows: Rows) -> Said:
        """Score against the mean and deviation of the past."""
        score = np.stack([self._step(ready) for ready in rows.ready])
        return Said(score, _reaches(score, self.limit))

    def _step(self, ready: Array) -> Array:
        off = ready - self._mean
        score: Array = off / np.sqrt(np.maximum(self._variance, 1e-18))
        # A mean of the first values, then an exponential one.
        recent = np.maximum(1.0 / (self._seen + 2.0), self._weight)
        self._mean = _blend(self._mean, ready, recent)
        self._variance = _blend(self._variance, np.where(np.isfinite(off), off * off, 0.0), recent)
        self._seen += np.isfinite(ready)
        score[self._seen < 20] = np.nan
        return score


class Utilisation:
    """CPU utilisation, raised in its own highest tenth."""

    def score(self, rows: Rows) -> Said:
        """Score by utilisation now."""
        return Said(rows.utilisation, None)


class DistanceMeans:
    """T² and SPE of some nodes, each relative to its own recent mean, so that they can be added.

    Notes
    -----
    Memory: two floats per node.
    """

    def __init__(self, nodes: int, half_life: float = 600.0) -> None:
        self._weight = weight(half_life)
        self._means = np.full((2, nodes), np.nan)
        self._rows: Rows | None = None
        self._relative: Array = np.zeros((0, 2, nodes))

    def relative(self, rows: Rows) -> Array:
        """Return both, `(steps, 2, nodes)`, worked out once for the same rows."""
        if rows is not self._rows:
            both = np.stack([rows.t_squared, rows.spe], axis=1)
            self._relative = np.stack([self._step(now) for now in both])
            self._rows = rows
        return self._relative

    def _step(self, both: Array) -> Array:
        means = self._means
        relative: Array = both / np.maximum(means, 1e-12)
        # One absurd vector must not silence the rest of the day; an unknown one moves nothing.
        bounded = np.where(np.isnan(both), np.nan, np.fmin(both, 100.0 * means + 1e-9))
        self._means = _blend(means, bounded, self._weight)
        return relative


class SubspaceDistance:
    """Hotelling's T², the squared prediction error, or both, of the node's own subspace.

    T² says how unusual a vector is within the subspace, SPE how far it lies outside.
    """

    def __init__(self, means: DistanceMeans, *, inside: bool, outside: bool) -> None:
        self._used = [place for place, used in enumerate((inside, outside)) if used]
        self._means = means

    def score(self, rows: Rows) -> Said:
        """Score by the distance from what is usual."""
        return Said(self._means.relative(rows)[:, self._used].sum(axis=1), None)


class Coin:
    """Refuse at random: what any method must beat at equal downtime."""

    def __init__(self, nodes: tuple[str, ...], downtime: float, seed: int) -> None:
        self.downtime = downtime
        self._generators = [np.random.default_rng([seed, 11, zlib.crc32(node.encode())]) for node in nodes]

    def score(self, rows: Rows) -> Said:
        """Score at random."""
        steps = rows.ready.shape[0]
        score = np.stack([generator.random(steps) for generator in self._generators], axis=1)
        return Said(score, score > 1.0 - self.downtime)


class Clock:
    """Refuse at every tenth timestep, looking at nothing.

    Its score runs through evenly spread values, so that at any budget it is raised at even distances.
    """

    def __init__(self, period: int = 10) -> None:
        self.period = period

    def score(self, rows: Rows) -> Said:
        """Score by the number of the timestep."""
        score = np.asarray((rows.timestep * GOLDEN) % 1.0, np.float64)
        return Said(score, rows.timestep % self.period == 0)


class AlwaysAccept:
    """Never refuse."""

    def score(self, rows: Rows) -> Said:
        """Say nothing, accept everything."""
        return Said(np.full(rows.ready.shape, np.nan), np.zeros(rows.ready.shape, bool))


def _reaches(score: Array, threshold: Array | float) -> Mask:
    found: Mask = score >= threshold
    return found


def _blend(mean: Array, value: Array, weight: Array | float) -> Array:
    """Return the mean moved towards the value; an unknown value moves nothing, the first is the mean."""
    moved = np.where(np.isfinite(mean), mean + weight * (value - mean), value)
    return np.where(np.isfinite(value), moved, mean)


EMBEDDING_LABELS = {
    "fpca": "FPCA-Edge",
    "spirit": "SPIRIT",
    "frequent-directions": "Frequent Directions",
    "power-method": "power method",
}
# Up to here arrays cost more than they save.
FEW = 8
# Embeddings whose singular values are taken as 1, 1/2, 1/3, … as in the paper.
WITHOUT_SINGULAR_VALUES = ("frequent-directions", "power-method")


@dataclass(frozen=True)
class Chunked:
    """What a method is told of the nodes it runs for."""

    nodes: tuple[str, ...]
    features: int
    interval_seconds: float
    tolerance: str
    setting: Setting
    ready_unit: str = "percent"

    @property
    def few(self) -> bool:
        """Tell whether the nodes are so few that each on its own is faster than all as arrays."""
        return len(self.nodes) <= FEW

    @cached_property
    def distances(self) -> DistanceMeans:
        """T² and SPE relative to their means, for all methods that score by them."""
        return DistanceMeans(len(self.nodes))


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes
    ----------
    name, label
        On the command line, and in tables.
    family
        `learned`, `competitor`, `published`, `subspace`, `plain`, `null` or `reference`.
    about
        One line for a reader.
    make
        Makes it for a chunk of nodes.
    preset, embedding
        Which stages 2 to 4 it looks through; an empty embedding looks at none.
    options
        Of those stages, e.g. `rank` and `lag`.
    default
        Runs without being named.
    percent_only
        Its own decisions mean something only where CPU Ready is known in percent of a CPU.
    """

    name: str
    label: str
    family: str
    about: str
    make: Callable[[Chunked], Scorer | Signals]
    preset: str = "paper"
    embedding: str = ""
    options: tuple[tuple[str, Any], ...] = field(default=())
    default: bool = True
    percent_only: bool = False


def _signal(name: str, **given: Any) -> Callable[[Chunked], Signals]:
    def make(chunk: Chunked) -> Signals:
        kind, setting = find_signal(name), chunk.setting
        known = {
            "horizon": setting.horizon,
            "tolerance": chunk.tolerance,
            "interval_seconds": chunk.interval_seconds,
            "features": chunk.features,
            "seed": setting.seed,
        }
        accepted = inspect.signature(kind.one).parameters
        options = {**{key: value for key, value in known.items() if key in accepted}, **given}
        return Signals(lambda: kind.one(**options), lambda nodes: kind.fleet(nodes, **options))

    return make


def _published() -> list[Method]:
    found = []
    for name, embedding in (
        ("paper", "fpca"),
        ("paper-spirit", "spirit"),
        ("paper-fd", "frequent-directions"),
        ("paper-pm", "power-method"),
    ):
        weights = "harmonic" if embedding in WITHOUT_SINGULAR_VALUES else "normalised"
        label = EMBEDDING_LABELS[embedding]
        about = f"Reject-Job of the paper on {label}"
        found.append(
            Method(
                name,
                f"Reject-Job ({label})",
                "published",
                about,
                _signal("paper", weights=weights),
                embedding=embedding,
            )
        )
    absolute = _signal("paper", absolute=True)
    found.append(
        Method("paper-absolute", "Reject-Job (either sign)", "published",
               "Reject-Job counting spikes up and down alike", absolute, embedding="fpca")
    )  # fmt: skip
    return found


def _plain() -> list[Method]:
    return [
        Method("t2", "T²", "subspace", "how unusual a vector is within the subspace",
               lambda c: SubspaceDistance(c.distances, inside=True, outside=False), embedding="fpca"),
        Method("spe", "SPE", "subspace", "how far a vector lies outside the subspace",
               lambda c: SubspaceDistance(c.distances, inside=False, outside=True), embedding="fpca"),
        Method("t2+spe", "T² + SPE", "subspace", "both, each relative to its recent mean",
               lambda c: SubspaceDistance(c.distances, inside=True, outside=True), embedding="fpca"),
        Method("ewma", "EWMA(0.3) of CPU Ready", "plain", "refuse while its smoothed value is high",
               lambda c: SmoothedReady(len(c.nodes))),
        Method("zscore", "z-score of CPU Ready", "plain", "deviations above its recent mean",
               lambda c: ReadyZScore(len(c.nodes))),
        Method("utilisation", "CPU utilisation", "plain", "refuse while utilisation is high",
               lambda c: Utilisation()),
        Method("random", "random", "null", "a coin", lambda c: Coin(c.nodes, c.setting.budget, c.setting.seed)),
        Method("clock", "clock", "null", "every tenth timestep, looking at nothing", lambda c: Clock()),
        Method("accept", "always accept", "null", "never refuse", lambda c: AlwaysAccept()),
    ]  # fmt: skip


def _competitors() -> list[Method]:
    """Return the rules that other schedulers publish; `ready` is the one line that an operator would write."""
    labels = {
        "psi": "KEP-5394 (PSI)",
        "trimaran": "Trimaran",
        "koordinator": "Koordinator",
        "r15s": "LSF r15s",
        "r1m": "LSF r1m",
        "volcano": "Volcano",
        "n-sigma": "N-sigma",
        "peak-percentile": "past percentile",
        "peak-max": "greater of both peaks",
    }

    def rule(name: str) -> Callable[[Chunked], Scorer]:
        return lambda c: PublishedRule(
            COMPETITORS[name](len(c.nodes), _seconds(c.interval_seconds)), c.ready_unit, c.interval_seconds
        )

    one_line = Method("ready", "current CPU Ready", "competitor",
                      "one line: refuse while CPU Ready reaches the tolerance",
                      lambda c: CurrentReady())  # fmt: skip
    return [
        one_line,
        *(
            Method(name, labels.get(name, name), "competitor", SOURCES[name], rule(name),
                   percent_only=name in ON_READY)
            for name in COMPETITORS
            if name != "ready"
        ),
    ]  # fmt: skip


def _seconds(interval: float) -> float:
    """Return the interval of a trace, 1 s where it is not known."""
    return interval if interval > 0 else 1.0


def _references() -> list[Method]:
    def trees(chunk: Chunked) -> Scorer:
        from prontosched.evaluation.references import HalfSpaceTrees

        return HalfSpaceTrees(chunk.nodes, chunk.setting.seed)

    def boosting(chunk: Chunked) -> Scorer:
        from prontosched.evaluation.references import Boosting

        return Boosting(len(chunk.nodes), chunk.setting.horizon, chunk.setting.seed)

    return [
        Method("half-space-trees", "HalfSpaceTrees", "reference", "river's online anomaly detector on all metrics",
               trees, embedding="fpca", default=False),
        Method("boosting", "gradient boosting", "reference",
               "scikit-learn, trained again on all the past every 4,000 steps", boosting, default=False),
    ]  # fmt: skip


def _registered(name: str) -> list[Method]:
    """Return a registered signal; the learned one also blind to the embedding."""
    if name != "learned":
        return [Method(name, f"{name} signal", "learned", "a registered signal", _signal(name), preset="default",
                       embedding="fpca")]  # fmt: skip
    return [
        Method(name, "Pronto (default)", "learned", "refuses while contention is likely: the default signal and policy",
               _signal(name), preset="default", embedding="fpca"),
        Method("learned-blind", "Pronto (no embedding)", "learned", "the same, from CPU Ready's history alone",
               _signal(name), default=False),
    ]  # fmt: skip


def methods() -> dict[str, Method]:
    """Return every method by name: registered signals first, then the rest."""
    found: dict[str, Method] = {}
    for name in all_signals():
        if name != "paper":
            found.update({method.name: method for method in _registered(name)})
    for method in [*_competitors(), *_plain(), *_published(), *_references()]:
        found.setdefault(method.name, method)
    return found


def default_methods() -> tuple[str, ...]:
    """Return the names of the methods that run without being named."""
    return tuple(name for name, method in methods().items() if method.default)


def choose(names: tuple[str, ...], sweeps: tuple[tuple[str, tuple[float, ...]], ...] = ()) -> list[Method]:
    """Return the methods called `names`, and the variants of the published signal that are swept."""
    known = methods()
    for name in names:
        if name not in known:
            raise SettingsError(f"method must be one of {', '.join(known)}, got '{name}'")
    chosen = [known[name] for name in dict.fromkeys(names)]
    for option, values in sweeps:
        for value in values:
            number = int(value) if float(value).is_integer() else value
            base = known["paper"]
            chosen.append(
                replace(base, name=f"paper[{option}={number}]", label=f"Reject-Job ({option} {number})", family="sweep",
                        about=f"the published signal with {option} {number}", options=((option, number),))
            )  # fmt: skip
    return chosen
