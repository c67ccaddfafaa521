"""The methods under evaluation: what each is called, what it needs, how it is made.

New signals need no entry here: whatever is registered in `prontosched.signals` appears by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from prontosched.competitors import COMPETITORS, SOURCES
from prontosched.errors import SettingsError
from prontosched.evaluation import scorers
from prontosched.evaluation.scorers import Scorer, Signals
from prontosched.evaluation.setting import Setting
from prontosched.signals import all_signals, find_signal

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
    def distances(self) -> scorers.DistanceMeans:
        """T² and SPE relative to their means, for all methods that score by them."""
        return scorers.DistanceMeans(len(self.nodes))


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
    s = scorers
    return [
        Method("t2", "T²", "subspace", "how unusual a vector is within the subspace",
               lambda c: s.SubspaceDistance(c.distances, inside=True, outside=False), embedding="fpca"),
        Method("spe", "SPE", "subspace", "how far a vector lies outside the subspace",
               lambda c: s.SubspaceDistance(c.distances, inside=False, outside=True), embedding="fpca"),
        Method("t2+spe", "T² + SPE", "subspace", "both, each relative to its recent mean",
               lambda c: s.SubspaceDistance(c.distances, inside=True, outside=True), embedding="fpca"),
        Method("ewma", "EWMA(0.3) of CPU Ready", "plain", "refuse while its smoothed value is high",
               lambda c: s.SmoothedReady(len(c.nodes))),
        Method("zscore", "z-score of CPU Ready", "plain", "deviations above its recent mean",
               lambda c: s.ReadyZScore(len(c.nodes))),
        Method("utilisation", "CPU utilisation", "plain", "refuse while utilisation is high",
               lambda c: s.Utilisation()),
        Method("random", "random", "null", "a coin", lambda c: s.Coin(c.nodes, c.setting.budget, c.setting.seed)),
        Method("clock", "clock", "null", "every tenth timestep, looking at nothing", lambda c: s.Clock()),
        Method("accept", "always accept", "null", "never refuse", lambda c: s.AlwaysAccept()),
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
        return lambda c: scorers.PublishedRule(
            COMPETITORS[name](len(c.nodes), _seconds(c.interval_seconds)), c.ready_unit, c.interval_seconds
        )

    one_line = Method("ready", "current CPU Ready", "competitor",
                      "one line: refuse while CPU Ready reaches the tolerance",
                      lambda c: scorers.CurrentReady())  # fmt: skip
    return [
        one_line,
        *(
            Method(name, labels.get(name, name), "competitor", SOURCES[name], rule(name),
                   percent_only=name in scorers.ON_READY)
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
