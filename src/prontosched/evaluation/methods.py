"""The methods under evaluation: what each is called, what it needs, how it is made.

New signals need no entry here: whatever is registered in `prontosched.signals` appears by itself. `scorers` has the
arithmetic of all others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from prontosched.decision import FleetSignal, Signal
from prontosched.errors import SettingsError
from prontosched.evaluation.competitors import COMPETITORS, SOURCES
from prontosched.evaluation.inputs import Setting
from prontosched.evaluation.scorers import (
    Boosting,
    Coin,
    CompetitorScorer,
    DistanceMeans,
    HalfSpaceTrees,
    ReadyZScore,
    Scorer,
    SmoothedReady,
    always_accept,
    clock,
    current_ready,
    utilisation,
)
from prontosched.signals import all_signals, find_signal

EMBEDDING_LABELS = {
    "fpca": "FPCA-Edge",
    "spirit": "SPIRIT",
    "frequent-directions": "Frequent Directions",
    "power-method": "power method",
}
COMPETITOR_LABELS = {
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
# Rules that compare CPU Ready itself, or what it stands for, with a published limit.
ON_READY = ("psi", "r15s", "r1m")
# How long a method that holds its raises does so: the paper's window.
HELD_STEPS = 10
# Up to here arrays cost more than they save.
FEW = 8


@dataclass(frozen=True)
class MethodContext:
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


class Signals(NamedTuple):
    """A registered signal, to be made for one node or for many at once."""

    one: Callable[[], Signal]
    fleet: Callable[[int], FleetSignal]


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes
    ----------
    name, label, about
        On the command line, in tables, and in one line for a reader.
    family
        `learned`, `competitor`, `published`, `subspace`, `plain`, `null` or `reference`.
    preset, embedding
        Which stages 2 to 4 it looks through; an empty embedding looks at none.
    sees
        What it takes from those stages: `distances` (T² and SPE), scaled `vectors`, or nothing.
    percent_only
        Its own decisions mean something only where CPU Ready is known in percent of a CPU.
    """

    name: str
    label: str
    family: str
    about: str
    make: Callable[[MethodContext], Scorer | Signals]
    preset: str = "paper"
    embedding: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    sees: str = ""
    default: bool = True
    percent_only: bool = False


def _signal(name: str, **given: Any) -> Callable[[MethodContext], Signals]:
    def make(context: MethodContext) -> Signals:
        kind, setting = find_signal(name), context.setting
        known = {
            "horizon": setting.horizon,
            "tolerance": context.tolerance,
            "interval_seconds": context.interval_seconds,
            "features": context.features,
            "seed": setting.seed,
        }
        accepted = inspect.signature(kind.one).parameters
        options = {**{key: value for key, value in known.items() if key in accepted}, **given}
        return Signals(lambda: kind.one(**options), lambda nodes: kind.fleet(nodes, **options))

    return make


def _published() -> list[Method]:
    found = []
    # Frequent Directions and the power method take 1, 1/2, 1/3, … for singular values, as in the paper.
    for name, embedding, weights in (
        ("paper", "fpca", "normalised"),
        ("paper-spirit", "spirit", "normalised"),
        ("paper-fd", "frequent-directions", "harmonic"),
        ("paper-pm", "power-method", "harmonic"),
    ):
        label = EMBEDDING_LABELS[embedding]
        about, signal = f"Reject-Job of the paper on {label}", _signal("paper", weights=weights)
        found.append(Method(name, f"Reject-Job ({label})", "published", about, signal, embedding=embedding))
    absolute = Method("paper-absolute", "Reject-Job (either sign)", "published",
                      "Reject-Job counting spikes up and down alike", _signal("paper", absolute=True),
                      embedding="fpca")  # fmt: skip
    variants = [
        Method("paper-raw", "Reject-Job (raw σ)", "published", "Reject-Job weighted by singular values as printed",
               _signal("paper", weights="raw"), embedding="fpca", default=False),
        Method("paper-hold", "Reject-Job (held)", "published", f"Reject-Job, every raise held for {HELD_STEPS} steps",
               _signal("paper", hold=HELD_STEPS), embedding="fpca", default=False),
        Method("paper-adaptive", "Reject-Job (adaptive rank)", "published",
               "Reject-Job with a rank that adapts within energies of 1 and 10 %", _signal("paper"),
               embedding="fpca", options=(("energy_bounds", (0.01, 0.1)),), default=False),
    ]  # fmt: skip
    return [*found, absolute, *variants]


def _distance(name: str, label: str, about: str, *used: int) -> Method:
    def make(context: MethodContext) -> Scorer:
        return context.distances.scorer(*used)

    return Method(name, label, "subspace", about, make, embedding="fpca", sees="distances")


def _plain() -> list[Method]:
    return [
        _distance("t2", "T²", "how unusual a vector is within the subspace", 0),
        _distance("spe", "SPE", "how far a vector lies outside the subspace", 1),
        _distance("t2+spe", "T² + SPE", "both, each relative to its recent mean", 0, 1),
        Method("ewma", "EWMA(0.3) of CPU Ready", "plain", "refuse while its smoothed value is high",
               lambda c: SmoothedReady(len(c.nodes)).score),
        Method("zscore", "z-score of CPU Ready", "plain", "deviations above its recent mean",
               lambda c: ReadyZScore(len(c.nodes)).score),
        Method("utilisation", "CPU utilisation", "plain", "refuse while utilisation is high",
               lambda c: utilisation),
        Method("random", "random", "null", "a coin",
               lambda c: Coin(c.nodes, c.setting.budget, c.setting.seed).score),
        Method("clock", "clock", "null", "every tenth timestep, looking at nothing", lambda c: clock),
        Method("accept", "always accept", "null", "never refuse", lambda c: always_accept),
    ]  # fmt: skip


def _competitors() -> list[Method]:
    """Return the rules that other schedulers publish; `ready` is the one line that an operator would write."""

    def rule(name: str) -> Callable[[MethodContext], Scorer]:
        def make(context: MethodContext) -> Scorer:
            interval = context.interval_seconds
            made = COMPETITORS[name](len(context.nodes), interval if interval > 0 else 1.0)
            return CompetitorScorer(made, context.ready_unit, interval).score

        return make

    one_line = Method("ready", "current CPU Ready", "competitor",
                      "one line: refuse while CPU Ready reaches the tolerance", lambda c: current_ready)  # fmt: skip
    return [
        one_line,
        *(
            Method(name, label, "competitor", SOURCES[name], rule(name), percent_only=name in ON_READY)
            for name, label in COMPETITOR_LABELS.items()
        ),
    ]


def _references() -> list[Method]:
    return [
        Method("half-space-trees", "HalfSpaceTrees", "reference", "river's online anomaly detector on all metrics",
               lambda c: HalfSpaceTrees(c.nodes, c.setting.seed).score, embedding="fpca", sees="vectors",
               default=False),
        Method("boosting", "gradient boosting", "reference",
               "scikit-learn, trained again on all the past every 4,000 steps",
               lambda c: Boosting(len(c.nodes), c.setting.horizon, c.setting.seed).score, default=False),
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
